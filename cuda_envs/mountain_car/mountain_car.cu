// Mountain car. One agent an env: one thread does all of it.
#include "warpdrive.cuh"
#include "random.cuh"

constexpr float GOAL_POSITION = 0.5f;
constexpr float PUSH = 0.001f;       // velocity that the engine adds in a step
constexpr float GRAVITY = 0.0025f;   // velocity that the steepest slope adds in a step
constexpr float MIN_START = -0.6f, MAX_START = -0.4f;

// Writes what the agent sees: one store of 8 bytes, beside those of the neighbouring envs.
__device__ __forceinline__ void observe(float position, float velocity, int env, float* observation)
{
    reinterpret_cast<float2*>(observation)[env] = make_float2(position, velocity);
}

// Drives the car for one step.
//   action       [env, agent]           0 push left, 1 coast, 2 push right         read
//   position     [env]                  MIN_POSITION to MAX_POSITION               read, written
//   velocity     [env]                  positions a step, -MAX_SPEED to MAX_SPEED  read, written
//   time_step    [env]                  steps since the episode began              read, written
//   observation  [env, agent, feature]  position, velocity                         written
//   reward       [env, agent]                                                      written
//   terminated   [env]                  the car is at the goal, and fast enough    written
//   truncated    [env]                  time is up                                 written
extern "C" __global__ void mountain_car_step(
    const int* action, float* position, float* velocity, int* time_step, float* observation, float* reward,
    bool* terminated, bool* truncated)
{
    const int env = env_index();
    if (env >= NUM_ENVS || first_agent() != 0) return;

    const float old_position = position[env];
    float new_velocity = velocity[env] + PUSH * (float)(action[env] - 1) - GRAVITY * cosf(3.0f * old_position);
    new_velocity = fminf(fmaxf(new_velocity, -MAX_SPEED), MAX_SPEED);
    const float new_position = fminf(fmaxf(old_position + new_velocity, MIN_POSITION), MAX_POSITION);
    if (new_position == MIN_POSITION) new_velocity = fmaxf(new_velocity, 0.0f);  // the wall stops it
    position[env] = new_position;
    velocity[env] = new_velocity;

    const int time = time_step[env] + 1;
    const bool at_goal = new_position >= GOAL_POSITION && new_velocity >= GOAL_VELOCITY;
    time_step[env] = time;
    reward[env] = -1.0f;
    terminated[env] = at_goal;
    truncated[env] = !at_goal && time >= EPISODE_LENGTH;
    observe(new_position, new_velocity, env, observation);
}

// Starts an ended env anew: at rest, somewhere near the bottom of the valley.
extern "C" __global__ void mountain_car_reset(
    const bool* terminated, const bool* truncated, const unsigned int* seed, const long long* env_step, float* position,
    float* velocity, int* time_step, float* observation)
{
    const int env = env_index();
    if (env >= NUM_ENVS || first_agent() != 0 || !(terminated[env] || truncated[env])) return;

    Random random(seed, env, 0, env_step[env], STREAM_RESET);
    const float new_position = random.uniform(MIN_START, MAX_START);
    position[env] = new_position;
    velocity[env] = 0.0f;
    time_step[env] = 0;
    observe(new_position, 0.0f, env, observation);
}
