// From the deltas of the outputs to those of the dense layer, and to the gradient of all behind it: see
// layers/convolution.cuh, which lists the constants. A block has 16 rows at once, a warp 16 columns of the dense layer.
//
// Constant besides:
//   OUTPUTS_BYTES  of shared memory
#include "layers/convolution_back.cuh"

constexpr int OF_OUTPUTS = OUTPUTS * DENSE + DENSE + OUTPUTS + (NORMS ? 2 * DENSE : 0);

// What a block has in shared memory.
struct Shared {
    static constexpr int SCRATCH = DENSE_TILES * 2 * 16 * SCRATCH_PITCH * (int)sizeof(Element);
    static constexpr int BYTES = SCRATCH + 2 * WARPS * 16 * 4;
};
static_assert(OUTPUTS_BYTES >= Shared::BYTES, "conv_outputs has too little shared memory");

// Blocks share the rows. Rows up to a whole tile of 16, which are none, get deltas of 0.
//   weights, biases   as conv_forward has them                                              read
//   standard, scale   as conv_forward left them                                             read
//   delta             bytes of [row, OUTPUTS] elements: the loss's derivative by the outputs  read
//   dense             as conv_forward left `hidden`, bytes of [row, DENSE] elements; then the
//                     derivatives by what went into its activation, or LayerNorm            read, written
//   of_outputs        [block, OF_OUTPUTS]  weights, biases of the dense layer, biases; then the
//                     dense layer's gains and shifts, if it NORMS                           written
//   num_rows                                                                                read
extern "C" __global__ void __launch_bounds__(THREADS) conv_outputs(
    const unsigned char* weights, const float* biases, const unsigned char* standard, const float* scale,
    const unsigned char* delta, unsigned char* dense, float* of_outputs, long long num_rows)
{
    extern __shared__ char shared[];
    const Element* weight = (const Element*)weights;
    const int warp = threadIdx.x >> 5;
    const int g = lane_index() >> 2;
    const int t = lane_index() & 3;
    const bool has_tile = warp < DENSE_TILES;
    Element* scratch = (Element*)shared + warp * (2 * 16 * SCRATCH_PITCH);
    Element* scratch2 = scratch + 16 * SCRATCH_PITCH;
    float* of_rows = (float*)(shared + Shared::SCRATCH);  // [2][WARPS][16]
    Pair of_outputs_weights[OUTPUT_TILES][4];
    float gain[2][2] = {};
    if (has_tile) {
#pragma unroll
        for (int o = 0; o < OUTPUT_TILES; ++o) {
            load_weights<true, false>(of_outputs_weights[o], weight + OUTPUTS_AT, 2 * o, 2 * warp, 2 * DENSE_TILES);
        }
        const float* of_norm = biases + DENSE_BIASES_AT + DENSE + 16 * warp + 2 * t;
#pragma unroll
        for (int i = 0; i < 4 && NORMS; ++i) gain[i / 2][i % 2] = of_norm[i / 2 * 8 + i % 2];
    }

    float by_outputs[OUTPUT_TILES][2][4] = {};
    float by_bias[2][2] = {};  // of the dense layer
    float by_output_bias[OUTPUT_TILES][2][2] = {};
    float by_gain[2][2] = {};
    float by_shift[2][2] = {};
    for (long long first = 16ll * blockIdx.x; first < num_rows; first += 16ll * gridDim.x) {
        const long long left = num_rows - first;
        Element* rows = (Element*)dense + first * DENSE + 16 * warp;
        float derivative[4][2] = {};
        Pair gave[4];
        Standard kept = {};
        if (has_tile) {
            Pair a[OUTPUT_TILES][4];
            float sum[2][4] = {};
            read_rows(gave, rows, DENSE, left);
#pragma unroll
            for (int o = 0; o < OUTPUT_TILES; ++o) {
                read_rows(a[o], (const Element*)delta + first * OUTPUTS + 16 * o, OUTPUTS, left);
            }
            if constexpr (NORMS) {
                Pair of_standard[4];
                read_rows(of_standard, (const Element*)standard + first * DENSE + 16 * warp, DENSE, left);
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    kept.scale[half] = g + 8 * half < left ? scale[first + g + 8 * half] : 0.0f;
                }
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const FloatPair two = unpack(of_standard[i]);
                    kept.value[i][0] = two.low;
                    kept.value[i][1] = two.high;
                }
            }
            store_rows<SCRATCH_PITCH>(scratch2, gave);
#pragma unroll
            for (int o = 0; o < OUTPUT_TILES; ++o) {
                const Pair(&of_dense)[4] = of_outputs_weights[o];
                multiply(sum[0], a[o], of_dense[0], of_dense[1]);
                multiply(sum[1], a[o], of_dense[2], of_dense[3]);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const FloatPair two = unpack(a[o][i]);
                    by_output_bias[o][i / 2][0] += two.low;
                    by_output_bias[o][i / 2][1] += two.high;
                }
                store_rows<SCRATCH_PITCH>(scratch, a[o]);
                __syncwarp();
                Pair columns[4], b[4];
                load_columns<true, false>(columns, scratch, SCRATCH_PITCH, 0);
                load_columns<false, false>(b, scratch2, SCRATCH_PITCH, 0);
                multiply(by_outputs[o][0], columns, b[0], b[1]);
                multiply(by_outputs[o][1], columns, b[2], b[3]);
                __syncwarp();  // before the next tile takes its place
            }
            slant(derivative, sum, gave);
        }
        if constexpr (NORMS) {
            float whole[2], along[2];
            begin_normed(derivative, kept, gain, by_gain, by_shift, whole, along);
            over_dense(whole, of_rows);
            over_dense(along, of_rows + WARPS * 16);
            end_normed(derivative, kept, whole, along, DENSE_COLUMNS);
#pragma unroll
            for (int i = 0; i < 8; ++i) {  // padding has no delta
                if (16 * warp + i / 4 * 8 + 2 * t + i % 2 >= DENSE_COLUMNS) derivative[i / 2][i % 2] = 0.0f;
            }
        }
        if (!has_tile) continue;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            by_bias[i / 2][0] += derivative[i][0];
            by_bias[i / 2][1] += derivative[i][1];
            *(Pair*)(rows + (long long)(g + i % 2 * 8) * DENSE + 2 * t + i / 2 * 8) =
                packed(derivative[i][0], derivative[i][1]);
        }
    }

    if (!has_tile) return;
    float* out = of_outputs + (long long)blockIdx.x * OF_OUTPUTS;
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
}
