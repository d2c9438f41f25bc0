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
        for (int other = 0; other < NUM_UNITS; ++other) {  // among them the unit itself: it is 0 from itself
            const float dx = x - battle.next_x[other], dy = y - battle.next_y[other];
            const float reach = radius + battle.radius[other], distance = dx * dx + dy * dy;
            if (distance >= reach * reach) continue;  // nearly always
            const float overlap = fmaxf(reach / (sqrtf(distance) + 1e-6f) - 1.0f, 0.0f);
            push_x += dx * overlap;
            push_y += dy * overlap;
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

// -------------------------------------------------------------------------------------------------------- what is seen

// Writes what allies see and may do, and the state of the whole.
//   last_action   [unit] of this env
//   observation   [env, ally, feature]  other units, allies first, NUM_SEEN features each; then oneself  written
//   action_mask   [env, ally, action]                                                                    written
//   global_state  [env, feature]        NUM_OWN features of each unit, then teams, then types            written
__device__ __forceinline__ void observe(
    Battle& battle, int env, const int* last_action, float* observation, bool* action_mask, float* global_state)
{
    for (int unit = first_agent(); unit < NUM_UNITS; unit += agent_stride()) {
        const int type = battle.type[unit], action = last_action[unit];
        const bool shows = SEE_ENEMY_ACTIONS || is_ally(unit);
        const int last = NUM_MOVES + (is_ally(unit) ? NUM_ENEMIES : NUM_AGENTS) - 1;
        float* const seen = battle.seen[unit];
        seen[0] = battle.health[unit] / MAX_HEALTH[type];
        seen[1] = seen[2] = 0.0f;  // the place, which depends on who looks
        seen[3] = shows ? (float)((action == EAST) - (action == WEST)) : 0.0f;
        seen[4] = shows ? (float)((action == NORTH) - (action == SOUTH)) : 0.0f;
        seen[5] = shows && action >= NUM_MOVES ? (float)action / last : 0.0f;
        seen[6] = fminf(fmaxf(battle.cooldown[unit] / COOLDOWN[type], 0.0f), 1.0f);
        for (int i = 0; i < NUM_TYPES; ++i) seen[7 + i] = i == type ? 1.0f : 0.0f;
    }
    env_sync();

    for (int ally = 0; ally < NUM_AGENTS; ++ally) {
        float* __restrict__ const row = observation + ((long long)env * NUM_AGENTS + ally) * NUM_FEATURES;
        const bool alive = is_alive(battle, ally);
        const float x = battle.x[ally], y = battle.y[ally], sight = SIGHT_RANGE[battle.type[ally]];
        const float squared_sight = squared(sight), per_sight = 1.0f / sight;
        for (int place = first_agent(); place < NUM_OTHERS; place += agent_stride()) {
            const int number = place / NUM_SEEN, feature = place - number * NUM_SEEN;
            const int other = number + (number >= ally);
            const float dx = battle.x[other] - x, dy = battle.y[other] - y;
            const float relative = feature == 1 ? dx * per_sight : dy * per_sight;
            const float value = feature == 1 || feature == 2 ? relative : battle.seen[other][feature];
            row[place] = alive && is_alive(battle, other) && dx * dx + dy * dy < squared_sight ? value : 0.0f;
        }
        for (int feature = first_agent(); feature < NUM_OWN; feature += agent_stride()) {
            const float* const seen = battle.seen[ally];
            const float value = feature == 0 ? seen[0]
                : feature == 1 ? x / MAP_WIDTH
                : feature == 2 ? y / MAP_HEIGHT
                : seen[feature + 3];
            row[NUM_OTHERS + feature] = alive ? value : 0.0f;
        }
    }

    bool* __restrict__ const may = action_mask + (long long)env * NUM_AGENTS * NUM_ACTIONS;
    for (int place = first_agent(); place < NUM_AGENTS * NUM_ACTIONS; place += agent_stride()) {
        const int ally = place / NUM_ACTIONS, action = place - ally * NUM_ACTIONS;
        may[place] = action == STOP ||
            (action < NUM_MOVES ? is_alive(battle, ally) : can_shoot(battle, ally, target_of(ally, action)));
    }

    float* __restrict__ const state = global_state + (long long)env * NUM_STATE;
    for (int place = first_agent(); place < NUM_UNITS * NUM_OWN; place += agent_stride()) {
        const int unit = place / NUM_OWN, feature = place - unit * NUM_OWN;
        const float value = feature == 0 ? battle.seen[unit][0]
            : feature == 1 ? battle.x[unit]
            : feature == 2 ? battle.y[unit]
            : feature == 3 ? battle.cooldown[unit]
            : battle.seen[unit][feature + 3];
        state[place] = is_alive(battle, unit) ? value : 0.0f;
    }
    for (int unit = first_agent(); unit < NUM_UNITS; unit += agent_stride()) {
        state[NUM_UNITS * NUM_OWN + unit] = is_ally(unit) ? 0.0f : 1.0f;
        state[NUM_UNITS * (NUM_OWN + 1) + unit] = (float)battle.type[unit];
    }
}

// ----------------------------------------------------------------------------------------------------------- a step

// One step of one env; what the parameters are is told where the kernels are.
template <typename Chance>
__device__ __forceinline__ void step_env(
    int env, const Chance& chance, const int* action, float* x, float* y, float* health, float* cooldown,
    const int* unit_type, const float* goal_x, const float* goal_y, int* last_target, int* last_action, int* time_step,
    bool* active, bool* action_mask, float* observation, float* global_state, float* reward, float* won,
    bool* terminated, bool* truncated)
{
    Battle& battle = battle_of_env();
    const long long first = (long long)env * NUM_UNITS, first_enemy = (long long)env * NUM_ENEMIES;
    for (int unit = first_agent(); unit < NUM_UNITS; unit += agent_stride()) {
        const int type = unit_type[first + unit];
        battle.type[unit] = type;
        battle.x[unit] = x[first + unit];
        battle.y[unit] = y[first + unit];
        battle.health[unit] = health[first + unit];
        battle.cooldown[unit] = cooldown[first + unit];
        battle.radius[unit] = RADIUS[type];
        battle.squared_range[unit] = squared(ATTACK_RANGE[type]);
        battle.damage[unit] = 0;
        if (!is_ally(unit)) battle.enemy_health_before[unit - NUM_AGENTS] = health[first + unit];
    }
    env_sync();  // everyone is there before anyone decides

    for (int unit = first_agent(); unit < NUM_UNITS; unit += agent_stride()) {
        int chosen = STOP;
        if (is_ally(unit)) {
            chosen = action[(long long)env * NUM_AGENTS + unit];
        } else if (is_alive(battle, unit)) {
            const long long enemy = first_enemy + unit - NUM_AGENTS;
            chosen = chance.enemy_action(battle, unit, goal_x[enemy], goal_y[enemy], last_target[enemy]);
        }
        const bool walks = is_alive(battle, unit);
        const float step = walks ? SPEED[battle.type[unit]] * SECONDS : 0.0f;
        battle.step_x[unit] = (float)((chosen == EAST) - (chosen == WEST)) * step;
        battle.step_y[unit] = (float)((chosen == NORTH) - (chosen == SOUTH)) * step;
        battle.target[unit] = target_of(unit, chosen);
        last_action[first + unit] = chosen;
    }
    env_sync();

    for (int number = 0; number < NUM_WORLD_STEPS; ++number) world_step(battle, number, chance);

    int num_allies = 0, num_enemies = 0;
    float lost = 0.0f;  // of the enemies' health, each one's as a part of its all
    for (int ally = 0; ally < NUM_AGENTS; ++ally) num_allies += is_alive(battle, ally);
    for (int enemy = 0; enemy < NUM_ENEMIES; ++enemy) {
        const int unit = NUM_AGENTS + enemy;
        num_enemies += is_alive(battle, unit);
        lost += (battle.enemy_health_before[enemy] - battle.health[unit]) / MAX_HEALTH[battle.type[unit]];
    }
    const bool is_won = num_enemies == 0 && num_allies > 0;
    for (int ally = first_agent(); ally < NUM_AGENTS; ally += agent_stride()) {
        reward[(long long)env * NUM_AGENTS + ally] = lost / NUM_ENEMIES + (is_won ? WON_BATTLE_BONUS : 0.0f);
        active[(long long)env * NUM_AGENTS + ally] = is_alive(battle, ally);
    }
    for (int unit = first_agent(); unit < NUM_UNITS; unit += agent_stride()) {
        x[first + unit] = battle.x[unit];
        y[first + unit] = battle.y[unit];
        health[first + unit] = battle.health[unit];
        cooldown[first + unit] = battle.cooldown[unit];
    }
    if (first_agent() == 0) {
        const int time = time_step[env] + 1;
        const bool is_over = num_allies == 0 || num_enemies == 0;
        time_step[env] = time;
        won[env] = is_won ? 1.0f : 0.0f;
        terminated[env] = is_over;
        truncated[env] = !is_over && time >= EPISODE_LENGTH;
    }
    observe(battle, env, last_action + first, observation, action_mask, global_state);
}

// ---------------------------------------------------------------------------------------------------------- a start

struct Place {
    float x, y;
};

__device__ __forceinline__ Place near_to(float x, float y, Random& random)
{
    const float dx = random.uniform(-2.0f, 2.0f);
    return {x + dx, y + random.uniform(-2.0f, 2.0f)};
}

// Where a unit starts at random: half of the time one team stands in the middle, and the other around it, in groups on
// the lines from there to the corners; else each enemy mirrors an ally.
//   random      of the env, the same for all its units
//   own         of the unit, or of the ally that it mirrors
__device__ __forceinline__ Place random_place(int unit, Random random, Random own)
{
    constexpr float middle_x = MAP_WIDTH / 2, middle_y = MAP_HEIGHT / 2;
    const bool surrounds = random.uniform() < 0.5f, allies_inside = random.below(2) == 1;
    if (!surrounds) {
        const float x = own.uniform(0.0f, middle_x), y = own.uniform(0.0f, MAP_HEIGHT);
        return {is_ally(unit) ? x : MAP_WIDTH - x, y};
    }
    Random noise = own;
    noise.draw += is_ally(unit) ? 8 : 16;  // a mirrored unit draws others than its ally
    if (is_ally(unit) == allies_inside) return near_to(middle_x, middle_y, noise);
    const int group = noise.below(4);
    random.draw += group;
    const float inwards = random.uniform();  // of the group
    const float corner_x = group < 2 ? 0.0f : MAP_WIDTH, corner_y = group % 2 == 0 ? 0.0f : MAP_HEIGHT;
    const float x = inwards * middle_x + (1.0f - inwards) * corner_x;
    const float y = inwards * middle_y + (1.0f - inwards) * corner_y;
    return near_to(x, y, noise);
}

// Starts one env anew; what the parameters are is told where the kernels are.
__device__ __forceinline__ void reset_env(
    int env, const unsigned int* seed, const long long* env_step, float* x, float* y, float* health, float* cooldown,
    int* unit_type, float* goal_x, float* goal_y, int* last_target, int* last_action, int* time_step, bool* active,
    bool* action_mask, float* observation, float* global_state)
{
    static_assert(!UNITS_ARE_RANDOM || NUM_ENEMIES == NUM_AGENTS, "each enemy mirrors an ally");
    Battle& battle = battle_of_env();
    const long long first = (long long)env * NUM_UNITS;
    for (int unit = first_agent(); unit < NUM_UNITS; unit += agent_stride()) {
        const int drawn_as = UNITS_ARE_RANDOM && !is_ally(unit) ? unit - NUM_AGENTS : unit;
        Random random(seed, env, drawn_as, env_step[env], STREAM_RESET);
        const int type = UNITS_ARE_RANDOM ? (int)random.below(NUM_TYPES) : START_TYPE[unit];
        const Random of_env(seed, env, NUM_UNITS, env_step[env], STREAM_RESET);
        const Place place = UNITS_ARE_RANDOM
            ? random_place(unit, of_env, random)
            : near_to((is_ally(unit) ? 0.25f : 0.75f) * MAP_WIDTH, 0.5f * MAP_HEIGHT, random);
        battle.type[unit] = unit_type[first + unit] = type;
        battle.health[unit] = health[first + unit] = MAX_HEALTH[type];
        battle.cooldown[unit] = cooldown[first + unit] = 0.0f;
        battle.radius[unit] = RADIUS[type];
        battle.squared_range[unit] = squared(ATTACK_RANGE[type]);
        battle.next_x[unit] = place.x;
        battle.next_y[unit] = place.y;
        last_action[first + unit] = STOP;
    }
    if (first_agent() == 0) time_step[env] = 0;
    env_sync();  // everyone is there before anyone is pushed
    push_apart(battle);

    for (int unit = first_agent(); unit < NUM_UNITS; unit += agent_stride()) {
        x[first + unit] = battle.x[unit];
        y[first + unit] = battle.y[unit];
        if (is_ally(unit)) {
            active[(long long)env * NUM_AGENTS + unit] = true;
        } else {  // beyond the middle of the map, as far as it is from here
            const long long enemy = (long long)env * NUM_ENEMIES + unit - NUM_AGENTS;
            goal_x[enemy] = MAP_WIDTH - battle.x[unit];
            goal_y[enemy] = MAP_HEIGHT - battle.y[unit];
            last_target[enemy] = NOBODY;
        }
    }
    observe(battle, env, last_action + first, observation, action_mask, global_state);
}
