// Draws from the distributions that a network's outputs say.
#pragma once
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
