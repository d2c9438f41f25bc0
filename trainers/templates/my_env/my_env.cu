// What happens in my_env. A parameter's name is the name of the array that it receives.
#include "random.cuh"
#include "warpdrive.cuh"

// Writes what each agent sees: where it stands, and where the flag is from there. All from -1 to 1.
__device__ __forceinline__ void observe(
    int env, const int* x, const int* y, const int* flag_x, const int* flag_y, float* observation)
{
    const float last = FIELD_SIZE - 1;
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        const int i = env * NUM_AGENTS + agent;
        float* const row = observation + (long long)i * NUM_FEATURES;  // beyond 2^31 numbers, too
        row[0] = 2.0f * x[i] / last - 1.0f;
        row[1] = 2.0f * y[i] / last - 1.0f;
        row[2] = (flag_x[env] - x[i]) / last;
        row[3] = (flag_y[env] - y[i]) / last;
    }
}

// Moves everyone, then pays whoever stands on the flag. Time alone ends an episode.
//   action          [env, agent]  0 stay, 1 right, 2 left, 3 up, 4 down  read
//   x, y            [env, agent]  cells, 0 to FIELD_SIZE - 1             read, written
//   flag_x, flag_y  [env]         cells                                  read, written
//   time_step       [env]         steps of this episode                  read, written
//   observation     [env, agent, feature]                                written
//   reward          [env, agent]  1 for reaching the flag                written
extern "C" __global__ void my_env_step(
    const int* action, const unsigned* seed, const long long* env_step, int* x, int* y, int* flag_x, int* flag_y,
    int* time_step, float* observation, float* reward, bool* terminated, bool* truncated)
{
    const int env = env_index();
    if (env >= NUM_ENVS) return;
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        const int i = env * NUM_AGENTS + agent;
        x[i] = min(max(x[i] + (action[i] == 1) - (action[i] == 2), 0), FIELD_SIZE - 1);
        y[i] = min(max(y[i] + (action[i] == 3) - (action[i] == 4), 0), FIELD_SIZE - 1);
        reward[i] = x[i] == flag_x[env] && y[i] == flag_y[env] ? 1.0f : 0.0f;
    }
    env_sync();  // everyone is paid for the flag where it was
    if (first_agent() == 0) {  // one thread does what there is once an env
        bool is_reached = false;
        for (int agent = 0; agent < NUM_AGENTS; ++agent) is_reached |= reward[env * NUM_AGENTS + agent] > 0.0f;
        if (is_reached) {
            Random random(seed, env, NUM_AGENTS, env_step[env]);  // the flag draws as if it came after the agents
            flag_x[env] = random.below(FIELD_SIZE);
            flag_y[env] = random.below(FIELD_SIZE);
        }
        time_step[env] += 1;
        terminated[env] = false;
        truncated[env] = time_step[env] >= EPISODE_LENGTH;
    }
    env_sync();  // the flag is where it will be seen
    observe(env, x, y, flag_x, flag_y, observation);
}

// Starts every env anew that ended, and no other.
extern "C" __global__ void my_env_reset(
    const bool* terminated, const bool* truncated, const unsigned* seed, const long long* env_step, int* x, int* y,
    int* flag_x, int* flag_y, int* time_step, float* observation)
{
    const int env = env_index();
    if (env >= NUM_ENVS || !(terminated[env] || truncated[env])) return;
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        Random random(seed, env, agent, env_step[env], STREAM_RESET);
        x[env * NUM_AGENTS + agent] = random.below(FIELD_SIZE);
        y[env * NUM_AGENTS + agent] = random.below(FIELD_SIZE);
    }
    if (first_agent() == 0) {
        Random random(seed, env, NUM_AGENTS, env_step[env], STREAM_RESET);
        flag_x[env] = random.below(FIELD_SIZE);
        flag_y[env] = random.below(FIELD_SIZE);
        time_step[env] = 0;
    }
    env_sync();
    observe(env, x, y, flag_x, flag_y, observation);
}
