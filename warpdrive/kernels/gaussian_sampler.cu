// Draws continuous actions from independent normal distributions: all numbers of all agents of one policy group in one
// launch.
//
// Constants: NUM_AGENTS agents of the group, the first being the env's FIRST_AGENT, which act in column FIRST_COLUMN
// and on of the NUM_COLUMNS of the action array; NUM_NUMBERS numbers an action, within LOW and HIGH. What is drawn
// stands for CENTRE + SCALE times it; or, if it SQUASHES, CENTRE + SCALE times the hyperbolic tangent of it.
// If ROWS_DEVIATE, each agent of each env has its own log_std; else all have the same.
#include "warpdrive.cuh"
#include "random.cuh"
#include "gaussian.cuh"

template <bool GREEDY>
__device__ __forceinline__ void draw_all(
    const float* mean, const float* log_std, const unsigned int* seed, const long long* env_step, float* action,
    float* drawn, float* log_prob, float* entropy)
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
            const float spread = log_std[ROWS_DEVIATE ? row * NUM_NUMBERS + i : i];
            const float number = mean[row * NUM_NUMBERS + i] + expf(spread) * deviate;
            drawn[row * NUM_NUMBERS + i] = number;
            const float part = SQUASHES ? tanhf(number) : number;
            action[column * NUM_NUMBERS + i] = fminf(fmaxf(CENTRE[i] + SCALE[i] * part, LOW[i]), HIGH[i]);
            const float stretch = logf(SCALE[i]) + (SQUASHES ? log_slope_of_tanh(number) : 0.0f);
            row_log_prob -= 0.5f * deviate * deviate + spread + HALF_LOG_TWO_PI + stretch;
            row_entropy += 0.5f + HALF_LOG_TWO_PI + spread + stretch;
        }
        log_prob[row] = row_log_prob;
        entropy[row] = row_entropy;
    }
}

//   mean       [env, agent of the group, number] of what is drawn          read
//   log_std    [number], or as mean              nats                      read
//   seed       [3], env_step [env]               name the draws            read
//   action     [env, column, number]             LOW to HIGH               written in the group's columns
//   drawn      [env, agent of the group, number] what it stands for is not clipped  written
//   log_prob   [env, agent of the group]         of what it stands for, nats        written
//   entropy    [env, agent of the group]         nats; if it SQUASHES, of one draw  written
extern "C" __global__ void sample_numbers(
    const float* mean, const float* log_std, const unsigned int* seed, const long long* env_step, float* action,
    float* drawn, float* log_prob, float* entropy)
{
    draw_all<false>(mean, log_std, seed, env_step, action, drawn, log_prob, entropy);
}

// The mean itself.
extern "C" __global__ void best_numbers(
    const float* mean, const float* log_std, const unsigned int* seed, const long long* env_step, float* action,
    float* drawn, float* log_prob, float* entropy)
{
    draw_all<true>(mean, log_std, seed, env_step, action, drawn, log_prob, entropy);
}
