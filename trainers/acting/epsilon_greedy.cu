// What is likely to be done, by the Q-values of actions: the best, the lowest of equals, or now and then any.
//
// Constants:
//   NUM_ACTIONS
//   GROUP_SIZE  agents of an env, who share an epsilon
//   HAS_MASK    whether not every action may be taken
//   IS_PER_ENV  whether envs have epsilons of their own
//   IS_GREEDY   whether the best is done in any case: then Q-values are what is given
//   NEVER       a probability that is none, but has a logarithm
#include "warpdrive.cuh"

// Whether a value is larger; one that is no number is larger than any, as torch has it.
__device__ __forceinline__ bool is_larger(float value, float other)
{
    return isnan(value) ? !isnan(other) : value > other;
}

// A warp a row.
//   q         [row, NUM_ACTIONS]                                                        read
//   mask      [row, NUM_ACTIONS]  actions that may be taken, if it HAS_MASK             read
//   epsilon   [1]                                                                       read
//   exponent  [env]  what epsilon is raised to there, if it IS_PER_ENV                  read
//   q_value   [row]  the largest of actions that may be taken                           written
//   logits    [row, NUM_ACTIONS]  logarithms of probabilities, or Q-values              written
//   num_rows  agents of the group in all envs
extern "C" __global__ void epsilon_greedy(
    const float* q, const bool* mask, const float* epsilon, const float* exponent, float* q_value, float* logits,
    int num_rows)
{
    const int lane = threadIdx.x % 32;
    const long long num_warps = num_global_threads() / 32;
    for (long long row = global_thread() / 32; row < num_rows; row += num_warps) {
        const float* values = q + row * NUM_ACTIONS;
        const bool* allowed = mask + (HAS_MASK ? row * NUM_ACTIONS : 0);
        float largest = 0.0f;
        int best = NUM_ACTIONS;
        int count = 0;
        for (int action = lane; action < NUM_ACTIONS; action += 32) {
            const bool is_allowed = !HAS_MASK || allowed[action];
            const float value = is_allowed ? values[action] : -1e9f;
            count += is_allowed ? 1 : 0;
            if (best == NUM_ACTIONS || is_larger(value, largest)) {
                largest = value;
                best = action;
            }
        }
        for (int flip = 16; flip > 0; flip /= 2) {
            const float value = __shfl_xor_sync(0xffffffffu, largest, flip);
            const int action = __shfl_xor_sync(0xffffffffu, best, flip);
            count += __shfl_xor_sync(0xffffffffu, count, flip);
            if (action == NUM_ACTIONS) continue;
            if (best == NUM_ACTIONS || is_larger(value, largest) || (!is_larger(largest, value) && action < best)) {
                largest = value;
                best = action;
            }
        }
        float chance = epsilon[0];
        if (IS_PER_ENV) chance = powf(chance, exponent[row / GROUP_SIZE]);
        const float shared = chance / (float)max(count, 1);
        for (int action = lane; action < NUM_ACTIONS; action += 32) {
            const bool is_allowed = !HAS_MASK || allowed[action];
            const float of_any = is_allowed ? shared : 0.0f;
            const float probability = action == best ? of_any + (1.0f - chance) : of_any;
            const float value = is_allowed ? values[action] : -1e9f;
            logits[row * NUM_ACTIONS + action] = IS_GREEDY ? value : logf(fmaxf(probability, NEVER));
        }
        if (lane == 0) q_value[row] = largest;
    }
}
