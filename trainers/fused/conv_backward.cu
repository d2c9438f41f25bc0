// From the deltas of the dense layer to the gradient of its weights and of the filters: see layers/convolution.cuh, which
// lists the constants. A warp has a place of the convolution, and goes through its block's share of the images there.
//
// Constants besides:
//   BACK_TILES      16 images each, which a block has at once, and as many more that are on their way
//   BACKWARD_BYTES  of shared memory
#include "layers/convolution_back.cuh"

constexpr int TOGETHER = BACK_TILES > 1 ? 2 : 1;  // of them, at which a warp is at once: one waits less than each does
constexpr int AT_ONCE = 16 * BACK_TILES;
constexpr int OF_FILTERS = FILTERS * PATCH_COLUMNS + (NORMS ? 2 * FILTERS : 0);

static_assert(BACK_TILES % TOGETHER == 0, "a block has whole pairs of tiles");
static_assert(AT_ONCE * IMAGE_WORDS % 4 == 0, "bits are copied by 16 bytes");

// What a block has in shared memory. Its sums take the place of the weights.
struct Backward {
    static constexpr int TILES = WARPS * TILE * (int)sizeof(Element);
    static constexpr int SUMS = WARPS * OF_FILTERS * 4;
    static constexpr int FIRST = TILES > SUMS ? TILES : SUMS;
    static constexpr int DELTAS = AT_ONCE * ROW_PITCH * (int)sizeof(Element);
    static constexpr int BITS = AT_ONCE * IMAGE_WORDS * 4;
    static constexpr int SCRATCH = FIRST + 2 * (DELTAS + BITS);
    static constexpr int BYTES = SCRATCH + WARPS * TOGETHER * 2 * 16 * SCRATCH_PITCH * (int)sizeof(Element);
};
static_assert(BACKWARD_BYTES >= Backward::BYTES, "conv_backward has too little shared memory");

// Starts to copy the dense layer's weights of a place; a warp does.
__device__ __forceinline__ void start_tile(Element* tile, const Element* weights, int place)
{
    constexpr int PIECES = TILE * (int)sizeof(Element) / 16;
    const Bytes16* from = (const Bytes16*)(weights + DENSE_AT + (long long)place * TILE);
    for (int i = lane_index(); i < PIECES; i += 32) start_copy((Bytes16*)tile + i, from + i);
}

// Starts to copy the deltas of images from `start` on, and their bits. Of rows behind the last whole tile there are
// neither; they get deltas of 0, to which their bits do not matter.
__device__ __forceinline__ void start_images(
    Element* deltas, unsigned* bits, const Element* dense, const int* kept, long long start, long long num_rows)
{
    constexpr int OF_PIECE = 16 / (int)sizeof(Element);
    constexpr int PIECES = DENSE / OF_PIECE;  // of a row, which as many threads copy, or a few more
    constexpr int OF_ROW = PIECES > 16 ? 32 : PIECES > 8 ? 16 : PIECES > 4 ? 8 : 4;
    constexpr int ROWS = THREADS / OF_ROW;
    const long long left = (num_rows + 15) / 16 * 16 - start;
    const int row = threadIdx.x / OF_ROW;
    const int column = threadIdx.x % OF_ROW * OF_PIECE;
    Element* to = deltas + row * ROW_PITCH + column;
    const Element* of_row = dense + (start + row) * DENSE + column;
#pragma unroll
    for (int i = 0; i < AT_ONCE; i += ROWS) {
        if (column >= DENSE || (AT_ONCE % ROWS != 0 && row + i >= AT_ONCE)) break;
        if (row + i < left) {
            start_copy((Bytes16*)(to + i * ROW_PITCH), (const Bytes16*)(of_row + i * DENSE));
        } else {
            *(Bytes16*)(to + i * ROW_PITCH) = {};
        }
    }
    const Bytes16* from = (const Bytes16*)(kept + start * IMAGE_WORDS);
    for (int i = threadIdx.x; i < AT_ONCE * IMAGE_WORDS / 4; i += THREADS) start_copy((Bytes16*)bits + i, from + i);
}

// Blocks share the images among `num_splits`, and of each share the places, WARPS a block.
//   weights, biases, num_rows  as conv_forward has them                                     read
//   dense      as conv_outputs left it                                                      read
//   kept       as conv_forward left it; rows up to a whole number of 16 BACK_TILES are there, whatever they are  read
//   of_dense   [split, place, DENSE_TILES, 2, lane, 4]  16 x 8 each, as a warp's sums stand  written
//   of_filters [split, block of places, OF_FILTERS]  [16, PATCH_COLUMNS], whose column
//              after a patch has biases; gains and shifts if it NORMS                       written
extern "C" __global__ void __launch_bounds__(THREADS) conv_backward(
    const unsigned char* weights, const float* biases, const unsigned char* dense, const int* kept, float* of_dense,
    float* of_filters, long long num_rows, int num_splits)
{
    extern __shared__ char shared[];
    const Element* weight = (const Element*)weights;
    const int warp = threadIdx.x >> 5;
    const int g = lane_index() >> 2;
    const int t = lane_index() & 3;
    const int split = blockIdx.x / GROUPS;
    const int group = blockIdx.x % GROUPS;
    const int place = group * WARPS + warp;
    const bool has_place = place < PLACES;
    Element* tile = (Element*)shared + warp * TILE;
    const auto deltas_of = [&](int turn) { return (Element*)(shared + Backward::FIRST + turn * Backward::DELTAS); };
    const auto bits_of = [&](int turn) {
        return (unsigned*)(shared + Backward::FIRST + 2 * Backward::DELTAS + turn * Backward::BITS);
    };
    Element* scratch = (Element*)(shared + Backward::SCRATCH) + warp * (TOGETHER * 2 * 16 * SCRATCH_PITCH);
    Element* scratch2 = scratch + TOGETHER * 16 * SCRATCH_PITCH;
    const long long step = (long long)AT_ONCE * num_splits;
    long long start = (long long)AT_ONCE * split;
    if (has_place) start_tile(tile, weight, place);
    if (start < num_rows) start_images(deltas_of(0), bits_of(0), (const Element*)dense, kept, start, num_rows);
    close_copies();
    const Filters filters = load_filters(weight, biases);

    float by_dense[DENSE_TILES][2][4] = {};
    float by_filters[PATCH_BLOCKS][4] = {};
    float by_gain[2][2] = {};
    float by_shift[2][2] = {};
    for (int turn = 0; start < num_rows; turn ^= 1, start += step) {
        if (start + step < num_rows) {
            start_images(deltas_of(turn ^ 1), bits_of(turn ^ 1), (const Element*)dense, kept, start + step, num_rows);
        }
        close_copies();
        wait_for_groups<1>();
        __syncthreads();
        for (int r = 0; r < BACK_TILES && has_place && start + 16 * r < num_rows; r += TOGETHER) {
            const Element* delta_rows = deltas_of(turn) + 16 * r * ROW_PITCH;
            const int image = 16 * r + lane_index() % (16 * TOGETHER);
            const Patch mine = patch_at(bits_of(turn) + image * IMAGE_WORDS, place);
            Pair found[TOGETHER][4];
            Standard kept_of[TOGETHER];
            float sum[TOGETHER][2][4] = {};
#pragma unroll
            for (int s = 0; s < TOGETHER; ++s) {
                const Patch upper = patch_of_lane(mine, 16 * s + g);
                const Patch lower = patch_of_lane(mine, 16 * s + g + 8);
                convolve(found[s], kept_of[s], upper, lower, filters);
                store_rows<SCRATCH_PITCH>(scratch + s * 16 * SCRATCH_PITCH, found[s]);
            }
#pragma unroll
            for (int k = 0; k < DENSE_TILES; ++k) {
                Pair b[4];
                load_weights<true, true>(b, tile, 2 * k, 0, 2);
#pragma unroll
                for (int s = 0; s < TOGETHER; ++s) {
                    Pair a[4];
                    load_rows<ROW_PITCH>(a, delta_rows + s * 16 * ROW_PITCH + 16 * k);
                    multiply(sum[s][0], a, b[0], b[1]);
                    multiply(sum[s][1], a, b[2], b[3]);
                }
            }
#pragma unroll
            for (int s = 0; s < TOGETHER; ++s) {
                float derivative[4][2];
                slant(derivative, sum[s], found[s]);
                if constexpr (NORMS) {
                    float whole[2], along[2];
                    begin_normed(derivative, kept_of[s], filters.gain, by_gain, by_shift, whole, along);
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        whole[half] = over_row(whole[half]);
                        along[half] = over_row(along[half]);
                    }
                    end_normed(derivative, kept_of[s], whole, along, FILTERS);
                }
                Pair made[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) made[i] = packed(derivative[i][0], derivative[i][1]);
                store_rows<SCRATCH_PITCH>(scratch2 + s * 16 * SCRATCH_PITCH, made);
            }
            __syncwarp();
#pragma unroll
            for (int s = 0; s < TOGETHER; ++s) {
                Pair b[4];
                load_columns<false, false>(b, scratch + s * 16 * SCRATCH_PITCH, SCRATCH_PITCH, 0);
#pragma unroll
                for (int m = 0; m < DENSE_TILES; ++m) {
                    Pair a[4];
                    load_columns<true, false>(a, delta_rows + s * 16 * ROW_PITCH, ROW_PITCH, 16 * m);
                    multiply(by_dense[m][0], a, b[0], b[1]);
                    multiply(by_dense[m][1], a, b[2], b[3]);
                }
            }
#pragma unroll
            for (int s = 0; s < TOGETHER; ++s) {
                Pair a[4];
                load_columns<true, false>(a, scratch2 + s * 16 * SCRATCH_PITCH, SCRATCH_PITCH, 0);
                Patch of_row[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) of_row[i] = patch_of_lane(mine, 16 * s + 2 * t + i % 2 + i / 2 * 8);
                const BitPairs of_rows[2] = {pair_bits(of_row[0], g, of_row[1], g), pair_bits(of_row[2], g, of_row[3], g)};
#pragma unroll
                for (int n = 0; n < PATCH_BLOCKS; ++n) {
                    Pair low, high;
                    spread(low, of_rows[0], n);
                    spread(high, of_rows[1], n);
                    multiply(by_filters[n], a, low, high);
                }
            }
            __syncwarp();  // before the next tiles take their place
        }
        __syncthreads();  // before the images after the next come
    }
    wait_for_copies();  // of the weights, too, if there was no image

    if (has_place) {
        Floats* out = (Floats*)of_dense + ((long long)split * PLACES + place) * (DENSE_TILES * 2 * 32) + lane_index();
#pragma unroll
        for (int i = 0; i < 2 * DENSE_TILES; ++i) {
            const float(&sum)[4] = by_dense[i / 2][i % 2];
            out[32 * i] = {sum[0], sum[1], sum[2], sum[3]};
        }
    }
    __syncthreads();
    float* sums = (float*)shared;  // [WARPS][OF_FILTERS]
#pragma unroll
    for (int n = 0; n < PATCH_BLOCKS; ++n) {
        for (float& one : by_filters[n]) one /= OF_BIT;
        write_sums(sums + warp * OF_FILTERS + 8 * n, PATCH_COLUMNS, by_filters[n]);
    }
    for (int i = 0; NORMS && i < 2; ++i) {
        float* place = sums + warp * OF_FILTERS + FILTERS * PATCH_COLUMNS + 8 * i + 2 * t;
        write_norm(place, FILTERS, by_gain[i], by_shift[i]);
    }
    __syncthreads();
    float* out = of_filters + (long long)(split * GROUPS + group) * OF_FILTERS;
    for (int i = threadIdx.x; i < OF_FILTERS; i += THREADS) {
        float whole = 0.0f;
        for (int w = 0; w < WARPS; ++w) whole += sums[w * OF_FILTERS + i];
        out[i] = whole;
    }
}
