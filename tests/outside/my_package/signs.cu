#include "random.cuh"
#include "warpdrive.cuh"

// Lights one pixel of an agent's picture, in the left half or in the right.
__device__ __forceinline__ void show(int i, Random random, int* side, unsigned char* observation)
{
    side[i] = (int)random.below(2);
    const int x = side[i] * (SIZE / 2) + (int)random.below(SIZE / 2), y = (int)random.below(SIZE);
    for (int j = 0; j < SIZE * SIZE; ++j) observation[i * SIZE * SIZE + j] = j == y * SIZE + x ? 255 : 0;
}

//   action       [env, agent]                 0 left, 1 right        read
//   pay          [env]                        of a right answer      read
//   side         [env, agent]                 where the light is     read, written
//   time_step    [env]                        of the episode         read, written
//   observation  [env, agent, 1, SIZE, SIZE]  255 at the light       written
extern "C" __global__ void signs_step(const int* action, const float* pay, const unsigned* seed,
                                      const long long* env_step, int* side, int* time_step, unsigned char* observation,
                                      float* reward, bool* terminated, bool* truncated)
{
    const int env = env_index();
    if (env >= NUM_ENVS) return;
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        const int i = env * NUM_AGENTS + agent;
        reward[i] = action[i] == side[i] ? pay[env] : 0.0f;
        show(i, Random(seed, env, agent, env_step[env]), side, observation);
    }
    if (first_agent() == 0) {
        time_step[env] += 1;
        terminated[env] = false;
        truncated[env] = time_step[env] >= EPISODE_LENGTH;
    }
}

extern "C" __global__ void signs_reset(const bool* terminated, const bool* truncated, const unsigned* seed,
                                       const long long* env_step, int* side, int* time_step, unsigned char* observation)
{
    const int env = env_index();
    if (env >= NUM_ENVS || !(terminated[env] || truncated[env])) return;
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride())
        show(env * NUM_AGENTS + agent, Random(seed, env, agent, env_step[env], STREAM_RESET), side, observation);
    if (first_agent() == 0) time_step[env] = 0;
}
