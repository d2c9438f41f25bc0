// What is seen of a battle, a step of it, and its start. The battle itself is in battle.cuh.
#pragma once
#include "battle.cuh"

// -------------------------------------------------------------------------------------------------------- what is seen

// Threads of an env write rows of features side by side: so many share one, and so many rows are written at once.
constexpr int COLUMNS = THREADS_PER_ENV % 16 == 0 ? 16 : THREADS_PER_ENV;
constexpr int ROWS = THREADS_PER_ENV / COLUMNS;
constexpr int SEEN_ROUNDS = (NUM_SEEN + COLUMNS - 1) / COLUMNS, OWN_ROUNDS = (NUM_OWN + COLUMNS - 1) / COLUMNS;

// A feature of a unit as it knows itself. Written as choices, not as ways that threads would take one after the other.
__device__ __forceinline__ float own_feature(
    const Battle& battle, int unit, int feature, float x, float y, float cooldown)
{
    const float seen = battle.seen[unit][feature == 0 ? 0 : feature + 3];
    const float place = feature == 1 ? x : y;
    const float known = feature == 3 ? cooldown : seen;
    return feature == 1 || feature == 2 ? place : known;
}

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
        const int num_actions = NUM_MOVES + (is_ally(unit) ? NUM_ENEMIES : NUM_AGENTS);
        float* const seen = battle.seen[unit];
        seen[0] = battle.health[unit] * PER_HEALTH[type];
        seen[1] = seen[2] = 0.0f;  // the place, which depends on who looks
        seen[3] = shows ? (float)((action == EAST) - (action == WEST)) : 0.0f;
        seen[4] = shows ? (float)((action == NORTH) - (action == SOUTH)) : 0.0f;
        seen[5] = shows && action >= NUM_MOVES ? (float)action / (num_actions - 1) : 0.0f;
        seen[6] = fminf(fmaxf(battle.cooldown[unit] * PER_COOLDOWN[type], 0.0f), 1.0f);
        for (int i = 0; i < NUM_TYPES; ++i) seen[7 + i] = i == type ? 1.0f : 0.0f;
    }
    env_sync();

    const int column = first_agent() % COLUMNS, first_row = first_agent() / COLUMNS;
#pragma unroll 1
    for (int ally = 0; ally < NUM_AGENTS; ++ally) {
        float* __restrict__ const row = observation + ((long long)env * NUM_AGENTS + ally) * NUM_FEATURES;
        const bool alive = is_alive(battle, ally);
        const int type = battle.type[ally];
        const float x = battle.x[ally], y = battle.y[ally], per_sight = PER_SIGHT[type];
        const float squared_sight = alive ? squared(SIGHT_RANGE[type]) : 0.0f;
#pragma unroll 1
        for (int number = first_row; number < NUM_UNITS - 1; number += ROWS) {
            const int other = number + (number >= ally);
            const float dx = battle.x[other] - x, dy = battle.y[other] - y;
            const float distance = is_alive(battle, other) ? dx * dx + dy * dy : INFINITY;
            const bool sees = distance < squared_sight;
#pragma unroll
            for (int round = 0; round < SEEN_ROUNDS; ++round) {
                const int feature = column + round * COLUMNS;
                if (feature >= NUM_SEEN) continue;
                const float relative = (feature == 1 ? dx : dy) * per_sight;
                const float value = feature == 1 || feature == 2 ? relative : battle.seen[other][feature];
                row[number * NUM_SEEN + feature] = sees ? value : 0.0f;
            }
        }
        for (int feature = first_agent(); feature < NUM_OWN; feature += agent_stride()) {
            const float value = own_feature(battle, ally, feature, x / MAP_WIDTH, y / MAP_HEIGHT, battle.seen[ally][6]);
            row[NUM_OTHERS + feature] = alive ? value : 0.0f;
        }
    }

    bool* __restrict__ const may = action_mask + (long long)env * NUM_AGENTS * NUM_ACTIONS;
#pragma unroll 1
    for (int place = first_agent(); place < NUM_AGENTS * NUM_ACTIONS; place += agent_stride()) {
        const int ally = place / NUM_ACTIONS, action = place - ally * NUM_ACTIONS;
        may[place] = action == STOP ||
            (action < NUM_MOVES ? is_alive(battle, ally) : can_shoot(battle, ally, target_of(ally, action)));
    }

    float* __restrict__ const state = global_state + (long long)env * NUM_STATE;
#pragma unroll 1
    for (int unit = first_row; unit < NUM_UNITS; unit += ROWS) {
        const bool alive = is_alive(battle, unit);
        const float x = battle.x[unit], y = battle.y[unit], cooldown = battle.cooldown[unit];
#pragma unroll
        for (int round = 0; round < OWN_ROUNDS; ++round) {
            const int feature = column + round * COLUMNS;
            if (feature >= NUM_OWN) continue;
            const float value = own_feature(battle, unit, feature, x, y, cooldown);
            state[unit * NUM_OWN + feature] = alive ? value : 0.0f;
        }
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
        lost += (battle.enemy_health_before[enemy] - battle.health[unit]) * PER_HEALTH[battle.type[unit]];
    }
    const bool is_won = num_enemies == 0 && num_allies > 0;
    for (int ally = first_agent(); ally < NUM_AGENTS; ally += agent_stride()) {
        reward[(long long)env * NUM_AGENTS + ally] = lost * (1.0f / NUM_ENEMIES) + (is_won ? WON_BATTLE_BONUS : 0.0f);
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
