// Simple Tag. Agents 0 .. NUM_ADVERSARIES - 1 are adversaries, the others are good; obstacles stand among them.
#pragma once
#include "../mpe/mpe.cuh"

constexpr int NUM_ENTITIES = NUM_AGENTS + NUM_OBSTACLES;  // agents, then obstacles
constexpr int PAIRS_GOOD = 2 + NUM_OBSTACLES + (NUM_AGENTS - 1) + (NUM_GOOD - 1);  // what an agent sees, by pairs
constexpr int PAIRS_ADVERSARY = PAIRS_GOOD + 1;
constexpr float OBSTACLE_RADIUS = 0.2f;

__device__ __forceinline__ bool is_good(int agent)
{
    return agent >= NUM_ADVERSARIES;
}

__device__ __forceinline__ float radius(int entity)
{
    return entity < NUM_ADVERSARIES ? 0.075f : entity < NUM_AGENTS ? 0.05f : OBSTACLE_RADIUS;
}

__device__ __forceinline__ float acceleration(int agent)
{
    return is_good(agent) ? 4.0f : 3.0f;
}

__device__ __forceinline__ float max_speed(int agent)
{
    return is_good(agent) ? 1.3f : 1.0f;
}

// What a good agent pays for one coordinate near the edge of the arena or beyond it.
__device__ __forceinline__ float edge_penalty(float coordinate)
{
    const float x = fabsf(coordinate);
    if (x < 0.9f) return 0.0f;
    return x < 1.0f ? (x - 0.9f) * 10.0f : fminf(expf(2.0f * x - 2.0f), 10.0f);
}

// One pair of what an agent sees: own velocity, own position, the obstacles from itself, the other agents from itself,
// velocities of the other good agents.
//   position  [NUM_ENTITIES]
//   velocity  [NUM_AGENTS]
__device__ __forceinline__ float2 seen_pair(int agent, int pair, const float2* position, const float2* velocity)
{
    if (pair == 0) return velocity[agent];
    if (pair == 1) return position[agent];
    const int obstacle = pair - 2;
    if (obstacle < NUM_OBSTACLES) return position[NUM_AGENTS + obstacle] - position[agent];
    const int other = obstacle - NUM_OBSTACLES;
    if (other < NUM_AGENTS - 1) return position[other + (other >= agent)] - position[agent];
    const int good = NUM_ADVERSARIES + other - (NUM_AGENTS - 1);
    return velocity[good + (is_good(agent) && good >= agent)];
}

// Writes what every agent of one env sees.
//   position, velocity     as above
//   observation_adversary  [env, adversary, feature]   written
//   observation_agent      [env, good agent, feature]  written
__device__ __forceinline__ void observe(
    int env, const float2* position, const float2* velocity, float* observation_adversary,
    float* observation_agent)
{
    for (int agent = 0; agent < NUM_ADVERSARIES; ++agent) {
        const int row_index = env * NUM_ADVERSARIES + agent;
        float2* __restrict__ const row = pairs_of(observation_adversary, row_index, PAIRS_ADVERSARY);
        for (int pair = first_agent(); pair < PAIRS_ADVERSARY; pair += agent_stride()) {
            row[pair] = seen_pair(agent, pair, position, velocity);
        }
    }
    for (int good = 0; good < NUM_GOOD; ++good) {
        float2* __restrict__ const row = pairs_of(observation_agent, env * NUM_GOOD + good, PAIRS_GOOD);
        for (int pair = first_agent(); pair < PAIRS_GOOD; pair += agent_stride()) {
            row[pair] = seen_pair(NUM_ADVERSARIES + good, pair, position, velocity);
        }
    }
}

// One step of one env; what the parameters are is told where the kernels are.
template <typename Action>
__device__ __forceinline__ void step_env(
    int env, const Action* action, float* position, float* velocity, const float* obstacle_position, int* time_step,
    float* observation_adversary, float* observation_agent, float* reward, bool* terminated, bool* truncated)
{
    ENV_SHARED(float2, old_position, NUM_ENTITIES);
    ENV_SHARED(float2, new_position, NUM_ENTITIES);
    ENV_SHARED(float2, new_velocity, NUM_AGENTS);
    ENV_SHARED(int, num_touching, NUM_GOOD);
    ENV_SHARED(int, partial, REDUCE_LANES);
    const int first = env * NUM_AGENTS;
    float2* const positions = pairs_of(position, env, NUM_AGENTS);
    float2* const velocities = pairs_of(velocity, env, NUM_AGENTS);
    const float2* const obstacles = pairs_of(obstacle_position, env, NUM_OBSTACLES);

    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        old_position[agent] = positions[agent];
        new_velocity[agent] = velocities[agent];
        new_position[agent] = positions[agent] = old_position[agent] + STEP_SECONDS * new_velocity[agent];
    }
    for (int obstacle = first_agent(); obstacle < NUM_OBSTACLES; obstacle += agent_stride()) {
        old_position[NUM_AGENTS + obstacle] = new_position[NUM_AGENTS + obstacle] = obstacles[obstacle];
    }
    env_sync();  // everyone's position is known, before the move and after it

    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        float2 force = acceleration(agent) * steering(action, first + agent);
        for (int other = 0; other < NUM_ENTITIES; ++other) {
            if (other == agent) continue;
            force = force + contact_force(old_position[agent] - old_position[other], radius(agent) + radius(other));
        }
        const float2 velocity_after = limit_speed(next_velocity(new_velocity[agent], force), max_speed(agent));
        new_velocity[agent] = velocities[agent] = velocity_after;
    }
    for (int good = first_agent(); good < NUM_GOOD; good += agent_stride()) {
        const int agent = NUM_ADVERSARIES + good;
        int count = 0;
        for (int adversary = 0; adversary < NUM_ADVERSARIES; ++adversary) {
            count += are_touching(new_position[agent], new_position[adversary], radius(agent) + radius(adversary));
        }
        num_touching[good] = count;
    }
    env_sync();  // who touches whom is counted, and everyone has a new velocity

    const int all_touching = env_sum<NUM_GOOD>(num_touching, partial);
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        if (is_good(agent)) {
            const float penalty = edge_penalty(new_position[agent].x) + edge_penalty(new_position[agent].y);
            reward[first + agent] = -10.0f * num_touching[agent - NUM_ADVERSARIES] - penalty;
        } else {
            reward[first + agent] = 10.0f * all_touching;
        }
    }
    if (first_agent() == 0) {
        const int time = time_step[env] + 1;
        time_step[env] = time;
        terminated[env] = false;
        truncated[env] = time >= EPISODE_LENGTH;
    }
    observe(env, new_position, new_velocity, observation_adversary, observation_agent);
}

// Places everyone of one env at random, at rest.
__device__ __forceinline__ void reset_env(
    int env, const unsigned int* seed, const long long* env_step, float* position, float* velocity,
    float* obstacle_position, int* time_step, float* observation_adversary, float* observation_agent)
{
    ENV_SHARED(float2, new_position, NUM_ENTITIES);
    ENV_SHARED(float2, new_velocity, NUM_AGENTS);
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        new_position[agent] = random_place(seed, env, agent, env_step[env], 1.0f);
        new_velocity[agent] = make_float2(0.0f, 0.0f);
        pairs_of(position, env, NUM_AGENTS)[agent] = new_position[agent];
        pairs_of(velocity, env, NUM_AGENTS)[agent] = new_velocity[agent];
    }
    for (int entity = NUM_AGENTS + first_agent(); entity < NUM_ENTITIES; entity += agent_stride()) {
        new_position[entity] = random_place(seed, env, entity, env_step[env], 0.9f);
        pairs_of(obstacle_position, env, NUM_OBSTACLES)[entity - NUM_AGENTS] = new_position[entity];
    }
    if (first_agent() == 0) time_step[env] = 0;
    env_sync();
    observe(env, new_position, new_velocity, observation_adversary, observation_agent);
}
