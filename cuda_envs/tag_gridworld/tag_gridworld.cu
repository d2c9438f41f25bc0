// Grid-world Tag. Agents 0 .. NUM_AGENTS - 2 chase the last one, the runner.
#include "warpdrive.cuh"

constexpr int RUNNER = NUM_AGENTS - 1;
constexpr int NUM_TAGGERS = NUM_AGENTS - 1;

typedef unsigned long long Distance;  // squared distance, then the tagger's id: the smallest is the nearest tagger

// The nearest tagger to the runner, the lowest id of equals.
//   x, y               [NUM_AGENTS] cells
//   distance, partial  [NUM_TAGGERS], [REDUCE_LANES] scratch
__device__ __forceinline__ Distance nearest_tagger(const int* x, const int* y, Distance* distance, Distance* partial)
{
    for (int tagger = first_agent(); tagger < NUM_TAGGERS; tagger += agent_stride()) {
        const long long dx = x[tagger] - x[RUNNER];
        const long long dy = y[tagger] - y[RUNNER];
        distance[tagger] = (Distance)(dx * dx + dy * dy) * NUM_TAGGERS + tagger;
    }
    env_sync();
    return env_min<NUM_TAGGERS>(distance, partial);
}

// Writes what every agent of one env sees.
//   x, y         [NUM_AGENTS] cells
//   scene        [NUM_FEATURES] scratch
//   observation  [env, agent, feature]  written
__device__ __forceinline__ void observe(
    const int* x, const int* y, int nearest, int time, float* __restrict__ scene, int env,
    float* __restrict__ observation)
{
    float* __restrict__ const rows = observation + (long long)env * NUM_AGENTS * NUM_FEATURES;
    const float now = (float)time / EPISODE_LENGTH;
    if (USE_FULL_OBSERVATION) {
        // All see the same scene, each with a one-hot of itself after it.
        for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
            scene[agent] = (float)x[agent] / GRID_LENGTH;
            scene[NUM_AGENTS + agent] = (float)y[agent] / GRID_LENGTH;
            scene[2 * NUM_AGENTS + agent] = agent == RUNNER ? 1.0f : 0.0f;
        }
        env_sync();
        for (int agent = 0; agent < NUM_AGENTS; ++agent) {
            float* __restrict__ const row = rows + agent * NUM_FEATURES;
            for (int i = first_agent(); i < 3 * NUM_AGENTS; i += agent_stride()) row[i] = scene[i];
            for (int i = first_agent(); i < NUM_AGENTS; i += agent_stride()) row[3 * NUM_AGENTS + i] = i == agent;
            if (first_agent() == 0) row[4 * NUM_AGENTS] = now;
        }
    } else {
        for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
            const int other = agent == RUNNER ? nearest : RUNNER;
            float* const row = rows + agent * NUM_FEATURES;
            row[0] = (float)x[agent] / GRID_LENGTH;
            row[1] = (float)y[agent] / GRID_LENGTH;
            row[2] = (float)x[other] / GRID_LENGTH;
            row[3] = (float)y[other] / GRID_LENGTH;
            row[4] = agent == RUNNER ? 1.0f : 0.0f;
            row[5] = now;
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
    ENV_SHARED(int, new_x, NUM_AGENTS);
    ENV_SHARED(int, new_y, NUM_AGENTS);
    ENV_SHARED(float, penalty, NUM_AGENTS);
    ENV_SHARED(Distance, distance, NUM_TAGGERS);
    ENV_SHARED(Distance, partial, REDUCE_LANES);
    ENV_SHARED(float, scene, NUM_FEATURES);

    const int first = env * NUM_AGENTS;
    const int time = time_step[env] + 1;
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        const int move = action[first + agent];
        const int wanted_x = x[first + agent] + (move == 1) - (move == 2);
        const int wanted_y = y[first + agent] + (move == 3) - (move == 4);
        new_x[agent] = min(max(wanted_x, 0), GRID_LENGTH);
        new_y[agent] = min(max(wanted_y, 0), GRID_LENGTH);
        penalty[agent] = new_x[agent] != wanted_x || new_y[agent] != wanted_y ? WALL_HIT_PENALTY : 0.0f;
        x[first + agent] = new_x[agent];
        y[first + agent] = new_y[agent];
    }
    env_sync();  // everyone has moved before anyone is tagged

    const Distance nearest = nearest_tagger(new_x, new_y, distance, partial);
    const bool tag = nearest < NUM_TAGGERS;  // the squared distance is 0
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        const float paid = agent == RUNNER ? (tag ? -TAG_PENALTY_FOR_RUNNER : STEP_COST_FOR_TAGGER)
                                           : (tag ? TAG_REWARD_FOR_TAGGER : -STEP_COST_FOR_TAGGER);
        reward[first + agent] = paid - penalty[agent];
    }
    if (first_agent() == 0) {
        time_step[env] = time;
        terminated[env] = tag;
        truncated[env] = !tag && time >= EPISODE_LENGTH;
    }
    observe(new_x, new_y, (int)(nearest % NUM_TAGGERS), time, scene, env, observation);
}

// Puts everyone of an ended env back to the start.
extern "C" __global__ void tag_gridworld_reset(
    const bool* terminated, const bool* truncated, int* x, int* y, int* time_step, float* observation)
{
    const int env = env_index();
    if (env >= NUM_ENVS || !(terminated[env] || truncated[env])) return;
    ENV_SHARED(int, new_x, NUM_AGENTS);
    ENV_SHARED(int, new_y, NUM_AGENTS);
    ENV_SHARED(Distance, distance, NUM_TAGGERS);
    ENV_SHARED(Distance, partial, REDUCE_LANES);
    ENV_SHARED(float, scene, NUM_FEATURES);

    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        new_x[agent] = x[env * NUM_AGENTS + agent] = START_X[agent];
        new_y[agent] = y[env * NUM_AGENTS + agent] = START_Y[agent];
    }
    if (first_agent() == 0) time_step[env] = 0;
    env_sync();
    const int nearest = (int)(nearest_tagger(new_x, new_y, distance, partial) % NUM_TAGGERS);
    observe(new_x, new_y, nearest, 0, scene, env, observation);
}
