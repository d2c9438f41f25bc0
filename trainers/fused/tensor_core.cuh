// Products of small matrices by one warp: 16 x 16 of A times 16 x 8 of B, added to 16 x 8 of float.
//
// Constant:
//   FULL_PRECISION  whether elements are floats, or bfloat16
// Sums are floats. Tensor cores multiply bfloat16, from sm_80 on. Elsewhere, as on a CPU, lanes exchange what they
// hold: slow, and the same to the order of additions.
//
// Lane 4 g + t of a warp holds, of
//   A   rows g and g + 8, columns 2 t, 2 t + 1 and 2 t + 8, 2 t + 9
//       as pairs (g, 2 t), (g + 8, 2 t), (g, 2 t + 8), (g + 8, 2 t + 8)
//   B   column g, rows 2 t, 2 t + 1 and 2 t + 8, 2 t + 9
//   C   rows g and g + 8, columns 2 t and 2 t + 1
// so the sums of two products side by side, packed, are a tile of A for the next layer.
//
// Weights lie in blocks of 8 x 8, [row / 8][column / 8][8][8], which one lane in eight loads as a whole row.
#pragma once
#include "warpdrive.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define HAS_TENSOR_CORES 1
#else
#define HAS_TENSOR_CORES 0
#endif

constexpr unsigned ALL_LANES = 0xffffffffu;

struct alignas(8) FloatPair {
    float low, high;
};
struct alignas(16) Floats {
    float of[4];
};
struct alignas(16) Bytes16 {
    unsigned word[4];
};
struct alignas(8) Bytes8 {
    unsigned word[2];
};

template <bool FULL>
struct ElementOf {
    using Element = unsigned short;  // the upper half of a float
    using Pair = unsigned;
};
template <>
struct ElementOf<true> {
    using Element = float;
    using Pair = FloatPair;
};
using Element = ElementOf<FULL_PRECISION>::Element;
using Pair = ElementOf<FULL_PRECISION>::Pair;

__device__ __forceinline__ int lane_index()
{
    return threadIdx.x & 31;
}

// ---------------------------------------------------------------------------------------------- numbers

// bfloat16 nearest to x, ties to even; a NaN stays one.
__device__ __forceinline__ unsigned round_to_bfloat16(float x)
{
    const unsigned bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (bits >> 16) | 0x40u;
    return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

__device__ __forceinline__ void pack(unsigned& pair, float low, float high)
{
#if HAS_TENSOR_CORES
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#else
    pair = round_to_bfloat16(low) | (round_to_bfloat16(high) << 16);
#endif
}
__device__ __forceinline__ void pack(FloatPair& pair, float low, float high)
{
    pair = {low, high};
}
__device__ __forceinline__ Pair packed(float low, float high)
{
    Pair pair;
    pack(pair, low, high);
    return pair;
}

__device__ __forceinline__ FloatPair unpack(unsigned pair)
{
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}
__device__ __forceinline__ FloatPair unpack(FloatPair pair)
{
    return pair;
}

__device__ __forceinline__ void join(unsigned& pair, unsigned short low, unsigned short high)
{
    pair = low | ((unsigned)high << 16);
}
__device__ __forceinline__ void join(FloatPair& pair, float low, float high)
{
    pair = {low, high};
}

__device__ __forceinline__ void narrow(unsigned short& element, float x)
{
#if HAS_TENSOR_CORES
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(element) : "f"(x));
#else
    element = (unsigned short)round_to_bfloat16(x);
#endif
}
__device__ __forceinline__ void narrow(float& element, float x)
{
    element = x;
}

// e^x and tanh(x), as exact as the elements are.
__device__ __forceinline__ float quick_exp(float x)
{
#if HAS_TENSOR_CORES
    if (!FULL_PRECISION) return __expf(x);
#endif
    return expf(x);
}
__device__ __forceinline__ float quick_log(float x)
{
#if HAS_TENSOR_CORES
    if (!FULL_PRECISION) return __logf(x);
#endif
    return logf(x);
}
__device__ __forceinline__ float quick_tanh(float x)
{
#if HAS_TENSOR_CORES
    if (!FULL_PRECISION) {
        float y;
        asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
        return y;
    }
#endif
    return tanhf(x);
}

__device__ __forceinline__ float sigmoid(float x)
{
#if HAS_TENSOR_CORES
    if (!FULL_PRECISION) return fmaf(0.5f, quick_tanh(0.5f * x), 0.5f);
#endif
    return 1.0f / (1.0f + quick_exp(-x));
}

// x where it is positive, else 0; a NaN stays one, which fmaxf would not let it.
__device__ __forceinline__ float positive_part(float x)
{
#if HAS_TENSOR_CORES
    float y;
    asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
    return y;
#else
    return x <= 0.0f ? 0.0f : x;
#endif
}

// A pair where `positive`, a pair of positive parts, is not 0; else 0.
__device__ __forceinline__ unsigned where_positive(unsigned pair, unsigned positive)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    unsigned mask;
    asm("set.gt.u32.bf16x2 %0, %1, %2;" : "=r"(mask) : "r"(positive), "r"(0u));
#else
    const unsigned some = (positive & 0x7fff7fffu) + 0x7fff7fffu;  // the highest bit of a half: it is not 0
    const unsigned mask = (some >> 15 & 0x00010001u) * 0xffffu;
#endif
    return pair & mask;
}
__device__ __forceinline__ FloatPair where_positive(FloatPair pair, FloatPair positive)
{
    return {positive.low > 0.0f ? pair.low : 0.0f, positive.high > 0.0f ? pair.high : 0.0f};
}

// --------------------------------------------------------------------------------------------- products

__device__ __forceinline__ unsigned shuffle(unsigned pair, int lane)
{
    return __shfl_sync(ALL_LANES, pair, lane);
}
__device__ __forceinline__ FloatPair shuffle(FloatPair pair, int lane)
{
    return {__shfl_sync(ALL_LANES, pair.low, lane), __shfl_sync(ALL_LANES, pair.high, lane)};
}

__device__ __forceinline__ float dot(FloatPair a, FloatPair b)
{
    return a.low * b.low + a.high * b.high;
}

template <typename P>
__device__ __forceinline__ void multiply_by_shuffles(float (&c)[4], const P (&a)[4], P b_low, P b_high)
{
    const int lane = lane_index();
    const int row = lane & ~3;
    const int column = (lane & 3) * 8;
    for (int half = 0; half < 2; ++half) {
        for (int k = 0; k < 4; ++k) {
            const P b = half ? b_high : b_low;
            const FloatPair upper = unpack(shuffle(a[2 * half], row + k));
            const FloatPair lower = unpack(shuffle(a[2 * half + 1], row + k));
            const FloatPair left = unpack(shuffle(b, column + k));
            const FloatPair right = unpack(shuffle(b, column + 4 + k));
            c[0] += dot(upper, left);
            c[1] += dot(upper, right);
            c[2] += dot(lower, left);
            c[3] += dot(lower, right);
        }
    }
}

// c += a b
__device__ __forceinline__ void multiply(float (&c)[4], const Pair (&a)[4], Pair b_low, Pair b_high)
{
#if HAS_TENSOR_CORES
    if constexpr (!FULL_PRECISION) {
        asm(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"((const unsigned&)a[0]), "r"((const unsigned&)a[1]), "r"((const unsigned&)a[2]),
              "r"((const unsigned&)a[3]), "r"((const unsigned&)b_low), "r"((const unsigned&)b_high));
        return;
    }
#endif
    multiply_by_shuffles(c, a, b_low, b_high);
}

// ------------------------------------------------------------------------------------------------ loads

// Four 8 x 8 matrices in shared memory, which a barrier has made visible.
//   row  the address of this lane's: row lane % 8 of matrix lane / 8
template <bool TRANSPOSED>
__device__ __forceinline__ void load_matrices(unsigned (&pairs)[4], unsigned address)
{
#if HAS_TENSOR_CORES
    if constexpr (TRANSPOSED) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
                     : "r"(address));
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
                     : "r"(address));
    }
#endif
}
template <bool TRANSPOSED>
__device__ __forceinline__ void load_matrices(unsigned (&pairs)[4], const unsigned short* row)
{
#if HAS_TENSOR_CORES
    load_matrices<TRANSPOSED>(pairs, (unsigned)__cvta_generic_to_shared(row));
#endif
}
template <bool TRANSPOSED, typename Place>
__device__ __forceinline__ void load_matrices(FloatPair (&pairs)[4], Place row)
{
}

// Two neighbouring tiles of B out of weights [row / 8][column / 8][8][8] with `num_blocks` blocks a row.
//   not TRANSPOSED: B = W^T, from rows 8 row_block ..+15 and columns 8 column_block ..+15: tiles of 8 rows of W each
//   TRANSPOSED:     B = W, from the same place: tiles of 8 columns of W each
// pairs[0], [1]: the first tile; pairs[2], [3]: the second.
template <bool TRANSPOSED, bool IN_SHARED>
__device__ __forceinline__ void load_weights(
    Pair (&pairs)[4], const Element* weights, int row_block, int column_block, int num_blocks)
{
    const int lane = lane_index();
    if constexpr (HAS_TENSOR_CORES && IN_SHARED && !FULL_PRECISION) {
        const int matrix = lane >> 3;
        const int row = TRANSPOSED ? matrix & 1 : matrix >> 1;
        const int column = TRANSPOSED ? matrix >> 1 : matrix & 1;
        const Element* of_lane = weights + (row * num_blocks + column) * 64 + (lane & 7) * 8;  // always the same
        load_matrices<TRANSPOSED>(pairs, of_lane + (row_block * num_blocks + column_block) * 64);
        return;
    }
    const int g = lane >> 2;
    const int t = lane & 3;
#pragma unroll
    for (int matrix = 0; matrix < 4; ++matrix) {
        const int row = row_block + (TRANSPOSED ? matrix & 1 : matrix >> 1);
        const int column = column_block + (TRANSPOSED ? matrix >> 1 : matrix & 1);
        const Element* block = weights + (row * num_blocks + column) * 64;
        if (TRANSPOSED) {
            join(pairs[matrix], block[2 * t * 8 + g], block[(2 * t + 1) * 8 + g]);
        } else {
            join(pairs[matrix], block[g * 8 + 2 * t], block[g * 8 + 2 * t + 1]);
        }
    }
}

// Where a column of a row stands in shared memory whose rows are SWIZZLED, their pitch an odd multiple of 64 bytes.
// Pieces of 16 bytes change places within 64, so that neither a lane's pieces of its own row nor the same piece of 8
// rows meet in a bank.
template <bool SWIZZLED>
__device__ __forceinline__ int swizzle(int row, int column)
{
    return SWIZZLED ? column ^ ((row >> 1 & 3) << 3) : column;
}

// A tile of A (or two neighbouring tiles of B) out of rows in shared memory, transposed: 16 rows are summed over.
//   rows  [.., pitch]  the first of the 16, a multiple of 8
//   IS_A  whether columns `column` ..+15 become rows of A; else they become columns of B, pairs[0], [1] the first 8
template <bool IS_A, bool SWIZZLED>
__device__ __forceinline__ void load_columns(Pair (&pairs)[4], const Element* rows, int pitch, int column)
{
    const int lane = lane_index();
    if constexpr (HAS_TENSOR_CORES && !FULL_PRECISION) {
        const int matrix = lane >> 3;
        const int row = (IS_A ? matrix >> 1 : matrix & 1) * 8 + (lane & 7);
        const int first = column + (IS_A ? matrix & 1 : matrix >> 1) * 8;
        load_matrices<true>(pairs, rows + row * pitch + swizzle<SWIZZLED>(lane & 7, first));
        return;
    }
    const int g = lane >> 2;
    const int t = lane & 3;
    for (int matrix = 0; matrix < 4; ++matrix) {
        const int row = (IS_A ? matrix >> 1 : matrix & 1) * 8 + 2 * t;
        const int first = column + (IS_A ? matrix & 1 : matrix >> 1) * 8 + g;
        const Element* upper = rows + row * pitch;
        join(pairs[matrix], upper[swizzle<SWIZZLED>(row, first)], upper[pitch + swizzle<SWIZZLED>(row + 1, first)]);
    }
}

// 16 bytes from global to shared memory, on their way until `wait_for_copies`.
__device__ __forceinline__ void start_copy(Bytes16* shared, const Bytes16* global)
{
#if HAS_TENSOR_CORES
    const unsigned address = (unsigned)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(global) : "memory");
#else
    *shared = *global;
#endif
}
// Then a barrier, before other threads read them.
__device__ __forceinline__ void wait_for_copies()
{
#if HAS_TENSOR_CORES
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// The same in groups: closes the group of the copies started since the last; waits until all but the last LEFT are there.
__device__ __forceinline__ void close_copies()
{
#if HAS_TENSOR_CORES
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int LEFT>
__device__ __forceinline__ void wait_for_groups()
{
#if HAS_TENSOR_CORES
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}

// Brings the 128 bytes around an address nearer.
__device__ __forceinline__ void fetch_ahead(const void* address)
{
#if HAS_TENSOR_CORES
    asm volatile("prefetch.global.L1 [%0];" ::"l"(address));
#endif
}

// ----------------------------------------------------------------------------------------------- records

// A record holds the columns of a row in the order in which lanes hold them: column 8 j + 2 t + i stands
//   at 8 t + 2 j + i, within each 32 columns, where COUNT, the tiles side by side, is 2
//   at 4 t + 2 j + i, within each 16, where it is 1
// So a lane writes, and reads back, 16 (8) bytes at once.
//   STEP            elements from 8 columns of a record to the next 8
//   place, place_8  where this lane's part of these columns is in the records of the rows g and g + 8
//   tiles           1 or 2 tiles of A, side by side
//   zero            is 0, which the compiler must not know: what is stored is then a copy. A product wants its four
//                   registers in another order than a store, and would else be given copies again and again.
template <int STEP, int COUNT>
__device__ constexpr int place_of_lane(int t)
{
    return COUNT == 2 ? t * STEP : t / 2 * STEP + t % 2 * 4;
}
// Where a column of a part of the record stands in it.
template <int COUNT>
__device__ constexpr int place_of_column(int column)
{
    const int within = column % (16 * COUNT);
    return column - within + place_of_lane<8, COUNT>(within % 8 / 2) + within / 8 * 2 + within % 2;
}
__device__ __forceinline__ void put(unsigned short* place, const unsigned (&tiles)[2][4], int lower, unsigned zero)
{
    *(Bytes16*)place = {
        {tiles[0][lower] ^ zero, tiles[0][2 + lower] ^ zero, tiles[1][lower] ^ zero, tiles[1][2 + lower] ^ zero}};
}
__device__ __forceinline__ void put(unsigned short* place, const unsigned (&tiles)[1][4], int lower, unsigned zero)
{
    *(Bytes8*)place = {{tiles[0][lower] ^ zero, tiles[0][2 + lower] ^ zero}};
}
template <int COUNT>
__device__ __forceinline__ void put(float* place, const FloatPair (&tiles)[COUNT][4], int lower, unsigned)
{
    for (int i = 0; i < COUNT; ++i) {
        ((FloatPair*)place)[2 * i] = tiles[i][lower];
        ((FloatPair*)place)[2 * i + 1] = tiles[i][2 + lower];
    }
}
template <int COUNT>
__device__ __forceinline__ void store_tiles(
    Element* place, Element* place_8, const Pair (&tiles)[COUNT][4], unsigned zero)
{
    put(place, tiles, 0, zero);
    put(place_8, tiles, 1, zero);
}

__device__ __forceinline__ void get(unsigned (&tiles)[2][4], const unsigned short* place, int lower)
{
    const Bytes16 piece = *(const Bytes16*)place;
    tiles[0][lower] = piece.word[0];
    tiles[0][2 + lower] = piece.word[1];
    tiles[1][lower] = piece.word[2];
    tiles[1][2 + lower] = piece.word[3];
}
__device__ __forceinline__ void get(unsigned (&tiles)[1][4], const unsigned short* place, int lower)
{
    const Bytes8 piece = *(const Bytes8*)place;
    tiles[0][lower] = piece.word[0];
    tiles[0][2 + lower] = piece.word[1];
}
template <int COUNT>
__device__ __forceinline__ void get(FloatPair (&tiles)[COUNT][4], const float* place, int lower)
{
    for (int i = 0; i < COUNT; ++i) {
        tiles[i][lower] = ((const FloatPair*)place)[2 * i];
        tiles[i][2 + lower] = ((const FloatPair*)place)[2 * i + 1];
    }
}
// What the same lane stored.
template <int COUNT>
__device__ __forceinline__ void load_tiles(Pair (&tiles)[COUNT][4], const Element* place, const Element* place_8)
{
    get(tiles, place, 0);
    get(tiles, place_8, 1);
}
