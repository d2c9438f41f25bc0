// What recurrent policies remember, between a step of the envs and their reset.
//
// Constants:
//   GROUP_SIZE, FIRST_AGENT, ALL_AGENTS   agents of the group, and which they are of the env's
//   MEMORY_SIZE                           numbers that an agent remembers
//   MAX_TRUNCATIONS                       of an env in a rollout, of which memories are kept
//   HAS_ACTIVE                            whether agents may be out of the game
//   CREDITS_TEAM                          whether those who are out are judged, too, as if they remembered nothing
#include "warpdrive.cuh"

constexpr unsigned ALL_LANES = 0xffffffffu;
constexpr int ROWS = 8;  // of a warp: its lanes look at one each, then forget them together

// Ended episodes are forgotten; so do agents forget that are out of the game before the step or after it.
//   terminated, truncated  [env]  by the step                                              read
//   active, survived       [env, agent of all]  in the game before the step, and after it  read
//   num_truncated          [env]  truncations of the rollout before this step              read
//   memory                 [env, agent, MEMORY_SIZE]                                       read, written
//   final_memory           [MAX_TRUNCATIONS, env, agent, MEMORY_SIZE]  before each         written
//   num_rows               agents of the group in all envs
extern "C" __global__ void forget_memory(
    const bool* terminated, const bool* truncated, const bool* active, const bool* survived, const int* num_truncated,
    float* memory, float* final_memory, int num_rows)
{
    const int lane = threadIdx.x % 32;
    for (long long first = global_thread() / 32 * ROWS; first < num_rows; first += num_global_threads() / 32 * ROWS) {
        const long long own = first + lane;
        bool ends = false, is_out = false;
        int number = MAX_TRUNCATIONS;
        if (lane < ROWS && own < num_rows) {
            const long long env = own / GROUP_SIZE;
            const long long agent = env * ALL_AGENTS + FIRST_AGENT + own % GROUP_SIZE;
            is_out = HAS_ACTIVE && !(active[agent] && survived[agent]);
            ends = is_out || terminated[env] || truncated[env];
            if (truncated[env]) number = num_truncated[env];
        }
        const unsigned out = __ballot_sync(ALL_LANES, is_out);
        for (unsigned left = __ballot_sync(ALL_LANES, ends); left != 0; left &= left - 1) {
            const int which = __ffs((int)left) - 1;
            const int of_row = __shfl_sync(ALL_LANES, number, which);
            const bool is_nothing = CREDITS_TEAM && (out >> which & 1) != 0;
            for (int i = lane; i < MEMORY_SIZE; i += 32) {
                float* place = memory + (first + which) * MEMORY_SIZE + i;
                const long long row = of_row * (long long)num_rows + first + which;
                if (of_row < MAX_TRUNCATIONS) final_memory[row * MEMORY_SIZE + i] = is_nothing ? 0.0f : *place;
                *place = 0.0f;
            }
        }
    }
}
