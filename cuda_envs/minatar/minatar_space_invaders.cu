// MinAtar's Space Invaders. One agent an env: one thread plays all of it.
#include "minatar.cuh"

enum Channel { CANNON, ALIEN, ALIEN_LEFT, ALIEN_RIGHT, BULLET, ALIEN_BULLET };

constexpr int SHOT_TIME = 5;         // steps from one of the cannon's shots to the next
constexpr int ALIEN_SHOT_TIME = 10;  // and of the aliens'
constexpr int FIRST_MOVE_INTERVAL = 12, LEAST_MOVE_INTERVAL = 6;
constexpr int START_X = 5;
// Rows 0 to 3, columns 2 to 7.
constexpr unsigned long long WAVE_ROW = 0xfcull;
constexpr unsigned long long WAVE = WAVE_ROW | WAVE_ROW << SIDE | WAVE_ROW << 2 * SIDE | WAVE_ROW << 3 * SIDE;

__device__ __forceinline__ Board column_of(Board board, int column)
{
    const unsigned long long cells = FIRST_COLUMN << column;
    return board & Board{cells, cells};
}

// Where the alien stands that shoots: the lowest of the column nearest to the cannon, the left one of two.
//   columns  [10] a bit a column where aliens are, not all 0
__device__ __forceinline__ int nearest_column(unsigned columns, int cannon_x)
{
    for (int distance = 0; distance < SIDE; ++distance) {
        const int left = cannon_x - distance, right = cannon_x + distance;
        if (left >= 0 && (columns >> left & 1)) return left;
        if (right <= LAST && (columns >> right & 1)) return right;
    }
    return 0;
}

// The columns of a board where anything is, a bit each.
__device__ __forceinline__ unsigned columns_of(Board board)
{
    unsigned long long rows = board.upper | board.lower;
    rows |= rows >> 2 * SIDE | rows >> 4 * SIDE;
    return (unsigned)(rows | rows >> SIDE) & (unsigned)TOP_ROW;
}

// The cell of the lowest of those in one column, numbered over the half that it is in.
__device__ __forceinline__ Board lowest_of(Board column)
{
    if (column.lower != 0) return {0, 1ull << (63 - __clzll(column.lower))};
    return {1ull << (63 - __clzll(column.upper)), 0};
}

__device__ __forceinline__ Picture picture_of(
    int cannon_x, Board aliens, int alien_dx, Board bullets, Board alien_bullets)
{
    Picture picture;
    picture.set(LAST, cannon_x, CANNON);
    picture.set(aliens, 1u << ALIEN | 1u << (alien_dx < 0 ? ALIEN_LEFT : ALIEN_RIGHT));
    picture.set(bullets, 1u << BULLET);
    picture.set(alien_bullets, 1u << ALIEN_BULLET);
    return picture;
}

// Moves the cannon, the bullets, and, every few steps, the aliens.
//   action            [env, agent]  number in ACTIONS                                read
//   last_action       [env]         what was done                                    read, written
//   cannon_x          [env]         column, in the lowest row                        read, written
//   shot_timer        [env]         steps until the cannon can shoot                 read, written
//   alien             [env, 2]      a Board, as all of these                         read, written
//   bullet            [env, 2]      the cannon's                                     read, written
//   alien_bullet      [env, 2]                                                       read, written
//   alien_dx          [env]         -1 or 1 cells a move                             read, written
//   alien_move_timer  [env]         steps until the aliens move                      read, written
//   alien_shot_timer  [env]         steps until one of them shoots                   read, written
//   move_interval     [env]         most steps from one of their moves to the next   read, written
//   time_step         [env]         steps since the episode began                    read, written
//   observation       [env, agent, row, column, channel]                             written
//   reward            [env, agent]  aliens shot                                      written
//   terminated        [env]         the cannon is hit, or the aliens have landed     written
//   truncated         [env]         time is up                                       written
extern "C" __global__ void minatar_space_invaders_step(
    const unsigned int* seed, const long long* env_step, const int* action, signed char* last_action,
    signed char* cannon_x, signed char* shot_timer, long long* alien, long long* bullet, long long* alien_bullet,
    signed char* alien_dx, signed char* alien_move_timer, signed char* alien_shot_timer, signed char* move_interval,
    int* time_step, bool* observation, float* reward, bool* terminated, bool* truncated)
{
    const int env = env_index();
    if (env >= NUM_ENVS || first_agent() != 0) return;
    Random random(seed, env, 0, env_step[env]);
    const int played = played_action(env, action, last_action, random);
    Board aliens = load_board(alien, env), bullets = load_board(bullet, env);
    Board alien_bullets = load_board(alien_bullet, env);
    int x = cannon_x[env], until_shot = shot_timer[env], dx = alien_dx[env];
    int until_move = alien_move_timer[env], until_alien_shot = alien_shot_timer[env], interval = move_interval[env];
    bool is_over = false;

    if (played == FIRE && until_shot == 0) {
        bullets.set(LAST, x);
        until_shot = SHOT_TIME;
    }
    if (played == LEFT && x > 0) --x;
    if (played == RIGHT && x < LAST) ++x;

    bullets = moved_up(bullets);
    alien_bullets = rolled_down(alien_bullets);
    alien_bullets.upper &= ~TOP_ROW;  // what was in the last row is gone
    is_over |= alien_bullets.has(LAST, x) || aliens.has(LAST, x);
    if (until_move == 0) {
        const int num_aliens = aliens.count();
        until_move = num_aliens < interval ? num_aliens : interval;
        if (!column_of(aliens, dx < 0 ? 0 : LAST).is_empty()) {  // at an edge: down, and back
            dx = -dx;
            is_over |= (aliens.lower & TOP_ROW << 4 * SIDE) != 0;
            aliens = rolled_down(aliens);
        } else {
            aliens = moved_aside(aliens, dx > 0);
        }
        is_over |= aliens.has(LAST, x);
    }
    if (until_alien_shot == 0) {
        until_alien_shot = ALIEN_SHOT_TIME;
        alien_bullets = alien_bullets | lowest_of(column_of(aliens, nearest_column(columns_of(aliens), x)));
    }
    const Board hit = aliens & bullets;
    aliens = aliens - hit;
    bullets = bullets - hit;
    if (until_shot > 0) --until_shot;
    --until_move;
    --until_alien_shot;
    if (aliens.is_empty()) {
        if (DIFFICULTY_RAMPING && interval > LEAST_MOVE_INTERVAL) --interval;
        aliens = {WAVE, 0};
    }
    cannon_x[env] = x;
    shot_timer[env] = until_shot;
    store_board(aliens, alien, env);
    store_board(bullets, bullet, env);
    store_board(alien_bullets, alien_bullet, env);
    alien_dx[env] = dx;
    alien_move_timer[env] = until_move;
    alien_shot_timer[env] = until_alien_shot;
    move_interval[env] = interval;
    end_step(env, hit.count(), is_over, time_step, reward, terminated, truncated);
    write_picture(env, picture_of(x, aliens, dx, bullets, alien_bullets), observation);
}

// Starts an ended env anew: a whole wave of aliens that sets out to the left.
extern "C" __global__ void minatar_space_invaders_reset(
    const bool* terminated, const bool* truncated, signed char* last_action, signed char* cannon_x,
    signed char* shot_timer, long long* alien, long long* bullet, long long* alien_bullet, signed char* alien_dx,
    signed char* alien_move_timer, signed char* alien_shot_timer, signed char* move_interval, int* time_step,
    bool* observation)
{
    const int env = env_index();
    if (env >= NUM_ENVS || first_agent() != 0 || !(terminated[env] || truncated[env])) return;
    const Board nothing = {0, 0}, wave = {WAVE, 0};
    last_action[env] = NOTHING;
    cannon_x[env] = START_X;
    shot_timer[env] = 0;
    store_board(wave, alien, env);
    store_board(nothing, bullet, env);
    store_board(nothing, alien_bullet, env);
    alien_dx[env] = -1;
    move_interval[env] = alien_move_timer[env] = FIRST_MOVE_INTERVAL;
    alien_shot_timer[env] = ALIEN_SHOT_TIME;
    time_step[env] = 0;
    write_picture_alone(env, picture_of(START_X, wave, -1, nothing, nothing), observation);
}
