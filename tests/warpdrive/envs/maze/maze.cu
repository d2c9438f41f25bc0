#include "warpdrive.cuh"
#include "random.cuh"

// Writes whether there are walls to the right, below, to the left and above.
__device__ void observe(const bool* wall, int row, int column, int env, float* observation)
{
    const bool* here = wall + row * NUM_COLUMNS + column;
    const int step[4] = {1, NUM_COLUMNS, -1, -NUM_COLUMNS};
    for (int side = 0; side < 4; ++side) observation[4 * env + side] = here[step[side]] ? 1.0f : 0.0f;
}

// Walks to the next cell unless a wall is there, and is paid what the cell is worth.
//   action       [env, agent]           0 right, 1 down, 2 left, 3 up      read
//   wall         [row, column]          a table                            read
//   prize        [row, column]          a table; above 0 is a goal         read
//   row, column  [env]                                                     read, written
//   patience     [env]                  steps until the episode is cut off read, written
//   observation  [env, agent, side]     walls beside the walker            written
//   reward       [env, agent]                                              written
//   terminated   [env]                  at a goal                          written
//   truncated    [env]                  patience has run out               written
extern "C" __global__ void maze_step(
    const int* action, const bool* wall, const float* prize, int* row, int* column, int* patience,
    float* observation, float* reward, bool* terminated, bool* truncated)
{
    const int env = env_index();
    if (env >= NUM_ENVS || first_agent() != 0) return;  // one agent: one thread does all
    const int move = action[env];
    const int next_row = row[env] + (move == 1) - (move == 3);
    const int next_column = column[env] + (move == 0) - (move == 2);
    if (!wall[next_row * NUM_COLUMNS + next_column]) {
        row[env] = next_row;
        column[env] = next_column;
    }
    const float paid = prize[row[env] * NUM_COLUMNS + column[env]];
    patience[env] -= 1;
    reward[env] = paid;
    terminated[env] = paid > 0.0f;
    truncated[env] = !terminated[env] && patience[env] <= 0;
    observe(wall, row[env], column[env], env, observation);
}

// Starts an ended env at a row of the pool, with all its patience.
extern "C" __global__ void maze_reset(
    const bool* terminated, const bool* truncated, const unsigned* seed, const long long* env_step, const bool* wall,
    const int* pool_row, const int* pool_column, const int* start_patience, int* row, int* column, int* patience,
    float* observation)
{
    const int env = env_index();
    if (env >= NUM_ENVS || first_agent() != 0 || !(terminated[env] || truncated[env])) return;
    const int start = Random(seed, env, 0, env_step[env], STREAM_RESET).below(NUM_POOL_ROWS);
    row[env] = pool_row[start];
    column[env] = pool_column[start];
    patience[env] = start_patience[env];
    observe(wall, row[env], column[env], env, observation);
}
