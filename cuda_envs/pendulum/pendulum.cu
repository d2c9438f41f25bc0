// Pendulum. One agent an env: one thread does all of it.
#include "warpdrive.cuh"
#include "random.cuh"

constexpr float STEP = 0.05f;  // seconds
constexpr float MAX_START_VELOCITY = 1.0f;
constexpr float PI = 3.14159265358979f;

// The same angle between -PI and PI.
__device__ __forceinline__ float wrap(float angle)
{
    return angle - 2.0f * PI * floorf((angle + PI) / (2.0f * PI));
}

// Writes what the agent sees.
__device__ __forceinline__ void observe(float theta, float velocity, int env, float* observation)
{
    float sine, cosine;
    sincosf(theta, &sine, &cosine);
    float* const row = observation + (long long)env * 3;
    row[0] = cosine;
    row[1] = sine;
    row[2] = velocity;
}

// Turns the pendulum for one step.
//   action          [env, agent, 1]        torque; what lies beyond MAX_TORQUE counts as that  read
//   theta           [env]                  radians, 0 is upright                               read, written
//   theta_velocity  [env]                  radians a second, -MAX_SPEED to MAX_SPEED           read, written
//   time_step       [env]                  steps since the episode began                       read, written
//   observation     [env, agent, feature]  cosine, sine, velocity                              written
//   reward          [env, agent]                                                               written
//   terminated      [env]                  never                                               written
//   truncated       [env]                  time is up                                          written
extern "C" __global__ void pendulum_step(
    const float* action, float* theta, float* theta_velocity, int* time_step, float* observation, float* reward,
    bool* terminated, bool* truncated)
{
    const int env = env_index();
    if (env >= NUM_ENVS || first_agent() != 0) return;

    const float angle = wrap(theta[env]);  // the last step may have turned it past PI
    const float velocity = theta_velocity[env];
    const float torque = fminf(fmaxf(action[env], -MAX_TORQUE), MAX_TORQUE);
    const float acceleration =
        1.5f * GRAVITY / LENGTH * sinf(angle) + 3.0f / (MASS * LENGTH * LENGTH) * torque;
    const float new_velocity = fminf(fmaxf(velocity + STEP * acceleration, -MAX_SPEED), MAX_SPEED);
    const float new_angle = angle + STEP * new_velocity;
    theta[env] = new_angle;
    theta_velocity[env] = new_velocity;

    const int time = time_step[env] + 1;
    time_step[env] = time;
    reward[env] = -(angle * angle + 0.1f * velocity * velocity + 0.001f * torque * torque);
    terminated[env] = false;
    truncated[env] = time >= EPISODE_LENGTH;
    observe(new_angle, new_velocity, env, observation);
}

// Starts an ended env anew: anywhere, slowly.
extern "C" __global__ void pendulum_reset(
    const bool* terminated, const bool* truncated, const unsigned int* seed, const long long* env_step, float* theta,
    float* theta_velocity, int* time_step, float* observation)
{
    const int env = env_index();
    if (env >= NUM_ENVS || first_agent() != 0 || !(terminated[env] || truncated[env])) return;

    Random random(seed, env, 0, env_step[env], STREAM_RESET);
    const float angle = random.uniform(-PI, PI);
    const float velocity = random.uniform(-MAX_START_VELOCITY, MAX_START_VELOCITY);
    theta[env] = angle;
    theta_velocity[env] = velocity;
    time_step[env] = 0;
    observe(angle, velocity, env, observation);
}
