// The physics of the multi-particle envs: discs of mass 1 on a plane, which steer, slow down and push each other apart.
// In a step everyone first moves by the velocity it has, and then changes that velocity by the forces that acted where
// it was before. Lengths are in half arenas, time in seconds.
//
// Source: Lowe et al. 2017, arXiv:1706.02275. The numbers and the order are those of mpe2 1.1.1.
#pragma once
#include "random.cuh"
#include "warpdrive.cuh"

constexpr float STEP_SECONDS = 0.1f;
constexpr float VELOCITY_KEPT = 0.75f;  // a quarter is lost in each step
constexpr float CONTACT_FORCE = 100.0f;  // per length of overlap
constexpr float CONTACT_MARGIN = 1e-3f;  // over which the force sets in
constexpr float CONTACT_REACH = 30.0f * CONTACT_MARGIN;  // farther apart, exp(-30) of the margin is left

__device__ __forceinline__ float2 operator+(float2 a, float2 b)
{
    return make_float2(a.x + b.x, a.y + b.y);
}

__device__ __forceinline__ float2 operator-(float2 a, float2 b)
{
    return make_float2(a.x - b.x, a.y - b.y);
}

__device__ __forceinline__ float2 operator*(float factor, float2 a)
{
    return make_float2(factor * a.x, factor * a.y);
}

__device__ __forceinline__ float squared_length(float2 a)
{
    return a.x * a.x + a.y * a.y;
}

// Row `row` of an array [row, count, 2], as pairs.
__device__ __forceinline__ float2* pairs_of(float* array, int row, int count)
{
    return reinterpret_cast<float2*>(array) + (long long)row * count;
}

__device__ __forceinline__ const float2* pairs_of(const float* array, int row, int count)
{
    return reinterpret_cast<const float2*>(array) + (long long)row * count;
}

// Where an agent steers, -1 to 1 along each axis.
//   action  [env, agent]  0 nothing, 1 left, 2 right, 3 down, 4 up
__device__ __forceinline__ float2 steering(const int* action, int i)
{
    const int chosen = action[i];
    return make_float2((float)((chosen == 2) - (chosen == 1)), (float)((chosen == 4) - (chosen == 3)));
}

// The same from how much of each is wanted.
//   action  [env, agent, 5]  cut to 0 .. 1
__device__ __forceinline__ float2 steering(const float* action, int i)
{
    const float* const wanted = action + (long long)i * 5;
    const float left = fminf(fmaxf(wanted[1], 0.0f), 1.0f);
    const float right = fminf(fmaxf(wanted[2], 0.0f), 1.0f);
    const float down = fminf(fmaxf(wanted[3], 0.0f), 1.0f);
    const float up = fminf(fmaxf(wanted[4], 0.0f), 1.0f);
    return make_float2(right - left, up - down);
}

// The push on a disc at `apart` from another one's centre. The overlap sets in softly, log(1 + exp(overlap / margin)),
// written so that nothing overflows. Discs on one point do not push, for lack of a direction.
//   contact_distance  of the centres of discs that just touch
__device__ __forceinline__ float2 contact_force(float2 apart, float contact_distance)
{
    const float squared = squared_length(apart);
    const float reach = contact_distance + CONTACT_REACH;
    if (squared >= reach * reach || squared == 0.0f) return make_float2(0.0f, 0.0f);
    const float distance = sqrtf(squared);
    const float overlap = contact_distance - distance;
    const float soft = CONTACT_MARGIN * log1pf(expf(-fabsf(overlap) / CONTACT_MARGIN));
    return (CONTACT_FORCE * (fmaxf(overlap, 0.0f) + soft) / distance) * apart;
}

__device__ __forceinline__ bool are_touching(float2 a, float2 b, float contact_distance)
{
    return squared_length(a - b) < contact_distance * contact_distance;
}

__device__ __forceinline__ float2 next_velocity(float2 velocity, float2 force)
{
    return VELOCITY_KEPT * velocity + STEP_SECONDS * force;
}

__device__ __forceinline__ float2 limit_speed(float2 velocity, float max_speed)
{
    const float squared = squared_length(velocity);
    return squared > max_speed * max_speed ? (max_speed / sqrtf(squared)) * velocity : velocity;
}

// A place at random, each coordinate between -limit and limit.
__device__ __forceinline__ float2 random_place(
    const unsigned int* seed, int env, int entity, long long step, float limit)
{
    Random random(seed, env, entity, step, STREAM_RESET);
    const float x = random.uniform(-limit, limit);
    return make_float2(x, random.uniform(-limit, limit));
}
