// Deep sea. One agent an env: one thread does all of it.
#include "bsuite.cuh"

// Dives a row deeper, to the left or to the right.
//   action           [env, agent]               0 or 1; which of them is right, the cell decides  read
//   right            [row, column]              the action that is right there                    read
//   row, column      [env]                      of the diver, from the upper left                 read, written
//   strayed          [env]                      whether it left the way to the treasure           read, written
//   episode_return   [env]                      of the episode so far                             read, written
//   num_episodes, total_return, total_bad_episodes, denoised_return  [env]  see bsuite.cuh        read, written
//   observation      [env, agent, row, column]  1 where the diver is; all 0 at the ground         written
//   reward           [env, agent]               1 for the treasure, less what going right costs   written
//   terminated       [env]                      the diver is at the ground                        written
//   truncated        [env]                      never                                             written
extern "C" __global__ void deep_sea_step(
    const int* action, const unsigned char* right, const unsigned int* seed, const long long* env_step, int* row,
    int* column, bool* strayed, float* episode_return, long long* num_episodes, double* total_return,
    long long* total_bad_episodes, long long* denoised_return, unsigned char* observation, float* reward,
    bool* terminated, bool* truncated)
{
    const int env = env_index();
    if (env >= NUM_ENVS || first_agent() != 0) return;

    const int depth = min(row[env], SIZE - 1);  // who nobody lets begin anew stays at the ground
    const int place = column[env];
    const bool goes_right = action[env] == right[depth * SIZE + place];
    const bool is_paid = goes_right && place == SIZE - 1;
    const bool ends = depth == SIZE - 1;
    bool arrives = goes_right;
    float paid = goes_right ? (is_paid ? PAID_FOR_TREASURE : -MOVE_COST) : 0.0f;
    if (!DETERMINISTIC) {
        Random random(seed, env, 0, env_step[env]);
        const bool is_carried_off = random.uniform() < 1.0f / SIZE;
        arrives = goes_right && !is_carried_off;
        if (ends && (place == 0 || place == SIZE - 1)) paid += random.normal();
    }
    const int next = goes_right ? (arrives ? min(place + 1, SIZE - 1) : place) : max(place - 1, 0);
    const bool is_bad = strayed[env] || (!goes_right && depth == place);
    const float sum = episode_return[env] + paid;
    if (is_paid) denoised_return[env] += 1;
    if (ends) {
        if (is_bad) total_bad_episodes[env] += 1;
        count_episode(env, sum, num_episodes, total_return);
    }
    row[env] = depth + 1;
    column[env] = next;
    strayed[env] = is_bad;
    episode_return[env] = sum;
    reward[env] = paid;
    terminated[env] = ends;
    truncated[env] = false;
    show_cells<SIZE * SIZE>(env, ends ? -1 : (depth + 1) * SIZE + next, -1, observation);
}

// Lets the diver of an ended env begin anew, in the upper left.
extern "C" __global__ void deep_sea_reset(
    const bool* terminated, const bool* truncated, int* row, int* column, bool* strayed, float* episode_return,
    unsigned char* observation)
{
    const int env = env_index();
    if (env >= NUM_ENVS || first_agent() != 0 || !(terminated[env] || truncated[env])) return;

    row[env] = 0;
    column[env] = 0;
    strayed[env] = false;
    episode_return[env] = 0.0f;
    show_cells<SIZE * SIZE>(env, 0, -1, observation);
}
