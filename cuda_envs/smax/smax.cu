// SMAX. What happens in it is in smax.cuh.
#include "smax.cuh"

// Lets the enemies decide and everyone act, and pays the allies.
//   action          [env, ally]            0 north, 1 east, 2 south, 3 west, 4 stop, 5 and more the enemy shot at  read
//   x, y            [env, unit]            0 to MAP_WIDTH, 0 to MAP_HEIGHT; pushed, a little more       read, written
//   health          [env, unit]            0 of the dead                                                read, written
//   cooldown        [env, unit]            seconds until it may shoot again, 0 or less if it may        read, written
//   unit_type       [env, unit]            place in UNIT_TYPES of smax.py                               read
//   goal_x, goal_y  [env, enemy]           where it walks if it sees nobody                             read
//   last_target     [env, enemy]           the ally it shot at, counted from the last one, or -1        read, written
//   last_action     [env, unit]            as `action`; an enemy counts allies from the last one        written
//   time_step       [env]                  steps since the episode began                                read, written
//   active          [env, ally]            alive                                                        written
//   action_mask     [env, ally, action]                                                                 written
//   observation     [env, ally, feature]                                                                written
//   global_state    [env, feature]                                                                      written
//   reward          [env, ally]            the same for all, dead or alive                              written
//   won             [env]                  1 once all enemies are dead and an ally is not               written
//   terminated      [env]                  a team is dead                                               written
//   truncated       [env]                  time is up                                                   written
extern "C" __global__ void __launch_bounds__(ENVS_PER_BLOCK * THREADS_PER_ENV) smax_step(
    const int* action, const unsigned int* seed, const long long* env_step, float* x, float* y, float* health,
    float* cooldown, const int* unit_type, const float* goal_x, const float* goal_y, int* last_target,
    int* last_action, int* time_step, bool* active, bool* action_mask, float* observation, float* global_state,
    float* reward, float* won, bool* terminated, bool* truncated)
{
    const int env = env_index();
    if (env >= NUM_ENVS) return;
    const Drawn chance = {seed, env_step, env};
    step_env(
        env, chance, action, x, y, health, cooldown, unit_type, goal_x, goal_y, last_target, last_action, time_step,
        active, action_mask, observation, global_state, reward, won, terminated, truncated);
}

// Places both teams of an ended env anew, whole.
extern "C" __global__ void __launch_bounds__(ENVS_PER_BLOCK * THREADS_PER_ENV) smax_reset(
    const bool* terminated, const bool* truncated, const unsigned int* seed, const long long* env_step, float* x,
    float* y, float* health, float* cooldown, int* unit_type, float* goal_x, float* goal_y, int* last_target,
    int* last_action, int* time_step, bool* active, bool* action_mask, float* observation, float* global_state)
{
    const int env = env_index();
    if (env >= NUM_ENVS || !(terminated[env] || truncated[env])) return;
    reset_env(
        env, seed, env_step, x, y, health, cooldown, unit_type, goal_x, goal_y, last_target, last_action, time_step,
        active, action_mask, observation, global_state);
}
