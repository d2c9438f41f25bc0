#include "rewards.cuh"

// Advantages of one policy group, and what they and the figures of its critic are made of.
//
// Constants, of who may leave the game:
//   HAS_ACTIVE      whether agents may
//   CREDITS_TEAM    whether one that left is paid what its team earns, and goes on until the episode ends; else its last
//                   step in the game has no future, and nothing is estimated after it
//
// What several kernels take, all of it read:
//   reward          [step, env, agent of all]      of the whole rollout
//   terminated      [step, env]
//   truncated       [step, env]
//   active          [step + 1, env, agent of all]  if HAS_ACTIVE: in the game before the step
//   survived        [step, env, agent of all]      likewise: in the game after it, not reset
//   team_reward     [step, env]                    if CREDITS_TEAM: scaled and clipped
//   value           [step + 1, env, agent of group] in the critic's unit
//   value_moments   [2]   mean, deviation: what the critic's unit is
//   reward_scale    [1]   what rewards are multiplied with
//   reward_clip     rewards are clipped to +- this, after they are scaled
//   discount        of one step
//   group_start     the group's first agent
//   group_size      its number of agents
//   num_steps       of the rollout
static_assert(HAS_ACTIVE || !CREDITS_TEAM, "nobody leaves");

constexpr int AHEAD = 16;  // steps that are loaded before the first of them is looked at: else each waits for its own load

// Generalised advantage estimation, each agent's steps walked backwards by one thread.
// A terminated step has no future, truncated or not. One only truncated has: the value of what was seen
// before the reset.
// Either way the sum stops there, since the next step belongs to another episode.
// (Schulman et al. 2016, arXiv:1506.02438)
//   final_value     [k, env, agent of group]       at an env's k-th truncation     read
//   num_truncated   [env]                          truncations in this rollout     read
//   advantage       [step, env, agent of group]                                    written
//   gae_lambda      weight of longer sums
//   max_truncations rows of final_value; an env that is truncated more often has no future kept for the rest
extern "C" __global__ void gae(
    const float* reward, const bool* terminated, const bool* truncated, const bool* active, const bool* survived,
    const float* team_reward, const float* value, const float* final_value, const float* value_moments,
    const float* reward_scale, const int* num_truncated, float* advantage, float reward_clip, float discount,
    float gae_lambda, int group_start, int group_size, int num_steps, int max_truncations)
{
    const float mean = value_moments[0];
    const float deviation = value_moments[1];
    const float scale = reward_scale[0];
    const long long num_rows = (long long)NUM_ENVS * group_size;
    for (long long row = global_thread(); row < num_rows; row += num_global_threads()) {
        const int env = (int)(row / group_size);
        const int agent = group_start + (int)(row % group_size);
        int k = num_truncated[env];
        float next_value = value[num_steps * num_rows + row] * deviation + mean;
        float next_advantage = 0.0f;
        for (int last = num_steps - 1; last >= 0; last -= AHEAD) {
            float valued[AHEAD], earned[AHEAD];
            bool terminates[AHEAD], truncates[AHEAD], was_active[AHEAD], survives[AHEAD];
#pragma unroll
            for (int back = 0; back < AHEAD; ++back) {
                const int t = back <= last ? last - back : last;
                const long long step_env = (long long)t * NUM_ENVS + env;
                const long long step_agent = step_env * NUM_AGENTS + agent;
                valued[back] = value[t * num_rows + row];
                earned[back] = reward[step_agent];
                terminates[back] = terminated[step_env];
                truncates[back] = truncated[step_env];
                was_active[back] = !HAS_ACTIVE || active[step_agent];
                survives[back] = !HAS_ACTIVE || CREDITS_TEAM || survived[step_agent];
            }
#pragma unroll
            for (int back = 0; back < AHEAD; ++back) {
                if (back > last) break;
                const int t = last - back;
                if (truncates[back]) k -= 1;  // its last observation was kept, even if it also terminated
                if (terminates[back]) {
                    next_value = 0.0f;
                    next_advantage = 0.0f;
                } else if (truncates[back]) {
                    next_value = k < max_truncations ? final_value[k * num_rows + row] * deviation + mean : 0.0f;
                    next_advantage = 0.0f;
                }
                const float value_now = valued[back] * deviation + mean;
                bool counts = was_active[back];
                if (!survives[back]) {
                    next_value = 0.0f;
                    next_advantage = 0.0f;
                }
                float pay = paid(earned[back], scale, reward_clip);
                if (CREDITS_TEAM && !counts) {
                    pay = team_reward[(long long)t * NUM_ENVS + env];
                    counts = true;
                }
                const float surprise = pay + discount * next_value - value_now;
                next_advantage = counts ? surprise + discount * gae_lambda * next_advantage : 0.0f;
                advantage[t * num_rows + row] = next_advantage;
                next_value = value_now;
            }
        }
    }
}

// What a group's team earns: the mean of what its agents in the game are paid, 0 where none is.
//   team_reward   [step, env]  scaled and clipped  written
extern "C" __global__ void team_rewards(
    const float* reward, const bool* active, const float* reward_scale, float* team_reward, float reward_clip,
    int group_start, int group_size, int num_steps)
{
    const float scale = reward_scale[0];
    const long long num_rows = (long long)num_steps * NUM_ENVS;
    for (long long row = global_thread(); row < num_rows; row += num_global_threads()) {
        const long long first = row * NUM_AGENTS + group_start;
        float sum = 0.0f;
        int number = 0;
        for (long long i = first; i < first + group_size; ++i) {
            if (!active[i]) continue;
            sum += paid(reward[i], scale, reward_clip);
            number += 1;
        }
        team_reward[row] = number > 0 ? sum / number : 0.0f;
    }
}

// Running discounted return of each agent, forwards: what rewards are scaled by (Huang et al. 2022, detail 21).
//   running     [env, agent of group]  of the episode under way  read, written
//   discounted  [step, env, agent of group]                      written
extern "C" __global__ void discounted_returns(
    const float* reward, const bool* terminated, const bool* truncated, float* running, float* discounted,
    float discount, int group_start, int group_size, int num_steps)
{
    const long long num_rows = (long long)NUM_ENVS * group_size;
    for (long long row = global_thread(); row < num_rows; row += num_global_threads()) {
        const int env = (int)(row / group_size);
        const int agent = group_start + (int)(row % group_size);
        float so_far = running[row];
        for (int t = 0; t < num_steps; ++t) {
            const long long step_env = (long long)t * NUM_ENVS + env;
            so_far = discount * so_far + reward[step_env * NUM_AGENTS + agent];
            discounted[t * num_rows + row] = so_far;
            if (terminated[step_env] || truncated[step_env]) so_far = 0.0f;
        }
        running[row] = so_far;
    }
}

// What the critic said in a rollout, beside the returns of the episodes that ended in it for good: sums over each part's
// rows, a row being an agent's steps. No value has a part in a return: a critic that believes itself does not pass.
//   sums            [part, SUMS]  of all samples: how many, values, their squares, the largest size of one; of those
//                   with a return: how many, return - value, its square, returns, their squares     written
constexpr int SUMS = 9;

extern "C" __global__ void value_figures(
    const float* reward, const bool* terminated, const bool* truncated, const bool* active, const bool* survived,
    const float* value, const float* value_moments, const float* reward_scale, const float* team_reward, double* sums,
    float reward_clip, float discount, int group_start, int group_size, int num_steps, int num_parts)
{
    const double mean = value_moments[0];
    const double deviation = value_moments[1];
    const float scale = reward_scale[0];
    const long long num_rows = (long long)NUM_ENVS * group_size;
    for (long long part = global_thread(); part < num_parts; part += num_global_threads()) {
        double sum[SUMS] = {};
        for (long long row = part; row < num_rows; row += num_parts) {
            const int env = (int)(row / group_size);
            const int agent = group_start + (int)(row % group_size);
            double paid_from_here = 0.0;
            bool ends = false;
            for (int t = num_steps - 1; t >= 0; --t) {
                const long long step_env = (long long)t * NUM_ENVS + env;
                const long long step_agent = step_env * NUM_AGENTS + agent;
                if (terminated[step_env] || truncated[step_env]) {
                    paid_from_here = 0.0;
                    ends = terminated[step_env];
                }
                bool is_paid = true;
                if (CREDITS_TEAM) {
                    is_paid = active[step_agent];
                } else if (HAS_ACTIVE) {
                    if (!active[step_agent]) continue;
                    if (!survived[step_agent]) {
                        paid_from_here = 0.0;
                        ends = true;
                    }
                }
                const float pay = is_paid ? paid(reward[step_agent], scale, reward_clip) : team_reward[step_env];
                paid_from_here = pay + discount * paid_from_here;
                const double said = value[t * num_rows + row] * deviation + mean;
                sum[0] += 1.0;
                sum[1] += said;
                sum[2] += said * said;
                sum[3] = fmax(sum[3], fabs(said));
                if (ends) {
                    const double off = paid_from_here - said;
                    sum[4] += 1.0;
                    sum[5] += off;
                    sum[6] += off * off;
                    sum[7] += paid_from_here;
                    sum[8] += paid_from_here * paid_from_here;
                }
            }
        }
        for (int i = 0; i < SUMS; ++i) sums[part * SUMS + i] = sum[i];
    }
}
