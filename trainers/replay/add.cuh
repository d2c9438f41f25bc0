// Takes a window of NUM_STEPS steps of all envs into the rings. Two launches: add_steps and add_rows of each field, then
// add_sides.
//
// Constants:
//   NUM_STEPS        of a window
//   NUM_SLOTS        of a ring
//   NUM_SIDES        truncations of an env whose last observations are kept
//   MAX_TRUNCATIONS  of an env in a window, whose last observations it has
//
// The head is kept twice, so that no thread moves what another still reads: the first launch reads head[0] and leaves
// where it will be in head[1]; the second brings head[0] up to it.
#pragma once
#include "warpdrive.cuh"

static_assert(NUM_STEPS <= NUM_SLOTS, "a window is longer than the ring");

constexpr int STEPS_AT_ONCE = 16;  // whose ends a thread reads together: no read waits for what is written

// How each step ended, and which row of the sides takes what a truncated episode saw last.
//   terminated, truncated  [step, env]                                                              read
//   head           [2]          steps so far; see above                                             read, written
//   done           [slot, env]  0 goes on, 1 terminated, 2 + r truncated, seen last in row r        written
//   side_step      [side, env]  the step whose last observations the row holds, and 1; 0: none yet  read, written
//   num_truncated  [env]        rows given so far                                                   read, written
//   num_dropped    [env]        truncations that had no room, or whose row was needed again         read, written
//   side_of        [truncation, env]  row for the window's k-th truncation of an env, or -1         written
template <typename Done>
__device__ __forceinline__ void add_steps(const bool* terminated, const bool* truncated, long long* head, Done* done,
                                          long long* side_step, long long* num_truncated, long long* num_dropped,
                                          int* side_of)
{
    const long long begin = head[0];
    const long long oldest = begin + NUM_STEPS - NUM_SLOTS;  // that the ring holds after this window
    const int base = (int)(begin % NUM_SLOTS);
    for (long long env = global_thread(); env < NUM_ENVS; env += num_global_threads()) {
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
        if (env == 0) head[1] = begin + NUM_STEPS;
    }
}

// Copies rows of a window, of NUM_RUNS runs of WORDS words each, behind each other into a ring of RING rows.
//   window  strided, in words  read
//   ring    [RING, NUM_RUNS, WORDS]  written
//   first   row of the ring that takes the window's first
template <typename Word, int WORDS, int NUM_RUNS, long long RUN_STRIDE, long long STEP_STRIDE, int RING>
__device__ __forceinline__ void add_rows(const unsigned char* window, unsigned char* ring, int first, int num_rows)
{
    const Word* from = (const Word*)window;
    Word* to = (Word*)ring;
    constexpr long long ROW = (long long)NUM_RUNS * WORDS;
    // What a later row will overwrite is left out.
    const int begin = num_rows > RING ? num_rows - RING : 0;
#pragma unroll 4
    for (long long i = begin * ROW + global_thread(); i < num_rows * ROW; i += num_global_threads()) {
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

// What truncated episodes saw last, into the rows that add_steps chose.
//   last     [truncation, env, ...], strided, in words  read
//   side     [side, env, WORDS]                         written
//   side_of  [truncation, env]                          read
template <typename Word, int WORDS, long long ENV_STRIDE, long long STEP_STRIDE>
__device__ __forceinline__ void add_sides(const unsigned char* last, unsigned char* side, const int* side_of)
{
    const Word* from = (const Word*)last;
    Word* to = (Word*)side;
    constexpr long long ROW = (long long)NUM_ENVS * WORDS;
    for (long long i = global_thread(); i < MAX_TRUNCATIONS * ROW; i += num_global_threads()) {
        const int k = (int)(i / ROW);
        const long long env = i % ROW / WORDS, word = i % WORDS;
        const int row = side_of[(long long)k * NUM_ENVS + env];
        if (row < 0) continue;
        to[((long long)row * NUM_ENVS + env) * WORDS + word] = from[k * STEP_STRIDE + env * ENV_STRIDE + word];
    }
}
