// Catch. One agent an env: one thread does all of it.
#include "bsuite.cuh"

__device__ __forceinline__ void observe(int ball_x, int ball_y, int paddle_x, int env, unsigned char* observation)
{
    const int ball = ball_y * NUM_COLUMNS + ball_x;
    const int paddle = (NUM_ROWS - 1) * NUM_COLUMNS + paddle_x;
    show_cells<NUM_ROWS * NUM_COLUMNS>(env, ball, paddle, observation);
}

// Moves the paddle, then lets the ball fall by a row.
//   action            [env, agent]               0 left, 1 stay, 2 right                     read
//   ball_x            [env]                      column                                      read
//   ball_y            [env]                      row, 0 is the highest                       read, written
//   paddle_x          [env]                      column; it is in the lowest row             read, written
//   num_episodes, total_return, total_regret  [env]  see bsuite.cuh                          read, written
//   observation       [env, agent, row, column]  1 where the ball and the paddle are         written
//   reward            [env, agent]               1 if the ball is caught, -1 if not, 0 before  written
//   terminated        [env]                      the ball is down                            written
//   truncated         [env]                      never                                       written
extern "C" __global__ void catch_step(
    const int* action, const int* ball_x, int* ball_y, int* paddle_x, long long* num_episodes, double* total_return,
    long long* total_regret, unsigned char* observation, float* reward, bool* terminated, bool* truncated)
{
    const int env = env_index();
    if (env >= NUM_ENVS || first_agent() != 0) return;

    const int column = ball_x[env];
    const int row = min(ball_y[env] + 1, NUM_ROWS - 1);
    const int paddle = min(max(paddle_x[env] + action[env] - 1, 0), NUM_COLUMNS - 1);
    const bool ends = row == NUM_ROWS - 1;
    const float paid = !ends ? 0.0f : paddle == column ? 1.0f : -1.0f;
    if (ends) {
        if (paddle != column) total_regret[env] += 2;
        count_episode(env, paid, num_episodes, total_return);
    }
    ball_y[env] = row;
    paddle_x[env] = paddle;
    reward[env] = paid;
    terminated[env] = ends;
    truncated[env] = false;
    observe(column, row, paddle, env, observation);
}

// Drops a ball from any column of the highest row; the paddle is in the middle.
extern "C" __global__ void catch_reset(
    const bool* terminated, const bool* truncated, const unsigned int* seed, const long long* env_step, int* ball_x,
    int* ball_y, int* paddle_x, unsigned char* observation)
{
    const int env = env_index();
    if (env >= NUM_ENVS || first_agent() != 0 || !(terminated[env] || truncated[env])) return;

    const int column = Random(seed, env, 0, env_step[env], STREAM_RESET).below(NUM_COLUMNS);
    ball_x[env] = column;
    ball_y[env] = 0;
    paddle_x[env] = NUM_COLUMNS / 2;
    observe(column, 0, NUM_COLUMNS / 2, env, observation);
}
