// Takes a window of NUM_STEPS steps of all envs into the rings, in one launch: some blocks look at how the steps ended,
// and keep what truncated episodes saw last; the others copy the fields. Of a small grid each block does both.
//
// Constants:
//   NUM_STEPS        of a window
//   NUM_SLOTS        of a ring
//   NUM_SIDES        truncations of an env whose last observations are kept
//   MAX_TRUNCATIONS  of an env in a window, whose last observations it has
//   ENVS_OF_BLOCK    that a block looks at together, one a thread
#pragma once
#include "warpdrive.cuh"

static_assert(NUM_STEPS <= NUM_SLOTS, "a window is longer than the ring");

// Blocks that share a piece of work.
struct Crew {
    int me, count;  // below 0 or not below the count: this block is not one of them

    __device__ __forceinline__ bool has_me() const { return me >= 0 && me < count; }
    __device__ __forceinline__ long long thread() const { return (long long)me * blockDim.x + threadIdx.x; }
    __device__ __forceinline__ long long num_threads() const { return (long long)count * blockDim.x; }
};

struct Crews {
    int num_envs;  // that a block looks at together
    Crew of_steps, of_rows;

    __device__ __forceinline__ Crews() : num_envs(blockDim.x < ENVS_OF_BLOCK ? (int)blockDim.x : ENVS_OF_BLOCK)
    {
        const int block = (int)blockIdx.x, all = (int)gridDim.x;
        const int wanted = (NUM_ENVS + num_envs - 1) / num_envs;
        const bool are_apart = all >= 2 * wanted;  // those of steps first: they take longest
        of_steps = {block, are_apart ? wanted : all};
        of_rows = are_apart ? Crew{block - wanted, all - wanted} : Crew{block, all};
    }
};

// Brings the head up to this window's end once all blocks have read it. All threads call it, after they have.
//   head  [2]  steps so far, twice; the second also counts the blocks that have read the first  read, written
__device__ __forceinline__ void move_head(long long begin, long long* head)
{
    __syncthreads();
    if (threadIdx.x > 0) return;
    const unsigned long long seen = atomicAdd((unsigned long long*)head + 1, 1ull);
    if (seen - (unsigned long long)begin == gridDim.x - 1u) head[0] = head[1] = begin + NUM_STEPS;
}

constexpr int STEPS_AT_ONCE = 16;  // whose ends a thread reads together: no read waits for what is written

// How each step ended, and which row of the sides takes what a truncated episode saw last.
//   terminated, truncated  [step, env]                                                              read
//   begin          steps before this window
//   done           [slot, env]  0 goes on, 1 terminated, 2 + r truncated, seen last in row r        written
//   side_step      [side, env]  the step whose last observations the row holds, and 1; 0: none yet  read, written
//   num_truncated  [env]        rows given so far                                                   read, written
//   num_dropped    [env]        truncations that had no room, or whose row was needed again         read, written
//   side_of        [truncation, env]  row for the window's k-th truncation of an env, or -1         written
template <typename Done>
__device__ __forceinline__ void add_steps(
    const bool* terminated, const bool* truncated, long long begin, long long env, Done* done, long long* side_step,
    long long* num_truncated, long long* num_dropped, int* side_of)
{
    const long long oldest = begin + NUM_STEPS - NUM_SLOTS;  // that the ring holds after this window
    const int base = (int)(begin % NUM_SLOTS);
    long long num_rows = num_truncated[env];
    long long dropped = 0;
    int k = 0;
    for (int i = 0; i < MAX_TRUNCATIONS; ++i) side_of[(long long)i * NUM_ENVS + env] = -1;
    long long place = num_rows % NUM_SIDES * NUM_ENVS + env;  // of the row that the next truncation gets
    long long owner = side_step[place] - 1;                    // the step that has it, read ahead, too
    unsigned ends[2] = {0u, 0u};  // terminated, truncated: a bit a step
    for (int t = 0; t < NUM_STEPS; ++t) {
        const int bit = t % STEPS_AT_ONCE;
        if (bit == 0) {
            ends[0] = ends[1] = 0u;
#pragma unroll
            for (int i = 0; i < STEPS_AT_ONCE; ++i) {
                const int step = t + i < NUM_STEPS ? t + i : NUM_STEPS - 1;
                ends[0] |= (unsigned)terminated[(long long)step * NUM_ENVS + env] << i;
                ends[1] |= (unsigned)truncated[(long long)step * NUM_ENVS + env] << i;
            }
        }
        const int slot = base + t < NUM_SLOTS ? base + t : base + t - NUM_SLOTS;
        const bool is_terminated = ends[0] >> bit & 1u;
        const bool is_truncated = ends[1] >> bit & 1u;
        int code = is_terminated || is_truncated;
        if (is_truncated) {
            if (!is_terminated && k < MAX_TRUNCATIONS) {
                const int row = (int)(num_rows++ % NUM_SIDES);
                if (owner >= 0 && owner >= oldest) {  // its step is still there, and loses its future
                    done[owner % NUM_SLOTS * NUM_ENVS + env] = (Done)1;
                    for (int i = 0; i < k; ++i) {
                        int* of_earlier = side_of + (long long)i * NUM_ENVS + env;
                        if (*of_earlier == row) *of_earlier = -1;
                    }
                    ++dropped;
                }
                side_step[place] = begin + t + 1;
                side_of[(long long)k * NUM_ENVS + env] = row;
                code = 2 + row;
                place = num_rows % NUM_SIDES * NUM_ENVS + env;
                owner = side_step[place] - 1;
            } else if (!is_terminated) {
                ++dropped;
            }
            ++k;
        }
        done[(long long)slot * NUM_ENVS + env] = (Done)code;
    }
    num_truncated[env] = num_rows;
    if (dropped) num_dropped[env] += dropped;
}

// Copies rows of a window, of NUM_RUNS runs of WORDS words each, behind each other into a ring of RING rows.
//   window  strided, in words  read
//   ring    [RING, NUM_RUNS, WORDS]  written
//   first   row of the ring that takes the window's first
template <typename Word, int WORDS, int NUM_RUNS, long long RUN_STRIDE, long long STEP_STRIDE, int RING>
__device__ __forceinline__ void add_rows(
    const Crew& crew, const unsigned char* window, unsigned char* ring, int first, int num_rows)
{
    const Word* from = (const Word*)window;
    Word* to = (Word*)ring;
    constexpr long long ROW = (long long)NUM_RUNS * WORDS;
    // What a later row will overwrite is left out.
    const int begin = num_rows > RING ? num_rows - RING : 0;
#pragma unroll 4
    for (long long i = begin * ROW + crew.thread(); i < num_rows * ROW; i += crew.num_threads()) {
        const int t = (int)(i / ROW);
        const long long within = i - t * ROW;
        const long long run = WORDS == ROW ? 0 : within / WORDS;
        int row = first + t;
        row = row < RING ? row : row - RING;
        const Word* place = from + t * STEP_STRIDE + run * RUN_STRIDE + (within - run * WORDS);
#ifndef WARPDRIVE_CPU
        if constexpr (sizeof(Word) == 16) {  // neither is soon read again
            __stcs((uint4*)(to + row * ROW + within), __ldcs((const uint4*)place));
            continue;
        }
#endif
        to[row * ROW + within] = *place;
    }
}

// What truncated episodes saw last, into the rows that add_steps chose, of the envs that a block looks at together.
//   last     [truncation, env, ...], strided, in words  read
//   side     [side, env, WORDS]                         written
//   side_of  [truncation, env]                          read
template <typename Word, int WORDS, long long ENV_STRIDE, long long STEP_STRIDE>
__device__ __forceinline__ void add_sides(
    const unsigned char* last, unsigned char* side, const int* side_of, long long first_env, int num_envs)
{
    const Word* from = (const Word*)last;
    Word* to = (Word*)side;
    if (num_envs > NUM_ENVS - first_env) num_envs = (int)(NUM_ENVS - first_env);
    for (int i = threadIdx.x; i < MAX_TRUNCATIONS * num_envs * WORDS; i += blockDim.x) {
        const int k = i / (num_envs * WORDS);
        const long long env = first_env + i / WORDS % num_envs;
        const int word = i % WORDS;
        const int row = side_of[k * (long long)NUM_ENVS + env];
        if (row < 0) continue;
        to[((long long)row * NUM_ENVS + env) * WORDS + word] = from[k * STEP_STRIDE + env * ENV_STRIDE + word];
    }
}
