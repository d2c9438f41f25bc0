// R2D2's loss and its derivatives by the Q-values in the rows of sequences, and what the sequences are drawn again by.
// A block has a sequence.
//
// Constants:
//   NUM          sequences, of this rank
//   BURN_IN      rows before the first that Q-values are of
//   LENGTH       steps that are learned from
//   ROWS         that Q-values are of, LENGTH and those that follow
//   NUM_ACTIONS
//   THREADS      of a block
//   DOUBLE       whether the network chooses the action that the target network judges
//   HAS_MASK     whether some actions may not be taken
//   RESCALES     whether values are learned as h(value); see Pohlen et al. 2018, arXiv:1805.11593
//   IS_OF_RANKS  whether several ranks share a batch
//   HUBER_DELTA  0: squared errors
#include "losses/huber.cuh"
#include "over_block.cuh"

constexpr int NUM_FIGURES = 3;

static_assert(THREADS % 32 == 0, "a warp is not whole");

__device__ __forceinline__ float sign_of(float value)
{
    return value > 0.0f ? 1.0f : value < 0.0f ? -1.0f : value;
}
__device__ __forceinline__ float rescaled(float value, float epsilon)
{
    return sign_of(value) * (sqrtf(fabsf(value) + 1.0f) - 1.0f) + epsilon * value;
}
__device__ __forceinline__ float unscaled(float value, float epsilon)
{
    const float size = fabsf(value) + 1.0f + epsilon;
    const float root = 2.0f * size / (sqrtf(1.0f + 4.0f * epsilon * size) + 1.0f);
    return sign_of(value) * (root - 1.0f) * (root + 1.0f);
}

//   q, target_q  [ROWS, NUM, NUM_ACTIONS]  of the network, and of the target network                    read
//   mask         [BURN_IN + ROWS, NUM, NUM_ACTIONS]  what may be done, if it HAS_MASK                   read
//   action       [BURN_IN + LENGTH or more, NUM]  what was done                                         read
//   reward, discount  [LENGTH, NUM]  of the steps that count, and of what comes after them              read
//   bootstrap    [LENGTH, NUM]  the row that comes after them, from the first of the burn-in on         read
//   valid, weight  [LENGTH, NUM], [NUM]  0 where there is nothing to learn                              read
//   number_of_all  [1]  steps of all ranks that count, if it IS_OF_RANKS                                read
//   rescaling    the epsilon of h
//   eta          how much of what a sequence is drawn by is its largest error; the rest is their mean
//   by_q         [ROWS, NUM, NUM_ACTIONS]  the mean loss's derivatives                                  written
//   error        [NUM]  what a sequence is drawn again by                                               written
//   sums         [NUM, 3]  of losses, Q-values and errors                                               written, read
//   ticket       [1]  blocks that are done; 0 between launches                                          read, written
//   figures      [3]  means of the same over the steps that count; of several ranks each gives its part   written
extern "C" __global__ void __launch_bounds__(THREADS) r2d2_loss(
    const float* q, const float* target_q, const bool* mask, const long long* action, const float* reward,
    const float* discount, const long long* bootstrap, const float* valid, const float* weight,
    const float* number_of_all, float rescaling, float eta, float* by_q, float* error, float* sums, int* ticket,
    float* figures)
{
    __shared__ float of_warps[(NUM_FIGURES + 1) * THREADS / 32];
    __shared__ float sizes[LENGTH];
    __shared__ int is_last;
    const int sequence = blockIdx.x;
    float count = 0.0f;
#pragma unroll 16  // so many are asked for before the first is there
    for (int i = threadIdx.x; i < LENGTH * NUM && !IS_OF_RANKS; i += THREADS) {
        count += valid[i] * weight[i % NUM] > 0.0f ? 1.0f : 0.0f;
    }
    const float number = IS_OF_RANKS ? number_of_all[0] : fmaxf(over_block(count, of_warps), 1.0f);
    float sum[NUM_FIGURES + 1] = {};
    for (int step = threadIdx.x; step < ROWS; step += THREADS) {
        const int place = step * NUM + sequence;
        const long long first = (long long)place * NUM_ACTIONS;
        int taken = -1;
        float slope = 0.0f;
        const float weighs = step < LENGTH ? valid[place] * weight[sequence] : 0.0f;
        if (step < LENGTH) sizes[step] = 0.0f;
        if (weighs != 0.0f) {
            const long long row = (bootstrap[place] * NUM + sequence) * NUM_ACTIONS;
            const long long after = row - (long long)BURN_IN * NUM * NUM_ACTIONS;
            int best = -1;
            float largest = 0.0f;
            for (int i = 0; i < NUM_ACTIONS; ++i) {
                if (HAS_MASK && !mask[row + i]) continue;
                const float value = (DOUBLE ? q : target_q)[after + i];
                if (best < 0 || value > largest || value != value) {  // one that is no number is told
                    best = i;
                    largest = value;
                }
            }
            const float value = target_q[after + max(best, 0)];  // the first, if none may be done
            float target = reward[place] + discount[place] * (RESCALES ? unscaled(value, rescaling) : value);
            if (RESCALES) target = rescaled(target, rescaling);
            taken = (int)action[BURN_IN * NUM + place];
            const float mine = q[first + taken];
            const HuberLoss huber = huber_loss(mine - target);
            slope = huber.slope * (weighs / number);
            sizes[step] = fabsf(mine - target);
            sum[0] += huber.loss * weighs;
            sum[1] += mine;
            sum[2] += sizes[step];
            sum[3] += 1.0f;
        }
        for (int i = 0; i < NUM_ACTIONS; ++i) by_q[first + i] = i == taken ? slope : 0.0f;
    }
    over_block(sum, of_warps);
    float largest = 0.0f;
    if (threadIdx.x < 32) {
        for (int step = threadIdx.x; step < LENGTH; step += 32) largest = fmaxf(largest, sizes[step]);
        for (int distance = 16; distance > 0; distance /= 2) {
            largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, distance));
        }
    }
    if (threadIdx.x == 0) {
        error[sequence] = eta * largest + (1.0f - eta) * sum[2] / fmaxf(sum[3], 1.0f);
        for (int i = 0; i < NUM_FIGURES; ++i) sums[sequence * NUM_FIGURES + i] = sum[i];
        __threadfence();
        is_last = atomicAdd(ticket, 1) == NUM - 1;
    }
    __syncthreads();
    if (!is_last || threadIdx.x >= NUM_FIGURES) return;
    __threadfence();
    float all = 0.0f;
#pragma unroll 16
    for (int i = 0; i < NUM; ++i) all += ((volatile float*)sums)[i * NUM_FIGURES + threadIdx.x];
    figures[threadIdx.x] = all / number;
    if (threadIdx.x == 0) ticket[0] = 0;
}
