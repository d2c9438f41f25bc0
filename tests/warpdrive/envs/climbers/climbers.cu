#include "warpdrive.cuh"

constexpr int TOP = 3;
constexpr int NUM_FEATURES = NUM_AGENTS + 1;

// Every climber in the game rises by its action; who is at the top leaves the game, and may come back at the bottom.
//   action        [env, agent]                                                  read
//   height        [env, agent]     0 to TOP                                     read, written
//   time_step     [env]            steps of the episode                         read, written
//   active        [env, agent]     below the top                                read, written
//   action_mask   [env, agent, 3]  action 2 is allowed from height 1 on         written
//   observation   [env, agent, 1]  its height                                   written
//   global_state  [env, feature]   all heights, part of the episode that is over written
//   reward        [env, agent]     how much it rose                             written
//   all_up        [env]            1 if all are at the top                      written
//   terminated    [env]            all are at the top                           written
//   truncated     [env]            time is up before that                       written
extern "C" __global__ void climbers_step(
    const int* action, int* height, int* time_step, bool* active, bool* action_mask, float* observation,
    float* global_state, float* reward, float* all_up, bool* terminated, bool* truncated)
{
    const int env = env_index();
    if (env >= NUM_ENVS) return;
    ENV_SHARED(int, is_up, NUM_AGENTS);
    ENV_SHARED(int, partial, REDUCE_LANES);
    const int time = time_step[env] + 1;
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        const int i = env * NUM_AGENTS + agent;
        const int before = height[i];
        const int outside = COMES_BACK && time % 4 == 0 ? 0 : before;
        height[i] = active[i] ? min(before + action[i], TOP) : outside;
        reward[i] = (float)max(height[i] - before, 0);
        active[i] = height[i] < TOP;
        action_mask[3 * i + 2] = height[i] > 0;
        observation[i] = (float)height[i];
        global_state[env * NUM_FEATURES + agent] = (float)height[i];
        is_up[agent] = height[i] >= TOP;
    }
    env_sync();
    const bool is_over = env_sum<NUM_AGENTS>(is_up, partial) == NUM_AGENTS;
    if (first_agent() == 0) {
        time_step[env] = time;
        global_state[env * NUM_FEATURES + NUM_AGENTS] = (float)time / EPISODE_LENGTH;
        all_up[env] = is_over ? 1.0f : 0.0f;
        terminated[env] = is_over;
        truncated[env] = !is_over && time >= EPISODE_LENGTH;
    }
}
