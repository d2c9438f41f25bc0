#include "random.cuh"
#include "warpdrive.cuh"

// Draws what one agent sees next.
__device__ __forceinline__ void show(int i, int time, Random random, int* column, unsigned char* picture, float* place,
                                     float* height)
{
    column[i] = (int)random.below(3);
    const int light = 3 * (int)random.below(2) + column[i];
    for (int j = 0; j < 6; ++j) picture[6 * i + j] = j == light ? 9 : 0;
    place[2 * i] = random.uniform(-1.0f, 1.0f);
    place[2 * i + 1] = random.uniform(-1.0f, 1.0f);
    height[i] = (float)time / EPISODE_LENGTH;
}

// Pays for the two answers and shows something else.
//   action               [env, agent, 2]                                    read
//   seed                 [3]                                                read
//   env_step             [env]                                              read
//   time_step            [env]               of the episode                 read, written
//   column               [env, agent]        0 to 2, of the light           read, written
//   observation_picture  [env, agent, 2, 3]  9 at the light, else 0         written
//   observation_place    [env, agent, 2]     only the first number matters  written
//   is_right            [env, agent]        whether that is above 0        read, written
//   observation_height   [env, agent]        time, in episodes              written
//   reward               [env, agent]                                       written
//   terminated           [env]               never                          written
//   truncated            [env]                                              written
extern "C" __global__ void sights_step(const int* action, const unsigned int* seed, const long long* env_step,
                                       int* time_step, int* column, unsigned char* observation_picture,
                                       float* observation_place, float* observation_height, bool* is_right,
                                       float* reward, bool* terminated, bool* truncated)
{
    const int env = env_index();
    if (env >= NUM_ENVS) return;
    const int time = time_step[env] + 1;
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        const int i = env * NUM_AGENTS + agent;
        reward[i] = (action[2 * i] == column[i] ? 0.5f : 0.0f) + (action[2 * i + 1] == is_right[i] ? 0.5f : 0.0f);
        show(i, time, Random(seed, env, agent, env_step[env]), column, observation_picture, observation_place,
             observation_height);
        is_right[i] = observation_place[2 * i] > 0.0f;
    }
    env_sync();
    if (first_agent() == 0) {
        time_step[env] = time;
        terminated[env] = false;
        truncated[env] = time >= EPISODE_LENGTH;
    }
}

extern "C" __global__ void sights_reset(const bool* terminated, const bool* truncated, const unsigned int* seed,
                                        const long long* env_step, int* time_step, int* column,
                                        unsigned char* observation_picture, float* observation_place,
                                        float* observation_height, bool* is_right)
{
    const int env = env_index();
    if (env >= NUM_ENVS || !(terminated[env] || truncated[env])) return;
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        const int i = env * NUM_AGENTS + agent;
        show(i, 0, Random(seed, env, agent, env_step[env], STREAM_RESET), column, observation_picture,
             observation_place, observation_height);
        is_right[i] = observation_place[2 * i] > 0.0f;
    }
    if (first_agent() == 0) time_step[env] = 0;
}
