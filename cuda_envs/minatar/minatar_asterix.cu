// MinAtar's Asterix. One agent an env: one thread plays all of it.
#include "minatar.cuh"

enum Channel { PLAYER, ENEMY, TRAIL, GOLD };

constexpr int RAMP_INTERVAL = 100, FIRST_SPAWN_SPEED = 10, FIRST_MOVE_SPEED = 5;  // steps
constexpr int START_X = 5, START_Y = 5;

// Who walks along a row, a byte: the column, and these. 0 is nobody. Rows 1 to 8 have one each at most.
constexpr int COLUMN = 15, GOES_RIGHT = 16, IS_GOLD = 32, IS_THERE = 64;
constexpr int NUM_WALKERS = 8;
typedef unsigned long long Walkers;  // a byte each

__device__ __forceinline__ int walker_of(Walkers walkers, int i)
{
    return (int)(walkers >> 8 * i) & 255;
}

__device__ __forceinline__ Walkers with_walker(Walkers walkers, int i, int walker)
{
    return (walkers & ~(255ull << 8 * i)) | (Walkers)walker << 8 * i;
}

// An enemy, or gold in one of three cases, enters a free row from either side.
__device__ __forceinline__ Walkers spawned(Walkers walkers, Random& random)
{
    const bool goes_right = random.below(2) == 0;
    const bool is_gold = random.below(3) == 0;
    int num_free = 0;
    for (int i = 0; i < NUM_WALKERS; ++i) num_free += walker_of(walkers, i) == 0;
    if (num_free == 0) return walkers;
    int which = random.below(num_free);
    const int walker = IS_THERE | (goes_right ? GOES_RIGHT : LAST) | (is_gold ? IS_GOLD : 0);
    for (int i = 0; i < NUM_WALKERS; ++i) {
        if (walker_of(walkers, i) == 0 && which-- == 0) return with_walker(walkers, i, walker);
    }
    return walkers;
}

__device__ __forceinline__ Picture picture_of(int player_x, int player_y, Walkers walkers)
{
    Picture picture;
    picture.set(player_y, player_x, PLAYER);
    for (int i = 0; i < NUM_WALKERS; ++i) {
        const int walker = walker_of(walkers, i), x = walker & COLUMN;
        if (walker == 0) continue;
        picture.set(i + 1, x, walker & IS_GOLD ? GOLD : ENEMY);
        const int behind = beside(x, !(walker & GOES_RIGHT));
        if (is_inside(behind)) picture.set(i + 1, behind, TRAIL);
    }
    return picture;
}

// Moves the player, then, every few steps, all who walk: gold that is met is taken, enemies kill.
//   action              [env, agent]  number in ACTIONS                                  read
//   last_action         [env]         what was done                                      read, written
//   player_x, player_y  [env]         column and row                                     read, written
//   walker              [env, 8]      who walks along rows 1 to 8, a byte as above       read, written
//   spawn_speed         [env]         steps from one walker to the next                  read, written
//   spawn_timer         [env]         steps until the next walker comes                  read, written
//   move_speed          [env]         steps from one move of the walkers to the next     read, written
//   move_timer          [env]         steps until they move                              read, written
//   ramp_timer          [env]         steps until the game gets harder                   read, written
//   ramp_index          [env]         how often it has                                   read, written
//   time_step           [env]         steps since the episode began                      read, written
//   observation         [env, agent, row, column, channel]                               written
//   reward              [env, agent]  gold taken                                         written
//   terminated          [env]         met an enemy                                       written
//   truncated           [env]         time is up                                         written
extern "C" __global__ void minatar_asterix_step(
    const unsigned int* seed, const long long* env_step, const int* action, signed char* last_action,
    signed char* player_x, signed char* player_y, unsigned char* walker, signed char* spawn_speed,
    signed char* spawn_timer, signed char* move_speed, signed char* move_timer, signed char* ramp_timer,
    signed char* ramp_index, int* time_step, bool* observation, float* reward, bool* terminated, bool* truncated)
{
    const int env = env_index();
    if (env >= NUM_ENVS || first_agent() != 0) return;
    Random random(seed, env, 0, env_step[env]);
    const int played = played_action(env, action, last_action, random);
    Walkers walkers = reinterpret_cast<const Walkers*>(walker)[env];
    int until_spawn = spawn_timer[env], until_move = move_timer[env], until_ramp = ramp_timer[env];
    int spawn_every = spawn_speed[env], move_every = move_speed[env], num_ramps = ramp_index[env];
    int x = player_x[env], y = player_y[env], paid = 0;
    bool is_over = false;

    if (until_spawn == 0) {
        walkers = spawned(walkers, random);
        until_spawn = spawn_every;
    }
    if (played == LEFT && x > 0) --x;
    if (played == RIGHT && x < LAST) ++x;
    if (played == UP && y > 1) --y;
    if (played == DOWN && y < NUM_WALKERS) ++y;

    const int mine = y - 1;  // who walks along the player's row
    for (int moves = 0; moves < 2; ++moves) {  // they meet where they are, and where they go
        const int met = walker_of(walkers, mine);
        if (met != 0 && (met & COLUMN) == x) {
            if (met & IS_GOLD) {
                walkers = with_walker(walkers, mine, 0);
                ++paid;
            } else {
                is_over = true;
            }
        }
        if (moves == 1 || until_move != 0) break;
        until_move = move_every;
        for (int i = 0; i < NUM_WALKERS; ++i) {
            const int one = walker_of(walkers, i);
            if (one == 0) continue;
            const int to = beside(one & COLUMN, one & GOES_RIGHT);
            walkers = with_walker(walkers, i, is_inside(to) ? (one & ~COLUMN) | to : 0);
        }
    }
    --until_spawn;
    --until_move;
    if (DIFFICULTY_RAMPING && (spawn_every > 1 || move_every > 1)) {
        if (until_ramp >= 0) {
            --until_ramp;
        } else {
            if (move_every > 1 && num_ramps % 2) --move_every;
            if (spawn_every > 1) --spawn_every;
            ++num_ramps;
            until_ramp = RAMP_INTERVAL;
        }
    }
    player_x[env] = x;
    player_y[env] = y;
    reinterpret_cast<Walkers*>(walker)[env] = walkers;
    spawn_speed[env] = spawn_every;
    spawn_timer[env] = until_spawn;
    move_speed[env] = move_every;
    move_timer[env] = until_move;
    ramp_timer[env] = until_ramp;
    ramp_index[env] = num_ramps;
    end_step(env, paid, is_over, time_step, reward, terminated, truncated);
    write_picture(env, picture_of(x, y, walkers), observation);
}

// Starts an ended env anew: the player alone, in the middle.
extern "C" __global__ void minatar_asterix_reset(
    const bool* terminated, const bool* truncated, signed char* last_action, signed char* player_x,
    signed char* player_y, unsigned char* walker, signed char* spawn_speed, signed char* spawn_timer,
    signed char* move_speed, signed char* move_timer, signed char* ramp_timer, signed char* ramp_index, int* time_step,
    bool* observation)
{
    const int env = env_index();
    if (env >= NUM_ENVS || first_agent() != 0 || !(terminated[env] || truncated[env])) return;
    last_action[env] = NOTHING;
    player_x[env] = START_X;
    player_y[env] = START_Y;
    reinterpret_cast<Walkers*>(walker)[env] = 0;
    spawn_speed[env] = spawn_timer[env] = FIRST_SPAWN_SPEED;
    move_speed[env] = move_timer[env] = FIRST_MOVE_SPEED;
    ramp_timer[env] = RAMP_INTERVAL;
    ramp_index[env] = 0;
    time_step[env] = 0;
    write_picture_alone(env, picture_of(START_X, START_Y, 0), observation);
}
