// Memory chain. One agent an env: one thread does all of it.
#include "bsuite.cuh"

constexpr int NUM_FEATURES = 2 + NUM_BITS;

// Writes what the agent sees: time left, which bit is asked for (in the last step alone), bits (in the first alone).
__device__ __forceinline__ void observe(
    int time, int query, const unsigned char* context, int env, float* observation)
{
    float* const row = observation + (long long)env * NUM_FEATURES;
    row[0] = TIME_LEFT[time];
    row[1] = time == MEMORY_LENGTH - 1 ? (float)query : 0.0f;
    const unsigned char* const bits = context + (long long)env * NUM_BITS;
    for (int bit = 0; bit < NUM_BITS; ++bit) {
        row[2 + bit] = time == 0 ? (bits[bit] ? 1.0f : -1.0f) : 0.0f;
    }
}

// Lets a step go by; the last action of an episode is the answer.
//   action         [env, agent]           the bit that was asked for               read
//   context        [env, bit]             0 or 1                                   read
//   query          [env]                  which bit is asked for                   read
//   time_step      [env]                  steps since the episode began            read, written
//   num_episodes, total_return, total_perfect, total_regret  [env]  see bsuite.cuh read, written
//   observation    [env, agent, feature]  as before the clock moves on             written
//   reward         [env, agent]           1 for the right answer, -1 for a wrong one, 0 before  written
//   terminated     [env]                  the answer was given                     written
//   truncated      [env]                  never                                    written
extern "C" __global__ void memory_len_step(
    const int* action, const unsigned char* context, const int* query, int* time_step, long long* num_episodes,
    double* total_return, long long* total_perfect, long long* total_regret, float* observation, float* reward,
    bool* terminated, bool* truncated)
{
    const int env = env_index();
    if (env >= NUM_ENVS || first_agent() != 0) return;

    const int time = min(time_step[env], MEMORY_LENGTH);  // no episode is longer
    const int asked = query[env];
    const bool ends = time == MEMORY_LENGTH;
    float paid = 0.0f;
    if (ends) {
        const bool is_right = action[env] == context[(long long)env * NUM_BITS + asked];
        paid = is_right ? 1.0f : -1.0f;
        if (is_right) {
            total_perfect[env] += 1;
        } else {
            total_regret[env] += 2;
        }
        count_episode(env, paid, num_episodes, total_return);
    }
    time_step[env] = time + 1;
    reward[env] = paid;
    terminated[env] = ends;
    truncated[env] = false;
    observe(time, asked, context, env, observation);
}

// Draws new bits, and which of them will be asked for.
extern "C" __global__ void memory_len_reset(
    const bool* terminated, const bool* truncated, const unsigned int* seed, const long long* env_step,
    unsigned char* context, int* query, int* time_step, float* observation)
{
    const int env = env_index();
    if (env >= NUM_ENVS || first_agent() != 0 || !(terminated[env] || truncated[env])) return;

    Random random(seed, env, 0, env_step[env], STREAM_RESET);
    const int asked = random.below(NUM_BITS);
    unsigned drawn = 0;
    for (int bit = 0; bit < NUM_BITS; ++bit) {
        if (bit % 32 == 0) drawn = random.bits();
        context[(long long)env * NUM_BITS + bit] = drawn >> (bit % 32) & 1;
    }
    query[env] = asked;
    time_step[env] = 0;
    observe(0, asked, context, env, observation);
}
