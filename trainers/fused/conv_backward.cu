// From the deltas of the outputs to the gradient of all weights, in one launch: see layers/convolution.cuh, which lists
// the constants. A warp has a place of the convolution, and goes through its block's share of the images there.
//
// Constants besides:
//   BACK_TILES  16 images each, which a block has at once
#include "layers/convolution.cuh"

constexpr int STAGE_TILES = 4;                          // of the dense layer's gradient, that are staged at once
constexpr int PLACE_PITCH = WARPS + 4;                  // floats from a filter's places there to the next one's,
constexpr int STAGE_PITCH = FILTERS * PLACE_PITCH + 1;  // and from a row to the next: no two lanes meet in a bank

// Derivatives by what two products side by side gave, to those by what went into their activation, as pairs of A stand.
__device__ __forceinline__ void slant(float (&slanted)[4][2], const float (&sum)[2][4], const Pair (&gave)[4])
{
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const FloatPair activated = unpack(gave[i]);
        slanted[i][0] = sum[i / 2][2 * (i % 2)] * slope(activated.low);
        slanted[i][1] = sum[i / 2][2 * (i % 2) + 1] * slope(activated.high);
    }
}

// Through a LayerNorm: first the derivatives by its gains and shifts, and by its standard sums, with what a row needs
// of them; and once that is summed up over the row, the derivatives by what went into it.
//   derivative       by what is activated; then by the standard sums; at last by what went in  read, written
//   by_gain, by_shift  added to, if it `adds`
//   whole, along     of row g and of row g + 8: sums of derivatives, and of these times the standard sums
//   num_columns      of a row
__device__ __forceinline__ void begin_normed(
    float (&derivative)[4][2], const Standard& standard, const float (&gain)[2][2], float (&by_gain)[2][2],
    float (&by_shift)[2][2], float (&whole)[2], float (&along)[2], bool adds)
{
    whole[0] = whole[1] = along[0] = along[1] = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int of_row = i / 2 % 2;
        float& one = derivative[i / 2][i % 2];
        const float value = standard.value[i / 2][i % 2];
        if (adds) {
            by_gain[i / 4][i % 2] += one * value;
            by_shift[i / 4][i % 2] += one;
        }
        one *= gain[i / 4][i % 2];
        whole[of_row] += one;
        along[of_row] += one * value;
    }
}
__device__ __forceinline__ void end_normed(
    float (&derivative)[4][2], const Standard& standard, const float (&whole)[2], const float (&along)[2],
    int num_columns)
{
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int of_row = i / 2 % 2;
        float& one = derivative[i / 2][i % 2];
        one = (one - (whole[of_row] + standard.value[i / 2][i % 2] * along[of_row]) / num_columns) * standard.scale[of_row];
    }
}

// What a block of conv_backward writes of the filters, and of the outputs.
constexpr int OF_FILTERS = FILTERS * PATCH_COLUMNS + (NORMS ? 2 * FILTERS : 0);
constexpr int OF_OUTPUTS = OUTPUTS * DENSE + DENSE + OUTPUTS + (NORMS ? 2 * DENSE : 0);

// What it has in shared memory. Its sums are staged in the place of the weights.
struct Backward {
    static constexpr int TILES = WARPS * TILE * (int)sizeof(Element);
    static constexpr int SUMS = WARPS * OF_FILTERS * 4;
    static constexpr int STAGE = STAGE_TILES * 16 * STAGE_PITCH * 4;
    static constexpr int LARGER = TILES > SUMS ? TILES : SUMS;
    static constexpr int FIRST = (LARGER > STAGE ? LARGER : STAGE);
    static constexpr int DELTA = FIRST + BACK_TILES * 16 * ROW_PITCH * (int)sizeof(Element);
    static constexpr int SCRATCH = DELTA + WARPS * 2 * 16 * SCRATCH_PITCH * (int)sizeof(Element);
    static constexpr int BITS = SCRATCH + BACK_TILES * 16 * IMAGE_WORDS * 4;
    static constexpr int BYTES = BITS + 2 * WARPS * 16 * 4;
};
static_assert(BACKWARD_BYTES >= Backward::BYTES, "conv_backward has too little shared memory");

// Adds up what a lane has of the columns 2 t and 2 t + 1, over the eight lanes of each t; all of them get it.
__device__ __forceinline__ void over_rows(float (&two)[2])
{
#pragma unroll
    for (int flip = 4; flip <= 16; flip *= 2) {
        two[0] += __shfl_xor_sync(ALL_LANES, two[0], flip);
        two[1] += __shfl_xor_sync(ALL_LANES, two[1], flip);
    }
}

// Of gains and shifts of two columns, to [2, step] floats.
__device__ __forceinline__ void write_norm(float* place, int step, float (&gain)[2], float (&shift)[2])
{
    over_rows(gain);
    over_rows(shift);
    if (lane_index() >= 4) return;
    *(FloatPair*)place = {gain[0], gain[1]};
    *(FloatPair*)(place + step) = {shift[0], shift[1]};
}

// Sums of 16 x 8 to [16, pitch] floats.
__device__ __forceinline__ void write_sums(float* out, int pitch, const float (&sum)[4])
{
    float* place = out + (lane_index() >> 2) * pitch + 2 * (lane_index() & 3);
    *(FloatPair*)place = {sum[0], sum[1]};
    *(FloatPair*)(place + 8 * pitch) = {sum[2], sum[3]};
}

// The gradient of all weights, out of the deltas of the outputs. Blocks share the images among `num_splits`, and of
// each share the places, WARPS a block; the last block of a share has the outputs.
//   weights, biases, num_rows  as conv_forward has them                                     read
//   hidden, standard, scale, kept  as conv_forward left them                                read
//   delta      bytes of [row, OUTPUTS] elements: the loss's derivative by the outputs       read
//   of_dense   [split, DENSE, 16, place]                                                    written
//   of_filters [split, block of places, OF_FILTERS]  [16, PATCH_COLUMNS], whose column
//              after a patch has biases; gains and shifts if it NORMS                       written
//   of_outputs [split, OF_OUTPUTS]  weights, biases of the dense layer, biases; then the
//              dense layer's gains and shifts, if it NORMS                                  written
extern "C" __global__ void __launch_bounds__(THREADS) conv_backward(
    const unsigned char* weights, const float* biases, const unsigned char* hidden, const unsigned char* standard,
    const float* scale, const int* kept, const unsigned char* delta, float* of_dense, float* of_filters,
    float* of_outputs, long long num_rows, int num_splits)
{
    extern __shared__ char shared[];
    const Element* weight = (const Element*)weights;
    const int warp = threadIdx.x >> 5;
    const int g = lane_index() >> 2;
    const int t = lane_index() & 3;
    const int split = blockIdx.x / (GROUPS + 1);
    const int group = blockIdx.x % (GROUPS + 1);
    const bool has_outputs = group == GROUPS;
    const int place = group * WARPS + warp;
    const bool has_place = !has_outputs && place < PLACES;
    Element* tile = (Element*)shared + warp * TILE;
    Element* deltas = (Element*)(shared + Backward::FIRST);  // [16 BACK_TILES][ROW_PITCH] of the dense layer
    Element* scratch = (Element*)(shared + Backward::DELTA) + warp * (2 * 16 * SCRATCH_PITCH);
    Element* scratch2 = scratch + 16 * SCRATCH_PITCH;
    unsigned* bits = (unsigned*)(shared + Backward::SCRATCH);
    float* of_rows = (float*)(shared + Backward::BITS);  // [2][WARPS][16]
    if (has_place) start_tile(tile, weight, place);
    const Filters filters = load_filters(weight, biases);
    wait_for_copies();

    float by_dense[DENSE_TILES][2][4] = {};        // of the block with the outputs: by its tile of their weights
    float by_filters[PATCH_BLOCKS][4] = {};
    float by_outputs[OUTPUT_TILES][2][4] = {};
    float by_bias[2][2] = {};                      // of the dense layer's tile
    float by_output_bias[OUTPUT_TILES][2][2] = {};
    float by_gain[2][2] = {};                      // of a LayerNorm: the filters', or of the block with the outputs
    float by_shift[2][2] = {};                     // its tile's of the dense layer
    constexpr int AT_ONCE = 16 * BACK_TILES;
    for (long long start = (long long)AT_ONCE * split; start < num_rows; start += (long long)AT_ONCE * num_splits) {
        for (int i = threadIdx.x; i < AT_ONCE * IMAGE_WORDS && !has_outputs; i += THREADS) {
            bits[i] = start + i / IMAGE_WORDS < num_rows ? (unsigned)kept[start * IMAGE_WORDS + i] : 0u;
        }
#pragma unroll
        for (int r = 0; r < BACK_TILES; ++r) {
            const long long first = start + 16 * r;
            const long long left = num_rows - first;
            if (left <= 0) break;
            float slanted[4][2] = {};
            if (warp < DENSE_TILES) {  // a tile of the dense layer's deltas
                float sum[2][4] = {};
                Pair gave[4];
                read_rows(gave, (const Element*)hidden + first * DENSE + 16 * warp, DENSE, left);
#pragma unroll
                for (int o = 0; o < OUTPUT_TILES; ++o) {
                    Pair a[4], b[4];
                    read_rows(a, (const Element*)delta + first * OUTPUTS + 16 * o, OUTPUTS, left);
                    load_weights<true, false>(b, weight + OUTPUTS_AT, 2 * o, 2 * warp, 2 * DENSE_TILES);
                    multiply(sum[0], a, b[0], b[1]);
                    multiply(sum[1], a, b[2], b[3]);
                    if (has_outputs) {
#pragma unroll
                        for (int i = 0; i < 4; ++i) {
                            const FloatPair two = unpack(a[i]);
                            by_output_bias[o][i / 2][0] += two.low;
                            by_output_bias[o][i / 2][1] += two.high;
                        }
                        store_rows<SCRATCH_PITCH>(scratch, a);
                        store_rows<SCRATCH_PITCH>(scratch2, gave);
                        __syncwarp();
                        load_columns<true, false>(a, scratch, SCRATCH_PITCH, 0);
                        load_columns<false, false>(b, scratch2, SCRATCH_PITCH, 0);
                        multiply(by_outputs[o][0], a, b[0], b[1]);
                        multiply(by_outputs[o][1], a, b[2], b[3]);
                        __syncwarp();
                    }
                }
                slant(slanted, sum, gave);
            }
            if constexpr (NORMS) {
                Standard kept = {};
                float gain[2][2] = {};
                if (warp < DENSE_TILES) {
                    Pair tile_of_standard[4];
                    read_rows(tile_of_standard, (const Element*)standard + first * DENSE + 16 * warp, DENSE, left);
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        const FloatPair two = unpack(tile_of_standard[i]);
                        kept.value[i][0] = two.low;
                        kept.value[i][1] = two.high;
                        gain[i / 2][i % 2] = biases[DENSE_BIASES_AT + DENSE + 16 * warp + i / 2 * 8 + 2 * t + i % 2];
                    }
#pragma unroll
                    for (int half = 0; half < 2; ++half) kept.scale[half] = g + 8 * half < left ? scale[first + g + 8 * half] : 0.0f;
                }
                float whole[2], along[2];
                begin_normed(slanted, kept, gain, by_gain, by_shift, whole, along, has_outputs);
                over_dense(whole, of_rows);
                over_dense(along, of_rows + WARPS * 16);
                end_normed(slanted, kept, whole, along, DENSE_COLUMNS);
#pragma unroll
                for (int i = 0; i < 8; ++i) {  // padding has no delta
                    if (16 * warp + i / 4 * 8 + 2 * t + i % 2 >= DENSE_COLUMNS) slanted[i / 2][i % 2] = 0.0f;
                }
            }
            if (warp < DENSE_TILES) {
                Pair made[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    made[i] = packed(slanted[i][0], slanted[i][1]);
                    if (has_outputs) {
                        by_bias[i / 2][0] += slanted[i][0];
                        by_bias[i / 2][1] += slanted[i][1];
                    }
                }
                store_rows<ROW_PITCH>(deltas + 16 * r * ROW_PITCH + 16 * warp, made);
            }
        }
        __syncthreads();
        for (int r = 0; r < BACK_TILES && has_place && start + 16 * r < num_rows; ++r) {
            const Element* delta_rows = deltas + 16 * r * ROW_PITCH;
            const Patch mine = patch_at(bits + (16 * r + lane_index() % 16) * IMAGE_WORDS, place);
            Pair found[4];
            Standard kept;
            convolve(found, kept, patch_of_lane(mine, g), patch_of_lane(mine, g + 8), filters);
            store_rows<SCRATCH_PITCH>(scratch, found);
            float sum[2][4] = {};
#pragma unroll
            for (int k = 0; k < DENSE_TILES; ++k) {
                Pair a[4], b[4];
                load_rows<ROW_PITCH>(a, delta_rows + 16 * k);
                load_weights<true, true>(b, tile, 2 * k, 0, 2);
                multiply(sum[0], a, b[0], b[1]);
                multiply(sum[1], a, b[2], b[3]);
            }
            float by_found[4][2];
            slant(by_found, sum, found);
            if constexpr (NORMS) {
                float whole[2], along[2];
                begin_normed(by_found, kept, filters.gain, by_gain, by_shift, whole, along, true);
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    whole[half] = over_row(whole[half]);
                    along[half] = over_row(along[half]);
                }
                end_normed(by_found, kept, whole, along, FILTERS);
            }
            Pair made[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) made[i] = packed(by_found[i][0], by_found[i][1]);
            store_rows<SCRATCH_PITCH>(scratch2, made);
            __syncwarp();
            Pair b[4];
            load_columns<false, false>(b, scratch, SCRATCH_PITCH, 0);
#pragma unroll
            for (int m = 0; m < DENSE_TILES; ++m) {
                Pair a[4];
                load_columns<true, false>(a, delta_rows, ROW_PITCH, 16 * m);
                multiply(by_dense[m][0], a, b[0], b[1]);
                multiply(by_dense[m][1], a, b[2], b[3]);
            }
            Pair a[4];
            load_columns<true, false>(a, scratch2, SCRATCH_PITCH, 0);
            Patch of_row[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) of_row[i] = patch_of_lane(mine, 2 * t + i % 2 + i / 2 * 8);
#pragma unroll
            for (int n = 0; n < PATCH_BLOCKS; ++n) {
                unsigned bit[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) bit[i] = of_row[i].word[8 * n / 32] >> (8 * n % 32 + g) & 1u;
                Pair low, high;
                spread(low, bit[0] | bit[1] << 1);
                spread(high, bit[2] | bit[3] << 1);
                multiply(by_filters[n], a, low, high);
            }
            __syncwarp();  // before the next tile takes its place
        }
        __syncthreads();  // before the next images come
    }

    if (has_outputs) {
        if (warp >= DENSE_TILES) return;
        float* out = of_outputs + (long long)split * OF_OUTPUTS;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
            for (int o = 0; o < OUTPUT_TILES; ++o) {
                write_sums(out + 16 * o * DENSE + 16 * warp + 8 * i, DENSE, by_outputs[o][i]);
                over_rows(by_output_bias[o][i]);
                float* place = out + OUTPUTS * DENSE + DENSE + 16 * o + 8 * i + 2 * t;
                if (warp == 0 && g == 0) *(FloatPair*)place = {by_output_bias[o][i][0], by_output_bias[o][i][1]};
            }
            over_rows(by_bias[i]);
            const int column = 16 * warp + 8 * i + 2 * t;
            if (g == 0) *(FloatPair*)(out + OUTPUTS * DENSE + column) = {by_bias[i][0], by_bias[i][1]};
            if (NORMS) write_norm(out + OUTPUTS * DENSE + DENSE + OUTPUTS + column, DENSE, by_gain[i], by_shift[i]);
        }
        return;
    }
    // Neighbouring places, which are of other warps, lie side by side in memory.
    float* stage = (float*)shared;  // [16 STAGE_TILES][STAGE_PITCH]
#pragma unroll
    for (int from = 0; from < DENSE_TILES; from += STAGE_TILES) {
#pragma unroll
        for (int i = 0; i < 8 * STAGE_TILES; ++i) {
            const int row = i / 8 * 16 + i % 4 / 2 * 8 + g;
            const int filter = i % 8 / 4 * 8 + 2 * t + i % 2;
            if (from + i / 8 >= DENSE_TILES) break;
            stage[row * STAGE_PITCH + filter * PLACE_PITCH + warp] = by_dense[from + i / 8][i % 8 / 4][i % 4];
        }
        __syncthreads();
        for (int i = threadIdx.x; i < STAGE_TILES * 16 * FILTERS * WARPS; i += THREADS) {
            const int row = i / (FILTERS * WARPS);
            const int filter = i / WARPS % FILTERS;
            const int other = group * WARPS + i % WARPS;
            if (16 * from + row >= DENSE || other >= PLACES) continue;
            float* out = of_dense + (long long)split * DENSE * FILTERS * PLACES;
            out[((16 * from + row) * FILTERS + filter) * PLACES + other] =
                stage[row * STAGE_PITCH + filter * PLACE_PITCH + i % WARPS];
        }
        __syncthreads();
    }
    float* sums = (float*)shared;  // [WARPS][OF_FILTERS]
#pragma unroll
    for (int n = 0; n < PATCH_BLOCKS; ++n) {
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
