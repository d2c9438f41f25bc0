// Continuous Tag. Taggers chase runners on a square; agents steer by accelerating and turning.
#include "warpdrive.cuh"
#include "random.cuh"

constexpr float TWO_PI = 6.283185307179586f;
constexpr float PER_TURN = 1.0f / TWO_PI;
constexpr float HALF_PI = 1.5707963267948966f;

// Distances are computed for CHUNK others at a time. Places beyond the last agent hold ones that are never near.
constexpr int CHUNK = NUM_AGENTS > 16 ? 32 : NUM_AGENTS > 8 ? 16 : NUM_AGENTS > 4 ? 8 : 4;
constexpr int NUM_PLACES = (NUM_AGENTS + CHUNK - 1) / CHUNK * CHUNK;

// What of an env is kept in shared memory: positions always, the rest as far as there is room.
constexpr int SHARED_BYTES = 48 * 1024 / ENVS_PER_BLOCK;
constexpr int POSITION_BYTES = 8 * NUM_PLACES + 4 * (NUM_TAGGERS + 1) + (USE_FULL_OBSERVATION ? NUM_AGENTS : 1) + 64;
constexpr int STAGE_BYTES = 2 * THREADS_PER_ENV * NUM_SEEN;
constexpr bool IS_STAGED =
    !USE_FULL_OBSERVATION && THREADS_PER_ENV > 1 && POSITION_BYTES + STAGE_BYTES <= SHARED_BYTES;
constexpr bool KEEPS_MOTION = POSITION_BYTES + (IS_STAGED ? STAGE_BYTES : 0) + 12 * NUM_AGENTS <= SHARED_BYTES;
constexpr int NUM_MOTIONS = KEEPS_MOTION ? NUM_AGENTS : 1;

typedef unsigned short Id;
constexpr Id NOBODY = 0xffff;

constexpr float FARTHEST = 2.0f * GRID_LENGTH * GRID_LENGTH;  // squared
constexpr bool COUNTS_FIRST = THREADS_PER_ENV == 1 && NUM_PLACES > CHUNK;  // see find_limit

// All that agents see of one another, as it was before anyone is tagged in this step.
//   x, y       length units; with partial observations INFINITY for who has left the game, so that it is never near
//   speed ...  used if KEEPS_MOTION
//   active     used with full observations
//   nearest    [thread, seen] whom the agents at hand see, used if IS_STAGED
struct Scene {
    __align__(16) float x[NUM_PLACES];
    __align__(16) float y[NUM_PLACES];
    float speed[NUM_MOTIONS], acceleration[NUM_MOTIONS], direction[NUM_MOTIONS];
    Id nearest[IS_STAGED ? THREADS_PER_ENV * NUM_SEEN : 1];
    bool active[USE_FULL_OBSERVATION ? NUM_AGENTS : 1];
};

// Where an agent's motion is read: in the scene, or in the env's rows of the arrays.
struct Motion {
    const float *speed, *acceleration, *direction;
};

__device__ __forceinline__ bool is_tagger(int agent)
{
    return TAGGERS_FIRST ? agent < NUM_TAGGERS : AGENT_TYPE[agent] == 1;
}

__device__ __forceinline__ int tagger_id(int tagger)
{
    return TAGGERS_FIRST ? tagger : TAGGER_ID[tagger];
}

__device__ __forceinline__ bool is_active(const Scene& scene, int agent)
{
    return USE_FULL_OBSERVATION ? scene.active[agent] : scene.x[agent] < INFINITY;
}

// Squares are enough: a root would not change their order. Every operation rounds, none are contracted, so that equal
// distances along different axes stay equal, and on every device.
__device__ __forceinline__ float squared_distance(const Scene& scene, int other, float x, float y)
{
    const float dx = scene.x[other] - x;
    const float dy = scene.y[other] - y;
    return __fadd_rn(__fmul_rn(dx, dx), __fmul_rn(dy, dy));
}

// A float in [0, 2 pi). `angle` is less than a turn below or above.
__device__ __forceinline__ float wrap(float angle)
{
    if (angle < 0.0f) angle += TWO_PI;
    return angle < TWO_PI ? angle : angle - TWO_PI;  // also of what was a little below 0 and became 2 pi
}

// Puts one agent into the scene.
__device__ __forceinline__ void show(
    Scene& scene, int agent, bool active, float x, float y, float speed, float acceleration, float direction)
{
    scene.x[agent] = USE_FULL_OBSERVATION || active ? x : INFINITY;
    scene.y[agent] = y;
    if (USE_FULL_OBSERVATION) scene.active[agent] = active;
    if (KEEPS_MOTION) {
        scene.speed[agent] = speed;
        scene.acceleration[agent] = acceleration;
        scene.direction[agent] = direction;
    }
}

// Puts nobody into the places beyond the last agent.
__device__ __forceinline__ void show_nobody(Scene& scene)
{
    for (int place = NUM_AGENTS + first_agent(); place < NUM_PLACES; place += agent_stride()) {
        scene.x[place] = scene.y[place] = INFINITY;
    }
}

// The NUM_SEEN smallest distances so far, in order; equal ones in the order in which they came.
struct Nearest {
    float distance[NUM_SEEN];  // squared
    int id[NUM_SEEN];

    __device__ __forceinline__ void clear()
    {
        for (int i = 0; i < NUM_SEEN; ++i) {
            distance[i] = INFINITY;
            id[i] = NOBODY;
        }
    }

    __device__ __forceinline__ void insert(float other_distance, int other)
    {
        if (THREADS_PER_ENV > 1 && NUM_SEEN <= 32) {
            // Unrolled and without a branch, so that all stays in registers.
#pragma unroll
            for (int i = NUM_SEEN - 1; i > 0; --i) {
                const bool before = other_distance < distance[i - 1], here = other_distance < distance[i];
                id[i] = before ? id[i - 1] : here ? other : id[i];
                distance[i] = fmaxf(distance[i - 1], fminf(distance[i], other_distance));
            }
            id[0] = other_distance < distance[0] ? other : id[0];
            distance[0] = fminf(distance[0], other_distance);
        } else {
            if (!(other_distance < distance[NUM_SEEN - 1])) return;
            int i = NUM_SEEN - 1;
            for (; i > 0 && other_distance < distance[i - 1]; --i) {
                distance[i] = distance[i - 1];
                id[i] = id[i - 1];
            }
            distance[i] = other_distance;
            id[i] = other;
        }
    }
};

// A squared distance within which there are enough others, or INFINITY; `guess` is where to begin. A CPU counts many
// at a time, but sorts one by one: this spares it most of the sorting.
__device__ __forceinline__ float find_limit(const Scene& scene, float x, float y, float guess)
{
    for (float limit = guess; limit < FARTHEST; limit *= 2.0f) {
        int num_within = 0;
        for (int i = 0; i < NUM_PLACES; ++i) num_within += squared_distance(scene, i, x, y) < limit;
        if (num_within > NUM_SEEN) return limit;  // the agent itself is one of them
    }
    return INFINITY;
}

// Finds whom an agent sees. All threads walk through the others in the same order, so that shared memory answers
// them at once. Who is near enough is marked first, without a branch; few are, and only they are sorted in.
//   limit  squared; there are enough others within it
__device__ __forceinline__ void find_nearest(const Scene& scene, int agent, float limit, Nearest& nearest)
{
    const float x = scene.x[agent], y = scene.y[agent];
    for (int first = 0; first < NUM_PLACES; first += CHUNK) {
        const float bound = fminf(limit, nearest.distance[NUM_SEEN - 1]);
        unsigned near = 0;
#pragma unroll
        for (int i = 0; i < CHUNK; ++i) {
            near |= squared_distance(scene, first + i, x, y) < bound ? 1u << i : 0u;
        }
        if (agent >= first && agent < first + CHUNK) near &= ~(1u << (agent - first));
        for (; near; near &= near - 1) {
            const int other = first + __ffs(near) - 1;
            nearest.insert(squared_distance(scene, other, x, y), other);
        }
    }
}

// Partial observations: writes what `agent` sees of `other`, zeros if that is nobody.
//   row  the agent's observation
__device__ __forceinline__ void write_other(
    const Scene& scene, const Motion& motion, int agent, int other, int place, float* __restrict__ row)
{
    const bool exists = other != NOBODY;
    row[place] = exists ? (scene.x[other] - scene.x[agent]) * PER_DIAGONAL : 0.0f;
    row[NUM_SEEN + place] = exists ? (scene.y[other] - scene.y[agent]) * PER_DIAGONAL : 0.0f;
    row[2 * NUM_SEEN + place] = exists ? (motion.speed[other] - motion.speed[agent]) * PER_MAX_SPEED : 0.0f;
    row[3 * NUM_SEEN + place] =
        exists ? (motion.acceleration[other] - motion.acceleration[agent]) * PER_MAX_SPEED : 0.0f;
    row[4 * NUM_SEEN + place] = exists ? (motion.direction[other] - motion.direction[agent]) * PER_TURN : 0.0f;
    row[5 * NUM_SEEN + place] = exists && is_tagger(other) ? 1.0f : 0.0f;
    row[6 * NUM_SEEN + place] = exists ? 1.0f : 0.0f;  // in the game
}

// Writes one feature of all others into an agent's row, in two loops without an index to compute, which vectorise.
//   lane, num_lanes  this thread among those that share the row
template <typename Feature>
__device__ __forceinline__ void write_feature(
    int agent, int lane, int num_lanes, float* __restrict__ to, Feature feature_of)
{
    for (int place = lane; place < agent; place += num_lanes) to[place] = feature_of(place);
    for (int place = agent + lane; place < NUM_SEEN; place += num_lanes) to[place] = feature_of(place + 1);
}

// Full observations. So many threads share a row that they write neighbouring numbers.
__device__ __forceinline__ void write_all_others(
    const Scene& scene, const Motion& motion, float now, float* __restrict__ rows)
{
    constexpr int wanted = NUM_SEEN > 16 ? 32 : NUM_SEEN > 8 ? 16 : NUM_SEEN > 4 ? 8 : 4;
    constexpr int lanes = THREADS_PER_ENV % wanted == 0 ? wanted : THREADS_PER_ENV;
    const int lane = first_agent() % lanes;
    for (int agent = first_agent() / lanes; agent < NUM_AGENTS; agent += THREADS_PER_ENV / lanes) {
        float* __restrict__ const row = rows + (long long)agent * NUM_FEATURES;
        const bool sees = scene.active[agent];
        const auto write_relative = [&](int feature, const float* value, float scale) {
            const float own = value[agent];
            write_feature(agent, lane, lanes, row + feature * NUM_SEEN, [=](int other) {
                return sees ? (value[other] - own) * scale : 0.0f;
            });
        };
        write_relative(0, scene.x, PER_DIAGONAL);
        write_relative(1, scene.y, PER_DIAGONAL);
        write_relative(2, motion.speed, PER_MAX_SPEED);
        write_relative(3, motion.acceleration, PER_MAX_SPEED);
        write_relative(4, motion.direction, PER_TURN);
        write_feature(agent, lane, lanes, row + 5 * NUM_SEEN, [](int other) { return is_tagger(other) ? 1.0f : 0.0f; });
        write_feature(agent, lane, lanes, row + 6 * NUM_SEEN, [&](int other) {
            return scene.active[other] ? 1.0f : 0.0f;
        });
        if (lane == 0) row[7 * NUM_SEEN] = sees ? now : 0.0f;
    }
}

// Partial observations, for as many agents at a time as there are threads. Each thread finds whom one of them sees;
// then all write the rows together, so that they write neighbouring numbers.
__device__ __forceinline__ void write_nearest(
    Scene& scene, const Motion& motion, float now, float* __restrict__ rows)
{
    float guess = FARTHEST * NUM_SEEN / NUM_AGENTS;
    for (int first = 0; first < NUM_AGENTS; first += THREADS_PER_ENV) {
        const int agent = first + first_agent();
        if (agent < NUM_AGENTS) {
            Nearest nearest;
            nearest.clear();
            const bool active = is_active(scene, agent);
            if (active) {
                const float x = scene.x[agent], y = scene.y[agent];
                find_nearest(scene, agent, COUNTS_FIRST ? find_limit(scene, x, y, guess) : INFINITY, nearest);
                guess = fmaxf(1.5f * nearest.distance[NUM_SEEN - 1], 1e-4f * FARTHEST);  // for the next
            }
            float* __restrict__ const row = rows + (long long)agent * NUM_FEATURES;
            for (int place = 0; place < NUM_SEEN; ++place) {
                if (IS_STAGED) {
                    scene.nearest[first_agent() * NUM_SEEN + place] = (Id)nearest.id[place];
                } else {
                    write_other(scene, motion, agent, nearest.id[place], place, row);
                }
            }
            if (!IS_STAGED) row[7 * NUM_SEEN] = active ? now : 0.0f;
        }
        if (!IS_STAGED) continue;
        env_sync();
        const int num_rows = min(THREADS_PER_ENV, NUM_AGENTS - first);
        for (int i = first_agent(); i < num_rows * NUM_SEEN; i += agent_stride()) {
            const int row = i / NUM_SEEN, place = i - row * NUM_SEEN;
            float* __restrict__ const to = rows + (long long)(first + row) * NUM_FEATURES;
            write_other(scene, motion, first + row, scene.nearest[i], place, to);
            if (place == 0) to[7 * NUM_SEEN] = is_active(scene, first + row) ? now : 0.0f;
        }
        env_sync();  // the next agents' nearest go to the same place
    }
}

// Writes what every agent of one env sees.
//   observation  [env, agent, feature]  written
__device__ __forceinline__ void observe(
    Scene& scene, const Motion& motion, int time, int env, float* __restrict__ observation)
{
    const float now = (float)time / EPISODE_LENGTH;
    float* __restrict__ const rows = observation + (long long)env * NUM_AGENTS * NUM_FEATURES;
    if (USE_FULL_OBSERVATION) {
        write_all_others(scene, motion, now, rows);
    } else {
        write_nearest(scene, motion, now, rows);
    }
}

// The number of the nearest tagger among taggers, if one is within reach, else -1.
__device__ __forceinline__ int find_tagger(const Scene& scene, int runner)
{
    const float x = scene.x[runner], y = scene.y[runner];
    int num_near = 0;
    for (int tagger = 0; tagger < NUM_TAGGERS; ++tagger) {
        num_near += squared_distance(scene, tagger_id(tagger), x, y) < SQUARED_TAGGING_DISTANCE;
    }
    if (num_near == 0) return -1;  // nearly always
    int nearest = 0;
    float least = INFINITY;
    for (int tagger = 0; tagger < NUM_TAGGERS; ++tagger) {
        const float distance = squared_distance(scene, tagger_id(tagger), x, y);
        if (distance < least) {
            least = distance;
            nearest = tagger;
        }
    }
    return nearest;
}

// Moves everyone, lets taggers tag, and shows to each whom it sees.
//   action            [env, agent, 2]        levels of acceleration and of turn, 0 none          read
//   x, y              [env, agent]           length units, 0 to GRID_LENGTH                      read, written
//   speed             [env, agent]           length units a step                                 read, written
//   acceleration      [env, agent]           what is added to the speed in each step             read, written
//   direction         [env, agent]           radians, 0 is along x, below 2 pi                   read, written
//   active            [env, agent]           in the game                                         read, written
//   num_runners_left  [env]                  in the game                                         read, written
//   time_step         [env]                  steps since the episode began                       read, written
//   observation       [env, agent, feature]  of the state before anyone was tagged in this step  written
//   reward            [env, agent]                                                               written
//   terminated        [env]                  no runner is left, or time is up: that is part of the game,
//                                            pays, and is in the observation                     written
//   truncated         [env]                  never                                               written
extern "C" __global__ void __launch_bounds__(ENVS_PER_BLOCK * THREADS_PER_ENV) tag_continuous_step(
    const int* action, float* x, float* y, float* speed, float* acceleration, float* direction, bool* active,
    int* num_runners_left, int* time_step, float* observation, float* reward, bool* terminated, bool* truncated)
{
    const int env = env_index();
    if (env >= NUM_ENVS) return;
    ENV_SHARED(Scene, scene_of_env, 1);
    ENV_SHARED(int, num_tagged, NUM_TAGGERS + 1);  // by each tagger, then by all
    Scene& scene = scene_of_env[0];

    const int first = env * NUM_AGENTS;
    const int time = time_step[env] + 1;
    show_nobody(scene);
    for (int tagger = first_agent(); tagger <= NUM_TAGGERS; tagger += agent_stride()) num_tagged[tagger] = 0;
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        const int i = first + agent;
        const int* const chosen = action + 2ll * i;
        const bool in_game = active[i];
        const float top_speed = is_tagger(agent) ? TOP_SPEED_OF_TAGGER : TOP_SPEED_OF_RUNNER;
        const float new_direction = in_game ? wrap(direction[i] + TURN[chosen[1]]) : 0.0f;
        float new_acceleration = acceleration[i] + ACCELERATION[chosen[0]];
        const float new_speed = in_game ? fminf(fmaxf(speed[i] + new_acceleration, 0.0f), top_speed) : 0.0f;
        if (new_speed <= 0.0f || new_speed >= top_speed) new_acceleration = 0.0f;
        const float wanted_x = x[i] + new_speed * cosf(new_direction);
        const float wanted_y = y[i] + new_speed * sinf(new_direction);
        const float new_x = fminf(fmaxf(wanted_x, 0.0f), GRID_LENGTH);
        const float new_y = fminf(fmaxf(wanted_y, 0.0f), GRID_LENGTH);
        const float edge = new_x != wanted_x || new_y != wanted_y ? EDGE_HIT_PENALTY : 0.0f;
        const float usual = is_tagger(agent) ? STEP_PENALTY_FOR_TAGGER : STEP_REWARD_FOR_RUNNER;
        x[i] = new_x;
        y[i] = new_y;
        speed[i] = new_speed;
        acceleration[i] = new_acceleration;
        direction[i] = new_direction;
        reward[i] = in_game ? edge + usual : 0.0f;
        show(scene, agent, in_game, new_x, new_y, new_speed, new_acceleration, new_direction);
    }
    env_sync();  // everyone has moved before anyone is tagged

    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        const int i = first + agent;
        if (is_tagger(agent) || !is_active(scene, agent)) continue;
        const int tagger = find_tagger(scene, agent);
        if (tagger >= 0) {
            // Counts, not sums of rewards: integers add up to the same in any order.
            atomicAdd(&num_tagged[tagger], 1);
            atomicAdd(&num_tagged[NUM_TAGGERS], 1);
            reward[i] += TAG_PENALTY_FOR_RUNNER;
            if (RUNNER_EXITS) active[i] = false;
        }
        if (time == EPISODE_LENGTH && (tagger < 0 || !RUNNER_EXITS)) reward[i] += END_OF_GAME_REWARD_FOR_RUNNER;
    }
    env_sync();  // all tags are counted

    for (int tagger = first_agent(); tagger < NUM_TAGGERS; tagger += agent_stride()) {
        if (num_tagged[tagger]) reward[first + tagger_id(tagger)] += num_tagged[tagger] * TAG_REWARD_FOR_TAGGER;
    }
    if (first_agent() == 0) {
        const int num_left = num_runners_left[env] - (RUNNER_EXITS ? num_tagged[NUM_TAGGERS] : 0);
        num_runners_left[env] = num_left;
        time_step[env] = time;
        terminated[env] = num_left == 0 || time >= EPISODE_LENGTH;
        truncated[env] = false;
    }
    const Motion motion = {
        KEEPS_MOTION ? scene.speed : speed + first, KEEPS_MOTION ? scene.acceleration : acceleration + first,
        KEEPS_MOTION ? scene.direction : direction + first};
    observe(scene, motion, time, env, observation);
}

// Brings everyone of an ended env back into the game, at rest: at a fixed start, or anywhere, along an axis.
extern "C" __global__ void __launch_bounds__(ENVS_PER_BLOCK * THREADS_PER_ENV) tag_continuous_reset(
    const bool* terminated, const bool* truncated, const unsigned int* seed, const long long* env_step, float* x,
    float* y, float* speed, float* acceleration, float* direction, bool* active, int* num_runners_left, int* time_step,
    float* observation)
{
    const int env = env_index();
    if (env >= NUM_ENVS || !(terminated[env] || truncated[env])) return;
    ENV_SHARED(Scene, scene_of_env, 1);
    Scene& scene = scene_of_env[0];

    const int first = env * NUM_AGENTS;
    show_nobody(scene);
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        const int i = first + agent;
        Random random(seed, env, agent, env_step[env], STREAM_RESET);
        const float new_x = START_IS_FIXED ? START_X[agent] : random.uniform(0.0f, GRID_LENGTH);
        const float new_y = START_IS_FIXED ? START_Y[agent] : random.uniform(0.0f, GRID_LENGTH);
        const float new_direction = START_IS_FIXED ? START_DIRECTION[agent] : random.below(4) * HALF_PI;
        x[i] = new_x;
        y[i] = new_y;
        speed[i] = 0.0f;
        acceleration[i] = 0.0f;
        direction[i] = new_direction;
        active[i] = true;
        show(scene, agent, true, new_x, new_y, 0.0f, 0.0f, new_direction);
    }
    if (first_agent() == 0) {
        num_runners_left[env] = NUM_RUNNERS;
        time_step[env] = 0;
    }
    env_sync();  // everyone is there before anyone looks around
    const Motion motion = {
        KEEPS_MOTION ? scene.speed : speed + first, KEEPS_MOTION ? scene.acceleration : acceleration + first,
        KEEPS_MOTION ? scene.direction : direction + first};
    observe(scene, motion, 0, env, observation);
}
