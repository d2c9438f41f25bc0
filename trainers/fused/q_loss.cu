// The loss of Q-learning and its derivatives, of what networks say whose layers went through memory (layered_q.py).
//
// Outputs are in memory without their biases, a row's columns in the order of a record's (see tensor_core.cuh). A thread
// has a row of the batch.
//
// Constants:
//   FULL_PRECISION  of the deltas
//   BATCH           rows, of this rank
//   IS_OF_RANKS     whether several ranks share a batch
//   NUM_ACTIONS     whose values the outputs are
//   COLUMNS         of a row of outputs, and of deltas
//   THREADS         of a block
//   DOUBLE          whether the network chooses the action that the target network judges
//   HAS_MASK        whether some actions may not be taken
//   HUBER_DELTA     0: squared errors
#include "losses/huber.cuh"
#include "over_block.cuh"
#include "tensor_core.cuh"

constexpr int NUM_FIGURES = 3;

static_assert(COLUMNS % 16 == 0 && COLUMNS >= NUM_ACTIONS, "an action has no output");
static_assert(THREADS % 32 == 0, "a warp is not whole");

__device__ __forceinline__ float value_of(const float* outputs, const float* biases, long long row, int action)
{
    const int place = place_of_column<1>(action);
    return outputs[row * COLUMNS + place] + biases[place];
}

//   outputs, biases  [BATCH, COLUMNS], [COLUMNS]  of the network, of what was seen     read
//   next_outputs     likewise, of what was seen after it, if it is DOUBLE              read
//   target_outputs, target_biases  of the target network, of the same                  read
//   action       [BATCH]  what was done                                                read
//   reward, discount, weight  [BATCH]                                                  read
//   next_mask    [BATCH, NUM_ACTIONS]  what may be done after it, if it HAS_MASK       read
//   number_of_all  [1]  rows of all ranks that count, if it IS_OF_RANKS                read
//   adam_steps   [1 or more]                                                           read
//   step_before  [1]  the first: the same                                              written
//   delta        bytes of [BATCH, COLUMNS] elements: the loss's derivatives            written
//   error        [BATCH]  distance of the Q-value from its target; 0 where the row does not count   written
//   sums         [block, 3]  of losses, Q-values and errors                            written, read
//   ticket       [1]  blocks that are done; 0 between launches                         read, written
//   figures      [3]  means of the same over the rows that count; of several ranks each gives its part   written
extern "C" __global__ void __launch_bounds__(THREADS) q_loss(
    const float* outputs, const float* biases, const float* next_outputs, const float* target_outputs,
    const float* target_biases, const long long* action, const float* reward, const float* discount,
    const float* weight, const bool* next_mask, const float* number_of_all, const float* adam_steps,
    float* step_before, unsigned char* delta, float* error, float* sums, int* ticket, float* figures)
{
    __shared__ float of_warps[NUM_FIGURES * THREADS / 32];
    __shared__ int is_last;
    const long long row = global_thread();
    if (row == 0) step_before[0] = adam_steps[0];
    float count = 0.0f;
    for (int i = threadIdx.x; i < BATCH && !IS_OF_RANKS; i += THREADS) count += weight[i] > 0.0f ? 1.0f : 0.0f;
    float weighs = 0.0f;
    int taken = 0;
    float distance = 0.0f;
    float q = 0.0f;
    if (row < BATCH) {
        weighs = weight[row];
        taken = (int)action[row];
        const auto chosen_by = [&](int i) {
            return value_of(DOUBLE ? next_outputs : target_outputs, DOUBLE ? biases : target_biases, row, i);
        };
        int best = -1;
        float largest = 0.0f;
#pragma unroll 8
        for (int i = 0; i < NUM_ACTIONS; ++i) {  // what was done is not waited for before its value is asked for
            const float value = chosen_by(i), own = value_of(outputs, biases, row, i);
            if (i == taken) q = own;
            if (HAS_MASK && !next_mask[row * NUM_ACTIONS + i]) continue;
            if (best < 0 || value > largest) {
                best = i;
                largest = value;
            }
        }
        if (DOUBLE || best < 0) {  // the first, if none may be done
            largest = value_of(target_outputs, target_biases, row, max(best, 0));
        }
        distance = q - (reward[row] + discount[row] * largest);
    }
    const float number = IS_OF_RANKS ? number_of_all[0] : fmaxf(over_block(count, of_warps), 1.0f);
    float sum[NUM_FIGURES] = {};
    if (row < BATCH) {
        float slope = 0.0f;
        float size = 0.0f;
        if (weighs != 0.0f) {
            size = fabsf(distance);
            const HuberLoss huber = huber_loss(distance);
            slope = huber.slope * (weighs / number);
            sum[0] = huber.loss * weighs;
            sum[1] = q;
            sum[2] = size;
        }
        error[row] = size;
        Element* mine = (Element*)delta + row * COLUMNS;
        for (int i = 0; i < COLUMNS; ++i) narrow(mine[i], i == place_of_column<1>(taken) ? slope : 0.0f);
    }
    over_block(sum, of_warps);
    for (int i = 0; i < NUM_FIGURES && threadIdx.x == 0; ++i) {
        if (gridDim.x == 1) {
            figures[i] = sum[i] / number;
        } else {
            sums[blockIdx.x * NUM_FIGURES + i] = sum[i];
        }
    }
    if (gridDim.x == 1) return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) is_last = atomicAdd(ticket, 1) == (int)gridDim.x - 1;
    __syncthreads();
    if (!is_last || threadIdx.x >= NUM_FIGURES) return;
    __threadfence();
    float whole = 0.0f;
    for (int block = 0; block < (int)gridDim.x; ++block) {
        whole += ((volatile float*)sums)[block * NUM_FIGURES + threadIdx.x];
    }
    figures[threadIdx.x] = whole / number;
    if (threadIdx.x == 0) ticket[0] = 0;
}
