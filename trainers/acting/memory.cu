// What recurrent policies remember, between a step of the envs and their reset.
//
// Constants:
//   GROUP_SIZE, FIRST_AGENT, ALL_AGENTS   agents of the group, and which they are of the env's
//   MEMORY_SIZE                           numbers that an agent remembers
//   MAX_TRUNCATIONS                       of an env in a rollout, of which memories are kept
//   HAS_ACTIVE                            whether agents may be out of the game
//   CREDITS_TEAM                          whether those who are out are judged, too, as if they remembered nothing
#include "warpdrive.cuh"

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
    const long long num_warps = num_global_threads() / 32;
    for (long long row = global_thread() / 32; row < num_rows; row += num_warps) {
        const long long env = row / GROUP_SIZE;
        const long long agent = env * ALL_AGENTS + FIRST_AGENT + row % GROUP_SIZE;
        const bool is_out = HAS_ACTIVE && !(active[agent] && survived[agent]);
        if (!is_out && !terminated[env] && !truncated[env]) continue;
        const int number = truncated[env] ? num_truncated[env] : MAX_TRUNCATIONS;
        for (int i = threadIdx.x % 32; i < MEMORY_SIZE; i += 32) {
            float* place = memory + row * MEMORY_SIZE + i;
            const float last = CREDITS_TEAM && is_out ? 0.0f : *place;
            if (number < MAX_TRUNCATIONS) final_memory[(number * (long long)num_rows + row) * MEMORY_SIZE + i] = last;
            *place = 0.0f;
        }
    }
}
