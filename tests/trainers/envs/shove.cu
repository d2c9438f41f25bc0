#include "random.cuh"
#include "warpdrive.cuh"

// Moves every agent, and pays it.
//   action_pushers   [env, 2, 2]          numbers of a Box       read
//   action_choosers  [env, 2]             0 to 2                 read
//   time_step        [env]                of the episode         read, written
//   place            [env, agent]                                read, written
//   observation      [env, agent, 2]      place, time            written
//   reward           [env, agent]                                written
//   terminated       [env]                never                  written
//   truncated        [env]                                       written
extern "C" __global__ void shove_step(const float* action_pushers, const int* action_choosers, int* time_step,
                                      float* place, float* observation, float* reward, bool* terminated, bool* truncated)
{
    const int env = env_index();
    if (env >= NUM_ENVS) return;
    const int time = time_step[env] + 1;
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        const int i = env * NUM_AGENTS + agent;
        const float* push = action_pushers + (env * 2 + agent) * 2;
        const float moved = agent < 2 ? push[0] + push[1] : 0.5f * (action_choosers[env * 2 + agent - 2] - 1);
        observation[2 * i] = place[i] += moved;
        observation[2 * i + 1] = (float)time / EPISODE_LENGTH;
        reward[i] = -fabsf(place[i]);
    }
    env_sync();
    if (first_agent() == 0) {
        time_step[env] = time;
        terminated[env] = false;
        truncated[env] = time >= EPISODE_LENGTH;
    }
}

// Starts an ended env anew, anywhere between -2 and 2.
extern "C" __global__ void shove_reset(const bool* terminated, const bool* truncated, const unsigned int* seed,
                                       const long long* env_step, int* time_step, float* place,
                                       float* observation)
{
    const int env = env_index();
    if (env >= NUM_ENVS || !(terminated[env] || truncated[env])) return;
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        const int i = env * NUM_AGENTS + agent;
        Random random(seed, env, agent, env_step[env], STREAM_RESET);
        observation[2 * i] = place[i] = random.uniform(-2.0f, 2.0f);
        observation[2 * i + 1] = 0.0f;
    }
    if (first_agent() == 0) time_step[env] = 0;
}
