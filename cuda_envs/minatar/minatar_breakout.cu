// MinAtar's Breakout. One agent an env: one thread plays all of it.
#include "minatar.cuh"

enum Channel { PADDLE, BALL, TRAIL, BRICK };

constexpr int FIRST_BRICK_ROW = 1;
constexpr int ALL_BRICKS = (1 << 3 * SIDE) - 1;  // three rows, bit 10 * (row - FIRST_BRICK_ROW) + column

__device__ __forceinline__ Picture picture_of(int paddle_x, int ball_x, int ball_y, int trail_x, int trail_y, int brick)
{
    Picture picture;
    picture.set({(unsigned long long)brick << FIRST_BRICK_ROW * SIDE, 0}, 1u << BRICK);
    picture.set(LAST, paddle_x, PADDLE);
    picture.set(ball_y, ball_x, BALL);
    picture.set(trail_y, trail_x, TRAIL);
    return picture;
}

// Moves the paddle, then the ball by one cell along its diagonal.
//   action                [env, agent]                        number in ACTIONS                  read
//   last_action           [env]                               what was done                      read, written
//   paddle_x              [env]                               column, in the lowest row          read, written
//   ball_x, ball_y        [env]                               column and row                     read, written
//   ball_dx, ball_dy      [env]                               -1 or 1 cells a step               read, written
//   trail_x, trail_y      [env]                               where the ball was                 written
//   brick                 [env]                               a bit each, as ALL_BRICKS          read, written
//   strikes               [env]                               whether the ball just hit a brick  read, written
//   time_step             [env]                               steps since the episode began      read, written
//   observation           [env, agent, row, column, channel]                                     written
//   reward                [env, agent]                        bricks broken                      written
//   terminated            [env]                               the ball is lost                   written
//   truncated             [env]                               time is up                         written
extern "C" __global__ void minatar_breakout_step(
    const unsigned int* seed, const long long* env_step, const int* action, signed char* last_action,
    signed char* paddle_x, signed char* ball_x, signed char* ball_y, signed char* ball_dx, signed char* ball_dy,
    signed char* trail_x, signed char* trail_y, int* brick, bool* strikes, int* time_step, bool* observation,
    float* reward, bool* terminated, bool* truncated)
{
    const int env = env_index();
    if (env >= NUM_ENVS || first_agent() != 0) return;
    Random random(seed, env, 0, env_step[env]);
    const int played = played_action(env, action, last_action, random);

    int paddle = paddle_x[env];
    if (played == LEFT && paddle > 0) --paddle;
    if (played == RIGHT && paddle < LAST) ++paddle;

    const int old_x = ball_x[env], old_y = ball_y[env];
    int dx = ball_dx[env], dy = ball_dy[env], bricks = brick[env], paid = 0;
    int x = old_x + dx, y = min(old_y + dy, LAST);  // a lost ball falls no further
    bool is_lost = false, is_on_brick = false;
    if (!is_inside(x)) {  // off a side wall
        x = old_x;
        dx = -dx;
    }
    const int brick_row = y - FIRST_BRICK_ROW;
    const int target = brick_row >= 0 && brick_row < 3 ? 1 << (brick_row * SIDE + x) : 0;
    if (y < 0) {
        y = 0;
        dy = -dy;
    } else if (bricks & target) {
        is_on_brick = true;
        if (!strikes[env]) {  // one at a time: right after a hit, the ball flies through the next
            paid = 1;
            bricks &= ~target;
            y = old_y;
            dy = -dy;
        }
    } else if (y == LAST) {
        if (bricks == 0) bricks = ALL_BRICKS;
        if (old_x == paddle) {
            dy = -dy;
            y = old_y;
        } else if (x == paddle) {  // by its edge: back the way it came
            dx = -dx;
            dy = -dy;
            y = old_y;
        } else {
            is_lost = true;
        }
    }
    paddle_x[env] = paddle;
    ball_x[env] = x;
    ball_y[env] = y;
    ball_dx[env] = dx;
    ball_dy[env] = dy;
    trail_x[env] = old_x;
    trail_y[env] = old_y;
    brick[env] = bricks;
    strikes[env] = is_on_brick;
    end_step(env, paid, is_lost, time_step, reward, terminated, truncated);
    write_picture(env, picture_of(paddle, x, y, old_x, old_y, bricks), observation);
}

// Starts an ended env anew: three rows of bricks, and a ball that comes down from either side.
extern "C" __global__ void minatar_breakout_reset(
    const bool* terminated, const bool* truncated, const unsigned int* seed, const long long* env_step,
    signed char* last_action, signed char* paddle_x, signed char* ball_x, signed char* ball_y, signed char* ball_dx,
    signed char* ball_dy, signed char* trail_x, signed char* trail_y, int* brick, bool* strikes, int* time_step,
    bool* observation)
{
    const int env = env_index();
    if (env >= NUM_ENVS || first_agent() != 0 || !(terminated[env] || truncated[env])) return;
    constexpr int start_y = 3, start_paddle = 4;
    const bool from_left = Random(seed, env, 0, env_step[env], STREAM_RESET).below(2) == 0;
    const int x = from_left ? 0 : LAST;
    last_action[env] = NOTHING;
    paddle_x[env] = start_paddle;
    ball_x[env] = trail_x[env] = x;
    ball_y[env] = trail_y[env] = start_y;
    ball_dx[env] = from_left ? 1 : -1;
    ball_dy[env] = 1;
    brick[env] = ALL_BRICKS;
    strikes[env] = false;
    time_step[env] = 0;
    write_picture_alone(env, picture_of(start_paddle, x, start_y, x, start_y, ALL_BRICKS), observation);
}
