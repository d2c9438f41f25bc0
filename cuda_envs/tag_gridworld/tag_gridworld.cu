// Grid-world Tag. Agents 0 .. NUM_AGENTS - 2 chase the last one, the runner.
#include "warpdrive.cuh"

constexpr int RUNNER = NUM_AGENTS - 1;
constexpr int NUM_TAGGERS = NUM_AGENTS - 1;

// What is kept in shared memory, as far as there is room; else it is read where the step wrote it.
constexpr int SHARED_BYTES = 46 * 1024 / ENVS_PER_BLOCK;
constexpr bool KEEPS_CELLS = 9 * NUM_AGENTS <= SHARED_BYTES;
constexpr bool KEEPS_SCENE = USE_FULL_OBSERVATION && 21 * NUM_AGENTS <= SHARED_BYTES;
constexpr int NUM_CELLS = KEEPS_CELLS ? NUM_AGENTS : 1;
constexpr int SCENE_SIZE = KEEPS_SCENE ? 3 * NUM_AGENTS : 1;

// Agents' places in grid lengths, which rows of observations hold: an agent's and the runner's, or the runner's and the
// nearest tagger's. There must be room for those of a step and of a reset.
constexpr bool KEEPS_PLACES = !USE_FULL_OBSERVATION && THREADS_PER_ENV > 1 && 2 * 17 * NUM_AGENTS <= SHARED_BYTES;
constexpr int NUM_PLACES = KEEPS_PLACES ? NUM_AGENTS : 1;

// Squared distance, then the tagger's id: the smallest is the nearest tagger.
template <bool IS_SHORT>
struct DistanceOf {
    typedef unsigned long long Type;
};
template <>
struct DistanceOf<true> {
    typedef unsigned int Type;
};
constexpr unsigned long long LARGEST_DISTANCE = (2ull * GRID_LENGTH * GRID_LENGTH + 1) * NUM_TAGGERS;
typedef DistanceOf<LARGEST_DISTANCE <= 0xffffffffull>::Type Distance;

// The nearest tagger to the runner, the lowest id of equals.
//   x, y     [NUM_AGENTS] cells
//   nearest  [1] the largest Distance, which everyone must see by now
__device__ __forceinline__ Distance nearest_tagger(const int* x, const int* y, Distance* nearest)
{
    const int runner_x = x[RUNNER];
    const int runner_y = y[RUNNER];
    Distance mine = ~(Distance)0;
#pragma unroll 1
    for (int tagger = first_agent(); tagger < NUM_TAGGERS; tagger += agent_stride()) {
        const Distance dx = x[tagger] - runner_x;  // modulo 2^32 or 2^64, as is its square
        const Distance dy = y[tagger] - runner_y;
        const Distance distance = (dx * dx + dy * dy) * NUM_TAGGERS + tagger;
        mine = distance < mine ? distance : mine;
    }
    if (first_agent() < NUM_TAGGERS) atomicMin(nearest, mine);
    env_sync();
    return nearest[0];
}

// What all see alike: [x of all][y of all][type of all].
__device__ __forceinline__ float scene_feature(const int* x, const int* y, int i)
{
    if (i < NUM_AGENTS) return (float)x[i] / GRID_LENGTH;
    if (i < 2 * NUM_AGENTS) return (float)y[i - NUM_AGENTS] / GRID_LENGTH;
    return i == 2 * NUM_AGENTS + RUNNER ? 1.0f : 0.0f;
}

// A cell in grid lengths.
__device__ __forceinline__ float2 place_of(int x, int y)
{
    return make_float2((float)x / GRID_LENGTH, (float)y / GRID_LENGTH);
}

// Writes what every agent of one env sees.
//   x, y         [NUM_AGENTS] cells
//   places       [NUM_PLACES] x and y in grid lengths, if it KEEPS_PLACES
//   scene        [SCENE_SIZE] scratch
//   observation  [env, agent, feature]  written
__device__ __forceinline__ void observe(
    const int* x, const int* y, const float2* places, int nearest, int time, float* __restrict__ scene, int env,
    float* __restrict__ observation)
{
    float* __restrict__ const rows = observation + (long long)env * NUM_AGENTS * NUM_FEATURES;
    const float now = (float)time / EPISODE_LENGTH;
    if (USE_FULL_OBSERVATION) {
        // All see the same scene, each with a one-hot of itself after it.
        if (KEEPS_SCENE) {
            for (int i = first_agent(); i < 3 * NUM_AGENTS; i += agent_stride()) scene[i] = scene_feature(x, y, i);
            env_sync();
        }
        for (int agent = 0; agent < NUM_AGENTS; ++agent) {
            float* __restrict__ const row = rows + (long long)agent * NUM_FEATURES;
            for (int i = first_agent(); i < 3 * NUM_AGENTS; i += agent_stride()) {
                row[i] = KEEPS_SCENE ? scene[i] : scene_feature(x, y, i);
            }
            for (int i = first_agent(); i < NUM_AGENTS; i += agent_stride()) row[3 * NUM_AGENTS + i] = i == agent;
            if (first_agent() == 0) row[4 * NUM_AGENTS] = now;
        }
    } else {
        // Two of a row's 6 features.
        const auto write = [&](int agent, int part) {
            const int who = part == 0 ? agent : agent == RUNNER ? nearest : RUNNER;
            const float2 pair = part == 2      ? make_float2(agent == RUNNER ? 1.0f : 0.0f, now)
                                : KEEPS_PLACES ? places[who]
                                               : place_of(x[who], y[who]);
            reinterpret_cast<float2*>(rows)[3 * agent + part] = pair;
        };
        if (THREADS_PER_ENV == 1) {
            for (int agent = 0; agent < NUM_AGENTS; ++agent) {
                write(agent, 0);
                write(agent, 1);
                write(agent, 2);
            }
        } else {  // neighbouring threads write side by side
#pragma unroll 1
            for (int i = first_agent(); i < 3 * NUM_AGENTS; i += agent_stride()) write(i / 3, i % 3);
        }
    }
}

// Moves everyone, pays them, and shows them where they are.
//   action       [env, agent]           0 stay, 1 x + 1, 2 x - 1, 3 y + 1, 4 y - 1   read
//   x, y         [env, agent]           cells, 0 to GRID_LENGTH                      read, written
//   time_step    [env]                  steps since the episode began                read, written
//   observation  [env, agent, feature]                                               written
//   reward       [env, agent]                                                        written
//   terminated   [env]                  a tagger stands on the runner's cell         written
//   truncated    [env]                  time is up                                   written
extern "C" __global__ void tag_gridworld_step(
    const int* action, int* x, int* y, int* time_step, float* observation, float* reward, bool* terminated,
    bool* truncated)
{
    const int env = env_index();
    if (env >= NUM_ENVS) return;
    ENV_SHARED(int, shared_x, NUM_CELLS);
    ENV_SHARED(int, shared_y, NUM_CELLS);
    ENV_SHARED(bool, hits_wall, NUM_CELLS);
    ENV_SHARED(float2, places, NUM_PLACES);
    ENV_SHARED(Distance, smallest, 1);
    ENV_SHARED(float, scene, SCENE_SIZE);

    const int first = env * NUM_AGENTS;
    int* const new_x = KEEPS_CELLS ? shared_x : x + first;
    int* const new_y = KEEPS_CELLS ? shared_y : y + first;
    const int time = time_step[env] + 1;
    if (first_agent() == 0) smallest[0] = ~(Distance)0;
#pragma unroll 1
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        const int move = action[first + agent];
        const int wanted_x = x[first + agent] + (move == 1) - (move == 2);
        const int wanted_y = y[first + agent] + (move == 3) - (move == 4);
        const int cell_x = min(max(wanted_x, 0), GRID_LENGTH);
        const int cell_y = min(max(wanted_y, 0), GRID_LENGTH);
        new_x[agent] = x[first + agent] = cell_x;
        new_y[agent] = y[first + agent] = cell_y;
        if (KEEPS_PLACES) places[agent] = place_of(cell_x, cell_y);
        const bool hits = cell_x != wanted_x || cell_y != wanted_y;
        if (KEEPS_CELLS) {
            hits_wall[agent] = hits;
        } else {
            reward[first + agent] = hits ? 1.0f : 0.0f;
        }
    }
    env_sync();  // everyone has moved before anyone is tagged

    const Distance nearest = nearest_tagger(new_x, new_y, smallest);
    const bool tag = nearest < NUM_TAGGERS;  // the squared distance is 0
#pragma unroll 1
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        const float paid = agent == RUNNER ? (tag ? -TAG_PENALTY_FOR_RUNNER : STEP_COST_FOR_TAGGER)
                                           : (tag ? TAG_REWARD_FOR_TAGGER : -STEP_COST_FOR_TAGGER);
        const bool hits = KEEPS_CELLS ? hits_wall[agent] : reward[first + agent] != 0.0f;
        reward[first + agent] = (hits ? -WALL_HIT_PENALTY : 0.0f) + paid;
    }
    if (first_agent() == 0) {
        time_step[env] = time;
        terminated[env] = tag;
        truncated[env] = !tag && time >= EPISODE_LENGTH;
    }
    observe(new_x, new_y, places, (int)(nearest % NUM_TAGGERS), time, scene, env, observation);
}

// Puts everyone of an ended env back to the start.
extern "C" __global__ void tag_gridworld_reset(
    const bool* terminated, const bool* truncated, int* x, int* y, int* time_step, float* observation)
{
    const int env = env_index();
    if (env >= NUM_ENVS || !(terminated[env] || truncated[env])) return;
    ENV_SHARED(int, shared_x, NUM_CELLS);
    ENV_SHARED(int, shared_y, NUM_CELLS);
    ENV_SHARED(float2, places, NUM_PLACES);
    ENV_SHARED(Distance, smallest, 1);
    ENV_SHARED(float, scene, SCENE_SIZE);

    int* const new_x = KEEPS_CELLS ? shared_x : x + env * NUM_AGENTS;
    int* const new_y = KEEPS_CELLS ? shared_y : y + env * NUM_AGENTS;
#pragma unroll 1
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        new_x[agent] = x[env * NUM_AGENTS + agent] = START_X[agent];
        new_y[agent] = y[env * NUM_AGENTS + agent] = START_Y[agent];
        if (KEEPS_PLACES) places[agent] = place_of(START_X[agent], START_Y[agent]);
    }
    if (first_agent() == 0) {
        smallest[0] = ~(Distance)0;
        time_step[env] = 0;
    }
    env_sync();
    const int nearest = (int)(nearest_tagger(new_x, new_y, smallest) % NUM_TAGGERS);
    observe(new_x, new_y, places, nearest, 0, scene, env, observation);
}
