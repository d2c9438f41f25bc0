#include "random.cuh"
#include "warpdrive.cuh"

// Draws what one agent sees next, and what it may answer.
__device__ __forceinline__ void show(int i, Random random, int* third, bool* observation, bool* action_mask)
{
    const int light = (int)random.below(18);
    third[i] = light % 6 / 2;
    for (int j = 0; j < 54; ++j) observation[54 * i + j] = j % 3 == 2 ? j / 3 == light : random.below(2) == 1;
    for (int j = 0; j < 3; ++j) action_mask[3 * i + j] = j == third[i] || random.below(2) == 1;
}

// Pays for the answer and shows something else.
//   action       [env, agent]                                            read
//   seed         [3]                                                     read
//   env_step     [env]                                                   read
//   time_step    [env]                   of the episode                  read, written
//   third        [env, agent]            0 to 2, of the light            read, written
//   observation  [env, agent, 3, 6, 3]   the last channel has the light  written
//   action_mask  [env, agent, 3]                                         written
//   reward       [env, agent]                                            written
//   terminated   [env]                   never                           written
//   truncated    [env]                                                   written
extern "C" __global__ void tiles_step(const int* action, const unsigned int* seed, const long long* env_step,
                                      int* time_step, int* third, bool* observation, bool* action_mask, float* reward,
                                      bool* terminated, bool* truncated)
{
    const int env = env_index();
    if (env >= NUM_ENVS) return;
    const int time = time_step[env] + 1;
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        const int i = env * NUM_AGENTS + agent;
        reward[i] = action[i] == third[i] ? 1.0f : 0.0f;
        show(i, Random(seed, env, agent, env_step[env]), third, observation, action_mask);
    }
    env_sync();
    if (first_agent() == 0) {
        time_step[env] = time;
        terminated[env] = false;
        truncated[env] = time >= EPISODE_LENGTH;
    }
}

extern "C" __global__ void tiles_reset(const bool* terminated, const bool* truncated, const unsigned int* seed,
                                       const long long* env_step, int* time_step, int* third, bool* observation,
                                       bool* action_mask)
{
    const int env = env_index();
    if (env >= NUM_ENVS || !(terminated[env] || truncated[env])) return;
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        show(env * NUM_AGENTS + agent, Random(seed, env, agent, env_step[env], STREAM_RESET), third, observation,
             action_mask);
    }
    if (first_agent() == 0) time_step[env] = 0;
}
