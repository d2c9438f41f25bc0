// V-trace: advantages and targets of steps that another policy played (Espeholt et al. 2018, arXiv:1802.01561).
//
// With the ratio of an action's probability, now over then, clipped to rho and c:
//   d_t = rho_t (r_t + discount V_{t+1} - V_t) + discount lambda c_t d_{t+1},  target_t = V_t + d_t,
//   advantage_t = rho_t (r_t + discount target_{t+1} - V_t)
// An episode's end is as in gae.cu: nothing comes after a termination; after a truncation the value of what was seen
// before the reset, and the sum stops.
//
// A row is an agent of an env. A block has 32 of them, a lane each; its warps share their steps: each first sums up its
// own as a function of what comes after them, then knows that, and walks through them again.
//
// Constants:
//   HAS_ACTIVE     whether agents may leave the game
//   NUM_SEGMENTS   warps of a block
//   SEGMENT        steps of each
#include "rewards.cuh"

// What a segment makes of d after it: slope d + offset; and the envs' truncations in it.
struct Segment {
    float slope, offset;
    int num_truncated;
};

// A step: whether it counts; what it counts by itself, with its ratio; what d and the target after it count in it.
struct Step {
    bool counts;
    float rho, surprise, carried, discounted, value;
};

//   reward         [step, env, agent of all]      of the whole rollout                     read
//   terminated     [step, env]                                                             read
//   truncated      [step, env]                                                             read
//   active         [step + 1, env, agent of all]  if HAS_ACTIVE: in the game before it     read
//   survived       [step, env, agent of all]      likewise: after it, not reset            read
//   value          [step + 1, env, agent of group]  now, in the critic's unit              read
//   final_value    [k, env, agent of group]  likewise, at an env's k-th truncation         read
//   log_ratio      [step, env, agent of group]  of the probabilities                       read
//   value_moments  [2]   mean, deviation: what the critic's unit is                        read
//   reward_scale   [1]   what rewards are multiplied with                                  read
//   advantage, target  [step, env, agent of group]  the latter in rewards; 0 of agents that are out of the game  written
//   reward_clip     rewards are clipped to +- this, after they are scaled
//   discount        of one step
//   trace_lambda    weight of longer sums
//   max_rho, max_c  bounds of the ratio
//   group_start, group_size  the group's first agent, and its number of agents
//   num_steps       of the rollout
//   max_truncations rows of final_value; an env that is truncated more often has no future kept for the rest
//   num_envs, num_agents  of the rollout; of each env
extern "C" __global__ void __launch_bounds__(32 * NUM_SEGMENTS) vtrace(
    const float* reward, const bool* terminated, const bool* truncated, const bool* active, const bool* survived,
    const float* value, const float* final_value, const float* log_ratio, const float* value_moments,
    const float* reward_scale, float* advantage, float* target, float reward_clip, float discount, float trace_lambda,
    float max_rho, float max_c, int group_start, int group_size, int num_steps, int max_truncations, int num_envs,
    int num_agents)
{
    __shared__ Segment segments[NUM_SEGMENTS][32];
    const float mean = value_moments[0];
    const float deviation = value_moments[1];
    const float scale = reward_scale[0];
    const long long num_rows = (long long)num_envs * group_size;
    const long long row = (long long)blockIdx.x * 32 + threadIdx.x % 32;
    const int number = threadIdx.x / 32;
    const int first = number * SEGMENT;
    const int end = row < num_rows ? min(first + SEGMENT, num_steps) : 0;
    const int env = (int)(row / group_size);
    const int agent = group_start + (int)(row % group_size);

    Segment mine = {1.0f, 0.0f, 0};
    for (int t = first; t < end; ++t) mine.num_truncated += truncated[(long long)t * num_envs + env];
    segments[number][threadIdx.x % 32] = mine;
    __syncthreads();
    int k = 0;  // truncations up to the end of the segment
    for (int i = 0; i <= number; ++i) k += segments[i][threadIdx.x % 32].num_truncated;
    __syncthreads();

    const auto read_step = [&](int t, int& after) {  // backwards: `after` are the truncations up to it
        const long long step_env = (long long)t * num_envs + env;
        const long long place = t * num_rows + row;
        float next_value = 0.0f;
        bool goes_on = false;
        if (truncated[step_env]) after -= 1;
        if (truncated[step_env] && !terminated[step_env]) {
            if (after < max_truncations) next_value = final_value[after * num_rows + row] * deviation + mean;
        } else if (!terminated[step_env]) {
            next_value = value[place + num_rows] * deviation + mean;
            goes_on = true;
        }
        bool counts = true;
        if (HAS_ACTIVE) {
            counts = active[step_env * num_agents + agent];
            if (!survived[step_env * num_agents + agent]) {
                next_value = 0.0f;
                goes_on = false;
            }
        }
        const float ratio = expf(log_ratio[place]);
        const float value_now = value[place] * deviation + mean;
        const float pay = paid(reward[step_env * num_agents + agent], scale, reward_clip);
        return Step{counts, fminf(ratio, max_rho), pay + discount * next_value - value_now,
                    goes_on ? discount * trace_lambda * fminf(ratio, max_c) : 0.0f, goes_on ? discount : 0.0f,
                    value_now};
    };
    int after = k;
    for (int t = end - 1; t >= first; --t) {
        const Step step = read_step(t, after);
        mine.slope = step.counts ? step.carried * mine.slope : 0.0f;
        mine.offset = step.counts ? step.rho * step.surprise + step.carried * mine.offset : 0.0f;
    }
    segments[number][threadIdx.x % 32] = mine;
    __syncthreads();
    float d = 0.0f;  // of the step after the segment; nothing is known of what comes after the rollout
    for (int i = NUM_SEGMENTS - 1; i > number; --i) {
        const Segment& later = segments[i][threadIdx.x % 32];
        d = later.slope * d + later.offset;
    }
    after = k;
    for (int t = end - 1; t >= first; --t) {
        const Step step = read_step(t, after);
        const long long place = t * num_rows + row;
        advantage[place] = step.counts ? step.rho * (step.surprise + step.discounted * d) : 0.0f;
        d = step.counts ? step.rho * step.surprise + step.carried * d : 0.0f;
        target[place] = step.counts ? step.value + d : 0.0f;
    }
}
