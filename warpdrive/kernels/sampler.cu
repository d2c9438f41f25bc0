// Draws actions from logits: all heads of all agents of one policy group in one launch.
//
// Constants: NUM_AGENTS agents of the group, the first being the env's FIRST_AGENT, which act in column FIRST_COLUMN
// and on of the NUM_COLUMNS of the action array; NUM_HEADS heads with HEAD_SIZES actions each, NUM_LOGITS in all.
#include "warpdrive.cuh"
#include "random.cuh"

// Draws one action of one head.
//   logit     [num_actions]  log-weights, any offset                      read
//   allowed   [num_actions]  actions that may be drawn; null for all      read
//   log_prob, entropy        of this head's distribution, nats            added to
// Where nothing is allowed there is no choice: action 0, which adds nothing to either.
template <bool GREEDY>
__device__ __forceinline__ int draw_action(
    const float* logit, const bool* allowed, int num_actions, Random& random, float& log_prob, float& entropy)
{
    float largest = -INFINITY;
    int best = 0;
    bool has_choice = !allowed;
    for (int i = 0; i < num_actions; ++i) {
        if (allowed && !allowed[i]) continue;
        has_choice = true;
        if (logit[i] > largest) {
            largest = logit[i];
            best = i;
        }
    }
    if (!has_choice) {
        if (!GREEDY) random.uniform();  // the heads after it draw what they would have drawn
        return 0;
    }
    float weight_sum = 0.0f;
    float weighted_logit = 0.0f;
    for (int i = 0; i < num_actions; ++i) {
        if (allowed && !allowed[i]) continue;
        const float weight = expf(logit[i] - largest);
        weight_sum += weight;
        if (weight > 0.0f) weighted_logit += weight * (logit[i] - largest);
    }
    int action = best;
    if (!GREEDY) {
        const float target = random.uniform() * weight_sum;
        float passed = 0.0f;
        for (int i = 0; i < num_actions; ++i) {
            if (allowed && !allowed[i]) continue;
            const float weight = expf(logit[i] - largest);
            if (weight > 0.0f) action = i;  // rounding may leave `target` beyond the last: then it is the last
            passed += weight;
            if (target < passed) break;
        }
    }
    const float log_sum = logf(weight_sum);
    log_prob += logit[action] - largest - log_sum;
    entropy += log_sum - weighted_logit / weight_sum;
    return action;
}

template <bool GREEDY>
__device__ __forceinline__ void draw_all(
    const float* logits, const bool* mask, const unsigned int* seed, const long long* env_step, int* action,
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
//   seed      [3], env_step [env]               name the draws           read
//   action    [env, column, head]           0 .. HEAD_SIZES - 1          written in the group's columns
//   log_prob  [env, agent of the group]         summed over heads, nats  written
//   entropy   [env, agent of the group]         summed over heads, nats  written
extern "C" __global__ void sample_actions(
    const float* logits, const unsigned int* seed, const long long* env_step, int* action, float* log_prob,
    float* entropy)
{
    draw_all<false>(logits, nullptr, seed, env_step, action, log_prob, entropy);
}

//   mask      [env, agent of the group, logit]  whether the action may be taken                        read
extern "C" __global__ void sample_actions_masked(
    const float* logits, const bool* mask, const unsigned int* seed, const long long* env_step, int* action,
    float* log_prob, float* entropy)
{
    draw_all<false>(logits, mask, seed, env_step, action, log_prob, entropy);
}

// The likeliest action of each head; the lowest of equals.
extern "C" __global__ void best_actions(
    const float* logits, const unsigned int* seed, const long long* env_step, int* action, float* log_prob,
    float* entropy)
{
    draw_all<true>(logits, nullptr, seed, env_step, action, log_prob, entropy);
}

extern "C" __global__ void best_actions_masked(
    const float* logits, const bool* mask, const unsigned int* seed, const long long* env_step, int* action,
    float* log_prob, float* entropy)
{
    draw_all<true>(logits, mask, seed, env_step, action, log_prob, entropy);
}
