// MinAtar's Seaquest. One agent an env: one thread plays all of it.
#include "minatar.cuh"

enum Channel { FRONT, BACK, BULLET, TRAIL, ENEMY_BULLET, FISH, ENEMY_SUB, OXYGEN, DIVERS_ABOARD, DIVER };
enum Side { TO_LEFT, TO_RIGHT };

constexpr int LOWEST = LAST - 1;  // the row below it holds the gauges
constexpr int MOST_OXYGEN = 200, MOST_ABOARD = 6;
constexpr int FIRST_SPAWN_SPEED = 20, DIVER_SPAWN_SPEED = 30;                // steps from one to the next
constexpr int FIRST_MOVE_SPEED = 5, LEAST_MOVE_SPEED = 2, DIVER_MOVE_SPEED = 5;  // steps between moves
constexpr int SHOT_TIME = 5, ENEMY_SHOT_TIME = 10;                           // steps between shots
constexpr int START_X = 5;

// Fish, enemy subs and divers, in the order they came in: 4 bits each of column, row, steps until it moves, steps
// until it shoots; then which way it goes, and whether it is a sub. A hit one is GONE until the list is packed.
constexpr int ROW = 4, MOVE_TIMER = 8, SHOT_TIMER = 12, GOES_RIGHT = 1 << 16, IS_SUB = 1 << 17, CELL = 255, GONE = -1;

// At its fastest an enemy a step comes, and takes 30 steps to cross.
static_assert(MOST_ENEMIES >= LEAST_MOVE_SPEED + 9 * (LEAST_MOVE_SPEED + 1) + 1, "there is room for all enemies");
static_assert(NUM_DIVERS >= 2, "a diver takes 59 steps to cross, the one after the next comes 60 after it");

__device__ __forceinline__ int column_of(int one)
{
    return one & 15;
}

__device__ __forceinline__ int row_of(int one)
{
    return one >> ROW & 15;
}

__device__ __forceinline__ int timer_of(int one, int which)
{
    return one >> which & 15;
}

__device__ __forceinline__ int with_timer(int one, int which, int steps)
{
    return (one & ~(15 << which)) | steps << which;
}

__device__ __forceinline__ int entering(int row, bool goes_right, int move_timer)
{
    return (goes_right ? GOES_RIGHT : LAST) | row << ROW | move_timer << MOVE_TIMER;
}

// Lets one that swims count a step, and move once its time has come; GONE if it leaves the water.
__device__ __forceinline__ int swum(int one, int move_speed, bool* moved)
{
    const int timer = timer_of(one, MOVE_TIMER);
    *moved = timer == 0;
    if (timer > 0) return with_timer(one, MOVE_TIMER, timer - 1);
    const int to = beside(column_of(one), one & GOES_RIGHT);
    return is_inside(to) ? (with_timer(one, MOVE_TIMER, move_speed) & ~15) | to : GONE;
}

// The player's bullets, by side.
struct Bullets {
    Board side[2];

    // Whether one is in the cell of this enemy; it is then spent.
    __device__ __forceinline__ bool hit(int enemy)
    {
        const int row = row_of(enemy), column = column_of(enemy);
        for (int i = 0; i < 2; ++i) {
            if (side[i].has(row, column)) {
                side[i].clear(row, column);
                return true;
            }
        }
        return false;
    }
};

__device__ __forceinline__ void move(Board (&side)[2])
{
    side[TO_LEFT] = moved_aside(side[TO_LEFT], false);
    side[TO_RIGHT] = moved_aside(side[TO_RIGHT], true);
}

// The enemies of this env, while they move.
__device__ __forceinline__ int* enemies_of_env()
{
    ENV_SHARED(int, enemies, MOST_ENEMIES | 1);  // odd: other banks than the neighbours'
    return enemies;
}

// A fish, or a sub in one of three cases, comes in from either side, unless one in its row goes the other way.
__device__ __forceinline__ int spawn_enemy(int* enemies, int num_enemies, int move_speed, Random& random)
{
    const bool goes_right = random.below(2) == 0;
    const bool is_sub = random.below(3) == 0;
    const int row = 1 + random.below(LOWEST);
    for (int i = 0; i < num_enemies; ++i) {
        if (row_of(enemies[i]) == row && ((enemies[i] & GOES_RIGHT) != 0) != goes_right) return num_enemies;
    }
    enemies[num_enemies] = entering(row, goes_right, move_speed) | (is_sub ? IS_SUB | ENEMY_SHOT_TIME << SHOT_TIMER : 0);
    return num_enemies + 1;
}

__device__ __forceinline__ void show_swimmer(Picture& picture, int one, int channel)
{
    const int row = row_of(one), x = column_of(one), behind = beside(x, !(one & GOES_RIGHT));
    picture.set(row, x, channel);
    if (is_inside(behind)) picture.set(row, behind, TRAIL);
}

// The submarine; the bars of oxygen and of divers aboard, in the last row.
__device__ __forceinline__ void show_sub(Picture& picture, int x, int y, bool faces_right, int oxygen, int num_aboard)
{
    picture.set(y, x, FRONT);
    picture.set(y, beside(x, !faces_right), BACK);
    for (int i = 0; i < oxygen * SIDE / MOST_OXYGEN; ++i) picture.set(LAST, i, OXYGEN);
    for (int i = 1; i <= num_aboard; ++i) picture.set(LAST, LAST - i, DIVERS_ABOARD);
}

// Moves the submarine, its bullets, the divers, the enemies and their bullets, in this order.
//   action              [env, agent]   number in ACTIONS                                     read
//   last_action         [env]          what was done                                         read, written
//   sub_x, sub_y        [env]          column and row of the submarine's front               read, written
//   faces_right         [env]                                                                read, written
//   oxygen              [env]          steps that it lasts                                   read, written
//   num_aboard          [env]          divers rescued; below 0 after all six were            read, written
//   is_up               [env]          whether the submarine has been at the surface         read, written
//   shot_timer          [env]          steps until it can shoot                              read, written
//   bullet              [env, 2, 2]    Boards of the submarine's, to the left and the right  read, written
//   enemy_bullet        [env, 2, 2]                                                          read, written
//   enemy               [env, MOST_ENEMIES]  as above, the first num_enemies                 read, written
//   num_enemies         [env]                                                                read, written
//   diver               [env, NUM_DIVERS]    as above, GONE where there is none              read, written
//   spawn_speed         [env]          steps from one enemy to the next                      read, written
//   spawn_timer         [env]          steps until the next enemy comes                      read, written
//   diver_timer         [env]          steps until the next diver comes                      read, written
//   move_speed          [env]          steps between moves of an enemy                       read, written
//   ramp_index          [env]          how often the game got harder                         read, written
//   time_step           [env]          steps since the episode began                         read, written
//   observation         [env, agent, row, column, channel]                                   written
//   reward              [env, agent]   enemies shot; oxygen left, where all six came up      written
//   terminated          [env]          hit, out of oxygen, or up with nobody aboard          written
//   truncated           [env]          time is up                                            written
extern "C" __global__ void minatar_seaquest_step(
    const unsigned int* seed, const long long* env_step, const int* action, signed char* last_action,
    signed char* sub_x, signed char* sub_y, bool* faces_right, short* oxygen, int* num_aboard, bool* is_up,
    signed char* shot_timer, long long* bullet, long long* enemy_bullet, int* enemy, signed char* num_enemies,
    int* diver, signed char* spawn_speed, signed char* spawn_timer, signed char* diver_timer, signed char* move_speed,
    signed char* ramp_index, int* time_step, bool* observation, float* reward, bool* terminated, bool* truncated)
{
    const int env = env_index();
    if (env >= NUM_ENVS || first_agent() != 0) return;
    Random random(seed, env, 0, env_step[env]);
    const int played = played_action(env, action, last_action, random);
    int x = sub_x[env], y = sub_y[env], until_shot = shot_timer[env], air = oxygen[env], aboard = num_aboard[env];
    int enemy_every = spawn_speed[env], until_enemy = spawn_timer[env], until_diver = diver_timer[env];
    int speed = move_speed[env], num_ramps = ramp_index[env], num_here = num_enemies[env], paid = 0;
    bool is_right = faces_right[env], was_up = is_up[env], is_over = false;
    Bullets bullets = {{load_board(bullet, 2 * env), load_board(bullet, 2 * env + 1)}};
    Board enemy_bullets[2] = {load_board(enemy_bullet, 2 * env), load_board(enemy_bullet, 2 * env + 1)};
    int* const kept = enemy + (long long)env * MOST_ENEMIES;
    int* const enemies = enemies_of_env();
    for (int i = 0; i < num_here; ++i) enemies[i] = kept[i];
    int divers[NUM_DIVERS];
    for (int i = 0; i < NUM_DIVERS; ++i) divers[i] = diver[env * NUM_DIVERS + i];

    if (until_enemy == 0) {
        num_here = spawn_enemy(enemies, num_here, speed, random);
        until_enemy = enemy_every;
    }
    if (until_diver == 0) {
        const bool goes_right = random.below(2) == 0;
        const int one = entering(1 + random.below(LOWEST), goes_right, DIVER_MOVE_SPEED);
        bool is_placed = false;
        for (int i = 0; i < NUM_DIVERS; ++i) {
            if (divers[i] == GONE && !is_placed) {
                divers[i] = one;
                is_placed = true;
            }
        }
        until_diver = DIVER_SPAWN_SPEED;
    }

    if (played == FIRE && until_shot == 0) {
        bullets.side[is_right].set(y, x);
        until_shot = SHOT_TIME;
    }
    if (played == LEFT || played == RIGHT) {
        is_right = played == RIGHT;
        x = is_inside(beside(x, is_right)) ? beside(x, is_right) : x;
    }
    if (played == UP && y > 0) --y;
    if (played == DOWN && y < LOWEST) ++y;
    const int here = y << ROW | x;

    move(bullets.side);
    for (int subs = 0; subs < 2; ++subs) {  // of fish and subs in one cell, a fish is hit
        if (bullets.side[TO_LEFT].is_empty() && bullets.side[TO_RIGHT].is_empty()) break;
        for (int i = 0; i < num_here; ++i) {
            if (enemies[i] != GONE && ((enemies[i] & IS_SUB) != 0) == subs && bullets.hit(enemies[i])) {
                enemies[i] = GONE;
                ++paid;
            }
        }
    }

    for (int i = NUM_DIVERS - 1; i >= 0; --i) {
        int one = divers[i];
        if (one == GONE) continue;
        bool is_aboard = (one & CELL) == here && aboard < MOST_ABOARD, moved = false;
        if (!is_aboard) {
            one = swum(one, DIVER_MOVE_SPEED, &moved);
            is_aboard = moved && one != GONE && (one & CELL) == here && aboard < MOST_ABOARD;
        }
        aboard += is_aboard;
        divers[i] = is_aboard ? GONE : one;
    }

    // Subs, then their bullets, then fish; the last to come first.
    for (int subs = 1; subs >= 0; --subs) {
        for (int i = num_here - 1; i >= 0; --i) {
            const int one = enemies[i];
            if (one == GONE || ((one & IS_SUB) != 0) != subs) continue;
            is_over |= (one & CELL) == here;
            bool moved;
            int next = swum(one, speed, &moved);
            bool is_hit = false;
            if (moved && next != GONE) {
                if ((next & CELL) == here) {
                    is_over = true;
                } else {
                    is_hit = bullets.hit(next);
                    paid += is_hit;
                }
            }
            if (subs && next != GONE) {  // one that is hit may still shoot
                const int until = timer_of(next, SHOT_TIMER);
                if (until == 0) enemy_bullets[(next & GOES_RIGHT) != 0].set(row_of(next), column_of(next));
                next = with_timer(next, SHOT_TIMER, until == 0 ? ENEMY_SHOT_TIME : until - 1);
            }
            enemies[i] = is_hit ? GONE : next;
        }
        if (subs) {
            is_over |= enemy_bullets[TO_LEFT].has(y, x) || enemy_bullets[TO_RIGHT].has(y, x);
            move(enemy_bullets);
            is_over |= enemy_bullets[TO_LEFT].has(y, x) || enemy_bullets[TO_RIGHT].has(y, x);
        }
    }

    if (until_enemy > 0) --until_enemy;
    if (until_diver > 0) --until_diver;
    if (until_shot > 0) --until_shot;
    is_over |= air <= 0;
    if (y > 0) {
        air = max(air - 1, -1);
        was_up = false;
    } else if (!was_up && aboard == 0) {
        is_over = true;
    } else if (!was_up) {
        was_up = true;
        if (aboard == MOST_ABOARD) {
            paid += air * SIDE / MOST_OXYGEN;
            aboard = 0;
        }
        --aboard;  // of six, too: then it counts -1, and the next ascent needs nobody
        air = MOST_OXYGEN;
        if (DIFFICULTY_RAMPING && (enemy_every > 1 || speed > LEAST_MOVE_SPEED)) {
            if (speed > LEAST_MOVE_SPEED && num_ramps % 2) --speed;
            if (enemy_every > 1) --enemy_every;
            ++num_ramps;
        }
    }

    Picture picture;
    int num_left = 0;
    for (int i = 0; i < num_here; ++i) {
        const int one = enemies[i];
        if (one == GONE) continue;
        show_swimmer(picture, one, one & IS_SUB ? ENEMY_SUB : FISH);
        kept[num_left++] = one;
    }
    for (int i = num_left; i < num_here; ++i) kept[i] = 0;
    int first = 0;  // divers are packed as well
    for (int i = 0; i < NUM_DIVERS; ++i) {
        if (divers[i] == GONE) continue;
        show_swimmer(picture, divers[i], DIVER);
        diver[env * NUM_DIVERS + first++] = divers[i];
    }
    for (; first < NUM_DIVERS; ++first) diver[env * NUM_DIVERS + first] = GONE;
    show_sub(picture, x, y, is_right, air, aboard);
    picture.set(bullets.side[TO_LEFT] | bullets.side[TO_RIGHT], 1u << BULLET);
    picture.set(enemy_bullets[TO_LEFT] | enemy_bullets[TO_RIGHT], 1u << ENEMY_BULLET);

    sub_x[env] = x;
    sub_y[env] = y;
    faces_right[env] = is_right;
    oxygen[env] = air;
    num_aboard[env] = aboard;
    is_up[env] = was_up;
    shot_timer[env] = until_shot;
    num_enemies[env] = num_left;
    spawn_speed[env] = enemy_every;
    spawn_timer[env] = until_enemy;
    diver_timer[env] = until_diver;
    move_speed[env] = speed;
    ramp_index[env] = num_ramps;
    for (int i = 0; i < 2; ++i) {
        store_board(bullets.side[i], bullet, 2 * env + i);
        store_board(enemy_bullets[i], enemy_bullet, 2 * env + i);
    }
    end_step(env, paid, is_over, time_step, reward, terminated, truncated);
    write_picture(env, picture, observation);
}

// Starts an ended env anew: the submarine alone, at the surface, facing left.
extern "C" __global__ void minatar_seaquest_reset(
    const bool* terminated, const bool* truncated, signed char* last_action, signed char* sub_x, signed char* sub_y,
    bool* faces_right, short* oxygen, int* num_aboard, bool* is_up, signed char* shot_timer, long long* bullet,
    long long* enemy_bullet, int* enemy, signed char* num_enemies, int* diver, signed char* spawn_speed,
    signed char* spawn_timer, signed char* diver_timer, signed char* move_speed, signed char* ramp_index,
    int* time_step, bool* observation)
{
    const int env = env_index();
    if (env >= NUM_ENVS || first_agent() != 0 || !(terminated[env] || truncated[env])) return;
    last_action[env] = NOTHING;
    sub_x[env] = START_X;
    sub_y[env] = 0;
    faces_right[env] = false;
    oxygen[env] = MOST_OXYGEN;
    num_aboard[env] = 0;
    is_up[env] = true;
    shot_timer[env] = 0;
    for (int i = 0; i < 2; ++i) {
        store_board({0, 0}, bullet, 2 * env + i);
        store_board({0, 0}, enemy_bullet, 2 * env + i);
    }
    for (int i = 0; i < MOST_ENEMIES; ++i) enemy[(long long)env * MOST_ENEMIES + i] = 0;
    num_enemies[env] = 0;
    for (int i = 0; i < NUM_DIVERS; ++i) diver[env * NUM_DIVERS + i] = GONE;
    spawn_speed[env] = spawn_timer[env] = FIRST_SPAWN_SPEED;
    diver_timer[env] = DIVER_SPAWN_SPEED;
    move_speed[env] = FIRST_MOVE_SPEED;
    ramp_index[env] = 0;
    time_step[env] = 0;
    Picture picture;
    show_sub(picture, START_X, 0, false, MOST_OXYGEN, 0);
    write_picture_alone(env, picture, observation);
}
