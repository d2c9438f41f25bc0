// Simple Spread. As many landmarks as agents; the agents push each other, the landmarks stand in nobody's way.
#pragma once
#include "../mpe/mpe.cuh"

constexpr int NUM_LANDMARKS = NUM_AGENTS;
constexpr int NUM_ENTITIES = NUM_AGENTS + NUM_LANDMARKS;  // agents, then landmarks
constexpr int PAIRS = 2 + NUM_LANDMARKS + 2 * (NUM_AGENTS - 1);  // what an agent sees, by pairs
constexpr float CONTACT_DISTANCE = 0.3f;  // of two agents' centres
constexpr float ACCELERATION = 5.0f;

// One pair of what an agent sees: own velocity, own position, the landmarks from itself, the other agents from itself,
// and what the others said, which is nothing.
//   position  [NUM_ENTITIES]
//   velocity  [NUM_AGENTS]
__device__ __forceinline__ float2 seen_pair(int agent, int pair, const float2* position, const float2* velocity)
{
    if (pair == 0) return velocity[agent];
    if (pair == 1) return position[agent];
    const int landmark = pair - 2;
    if (landmark < NUM_LANDMARKS) return position[NUM_AGENTS + landmark] - position[agent];
    const int other = landmark - NUM_LANDMARKS;
    if (other < NUM_AGENTS - 1) return position[other + (other >= agent)] - position[agent];
    return make_float2(0.0f, 0.0f);
}

// Writes what every agent of one env sees.
//   position, velocity  as above
//   observation         [env, agent, feature]  written
__device__ __forceinline__ void observe(int env, const float2* position, const float2* velocity, float* observation)
{
    for (int agent = 0; agent < NUM_AGENTS; ++agent) {
        float2* __restrict__ const row = pairs_of(observation, env * NUM_AGENTS + agent, PAIRS);
        for (int pair = first_agent(); pair < PAIRS; pair += agent_stride()) {
            row[pair] = seen_pair(agent, pair, position, velocity);
        }
    }
}

// One step of one env; what the parameters are is told where the kernels are.
template <typename Action>
__device__ __forceinline__ void step_env(
    int env, const Action* action, float* position, float* velocity, const float* landmark_position, int* time_step,
    float* observation, float* reward, bool* terminated, bool* truncated)
{
    ENV_SHARED(float2, old_position, NUM_AGENTS);
    ENV_SHARED(float2, new_position, NUM_ENTITIES);
    ENV_SHARED(float2, new_velocity, NUM_AGENTS);
    ENV_SHARED(int, num_touching, NUM_AGENTS);
    ENV_SHARED(float, nearest, NUM_LANDMARKS);
    ENV_SHARED(float, partial, REDUCE_LANES);
    const int first = env * NUM_AGENTS;
    float2* const positions = pairs_of(position, env, NUM_AGENTS);
    float2* const velocities = pairs_of(velocity, env, NUM_AGENTS);
    const float2* const landmarks = pairs_of(landmark_position, env, NUM_LANDMARKS);

    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        old_position[agent] = positions[agent];
        new_velocity[agent] = velocities[agent];
        new_position[agent] = positions[agent] = old_position[agent] + STEP_SECONDS * new_velocity[agent];
        new_position[NUM_AGENTS + agent] = landmarks[agent];
    }
    env_sync();  // everyone's position is known, before the move and after it

    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        float2 force = ACCELERATION * steering(action, first + agent);
        int count = 0;
        for (int other = 0; other < NUM_AGENTS; ++other) {
            if (other == agent) continue;
            force = force + contact_force(old_position[agent] - old_position[other], CONTACT_DISTANCE);
            count += are_touching(new_position[agent], new_position[other], CONTACT_DISTANCE);
        }
        new_velocity[agent] = velocities[agent] = next_velocity(new_velocity[agent], force);
        num_touching[agent] = count;
    }
    for (int landmark = first_agent(); landmark < NUM_LANDMARKS; landmark += agent_stride()) {
        float squared = INFINITY;
        for (int agent = 0; agent < NUM_AGENTS; ++agent) {
            const float to_agent = squared_length(new_position[agent] - new_position[NUM_AGENTS + landmark]);
            squared = to_agent < squared ? to_agent : squared;
        }
        nearest[landmark] = sqrtf(squared);
    }
    env_sync();  // touches and distances are known, and everyone has a new velocity

    const float shared_reward = -env_sum<NUM_LANDMARKS>(nearest, partial);
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        reward[first + agent] = (1.0f - LOCAL_RATIO) * shared_reward - LOCAL_RATIO * num_touching[agent];
    }
    if (first_agent() == 0) {
        const int time = time_step[env] + 1;
        time_step[env] = time;
        terminated[env] = false;
        truncated[env] = time >= EPISODE_LENGTH;
    }
    observe(env, new_position, new_velocity, observation);
}

// Places everyone of one env, and its landmarks, at random, at rest.
__device__ __forceinline__ void reset_env(
    int env, const unsigned int* seed, const long long* env_step, float* position, float* velocity,
    float* landmark_position, int* time_step, float* observation)
{
    ENV_SHARED(float2, new_position, NUM_ENTITIES);
    ENV_SHARED(float2, new_velocity, NUM_AGENTS);
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        const int landmark = NUM_AGENTS + agent;
        new_velocity[agent] = make_float2(0.0f, 0.0f);
        new_position[agent] = random_place(seed, env, agent, env_step[env], 1.0f);
        new_position[landmark] = random_place(seed, env, landmark, env_step[env], 1.0f);
        pairs_of(velocity, env, NUM_AGENTS)[agent] = new_velocity[agent];
        pairs_of(position, env, NUM_AGENTS)[agent] = new_position[agent];
        pairs_of(landmark_position, env, NUM_LANDMARKS)[agent] = new_position[landmark];
    }
    if (first_agent() == 0) time_step[env] = 0;
    env_sync();
    observe(env, new_position, new_velocity, observation);
}
