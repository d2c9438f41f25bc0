// A step of Adam (Kingma and Ba 2014, arXiv:1412.6980) of all parameters of a module, however large one of them is.
//
// Parameters are cut into pieces, the last of a tensor shorter: a block has one.
// Blocks have whole warps.
#include "warpdrive.cuh"

constexpr int MOST_THREADS = 256;  // of a block
constexpr int AT_ONCE = 4;         // numbers of a thread

struct Piece {
    long long tensor;  // among all
    long long first;   // of its numbers
    long long start;   // of the piece among those of all tensors
    long long count;   // of its numbers
};

//   x  summed over a block's threads, in the same order every time
//   of_thread  [blockDim] shared
__device__ __forceinline__ float over_block(float x, float* of_thread)
{
    of_thread[threadIdx.x] = x;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if ((int)threadIdx.x < half) of_thread[threadIdx.x] += of_thread[threadIdx.x + half];
        __syncthreads();
    }
    return of_thread[0];
}

// How long the gradient of each parameter is; the last block that is done adds up.
//   gradient  [numbers of all tensors]                              read
//   pieces    [piece, 4]  see Piece                                 read
//   first_piece  [tensor + 1]  of each tensor, and behind the last  read
//   squares   [piece]     their sums of squares                     written
//   norms     [tensor]                                              written
//   steps     [tensor]    made so far                               read
//   now       [1]         the number of this step                   written
//   ticket    [1]         blocks that are done; 0 between launches  read, written
extern "C" __global__ void measure_gradient(
    const float* gradient, const long long* pieces, int num_pieces, const int* first_piece, float* squares,
    float* norms, int num_tensors, const float* steps, float* now, int* ticket)
{
    __shared__ float of_thread[MOST_THREADS];
    __shared__ int is_last;
    for (int i = blockIdx.x; i < num_pieces; i += gridDim.x) {
        const Piece piece = ((const Piece*)pieces)[i];
        float sum = 0.0f;
        for (int k = threadIdx.x; k < piece.count; k += blockDim.x) {
            const float slope = gradient[piece.start + k];
            sum += slope * slope;
        }
        sum = over_block(sum, of_thread);
        if (threadIdx.x == 0) squares[i] = sum;
        __syncthreads();
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) is_last = atomicAdd(ticket, 1) == (int)gridDim.x - 1;
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    for (int tensor = threadIdx.x / 32; tensor < num_tensors; tensor += blockDim.x / 32) {
        double sum = 0.0;
        for (int i = first_piece[tensor] + threadIdx.x % 32; i < first_piece[tensor + 1]; i += 32) {
            sum += (double)((volatile float*)squares)[i];
        }
        for (int flip = 16; flip > 0; flip /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, flip);
        if (threadIdx.x % 32 == 0) norms[tensor] = (float)sqrt(sum);
    }
    if (threadIdx.x > 0) return;
    now[0] = steps[0] + 1.0f;
    ticket[0] = 0;
}

// The step, unless it is skipped.
//   gradient, pieces  as above                                      read
//   addresses  [tensor]   of parameters                             read
//   rates      [tensor]   addresses of learning rates               read
//   average, square  [numbers of all tensors]  Adam's memory        read, written
//   steps      [tensor]   made so far                               written
//   now        [1]        as above                                  read
//   scale      [1]        what the gradient is multiplied by        read
//   skip       [1]        not 0: no step                            read
extern "C" __global__ void adam_step(
    const float* gradient, const long long* pieces, int num_pieces, const long long* addresses, const long long* rates,
    float* average, float* square, float* steps, int num_tensors, const float* now, const float* scale,
    const float* skip, float beta1, float beta2, float epsilon)
{
    if (skip[0] != 0.0f) return;
    const float shortened = scale[0];
    const float correction1 = -expm1f(now[0] * logf(beta1));  // 1 - beta1^steps, exact for few of them, too
    const float correction2 = sqrtf(-expm1f(now[0] * logf(beta2)));
    for (int i = blockIdx.x; i < num_pieces; i += gridDim.x) {
        const Piece piece = ((const Piece*)pieces)[i];
        float* parameters = (float*)addresses[piece.tensor] + piece.first;
        const float step_size = *(const float*)rates[piece.tensor] / correction1;
        for (int first = threadIdx.x; first < piece.count; first += AT_ONCE * blockDim.x) {
            float slope[AT_ONCE], mean[AT_ONCE], mean_square[AT_ONCE], parameter[AT_ONCE];
#pragma unroll
            for (int j = 0; j < AT_ONCE; ++j) {  // all are asked for before one is written
                const int k = first + j * blockDim.x;
                if (k >= piece.count) continue;
                slope[j] = gradient[piece.start + k] * shortened;
                mean[j] = average[piece.start + k];
                mean_square[j] = square[piece.start + k];
                parameter[j] = parameters[k];
            }
#pragma unroll
            for (int j = 0; j < AT_ONCE; ++j) {
                const int k = first + j * blockDim.x;
                if (k >= piece.count) continue;
                mean[j] = mean[j] + (1.0f - beta1) * (slope[j] - mean[j]);
                mean_square[j] = beta2 * mean_square[j] + (1.0f - beta2) * slope[j] * slope[j];
                average[piece.start + k] = mean[j];
                square[piece.start + k] = mean_square[j];
                parameters[k] = parameter[j] - step_size * mean[j] / (sqrtf(mean_square[j]) / correction2 + epsilon);
            }
        }
    }
    if (blockIdx.x > 0) return;
    for (int tensor = threadIdx.x; tensor < num_tensors; tensor += blockDim.x) steps[tensor] = now[0];
}
