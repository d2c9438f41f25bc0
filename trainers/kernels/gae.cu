#include "warpdrive.cuh"

// Generalised advantage estimation of one policy group, each agent's steps walked backwards by one thread.
// A terminated step has no future, truncated or not. One only truncated has: the value of what was seen
// before the reset.
// Either way the sum stops there, since the next step belongs to another episode.
// (Schulman et al. 2016, arXiv:1506.02438)
//   reward          [step, env, agent of all]      of the whole rollout            read
//   terminated      [step, env]                                                    read
//   truncated       [step, env]                                                    read
//   value           [step + 1, env, agent of group]                                read
//   final_value     [k, env, agent of group]       at an env's k-th truncation     read
//   num_truncated   [env]                          truncations in this rollout     read
//   advantage       [step, env, agent of group]                                    written
//   discount        of one step
//   gae_lambda      weight of longer sums
//   group_start     the group's first agent
//   group_size      its number of agents
//   num_steps       of the rollout
//   max_truncations rows of final_value; an env that is truncated more often has no future kept for the rest
extern "C" __global__ void gae(const float* reward, const bool* terminated, const bool* truncated, const float* value,
                               const float* final_value, const int* num_truncated, float* advantage, float discount,
                               float gae_lambda, int group_start, int group_size, int num_steps,
                               int max_truncations)
{
    const long long num_rows = (long long)NUM_ENVS * group_size;
    for (long long row = global_thread(); row < num_rows; row += num_global_threads()) {
        const int env = (int)(row / group_size);
        const int agent = group_start + (int)(row % group_size);
        int k = num_truncated[env];
        float next_value = value[num_steps * num_rows + row];
        float next_advantage = 0.0f;
        for (int t = num_steps - 1; t >= 0; --t) {
            const long long step_env = (long long)t * NUM_ENVS + env;
            if (truncated[step_env]) k -= 1;  // its last observation was kept, even if it also terminated
            if (terminated[step_env]) {
                next_value = 0.0f;
                next_advantage = 0.0f;
            } else if (truncated[step_env]) {
                next_value = k < max_truncations ? final_value[k * num_rows + row] : 0.0f;
                next_advantage = 0.0f;
            }
            const float value_now = value[t * num_rows + row];
            const float surprise = reward[step_env * NUM_AGENTS + agent] + discount * next_value - value_now;
            next_advantage = surprise + discount * gae_lambda * next_advantage;
            advantage[t * num_rows + row] = next_advantage;
            next_value = value_now;
        }
    }
}
