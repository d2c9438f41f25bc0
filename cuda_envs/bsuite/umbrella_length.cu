// Umbrella chain. One agent an env: one thread does all of it.
#include "bsuite.cuh"

constexpr int NUM_FEATURES = 3 + NUM_DISTRACTORS;

// Writes what the agent sees: whether it needs an umbrella, whether it has one, time left, and noise of 0 and 1.
__device__ __forceinline__ void observe(
    int needs, int has, int time, Random& random, int env, float* observation)
{
    float* const row = observation + (long long)env * NUM_FEATURES;
    row[0] = (float)needs;
    row[1] = (float)has;
    row[2] = TIME_LEFT[time];
    unsigned drawn = 0;
    for (int i = 0; i < NUM_DISTRACTORS; ++i) {
        if (i % 32 == 0) drawn = random.bits();
        row[3 + i] = (float)(drawn >> (i % 32) & 1);
    }
}

// Takes an umbrella along or not, in the first step; lets time go by, in the others.
//   action          [env, agent]           1 takes an umbrella, 0 leaves it                     read
//   needs           [env]                  0 or 1                                               read
//   has             [env]                  0 or 1                                               read, written
//   time_step       [env]                  steps since the episode began                        read, written
//   episode_return  [env]                  of the episode so far                                read, written
//   num_episodes, total_return, total_regret  [env]  see bsuite.cuh                             read, written
//   observation     [env, agent, feature]                                                       written
//   reward          [env, agent]           1 or -1: chance; in the last step, whether it was right  written
//   terminated      [env]                  the way is at its end                                written
//   truncated       [env]                  never                                                written
extern "C" __global__ void umbrella_length_step(
    const int* action, const int* needs, const unsigned int* seed, const long long* env_step, int* has, int* time_step,
    float* episode_return, long long* num_episodes, double* total_return, long long* total_regret, float* observation,
    float* reward, bool* terminated, bool* truncated)
{
    const int env = env_index();
    if (env >= NUM_ENVS || first_agent() != 0) return;

    Random random(seed, env, 0, env_step[env]);
    const int time = min(time_step[env] + 1, CHAIN_LENGTH);  // no episode is longer
    const int needed = needs[env];
    const int taken = time == 1 ? action[env] : has[env];
    const bool ends = time == CHAIN_LENGTH;
    const bool is_good = ends ? taken == needed : random.bits() >> 31;
    const float paid = is_good ? 1.0f : -1.0f;
    const float sum = episode_return[env] + paid;
    if (ends) {
        if (!is_good) total_regret[env] += 2;
        count_episode(env, sum, num_episodes, total_return);
    }
    has[env] = taken;
    time_step[env] = time;
    episode_return[env] = sum;
    reward[env] = paid;
    terminated[env] = ends;
    truncated[env] = false;
    observe(needed, taken, time, random, env, observation);
}

// Draws anew whether an umbrella is needed, and whether there is one, until the first action decides.
extern "C" __global__ void umbrella_length_reset(
    const bool* terminated, const bool* truncated, const unsigned int* seed, const long long* env_step, int* needs,
    int* has, int* time_step, float* episode_return, float* observation)
{
    const int env = env_index();
    if (env >= NUM_ENVS || first_agent() != 0 || !(terminated[env] || truncated[env])) return;

    Random random(seed, env, 0, env_step[env], STREAM_RESET);
    const int needed = random.below(2);
    const int taken = random.below(2);
    needs[env] = needed;
    has[env] = taken;
    time_step[env] = 0;
    episode_return[env] = 0.0f;
    observe(needed, taken, 0, random, env, observation);
}
