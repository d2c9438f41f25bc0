// Acrobot. One agent an env: one thread does all of it.
#include "warpdrive.cuh"
#include "random.cuh"

constexpr float STEP = 0.2f;  // seconds
constexpr float GRAVITY = 9.8f;
constexpr float START_RANGE = 0.1f;  // each part of the state starts within it

// Both links are alike.
constexpr float MASS = 1.0f;
constexpr float LENGTH = 1.0f;
constexpr float CENTRE = 0.5f;  // from a link's upper end to its centre of mass
constexpr float INERTIA = 1.0f;

constexpr float PI = 3.14159265358979f;

// Angles and velocities, or how fast they change.
struct Links {
    float theta1, theta2;        // radians, or radians a second
    float velocity1, velocity2;  // radians a second, or radians a second squared
};

__device__ __forceinline__ Links operator+(Links a, Links b)
{
    return {a.theta1 + b.theta1, a.theta2 + b.theta2, a.velocity1 + b.velocity1, a.velocity2 + b.velocity2};
}

__device__ __forceinline__ Links operator*(float factor, Links a)
{
    return {factor * a.theta1, factor * a.theta2, factor * a.velocity1, factor * a.velocity2};
}

// How fast the links' state changes under a torque at the joint between them. The names d and phi are the book's.
__device__ __forceinline__ Links change(Links links, float torque)
{
    float sine1, cosine1, sine2, cosine2;
    sincosf(links.theta1, &sine1, &cosine1);
    sincosf(links.theta2, &sine2, &cosine2);
    const float sine12 = sine1 * cosine2 + cosine1 * sine2;  // of theta1 + theta2
    const float coupling = MASS * LENGTH * CENTRE;
    const float d1 = MASS * (LENGTH * LENGTH + 2.0f * CENTRE * CENTRE) + 2.0f * coupling * cosine2 + 2.0f * INERTIA;
    const float d2 = MASS * CENTRE * CENTRE + coupling * cosine2 + INERTIA;
    const float share = d2 / d1;
    const float phi2 = MASS * CENTRE * GRAVITY * sine12;
    const float phi1 = phi2 + MASS * (CENTRE + LENGTH) * GRAVITY * sine1 -
                       coupling * links.velocity2 * (links.velocity2 + 2.0f * links.velocity1) * sine2;
    const float acceleration2 =
        (torque + share * phi1 - coupling * links.velocity1 * links.velocity1 * sine2 - phi2) /
        (MASS * CENTRE * CENTRE + INERTIA - share * d2);
    return {links.velocity1, links.velocity2, -(share * acceleration2 + phi1 / d1), acceleration2};
}

// The same angle between -PI and PI.
__device__ __forceinline__ float wrap(float angle)
{
    return angle - 2.0f * PI * floorf((angle + PI) / (2.0f * PI));
}

// Writes what the agent sees, and returns how far the tip is above the bar.
__device__ __forceinline__ float observe(Links links, int env, float* observation)
{
    float sine1, cosine1, sine2, cosine2;
    sincosf(links.theta1, &sine1, &cosine1);
    sincosf(links.theta2, &sine2, &cosine2);
    float2* const row = reinterpret_cast<float2*>(observation) + (long long)env * 3;
    row[0] = make_float2(cosine1, sine1);
    row[1] = make_float2(cosine2, sine2);
    row[2] = make_float2(links.velocity1, links.velocity2);
    return -cosine1 - (cosine1 * cosine2 - sine1 * sine2);  // the cosine of theta1 + theta2
}

// Turns the joint for one step.
//   action                            [env, agent]           0, 1, 2: a torque of -1, 0, 1    read
//   theta1, theta2                    [env]                  radians, -PI to PI               read, written
//   theta1_velocity, theta2_velocity  [env]                  radians a second                 read, written
//   time_step                         [env]                  steps since the episode began    read, written
//   observation                       [env, agent, feature]  cosines, sines and velocities    written
//   reward                            [env, agent]                                            written
//   terminated                        [env]                  the tip is high enough           written
//   truncated                         [env]                  time is up                       written
extern "C" __global__ void acrobot_step(
    const int* action, float* theta1, float* theta2, float* theta1_velocity, float* theta2_velocity, int* time_step,
    float* observation, float* reward, bool* terminated, bool* truncated)
{
    const int env = env_index();
    if (env >= NUM_ENVS || first_agent() != 0) return;

    const float torque = (float)(action[env] - 1);
    const Links links = {theta1[env], theta2[env], theta1_velocity[env], theta2_velocity[env]};
    // Runge and Kutta's method of the fourth order.
    const Links change1 = change(links, torque);
    const Links change2 = change(links + 0.5f * STEP * change1, torque);
    const Links change3 = change(links + 0.5f * STEP * change2, torque);
    const Links change4 = change(links + STEP * change3, torque);
    Links moved = links + STEP / 6.0f * (change1 + 2.0f * change2 + 2.0f * change3 + change4);
    moved.theta1 = wrap(moved.theta1);
    moved.theta2 = wrap(moved.theta2);
    moved.velocity1 = fminf(fmaxf(moved.velocity1, -MAX_SPEED1), MAX_SPEED1);
    moved.velocity2 = fminf(fmaxf(moved.velocity2, -MAX_SPEED2), MAX_SPEED2);
    theta1[env] = moved.theta1;
    theta2[env] = moved.theta2;
    theta1_velocity[env] = moved.velocity1;
    theta2_velocity[env] = moved.velocity2;

    const int time = time_step[env] + 1;
    const bool at_goal = observe(moved, env, observation) > LENGTH;
    time_step[env] = time;
    reward[env] = at_goal ? 0.0f : -1.0f;
    terminated[env] = at_goal;
    truncated[env] = !at_goal && time >= EPISODE_LENGTH;
}

// Starts an ended env anew: both links hang down, nearly at rest.
extern "C" __global__ void acrobot_reset(
    const bool* terminated, const bool* truncated, const unsigned int* seed, const long long* env_step, float* theta1,
    float* theta2, float* theta1_velocity, float* theta2_velocity, int* time_step, float* observation)
{
    const int env = env_index();
    if (env >= NUM_ENVS || first_agent() != 0 || !(terminated[env] || truncated[env])) return;

    Random random(seed, env, 0, env_step[env], STREAM_RESET);
    Links links;
    theta1[env] = links.theta1 = random.uniform(-START_RANGE, START_RANGE);
    theta2[env] = links.theta2 = random.uniform(-START_RANGE, START_RANGE);
    theta1_velocity[env] = links.velocity1 = random.uniform(-START_RANGE, START_RANGE);
    theta2_velocity[env] = links.velocity2 = random.uniform(-START_RANGE, START_RANGE);
    time_step[env] = 0;
    observe(links, env, observation);
}
