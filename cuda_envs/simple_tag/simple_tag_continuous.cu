// Simple Tag with continuous actions. What happens in it is in simple_tag.cuh.
#include "simple_tag.cuh"

// Moves everyone, lets them push each other, and pays them.
//   action                 [env, agent, 5]            0 .. 1 each: nothing, left, right, down, up  read
//   position               [env, agent, 2]            half arenas                               read, written
//   velocity               [env, agent, 2]            half arenas a second                      read, written
//   obstacle_position      [env, obstacle, 2]                                                   read
//   time_step              [env]                      steps since the episode began             read, written
//   observation_adversary  [env, adversary, feature]                                            written
//   observation_agent      [env, good agent, feature]                                           written
//   reward                 [env, agent]                                                         written
//   terminated             [env]                      never                                     written
//   truncated              [env]                      time is up                                written
extern "C" __global__ void simple_tag_step(
    const float* action, float* position, float* velocity, const float* obstacle_position, int* time_step,
    float* observation_adversary, float* observation_agent, float* reward, bool* terminated, bool* truncated)
{
    const int env = env_index();
    if (env >= NUM_ENVS) return;
    step_env(
        env, action, position, velocity, obstacle_position, time_step, observation_adversary, observation_agent, reward,
        terminated, truncated);
}

// Places everyone of an ended env at random, at rest.
extern "C" __global__ void simple_tag_reset(
    const bool* terminated, const bool* truncated, const unsigned int* seed, const long long* env_step, float* position,
    float* velocity, float* obstacle_position, int* time_step, float* observation_adversary, float* observation_agent)
{
    const int env = env_index();
    if (env >= NUM_ENVS || !(terminated[env] || truncated[env])) return;
    reset_env(
        env, seed, env_step, position, velocity, obstacle_position, time_step, observation_adversary,
        observation_agent);
}
