// Simple Spread with continuous actions. What happens in it is in simple_spread.cuh.
#include "simple_spread.cuh"

// Moves everyone, lets them push each other, and pays them.
//   action             [env, agent, 5]        0 .. 1 each: nothing, left, right, down, up  read
//   position           [env, agent, 2]        half arenas                               read, written
//   velocity           [env, agent, 2]        half arenas a second                      read, written
//   landmark_position  [env, landmark, 2]                                               read
//   time_step          [env]                  steps since the episode began             read, written
//   observation        [env, agent, feature]                                            written
//   reward             [env, agent]                                                     written
//   terminated         [env]                  never                                     written
//   truncated          [env]                  time is up                                written
extern "C" __global__ void simple_spread_step(
    const float* action, float* position, float* velocity, const float* landmark_position, int* time_step,
    float* observation, float* reward, bool* terminated, bool* truncated)
{
    const int env = env_index();
    if (env >= NUM_ENVS) return;
    step_env(
        env, action, position, velocity, landmark_position, time_step, observation, reward, terminated, truncated);
}

// Places everyone of an ended env, and its landmarks, at random, at rest.
extern "C" __global__ void simple_spread_reset(
    const bool* terminated, const bool* truncated, const unsigned int* seed, const long long* env_step, float* position,
    float* velocity, float* landmark_position, int* time_step, float* observation)
{
    const int env = env_index();
    if (env >= NUM_ENVS || !(terminated[env] || truncated[env])) return;
    reset_env(env, seed, env_step, position, velocity, landmark_position, time_step, observation);
}
