// Cart-pole. One agent an env: one thread does all of it.
#include "warpdrive.cuh"
#include "random.cuh"

constexpr float STEP = 0.02f;          // seconds
constexpr float START_RANGE = 0.05f;   // each part of the state starts within it
constexpr float TOTAL_MASS = CART_MASS + POLE_MASS;
constexpr float POLE_SHARE = POLE_MASS / TOTAL_MASS;

// Writes what the agent sees: one store of 16 bytes, beside those of the neighbouring envs.
__device__ __forceinline__ void observe(
    float x, float x_velocity, float theta, float theta_velocity, int env, float* observation)
{
    reinterpret_cast<float4*>(observation)[env] = make_float4(x, x_velocity, theta, theta_velocity);
}

// Pushes the cart for one step.
//   action          [env, agent]           0 push left, 1 push right           read
//   x, x_velocity   [env]                  metres, metres a second             read, written
//   theta           [env]                  radians, 0 is upright               read, written
//   theta_velocity  [env]                  radians a second                    read, written
//   time_step       [env]                  steps since the episode began       read, written
//   observation     [env, agent, feature]  the state                           written
//   reward          [env, agent]                                               written
//   terminated      [env]                  the pole fell, or the cart is out   written
//   truncated       [env]                  time is up                          written
extern "C" __global__ void cartpole_step(
    const int* action, float* x, float* x_velocity, float* theta, float* theta_velocity, int* time_step,
    float* observation, float* reward, bool* terminated, bool* truncated)
{
    const int env = env_index();
    if (env >= NUM_ENVS || first_agent() != 0) return;

    const float old_x_velocity = x_velocity[env];
    const float old_theta_velocity = theta_velocity[env];
    const float old_theta = theta[env];
    float sine, cosine;
    sincosf(old_theta, &sine, &cosine);
    const float force = action[env] == 1 ? FORCE : -FORCE;
    const float swing = POLE_SHARE * POLE_HALF_LENGTH * old_theta_velocity * old_theta_velocity * sine;
    const float push = force / TOTAL_MASS + swing;
    const float theta_acceleration =
        (GRAVITY * sine - push * cosine) / (POLE_HALF_LENGTH * (4.0f / 3.0f - POLE_SHARE * cosine * cosine));
    const float x_acceleration = push - POLE_SHARE * POLE_HALF_LENGTH * theta_acceleration * cosine;

    // Euler's method: positions move by the velocities before the step.
    const float new_x = x[env] + STEP * old_x_velocity;
    const float new_x_velocity = old_x_velocity + STEP * x_acceleration;
    const float new_theta = old_theta + STEP * old_theta_velocity;
    const float new_theta_velocity = old_theta_velocity + STEP * theta_acceleration;
    x[env] = new_x;
    x_velocity[env] = new_x_velocity;
    theta[env] = new_theta;
    theta_velocity[env] = new_theta_velocity;

    const int time = time_step[env] + 1;
    const bool fell = fabsf(new_x) > MAX_X || fabsf(new_theta) > MAX_THETA;
    time_step[env] = time;
    reward[env] = SUTTON_BARTO_REWARD ? (fell ? -1.0f : 0.0f) : 1.0f;
    terminated[env] = fell;
    truncated[env] = !fell && time >= EPISODE_LENGTH;
    observe(new_x, new_x_velocity, new_theta, new_theta_velocity, env, observation);
}

// Starts an ended env anew, near the middle with the pole nearly upright and everything nearly at rest.
extern "C" __global__ void cartpole_reset(
    const bool* terminated, const bool* truncated, const unsigned int* seed, const long long* env_step, float* x,
    float* x_velocity, float* theta, float* theta_velocity, int* time_step, float* observation)
{
    const int env = env_index();
    if (env >= NUM_ENVS || first_agent() != 0 || !(terminated[env] || truncated[env])) return;

    Random random(seed, env, 0, env_step[env], STREAM_RESET);
    const float new_x = random.uniform(-START_RANGE, START_RANGE);
    const float new_x_velocity = random.uniform(-START_RANGE, START_RANGE);
    const float new_theta = random.uniform(-START_RANGE, START_RANGE);
    const float new_theta_velocity = random.uniform(-START_RANGE, START_RANGE);
    x[env] = new_x;
    x_velocity[env] = new_x_velocity;
    theta[env] = new_theta;
    theta_velocity[env] = new_theta_velocity;
    time_step[env] = 0;
    observe(new_x, new_x_velocity, new_theta, new_theta_velocity, env, observation);
}
