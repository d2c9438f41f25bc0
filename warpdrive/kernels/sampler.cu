// Draws actions from logits: all heads of all agents of one policy group in one launch.
//
// Constants: NUM_AGENTS agents of the group, the first being the env's FIRST_AGENT, which act in column FIRST_COLUMN
// and on of the NUM_COLUMNS of the action array; NUM_HEADS heads with HEAD_SIZES actions each, NUM_LOGITS in all.
#include "warpdrive.cuh"
#include "draw.cuh"

template <bool GREEDY>
__device__ __forceinline__ void draw_all(
    const float* logits, const bool* mask, const unsigned int* seed, const int* env_step, int* action,
    float* log_prob, float* entropy)
{
    const long long num_rows = (long long)NUM_ENVS * NUM_AGENTS;
    for (long long row = global_thread(); row < num_rows; row += num_global_threads()) {
        const int env = (int)(row / NUM_AGENTS);
        const int agent = (int)(row % NUM_AGENTS);
        const long long column = (long long)env * NUM_COLUMNS + FIRST_COLUMN + agent;
        Random random(seed, env, FIRST_AGENT + agent, env_step[env], STREAM_ACTION);
        const float* logit = logits + row * NUM_LOGITS;
        const bool* allowed = mask ? mask + row * NUM_LOGITS : nullptr;
        float row_log_prob = 0.0f;
        float row_entropy = 0.0f;
        for (int head = 0; head < NUM_HEADS; ++head) {
            action[column * NUM_HEADS + head] =
                draw_action<GREEDY>(logit, allowed, HEAD_SIZES[head], random, row_log_prob, row_entropy);
            logit += HEAD_SIZES[head];
            if (allowed) allowed += HEAD_SIZES[head];
        }
        log_prob[row] = row_log_prob;
        entropy[row] = row_entropy;
    }
}

//   logits    [env, agent of the group, logit]  heads side by side       read
//   seed      [2], env_step [env]               name the draws           read
//   action    [env, column, head]           0 .. HEAD_SIZES - 1          written in the group's columns
//   log_prob  [env, agent of the group]         summed over heads, nats  written
//   entropy   [env, agent of the group]         summed over heads, nats  written
extern "C" __global__ void sample_actions(
    const float* logits, const unsigned int* seed, const int* env_step, int* action, float* log_prob, float* entropy)
{
    draw_all<false>(logits, nullptr, seed, env_step, action, log_prob, entropy);
}

//   mask      [env, agent of the group, logit]  whether the action may be taken                        read
extern "C" __global__ void sample_actions_masked(
    const float* logits, const bool* mask, const unsigned int* seed, const int* env_step, int* action,
    float* log_prob, float* entropy)
{
    draw_all<false>(logits, mask, seed, env_step, action, log_prob, entropy);
}

// The likeliest action of each head; the lowest of equals.
extern "C" __global__ void best_actions(
    const float* logits, const unsigned int* seed, const int* env_step, int* action, float* log_prob, float* entropy)
{
    draw_all<true>(logits, nullptr, seed, env_step, action, log_prob, entropy);
}

extern "C" __global__ void best_actions_masked(
    const float* logits, const bool* mask, const unsigned int* seed, const int* env_step, int* action,
    float* log_prob, float* entropy)
{
    draw_all<true>(logits, mask, seed, env_step, action, log_prob, entropy);
}
