#include "random.cuh"
#include "warpdrive.cuh"

// Pays for the answers to the signs that were shown, and shows new ones.
//   action       [env, agent, 2]                read
//   seed         [3]                            read
//   env_step     [env]                          read
//   sign         [env, agent, 2]  1 or -1       read, written
//   observation  [env, agent, 2]  the new sign  written
//   reward       [env, agent]                   written
//   terminated, truncated  [env]  never         written
extern "C" __global__ void two_signs_step(const int* action, const unsigned int* seed, const long long* env_step,
                                          float* sign, float* observation, float* reward, bool* terminated,
                                          bool* truncated)
{
    const int env = env_index();
    if (env >= NUM_ENVS) return;
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        const int i = env * NUM_AGENTS + agent;
        Random random(seed, env, agent, env_step[env]);
        reward[i] = 0.0f;
        for (int j = 2 * i; j < 2 * i + 2; ++j) {
            reward[i] += action[j] == (sign[j] > 0.0f ? 1 : 0) ? 0.5f : 0.0f;
            sign[j] = random.below(2) ? 1.0f : -1.0f;
            observation[j] = sign[j];
        }
        if (agent == 0) {
            terminated[env] = false;
            truncated[env] = false;
        }
    }
}
