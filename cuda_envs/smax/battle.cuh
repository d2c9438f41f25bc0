// The battle: units of two teams walk, shoot and push each other apart on a map. Units 0 .. NUM_AGENTS - 1 are the
// allies, who learn; the others are enemies, who follow rules. A step is NUM_WORLD_STEPS short ones with the same
// actions, in each of which all units act at once: who is shot in it still shoots.
//
// Lengths are in the map's units, y upwards, time in seconds. A unit is alive as long as its health is above 0.
#pragma once
#include "random.cuh"
#include "warpdrive.cuh"

constexpr int NUM_UNITS = NUM_AGENTS + NUM_ENEMIES;
constexpr int NORTH = 0, EAST = 1, SOUTH = 2, WEST = 3, STOP = 4, NUM_MOVES = 5;  // actions; those behind are shots
constexpr int NUM_ACTIONS = NUM_MOVES + NUM_ENEMIES;  // of an ally
constexpr int NUM_SEEN = 7 + NUM_TYPES;  // features of another unit
constexpr int NUM_OWN = 4 + NUM_TYPES;  // features of oneself
constexpr int NUM_OTHERS = (NUM_UNITS - 1) * NUM_SEEN;
constexpr int NUM_FEATURES = NUM_OTHERS + NUM_OWN;
constexpr int NUM_STATE = NUM_UNITS * (NUM_OWN + 2);
constexpr int NOBODY = -1;
constexpr float FAR_AWAY = 1e6f;  // where the dead are, for those who would be pushed by them

struct Units {
    float x[NUM_UNITS], y[NUM_UNITS];
    float next_x[NUM_UNITS], next_y[NUM_UNITS];  // once all have walked; of the dead far away
    float step_x[NUM_UNITS], step_y[NUM_UNITS];  // walked in a world step
    float health[NUM_UNITS];
    float cooldown[NUM_UNITS];  // seconds until a unit may shoot again, 0 or less if it may
    float radius[NUM_UNITS];
    float squared_range[NUM_UNITS];
    int type[NUM_UNITS];
    int target[NUM_UNITS];  // whom a unit shoots at, or NOBODY
    int damage[NUM_UNITS];  // in this world step; whole numbers, which add up to the same in any order
    float enemy_health_before[NUM_ENEMIES];
    float seen[NUM_UNITS][NUM_SEEN];  // of each unit, the same for all who see it; not its place
};

// An odd number of words, so that envs which share a block lie in different banks.
struct Battle : Units {
    float padding[sizeof(Units) / 4 % 2 == 0 ? 1 : 2];
};

// The same memory for steps and resets, which one launch may hold both.
__device__ __forceinline__ Battle& battle_of_env()
{
    ENV_SHARED(Battle, battle, 1);
    return battle[0];
}

__device__ __forceinline__ float squared_distance(const Battle& battle, int a, int b)
{
    const float dx = battle.x[b] - battle.x[a], dy = battle.y[b] - battle.y[a];
    return dx * dx + dy * dy;
}

__device__ __forceinline__ float squared(float length)
{
    return length * length;
}

__device__ __forceinline__ bool is_ally(int unit)
{
    return unit < NUM_AGENTS;
}

__device__ __forceinline__ bool is_alive(const Battle& battle, int unit)
{
    return battle.health[unit] > 0.0f;
}

// Whether a unit is near enough to one of the other team to shoot at it.
__device__ __forceinline__ bool can_shoot(const Battle& battle, int unit, int other)
{
    return is_alive(battle, unit) && is_alive(battle, other) &&
        squared_distance(battle, unit, other) < battle.squared_range[unit];
}

// Of a shot, who is shot at: each team counts the other as it sees it, the enemies from the last ally to the first.
__device__ __forceinline__ int target_of(int unit, int action)
{
    if (action < NUM_MOVES) return NOBODY;
    return is_ally(unit) ? NUM_AGENTS + action - NUM_MOVES : NUM_AGENTS - 1 - (action - NUM_MOVES);
}

// --------------------------------------------------------------------------------------------------- the enemies' mind

// The number of an ally, counted from the last one, that an enemy sees within a squared distance: the rank-th of them.
__device__ __forceinline__ int seen_within(const Battle& battle, int enemy, float limit, int rank)
{
    for (int number = 0; number < NUM_AGENTS; ++number) {
        const int ally = NUM_AGENTS - 1 - number;
        if (is_alive(battle, ally) && squared_distance(battle, enemy, ally) < limit && rank-- == 0) return number;
    }
    return NOBODY;
}

// What an enemy does: it goes on shooting at the ally it shot at before, as long as it can; else it shoots at the
// nearest it can, or at any of them. If it can shoot at none, it walks towards any that it sees, or towards its goal.
//   goal_x, goal_y  where it walks if it sees nobody
//   last_target     the number, counted from the last ally, of whom it shot at, or NOBODY  read, written
//   chance          chance.choice(unit, count): one of so many
template <typename Chance>
__device__ __forceinline__ int enemy_action(
    const Battle& battle, int enemy, float goal_x, float goal_y, int& last_target, const Chance& chance)
{
    const float squared_sight = squared(SIGHT_RANGE[battle.type[enemy]]);
    const float squared_range = fminf(battle.squared_range[enemy], squared_sight);
    int num_seen = 0, num_near = 0, nearest = NOBODY;
    float least = INFINITY;
    bool keeps = false;
    for (int number = 0; number < NUM_AGENTS; ++number) {
        const int ally = NUM_AGENTS - 1 - number;
        const float distance = squared_distance(battle, enemy, ally);
        if (!is_alive(battle, ally) || distance >= squared_sight) continue;
        ++num_seen;
        if (distance >= squared_range) continue;
        ++num_near;
        keeps = keeps || number == last_target;
        if (distance < least) {
            least = distance;
            nearest = number;
        }
    }
    if (ENEMIES_SHOOT && num_near > 0) {
        if (keeps) return NUM_MOVES + last_target;
        const bool picks = SHOOTS_AT_ANY && num_near > 1;
        last_target = picks ? seen_within(battle, enemy, squared_range, chance.choice(enemy, num_near)) : nearest;
        return NUM_MOVES + last_target;
    }
    last_target = NOBODY;
    float dx = goal_x - battle.x[enemy], dy = goal_y - battle.y[enemy];
    if (num_seen > 0) {
        const int rank = num_seen > 1 ? chance.choice(enemy, num_seen) : 0;
        const int ally = NUM_AGENTS - 1 - seen_within(battle, enemy, squared_sight, rank);
        dx = battle.x[ally] - battle.x[enemy];
        dy = battle.y[ally] - battle.y[enemy];
    }
    int move = NORTH;
    float most = dy;
    if (dx > most) move = EAST, most = dx;
    if (-dy > most) move = SOUTH, most = -dy;
    return -dx > most ? WEST : move;
}

// What is left to chance in a step, as a function of seed, env, unit and step.
struct Drawn {
    const unsigned int* seed;
    const long long* env_step;
    int env;

    __device__ __forceinline__ int choice(int unit, int count) const
    {
        return Random(seed, env, unit, env_step[env]).below(count);
    }

    // Seconds that a weapon takes longer after a shot in this world step.
    __device__ __forceinline__ float delay(int unit, int world_step) const
    {
        Random random(seed, env, (1 + world_step) * NUM_UNITS + unit, env_step[env]);
        return random.uniform(-SECONDS, 2.0f * SECONDS);
    }

    __device__ __forceinline__ int enemy_action(
        const Battle& battle, int enemy, float goal_x, float goal_y, int& last_target) const
    {
        return ::enemy_action(battle, enemy, goal_x, goal_y, last_target, *this);
    }
};

// ------------------------------------------------------------------------------------------------------- a world step

// Moves units that overlap apart, each by half of what the pair overlaps by.
//   battle.next_x, next_y  where they are  read
//   battle.x, y                            written, of those alive
__device__ __forceinline__ void push_apart(Battle& battle)
{
    for (int unit = first_agent(); unit < NUM_UNITS; unit += agent_stride()) {
        if (!is_alive(battle, unit)) continue;
        const float x = battle.next_x[unit], y = battle.next_y[unit], radius = battle.radius[unit];
        float push_x = 0.0f, push_y = 0.0f;
        // Who overlaps is found out first, without a branch: few do, and the threads of a warp share the way to them.
        for (int first = 0; first < NUM_UNITS; first += 32) {
            unsigned near = 0u;
#pragma unroll 8
            for (int other = first; other < NUM_UNITS && other < first + 32; ++other) {
                const float dx = x - battle.next_x[other], dy = y - battle.next_y[other];
                const float reach = radius + battle.radius[other];
                near |= (unsigned)(other != unit && dx * dx + dy * dy < reach * reach) << (other - first);
            }
            for (; near != 0u; near &= near - 1u) {
                const int other = first + __ffs((int)near) - 1;
                const float dx = x - battle.next_x[other], dy = y - battle.next_y[other];
                const float reach = radius + battle.radius[other], distance = dx * dx + dy * dy;
                const float overlap = fmaxf(reach / (sqrtf(distance) + 1e-6f) - 1.0f, 0.0f);
                push_x += dx * overlap;
                push_y += dy * overlap;
            }
        }
        battle.x[unit] = x + 0.5f * push_x;
        battle.y[unit] = y + 0.5f * push_y;
    }
    env_sync();
}

template <typename Chance>
__device__ __forceinline__ void world_step(Battle& battle, int number, const Chance& chance)
{
    for (int unit = first_agent(); unit < NUM_UNITS; unit += agent_stride()) {
        const int target = battle.target[unit];
        float cooldown = battle.cooldown[unit] - SECONDS;
        if (target != NOBODY && battle.cooldown[unit] <= 0.0f && can_shoot(battle, unit, target)) {
            const int type = battle.type[unit];
            atomicAdd(&battle.damage[target], DAMAGE[type]);
            cooldown = COOLDOWN[type] + chance.delay(unit, number);
        }
        battle.cooldown[unit] = cooldown;
        battle.next_x[unit] = fmaxf(fminf(battle.x[unit] + battle.step_x[unit], MAP_WIDTH), 0.0f);
        battle.next_y[unit] = fmaxf(fminf(battle.y[unit] + battle.step_y[unit], MAP_HEIGHT), 0.0f);
    }
    env_sync();  // everyone has shot and walked

    for (int unit = first_agent(); unit < NUM_UNITS; unit += agent_stride()) {
        float health = battle.health[unit];
        if (health > 0.0f) {
            const float x = battle.next_x[unit], y = battle.next_y[unit];
            const bool at_wall = x <= 0.0f || y <= 0.0f || x >= MAP_WIDTH || y >= MAP_HEIGHT;
            health = WALLS_KILL && at_wall ? 0.0f : fmaxf(health - (float)battle.damage[unit], 0.0f);
            battle.health[unit] = health;
            battle.x[unit] = x;
            battle.y[unit] = y;
        }
        if (health <= 0.0f) battle.next_x[unit] = battle.next_y[unit] = FAR_AWAY;
        battle.damage[unit] = 0;
    }
    env_sync();  // everyone knows who is left
    push_apart(battle);
}
