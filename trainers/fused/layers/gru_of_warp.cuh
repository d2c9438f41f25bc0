// Of a gated recurrent unit all of whose units a warp has, of 16 sequences: its weights in shared memory as wgmma reads
// them, what a lane has of a row, and sums over rows. A part of gru_by_warpgroups.cu
// and gru_by_input.cu, whose constants it takes.
#pragma once
#include "by_warpgroups.cuh"
#include "layers/gru_pieces.cuh"

constexpr int CHUNKS = UNITS / 32;
constexpr int TILES = UNITS / 16;
constexpr int WALK_THREADS = 32 * WALKERS;
constexpr int BLOCK = 64;  // elements of a block of 8 x 8
constexpr int ALONG = BLOCK * (int)sizeof(Element);
constexpr int OF_GATES = 3 * UNITS / 8 * ALONG;  // bytes from 8 columns of B to the next, where gates are summed over
constexpr int OF_UNITS = UNITS / 8 * ALONG;      // and where units are

static_assert(UNITS == PANEL, "registers hold the states of as many, and sums of them");

// Where a unit stands among those of a product.
__device__ __forceinline__ int logical(int unit)
{
    return unit / 32 * 32 + unit % 8 / 2 * 8 + unit / 8 % 4 * 2 + unit % 2;
}

// Those of the way there, [chunk][3 gates of 4 blocks][unit / 8][8][8]: of gates r, z, n the one at first comes first.
__device__ __forceinline__ void spread_forwards(Element* shared, const unsigned char* weights, int first)
{
    spread<3 * TILES>(shared, weights, WALK_THREADS, [&](int number, int column, int depth) {
        const int gate = (number % 3 + 3 - first) % 3;
        const int to = logical(column), from = logical(number / 3 * 16 + depth);
        const int block = (to / 32 * 12 + gate * 4 + to % 32 / 8) * (UNITS / 8) + from / 8;
        return block * BLOCK + to % 8 * 8 + from % 8;
    });
}
// Those of the way back, [unit / 8][3 UNITS / 8][8][8].
__device__ __forceinline__ void spread_backwards(Element* shared, const unsigned char* weights, int num_threads)
{
    spread<3 * TILES>(shared, weights, num_threads, [&](int number, int column, int depth) {
        const int to = logical(column), from = logical(number * 16 + depth);
        return (to / 8 * (3 * UNITS / 8) + from / 8) * BLOCK + to % 8 * 8 + from % 8;
    });
}

// Weights in shared memory, as products take them.
//   ACROSS  bytes from 8 of B's columns to the next
template <int ACROSS>
struct Factor {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    unsigned low, high;

    __device__ __forceinline__ Factor(const Element* place)
    {
        const unsigned long long found = describe(place, ALONG, ACROSS);
        low = __shfl_sync(ALL_LANES, (unsigned)found, 0);
        high = (unsigned)(found >> 32);
    }
#else
    const Element* place;

    __device__ __forceinline__ Factor(const Element* place) : place(place) {}
#endif
    // sum[FIRST ..] += tile B, or = where it SETS, of 8 COUNT columns so many bytes from the place on.
    template <bool SETS, int FIRST, int COUNT>
    __device__ __forceinline__ void add(float (&sum)[BLOCKS][4], const Pair (&tile)[4], int at) const
    {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
        unsigned long long from;
        asm("mov.b64 %0, {%1, %2};" : "=l"(from) : "r"(low + (at >> 4)), "r"(high));
        add_product<SETS, false, FIRST, COUNT>(sum, tile, from, ACROSS);
#else
        add_tile<false, SETS, FIRST, COUNT>(sum, tile, (const Element*)((const char*)place + at), ALONG, ACROSS);
#endif
    }
};

// What a lane has of 32 units of a row.
struct alignas(8 * sizeof(Element)) Eight {
    Pair pair[4];
};
__device__ __forceinline__ Eight& eight_at(Element* place)
{
    return *(Eight*)place;
}
__device__ __forceinline__ void start_eight(Eight* shared, const Element* global)
{
#pragma unroll
    for (int i = 0; i < (int)sizeof(Eight) / 16; ++i) start_copy((Bytes16*)shared + i, (const Bytes16*)global + i);
}

// The sequences of a warp, 16 of 64 of its warpgroup: a lane has rows `first` and `first` + 8.
struct Sequences {
    int first, num_rows;
    bool has[2];

    __device__ __forceinline__ Sequences(int number, int num_rows) : num_rows(num_rows)
    {
        first = number * 64 + threadIdx.x / 32 % 4 * 16 + lane_index() / 4;
        has[0] = first < num_rows;
        has[1] = first + 8 < num_rows;
    }
    // Of a step, or the last row of it where there is none.
    __device__ __forceinline__ long long place(int step, int half) const
    {
        return (long long)step * num_rows + (has[half] ? first + 8 * half : num_rows - 1);
    }
    // Whether a row starts something new in a step, as memory has it: nothing waits for it before it is looked at.
    __device__ __forceinline__ unsigned starts(const bool* starts, int step, int half) const
    {
        return ((const unsigned char*)starts)[place(step, half)];
    }
};
__device__ __forceinline__ int first_group()
{
    return threadIdx.x / 128 * gridDim.x + blockIdx.x;
}
__device__ __forceinline__ int num_groups()
{
    return WALKERS / 4 * gridDim.x;
}

// The 8 x 8 of a warp turned around: a lane's two are then of column g, and of rows 2 t and 2 t + 1.
__device__ __forceinline__ Pair turned(const Pair& pair)
{
#if HAS_TENSOR_CORES
    if constexpr (!FULL_PRECISION) {
        Pair found;
        asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(*(unsigned*)&found) : "r"(*(const unsigned*)&pair));
        return found;
    }
#endif
    const int g = lane_index() >> 2;
    const int t = lane_index() & 3;
    const FloatPair own = unpack(pair);
    float two[2];
    for (int i = 0; i < 2; ++i) {
        const int lane = (2 * t + i) * 4 + g / 2;
        const float low = __shfl_sync(ALL_LANES, own.low, lane), high = __shfl_sync(ALL_LANES, own.high, lane);
        two[i] = g % 2 ? high : low;
    }
    return packed(two[0], two[1]);
}

// Adds the columns of a tile up, of both its blocks: to rows `number` and `number` + 1 of sums, of 16.
__device__ __forceinline__ void add_columns(float (&sum)[4], const Pair (&tile)[4], int number)
{
    const int g = lane_index() >> 2;
    const Pair none = packed(0.0f, 0.0f), ones = packed(1.0f, 1.0f);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int row = number + i;
        const Pair chosen = g == row % 8 ? ones : none;
        const Pair rows[4] = {row < 8 ? chosen : none, row < 8 ? none : chosen, row < 8 ? chosen : none,
                              row < 8 ? none : chosen};
        multiply(sum, rows, turned(tile[2 * i]), turned(tile[2 * i + 1]));
    }
}
