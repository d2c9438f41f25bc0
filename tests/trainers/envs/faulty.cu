#include "random.cuh"
#include "warpdrive.cuh"

// Pays, shows new numbers, and goes wrong where it is told to.
//   action       [env, agent]           read
//   seed         [3]                    read
//   env_step     [env]                  read
//   time_step    [env]  of the episode  read, written
//   observation  [env, agent, 2]        written
//   reward       [env, agent]           written
//   terminated   [env]  never           written
//   truncated    [env]                  written
extern "C" __global__ void faulty_step(const int* action, const unsigned int* seed, const long long* env_step,
                                       int* time_step, float* observation, float* reward, bool* terminated,
                                       bool* truncated)
{
    const int env = env_index();
    if (env >= NUM_ENVS) return;
    const long long step = env_step[env] - 1;  // the reset before the run counts as one
    const int time = time_step[env] + 1;
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        const int i = env * NUM_AGENTS + agent;
        Random random(seed, env, agent, step);
        reward[i] = action[i] == 1 ? random.uniform(-1.0f, 1.0f) : 0.0f;
        observation[2 * i] = random.uniform(-1.0f, 1.0f);
        observation[2 * i + 1] = random.uniform(-1.0f, 1.0f);
        if ((int)random.env == BAD_ENV && agent == BAD_AGENT && step == BAD_STEP) {
            if (IS_WILD) reward[1ll << 40] = 0.0f;
            const float bad = IS_INFINITE ? -INFINITY : INFINITY - INFINITY;
            if (IN_OBSERVATION) observation[2 * i + 1] = bad;
            if (IN_REWARD) reward[i] = bad;
        }
    }
    env_sync();
    if (first_agent() == 0) {
        time_step[env] = time;
        terminated[env] = false;
        truncated[env] = time >= EPISODE_LENGTH;
    }
}
