#include "random.cuh"
#include "warpdrive.cuh"

// Pays for the answer and moves the light.
//   action       [env, agent]                                  read
//   seed         [3]                                           read
//   env_step     [env]                                         read
//   column       [env, agent]        0 to 2                    read, written
//   observation  [env, agent, 2, 3]  9 at the light, else 0    written
//   reward       [env, agent]                                  written
//   terminated, truncated  [env]     never                     written
extern "C" __global__ void lights_step(const int* action, const unsigned int* seed, const long long* env_step,
                                       int* column, unsigned char* observation, float* reward, bool* terminated,
                                       bool* truncated)
{
    const int env = env_index();
    if (env >= NUM_ENVS) return;
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        const int i = env * NUM_AGENTS + agent;
        Random random(seed, env, agent, env_step[env]);
        reward[i] = action[i] == column[i] ? 1.0f : 0.0f;
        column[i] = (int)random.below(3);
        const int light = 3 * (int)random.below(2) + column[i];
        for (int j = 0; j < 6; ++j) observation[6 * i + j] = j == light ? 9 : 0;
    }
    if (first_agent() == 0) {
        terminated[env] = false;
        truncated[env] = false;
    }
}
