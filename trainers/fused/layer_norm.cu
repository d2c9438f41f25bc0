// A LayerNorm of the input is no layer to the fused kernels: they bring rows to mean 0 and deviation 1 alone. Its gain
// and shift are folded into the first layer's weights and biases: W gain x + (b + W shift).
//
// Constants:
//   NUM_NORMS       networks of the policy that have one
//   FULL_PRECISION  of the networks
//   THREADS         of a block
//
// A norm is 9 numbers: where weights [out, in], biases, gain and shift begin among the parameters; out; in; where the
// places of weights and biases begin in `place`; its first row, and its first column, among those of all norms.
#include "tensor_core.cuh"

struct Norm {
    int weight, bias, gain, shift, num_out, num_in, place, first_row, first_column;
};

// The last norm that begins no later than this row, or this column.
__device__ __forceinline__ Norm find_norm(const int* norms, int number, int Norm::*first)
{
    const Norm* all = (const Norm*)norms;
    int found = 0;
    for (int i = 1; i < NUM_NORMS; ++i) {
        if (all[i].*first <= number) found = i;
    }
    return all[found];
}

// The first layers with gain and shift, as the kernels read them. A warp has a row of weights.
//   norms      [NUM_NORMS, 9]                                                  read
//   place      of each folded weight, its element; of each bias, its place     read
//   parameter  of the policy                                                   read
//   elements, biases  as pack_parameters has them                              written
//   num_rows   of all norms
extern "C" __global__ void __launch_bounds__(THREADS) fold_norms(
    const int* norms, const int* place, const float* parameter, unsigned char* elements, float* biases, int num_rows)
{
    const int number = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (number >= num_rows) return;
    const Norm norm = find_norm(norms, number, &Norm::first_row);
    const int row = number - norm.first_row;
    const float* weight = parameter + norm.weight + row * norm.num_in;
    const int* weight_place = place + norm.place + row * norm.num_in;
    float sum = 0.0f;
    for (int i = lane_index(); i < norm.num_in; i += 32) {
        narrow(((Element*)elements)[weight_place[i]], weight[i] * parameter[norm.gain + i]);
        sum += weight[i] * parameter[norm.shift + i];
    }
    for (int flip = 16; flip > 0; flip /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, flip);
    if (lane_index() == 0) {
        biases[place[norm.place + norm.num_out * norm.num_in + row]] = parameter[norm.bias + row] + sum;
    }
}

// From the gradient of folded weights and biases to that of weights, gain and shift. A block has a column of weights.
//   norms      [NUM_NORMS, 9]                    read
//   parameter  of the policy                     read
//   gradient   of it; in biases it stays as is   read, written
extern "C" __global__ void __launch_bounds__(THREADS) unfold_gradient(
    const int* norms, const float* parameter, float* gradient)
{
    __shared__ float sums[2][THREADS];
    const Norm norm = find_norm(norms, blockIdx.x, &Norm::first_column);
    const int column = blockIdx.x - norm.first_column;
    const float gain = parameter[norm.gain + column];
    const float shift = parameter[norm.shift + column];
    float of_gain = 0.0f;
    float of_shift = 0.0f;
    for (int i = threadIdx.x; i < norm.num_out; i += THREADS) {
        const int at = norm.weight + i * norm.num_in + column;
        const float of_weight = gradient[at];
        const float of_bias = gradient[norm.bias + i];
        of_gain += parameter[at] * of_weight;
        of_shift += parameter[at] * of_bias;
        gradient[at] = of_weight * gain + of_bias * shift;
    }
    sums[0][threadIdx.x] = of_gain;
    sums[1][threadIdx.x] = of_shift;
    for (int width = THREADS / 2; width > 0; width /= 2) {
        __syncthreads();
        if (threadIdx.x < width) {
            for (int k = 0; k < 2; ++k) sums[k][threadIdx.x] += sums[k][threadIdx.x + width];
        }
    }
    if (threadIdx.x == 0) {
        gradient[norm.gain + column] = sums[0][0];
        gradient[norm.shift + column] = sums[1][0];
    }
}
