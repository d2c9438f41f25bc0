// A convolution of 3 x 3 over images of bits, and what stands behind it: a dense layer over all that it found, and the
// outputs. conv_forward.cu and conv_backward.cu share it. What a convolution finds never leaves the warp that computes it.
//
// A warp has 16 images at one place of the convolution: its 16 filters there are a tile, the sums of which, packed, are
// 16 of the dense layer's inputs. Bits of an image are copied to shared memory once; where a patch of them is a factor,
// a lane makes numbers of two at a time.
//
// Constants:
//   FULL_PRECISION               of the elements
//   HEIGHT, WIDTH, CHANNELS      of an image, whose numbers are false and true
//   KERNEL_TILES                 16 numbers each: of a patch
//   PATCH_BLOCKS                 8 numbers each: of a patch and a one behind it
//   DENSE_TILES, OUTPUT_TILES    16 columns each: of the dense layer, of the outputs
//   DENSE_COLUMNS                of the dense layer, that are no padding
//   IS_TANH                      the activation: tanh, or else the positive part
//   NORMS, NORM_EPS              whether a LayerNorm stands before each activation, of the convolution over the filters
//                                of a place; added to the variance
//   WARPS                        of a block; in conv_forward, of each 16 images of one
//   ROW_TILES                    16 images each, which a block of conv_forward has
//   STAGES                       WARPS places each, whose weights it has, or waits for, at once
//   CLUSTER                      its blocks that have the same images and share the places
//   GROUP_SIZE                   agents of an env that see by this network
//   PITCH, STRIDE, FIRST         bits from an env's to the next one's, from an agent's to the next one's; the group's first
//   HAS_ORDER                    whether images are those of a minibatch, else all in their order
#pragma once
#include "tensor_core.cuh"

constexpr int SIDE = 3;     // of the convolution
constexpr int FILTERS = 16;
constexpr int OUT_WIDTH = WIDTH - SIDE + 1;
constexpr int PLACES = (HEIGHT - SIDE + 1) * OUT_WIDTH;
constexpr int GROUPS = (PLACES + WARPS - 1) / WARPS;  // of places that a block of conv_backward has
constexpr int PATCH = SIDE * SIDE * CHANNELS;
constexpr int PATCH_WORDS = (PATCH + 31) / 32;
constexpr int BITS = HEIGHT * WIDTH * CHANNELS;
constexpr int IMAGE_WORDS = ((BITS + 31) / 32 + 1) | 1;  // one more is read, and an odd number meets in no bank
constexpr int DENSE = 16 * DENSE_TILES;
constexpr int OUTPUTS = 16 * OUTPUT_TILES;
constexpr int TILE = FILTERS * DENSE;  // the dense layer's weights of one place
constexpr int THREADS = 32 * WARPS;
constexpr int ROW_PITCH = DENSE + 8;     // elements from a row of the dense layer in shared memory to the next
constexpr int SCRATCH_PITCH = 16 + 8;    // from a row of a warp's tile
constexpr int PATCH_COLUMNS = 8 * PATCH_BLOCKS;

static_assert(SIDE * CHANNELS <= 32, "a row of a patch is more than a word");
static_assert(16 * KERNEL_TILES >= PATCH && PATCH_COLUMNS > PATCH, "a patch has no room");
static_assert(16 * KERNEL_TILES <= 32 * PATCH_WORDS && PATCH_COLUMNS <= 32 * PATCH_WORDS, "a patch has too few words");
static_assert(DENSE_TILES <= WARPS, "a warp has one tile of the dense layer");

// Biases of a layer, with a LayerNorm behind them its gains and its shifts.
constexpr int BIAS_ROWS = NORMS ? 3 : 1;
constexpr int DENSE_BIASES_AT = BIAS_ROWS * FILTERS;

// The weights: [filter][16 KERNEL_TILES], [place][dense / 8][filter / 8][8][8], [output / 8][dense / 8][8][8].
constexpr int DENSE_AT = FILTERS * 16 * KERNEL_TILES;
constexpr int OUTPUTS_AT = DENSE_AT + PLACES * TILE;

// Which of the warps that have the same images this is.
__device__ __forceinline__ int warp_of_tile()
{
    return threadIdx.x / 32 % WARPS;
}

__device__ __forceinline__ float activate(float x)
{
    return IS_TANH ? quick_tanh(x) : positive_part(x);
}

__device__ __forceinline__ float slope(float activated)
{
    if (IS_TANH) return 1.0f - activated * activated;
    return activated > 0.0f ? 1.0f : 0.0f;
}

// ----------------------------------------------------------------------------------------------- images

// Four bytes, each 0 or 1, as bits.
__device__ __forceinline__ unsigned bits_of_bytes(unsigned four)
{
    return four * 0x10204080u >> 28;
}

// Brings images to shared memory as bits, [ROWS][IMAGE_WORDS], and, if they are kept, to memory; of rows that are none,
// no bit is set.
template <int ROWS, int NUM_THREADS>
__device__ __forceinline__ void load_images(
    unsigned* bits, const bool* seen, const int* order, int* kept, long long first_row, long long first,
    long long num_rows)
{
    for (int i = threadIdx.x; i < ROWS * IMAGE_WORDS; i += NUM_THREADS) {
        const long long row = first + i / IMAGE_WORDS;
        const int start = i % IMAGE_WORDS * 32;
        unsigned found = 0;
        if (row < num_rows && start < BITS) {
            const int index = HAS_ORDER ? order[first_row + row] : (int)(first_row + row);
            const bool* image = seen + (index / GROUP_SIZE * (long long)PITCH + index % GROUP_SIZE * STRIDE + FIRST);
            if constexpr ((BITS | PITCH | STRIDE | FIRST) % 16 == 0) {
#pragma unroll
                for (int k = 0; k < 32; k += 16) {
                    if (start + k >= BITS) break;
                    const Bytes16 piece = *(const Bytes16*)(image + start + k);
#pragma unroll
                    for (int i = 0; i < 4; ++i) found |= bits_of_bytes(piece.word[i]) << (k + 4 * i);
                }
            } else if constexpr ((BITS | PITCH | STRIDE | FIRST) % 4 == 0) {
#pragma unroll
                for (int k = 0; k < 32; k += 4) {
                    if (start + k < BITS) found |= bits_of_bytes(*(const unsigned*)(image + start + k)) << k;
                }
            } else {
                for (int k = 0; k < 32 && start + k < BITS; ++k) found |= (unsigned)image[start + k] << k;
            }
        }
        bits[i] = found;
        if (kept && row < num_rows) kept[first * IMAGE_WORDS + i] = (int)found;
    }
}

// What a convolution sees at a place: bits in the order row, column, channel, and a one behind them.
struct Patch {
    unsigned word[PATCH_WORDS];
};
__device__ __forceinline__ Patch patch_at(const unsigned* image, int place)
{
    Patch patch = {};
    constexpr int SIZE = SIDE * CHANNELS;
#pragma unroll
    for (int y = 0; y < SIDE; ++y) {
        const int start = ((place / OUT_WIDTH + y) * WIDTH + place % OUT_WIDTH) * CHANNELS;
        const unsigned long long both =
            image[start / 32] | (unsigned long long)image[start / 32 + 1] << 32;
        const unsigned row = (unsigned)(both >> start % 32) & (unsigned)((1ull << SIZE) - 1);
        const int at = y * SIZE;
        patch.word[at / 32] |= row << at % 32;
        if (at % 32 + SIZE > 32) patch.word[at / 32 + 1] |= row >> (32 - at % 32);
    }
    patch.word[PATCH / 32] |= 1u << PATCH % 32;
    return patch;
}
__device__ __forceinline__ Patch patch_of_lane(const Patch& patch, int lane)
{
    Patch other;
#pragma unroll
    for (int i = 0; i < PATCH_WORDS; ++i) other.word[i] = __shfl_sync(ALL_LANES, patch.word[i], lane);
    return other;
}

// What a bit of an image is in a product: 2, of whose bfloat16 one byte is 0 and the other, 0x40, is no sign. So a byte
// permutation makes numbers of two bits. Filters are halved instead, and so are products with images; neither rounds.
constexpr float OF_BIT = FULL_PRECISION ? 1.0f : 2.0f;

// A bit of each byte of two patches, at bit 6 of its byte: pairs of a factor, which are neighbours in a row or column.
struct BitPairs {
    unsigned low[PATCH_WORDS], high[PATCH_WORDS];
};
__device__ __forceinline__ BitPairs pair_bits(const Patch& low, int low_bit, const Patch& high, int high_bit)
{
    BitPairs bits;
#pragma unroll
    for (int i = 0; i < PATCH_WORDS; ++i) {
        bits.low[i] = __funnelshift_l(low.word[i], low.word[i], 6 - low_bit) & 0x40404040u;
        bits.high[i] = __funnelshift_l(high.word[i], high.word[i], 6 - high_bit) & 0x40404040u;
    }
    return bits;
}

// The two bits of a byte as numbers.
__device__ __forceinline__ void spread(unsigned& pair, const BitPairs& bits, int byte)
{
    const unsigned low = bits.low[byte / 4];
    const unsigned high = bits.high[byte / 4];
#if HAS_TENSOR_CORES
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(pair) : "r"(low), "r"(high), "r"(0x4c08 + byte % 4 * 0x1111));
#else
    pair = (low >> byte % 4 * 8 & 0x40u) << 8 | (high >> byte % 4 * 8 & 0x40u) << 24;
#endif
}
__device__ __forceinline__ void spread(FloatPair& pair, const BitPairs& bits, int byte)
{
    const int shift = byte % 4 * 8 + 6;
    pair = {(float)(bits.low[byte / 4] >> shift & 1u), (float)(bits.high[byte / 4] >> shift & 1u)};
}

// ------------------------------------------------------------------------------------------ convolution

// A tile of a LayerNorm: what 16 rows are brought to mean 0 and deviation 1 by, and what they are then. Values stand as
// pairs of a tile of A do: [i] of row g + 8 (i % 2), of the columns 2 t + 8 (i / 2) and the next.
struct Standard {
    float value[4][2];
    float scale[2];
};

// 1 / deviation, for LayerNorm.
__device__ __forceinline__ float scale_of(float variance)
{
#if HAS_TENSOR_CORES
    if constexpr (NORM_EPS > 1e-30f) {  // so that the root is of no denormal number, which rsqrtf looks for
        float scale;
        asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(scale) : "f"(variance + NORM_EPS));
        return scale;
    }
#endif
    return rsqrtf(variance + NORM_EPS);
}

// The filters, as the factor B of a convolution of bits, and their biases; [i][j] of column 2 t + 8 i + j.
struct Filters {
    Pair kernel[KERNEL_TILES][4];
    float bias[2][2], gain[2][2], shift[2][2];
};
__device__ __forceinline__ Filters load_filters(const Element* weights, const float* biases)
{
    Filters filters;
    const int g = lane_index() >> 2;
    const int t = lane_index() & 3;
#pragma unroll
    for (int i = 0; i < 4 * KERNEL_TILES; ++i) {
        const int filter = g + i % 4 / 2 * 8;
        const FloatPair two =
            unpack(*(const Pair*)(weights + filter * (16 * KERNEL_TILES) + i / 4 * 16 + i % 2 * 8 + 2 * t));
        filters.kernel[i / 4][i % 4] = packed(two.low / OF_BIT, two.high / OF_BIT);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int column = 2 * t + i / 2 * 8 + i % 2;
        filters.bias[i / 2][i % 2] = biases[column];
        filters.gain[i / 2][i % 2] = NORMS ? biases[FILTERS + column] : 1.0f;
        filters.shift[i / 2][i % 2] = NORMS ? biases[2 * FILTERS + column] : 0.0f;
    }
    return filters;
}

// The sum over 16 columns of a tile's row, whose four lanes have them between them.
__device__ __forceinline__ float over_row(float sum)
{
    sum += __shfl_xor_sync(ALL_LANES, sum, 1);
    return sum + __shfl_xor_sync(ALL_LANES, sum, 2);
}

// 16 images at a place: a tile of A for the dense layer.
//   upper, lower  the patches of the rows g and g + 8
//   standard      if it NORMS
__device__ __forceinline__ void convolve(
    Pair (&found)[4], Standard& standard, const Patch& upper, const Patch& lower, const Filters& filters)
{
    const int t = lane_index() & 3;
    float sum[2][4];
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i / 4][i % 4] = filters.bias[i / 4][i % 2];
    const BitPairs of_rows[2] = {pair_bits(upper, 2 * t, upper, 2 * t + 1), pair_bits(lower, 2 * t, lower, 2 * t + 1)};
#pragma unroll
    for (int k = 0; k < KERNEL_TILES; ++k) {
        Pair a[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) spread(a[i], of_rows[i % 2], 2 * k + i / 2);
        multiply(sum[0], a, filters.kernel[k][0], filters.kernel[k][1]);
        multiply(sum[1], a, filters.kernel[k][2], filters.kernel[k][3]);
    }
    if constexpr (NORMS) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float(&left)[2] = *(float(*)[2])&sum[0][2 * half];
            float(&right)[2] = *(float(*)[2])&sum[1][2 * half];
            const float mean = over_row(left[0] + left[1] + right[0] + right[1]) / FILTERS;
            float squares = 0.0f;
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                left[j] -= mean;
                right[j] -= mean;
                squares += left[j] * left[j] + right[j] * right[j];
            }
            standard.scale[half] = scale_of(over_row(squares) / FILTERS);
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            float& value = standard.value[i / 4 * 2 + i % 4 / 2][i % 2];
            value = sum[i / 4][i % 4] * standard.scale[i % 4 / 2];
            sum[i / 4][i % 4] = filters.gain[i / 4][i % 2] * value + filters.shift[i / 4][i % 2];
        }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float* two = &sum[i / 2][2 * (i % 2)];
        found[i] = packed(activate(two[0]), activate(two[1]));
    }
}

// Two sums over the dense layer's columns, of row g and of row g + 8, of whose 16 columns each of WARPS warps has a part.
// All threads of the block call it.
//   place  [WARPS][16]
__device__ __forceinline__ void over_dense(float (&sum)[2], float* place)
{
    const int g = lane_index() >> 2;
    const int warp = warp_of_tile();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        sum[half] = over_row(sum[half]);
        if ((lane_index() & 3) == 0) place[warp * 16 + g + 8 * half] = sum[half];
    }
    __syncthreads();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        sum[half] = 0.0f;
        for (int w = 0; w < DENSE_TILES; ++w) sum[half] += place[w * 16 + g + 8 * half];
    }
}

// A tile of A out of rows of elements in shared memory.
template <int STEP>
__device__ __forceinline__ void load_rows(Pair (&a)[4], const Element* rows)
{
    if constexpr (HAS_TENSOR_CORES && !FULL_PRECISION) {
        load_matrices<false>(a, rows + lane_index() % 16 * STEP + lane_index() / 16 * 8);
        return;
    }
    const Element* place = rows + (lane_index() >> 2) * STEP + 2 * (lane_index() & 3);
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = *(const Pair*)(place + i % 2 * 8 * STEP + i / 2 * 8);
}
// Such a tile's way back.
template <int STEP>
__device__ __forceinline__ void store_rows(Element* rows, const Pair (&a)[4])
{
    Element* place = rows + (lane_index() >> 2) * STEP + 2 * (lane_index() & 3);
#pragma unroll
    for (int i = 0; i < 4; ++i) *(Pair*)(place + i % 2 * 8 * STEP + i / 2 * 8) = a[i];
}
// The same from memory, where some of the 16 rows may be none: zeros.
__device__ __forceinline__ void read_rows(Pair (&a)[4], const Element* rows, int step, long long left)
{
    const int g = lane_index() >> 2;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int row = g + i % 2 * 8;
        const Element* place = rows + (long long)row * step + 2 * (lane_index() & 3) + i / 2 * 8;
        a[i] = row < left ? *(const Pair*)place : packed(0.0f, 0.0f);
    }
}
