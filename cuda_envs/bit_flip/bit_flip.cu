// Bit flipping. One agent an env: one thread does all of it.
#include "warpdrive.cuh"
#include "random.cuh"

// Writes what the agent sees.
__device__ __forceinline__ void observe(
    const unsigned char* bits, const unsigned char* goals, float* achieved, float* desired)
{
    for (int i = 0; i < NUM_BITS; ++i) {
        achieved[i] = (float)bits[i];
        desired[i] = (float)goals[i];
    }
}

// Flips a bit.
//   action                     [env, agent]       which                                    read
//   goal                       [env, bit]         0 or 1                                   read
//   bit                        [env, bit]         0 or 1                                   read, written
//   time_step                  [env]              steps since the episode began            read, written
//   observation_achieved_goal  [env, agent, bit]  the bits                                 written
//   observation_desired_goal   [env, agent, bit]  the goal                                 written
//   reward                     [env, agent]       0 where the goal is reached, else -1     written
//   solved                     [env]              1 where it is, else 0                    written
//   terminated                 [env]              it is                                    written
//   truncated                  [env]              time is up                               written
extern "C" __global__ void bit_flip_step(
    const int* action, const unsigned char* goal, unsigned char* bit, int* time_step,
    float* observation_achieved_goal, float* observation_desired_goal, float* reward, float* solved, bool* terminated,
    bool* truncated)
{
    const int env = env_index();
    if (env >= NUM_ENVS || first_agent() != 0) return;

    const long long first = (long long)env * NUM_BITS;
    bit[first + action[env]] ^= 1;
    bool is_reached = true;
    for (int i = 0; i < NUM_BITS; ++i) is_reached &= bit[first + i] == goal[first + i];
    const int time = time_step[env] + 1;
    time_step[env] = time;
    reward[env] = is_reached ? 0.0f : -1.0f;
    solved[env] = is_reached ? 1.0f : 0.0f;
    terminated[env] = is_reached;
    truncated[env] = !is_reached && time >= NUM_BITS;
    observe(bit + first, goal + first, observation_achieved_goal + first, observation_desired_goal + first);
}

// Starts an ended env anew: bits and a goal that are drawn, and differ.
extern "C" __global__ void bit_flip_reset(
    const bool* terminated, const bool* truncated, const unsigned int* seed, const long long* env_step,
    unsigned char* bit, unsigned char* goal, int* time_step, float* observation_achieved_goal,
    float* observation_desired_goal)
{
    const int env = env_index();
    if (env >= NUM_ENVS || first_agent() != 0 || !(terminated[env] || truncated[env])) return;

    Random random(seed, env, 0, env_step[env], STREAM_RESET);
    const long long first = (long long)env * NUM_BITS;
    bool is_reached = true;
    for (int i = 0; i < NUM_BITS; ++i) {
        const unsigned drawn = random.bits();
        bit[first + i] = drawn & 1;
        goal[first + i] = drawn >> 1 & 1;
        is_reached &= bit[first + i] == goal[first + i];
    }
    if (is_reached) goal[first] ^= 1;
    time_step[env] = 0;
    observe(bit + first, goal + first, observation_achieved_goal + first, observation_desired_goal + first);
}

// What a step is worth under another goal: by the same rule.
//   achieved_goal    [row, bit]  the bits after the step                  read
//   desired_goal     [row, bit]  the goal that it is judged by            read
//   num_rows                     of steps
//   goal_reward      [row]       0 where the goal is reached, else -1     written
//   goal_terminated  [row]       it is                                    written
extern "C" __global__ void bit_flip_relabel(
    const float* achieved_goal, const float* desired_goal, int num_rows, float* goal_reward, bool* goal_terminated)
{
    const int num_threads = gridDim.x * blockDim.x;
    for (int row = blockIdx.x * blockDim.x + threadIdx.x; row < num_rows; row += num_threads) {
        bool is_reached = true;
        for (int i = 0; i < NUM_BITS; ++i) {
            const long long place = (long long)row * NUM_BITS + i;
            is_reached &= achieved_goal[place] == desired_goal[place];
        }
        goal_reward[row] = is_reached ? 0.0f : -1.0f;
        goal_terminated[row] = is_reached;
    }
}
