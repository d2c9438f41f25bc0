#include "warpdrive.cuh"

constexpr int NUM_SCOUTS = 3;
constexpr int NUM_WORKERS = NUM_AGENTS - NUM_SCOUTS;

// A scout adds its action to its count; action 2 is allowed from count 1 on; at 3 it leaves the game.
extern "C" __global__ void many_spaces_step(
    const int* action_scout, const float* action_worker, int* count, bool* active, bool* action_mask_scout,
    int* time_step, float* observation_scout_count, float* observation_scout_place, float* observation_worker,
    float* reward, bool* terminated, bool* truncated)
{
    const int env = env_index();
    if (env >= NUM_ENVS) return;
    ENV_SHARED(int, left, NUM_SCOUTS);
    ENV_SHARED(int, partial, REDUCE_LANES);
    const int time = time_step[env] + 1;
    for (int scout = first_agent(); scout < NUM_SCOUTS; scout += agent_stride()) {
        const int i = env * NUM_SCOUTS + scout;
        const bool plays = active[env * NUM_AGENTS + scout];
        count[i] = min(count[i] + (plays ? action_scout[i] : 0), 3);
        left[scout] = count[i] >= 3;
        active[env * NUM_AGENTS + scout] = count[i] < 3;
        action_mask_scout[3 * i + 2] = count[i] > 0;
        observation_scout_count[i] = (float)count[i];
        observation_scout_place[2 * i] = (float)scout / NUM_SCOUTS;
        observation_scout_place[2 * i + 1] = -(float)scout / NUM_SCOUTS;
        reward[env * NUM_AGENTS + scout] = plays ? 1.0f : 0.0f;
    }
    for (int worker = first_agent(); worker < NUM_WORKERS; worker += agent_stride()) {
        const int i = env * NUM_WORKERS + worker;
        for (int axis = 0; axis < 2; ++axis)
            observation_worker[2 * i + axis] = fminf(fmaxf(action_worker[2 * i + axis], -1.0f), 1.0f);
        reward[env * NUM_AGENTS + NUM_SCOUTS + worker] = 0.0f;
    }
    env_sync();
    const bool all_left = env_sum<NUM_SCOUTS>(left, partial) == NUM_SCOUTS;
    if (first_agent() == 0) {
        time_step[env] = time;
        terminated[env] = all_left;
        truncated[env] = !all_left && time >= EPISODE_LENGTH;
    }
}
