// SMAX, where chance is what a test gives.
#include "../../cuda_envs/smax/smax.cuh"

// What the enemies do, or a number below 0 if they are to decide; and what the rest draws from.
struct Given {
    const int* given_action;  // [env, enemy]
    const float* given_delay;  // [env, unit]
    Drawn drawn;

    __device__ __forceinline__ float delay(int unit, int) const
    {
        return given_delay[(long long)drawn.env * NUM_UNITS + unit];
    }

    __device__ __forceinline__ int enemy_action(
        const Battle& battle, int enemy, float goal_x, float goal_y, int& last_target) const
    {
        const int given = given_action[(long long)drawn.env * NUM_ENEMIES + enemy - NUM_AGENTS];
        return given >= 0 ? given : drawn.enemy_action(battle, enemy, goal_x, goal_y, last_target);
    }
};

// As smax_step.
extern "C" __global__ void smax_given_step(
    const int* action, const int* enemy_action, const float* delay, const unsigned int* seed, const long long* env_step,
    float* x, float* y, float* health, float* cooldown, const int* unit_type, const float* goal_x, const float* goal_y,
    int* last_target, int* last_action, int* time_step, bool* active, bool* action_mask, float* observation,
    float* global_state, float* reward, float* won, bool* terminated, bool* truncated)
{
    const int env = env_index();
    if (env >= NUM_ENVS) return;
    const Given chance = {enemy_action, delay, {seed, env_step, env}};
    step_env(
        env, chance, action, x, y, health, cooldown, unit_type, goal_x, goal_y, last_target, last_action, time_step,
        active, action_mask, observation, global_state, reward, won, terminated, truncated);
}

// As smax_reset.
extern "C" __global__ void smax_given_reset(
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
