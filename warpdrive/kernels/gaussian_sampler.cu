// Draws continuous actions from independent normal distributions: all numbers of all agents of one policy group in one
// launch.
//
// Constants: NUM_AGENTS agents of the group, the first being the env's FIRST_AGENT, which act in column FIRST_COLUMN
// and on of the NUM_COLUMNS of the action array; NUM_NUMBERS numbers an action, within LOW and HIGH.
#include "warpdrive.cuh"
#include "random.cuh"

__device__ const float HALF_LOG_TWO_PI = 0.918938533204672742f;

template <bool GREEDY>
__device__ __forceinline__ void draw_all(
    const float* mean, const float* log_std, const unsigned int* seed, const int* env_step, float* action,
    float* unclipped, float* log_prob, float* entropy)
{
    const long long num_rows = (long long)NUM_ENVS * NUM_AGENTS;
    for (long long row = global_thread(); row < num_rows; row += num_global_threads()) {
        const int env = (int)(row / NUM_AGENTS);
        const int agent = (int)(row % NUM_AGENTS);
        const long long column = (long long)env * NUM_COLUMNS + FIRST_COLUMN + agent;
        Random random(seed, env, FIRST_AGENT + agent, env_step[env], STREAM_ACTION);
        float row_log_prob = 0.0f;
        float row_entropy = 0.0f;
        for (int i = 0; i < NUM_NUMBERS; ++i) {
            const float deviate = GREEDY ? 0.0f : random.normal();
            const float drawn = mean[row * NUM_NUMBERS + i] + expf(log_std[i]) * deviate;
            unclipped[row * NUM_NUMBERS + i] = drawn;
            action[column * NUM_NUMBERS + i] = fminf(fmaxf(drawn, LOW[i]), HIGH[i]);
            row_log_prob -= 0.5f * deviate * deviate + log_std[i] + HALF_LOG_TWO_PI;
            row_entropy += 0.5f + HALF_LOG_TWO_PI + log_std[i];
        }
        log_prob[row] = row_log_prob;
        entropy[row] = row_entropy;
    }
}

//   mean       [env, agent of the group, number]                           read
//   log_std    [number]                          nats                      read
//   seed       [3], env_step [env]               name the draws            read
//   action     [env, column, number]             LOW to HIGH               written in the group's columns
//   unclipped  [env, agent of the group, number] as drawn                  written
//   log_prob   [env, agent of the group]         of what was drawn, nats   written
//   entropy    [env, agent of the group]         nats                      written
extern "C" __global__ void sample_numbers(
    const float* mean, const float* log_std, const unsigned int* seed, const int* env_step, float* action,
    float* unclipped, float* log_prob, float* entropy)
{
    draw_all<false>(mean, log_std, seed, env_step, action, unclipped, log_prob, entropy);
}

// The mean itself.
extern "C" __global__ void best_numbers(
    const float* mean, const float* log_std, const unsigned int* seed, const int* env_step, float* action,
    float* unclipped, float* log_prob, float* entropy)
{
    draw_all<true>(mean, log_std, seed, env_step, action, unclipped, log_prob, entropy);
}
