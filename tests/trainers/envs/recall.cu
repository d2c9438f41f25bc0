#include "random.cuh"
#include "warpdrive.cuh"

// What both agents see at the start of an episode, or later, when the sign is hidden.
__device__ __forceinline__ void show(int env, const float* sign, int time, int last, float* observation)
{
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        const int i = env * NUM_AGENTS + agent;
        observation[2 * i] = time == 0 ? sign[i] : 0.0f;
        observation[2 * i + 1] = time == last ? 1.0f : 0.0f;
    }
}

// Pays for the answer in the last step.
//   action       [env, agent]                       read
//   env_step     [env]                              read
//   sign         [env, agent]     1 or -1           read
//   last_step    [env]            of the episode    read
//   time_step    [env]            of the episode    read, written
//   observation  [env, agent, 2]                    written
//   reward       [env, agent]                       written
//   terminated, truncated  [env]                    written
extern "C" __global__ void recall_step(const int* action, const long long* env_step, const float* sign,
                                       const int* last_step, int* time_step, float* observation, float* reward,
                                       bool* terminated, bool* truncated)
{
    const int env = env_index();
    if (env >= NUM_ENVS) return;
    const int time = time_step[env];
    const bool is_over = time >= last_step[env];
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        const int i = env * NUM_AGENTS + agent;
        reward[i] = is_over && action[i] == (sign[i] > 0.0f ? 1 : 0) ? 1.0f : 0.0f;
    }
    show(env, sign, time + 1, last_step[env], observation);
    env_sync();
    if (first_agent() == 0) {
        const bool is_cut = IS_UNEVEN && (env_step[env] + env) % 2 == 1;
        terminated[env] = is_over && !is_cut;
        truncated[env] = is_over && is_cut;
        time_step[env] = time + 1;
    }
}

// Draws new signs for an ended env.
extern "C" __global__ void recall_reset(const bool* terminated, const bool* truncated, const unsigned int* seed,
                                        const long long* env_step, float* sign, int* last_step, int* time_step,
                                        float* observation)
{
    const int env = env_index();
    if (env >= NUM_ENVS || !(terminated[env] || truncated[env])) return;
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        Random random(seed, env, agent, env_step[env], STREAM_RESET);
        sign[env * NUM_AGENTS + agent] = random.below(2) ? 1.0f : -1.0f;
    }
    if (first_agent() == 0) {
        Random random(seed, env, NUM_AGENTS, env_step[env], STREAM_RESET);
        last_step[env] = IS_UNEVEN ? (int)random.below(EPISODE_LENGTH) : EPISODE_LENGTH - 1;
        time_step[env] = 0;
    }
    env_sync();
    show(env, sign, 0, last_step[env], observation);
}
