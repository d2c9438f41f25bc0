#include "random.cuh"
#include "warpdrive.cuh"

// Pays for the choices made, and draws what may be chosen next.
//   action       [env, agent, 2]                read
//   seed         [3]                            read
//   env_step     [env]                          read
//   action_mask  [env, agent, 5]                read, written
//   observation  [env, agent, 5]  the new mask  written
//   reward       [env, agent]                   written
//   terminated, truncated  [env]  never         written
extern "C" __global__ void locks_step(const int* action, const unsigned int* seed, const long long* env_step,
                                      bool* action_mask, float* observation, float* reward, bool* terminated,
                                      bool* truncated)
{
    const int env = env_index();
    if (env >= NUM_ENVS) return;
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        const int i = env * NUM_AGENTS + agent;
        bool* allowed = action_mask + 5 * i;
        const bool has_first = allowed[0] || allowed[1] || allowed[2];
        const bool has_second = allowed[3] || allowed[4];
        const int first = action[2 * i];
        const int second = action[2 * i + 1];
        float paid = 0.5f * (first == 1) + 0.5f * (second == 1);
        if (has_first ? !allowed[first] : first != 0) paid = -1.0f;
        if (has_second ? !allowed[3 + second] : second != 0) paid = -1.0f;
        reward[i] = paid;
        Random random(seed, env, agent, env_step[env]);
        for (int j = 0; j < 5; ++j) {
            allowed[j] = random.below(2) && j != NEVER;
            observation[5 * i + j] = allowed[j] ? 1.0f : 0.0f;
        }
    }
    if (first_agent() == 0) {
        terminated[env] = false;
        truncated[env] = false;
    }
}
