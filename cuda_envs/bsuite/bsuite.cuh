// What the games of the behaviour suite share: the totals of a run by which the suite judges an agent.
#pragma once

#include "warpdrive.cuh"
#include "random.cuh"

// Counts an episode that ended. Restarts leave totals as they are.
//   num_episodes  [env]  episodes that ended since the run began  read, written
//   total_return  [env]  sum of their returns                     read, written
__device__ __forceinline__ void count_episode(
    int env, float episode_return, long long* num_episodes, double* total_return)
{
    num_episodes[env] += 1;
    total_return[env] += episode_return;
}

// Writes an image of one env: 1 in two cells, 0 in all others.
//   first, second  which cells; -1 is none
//   observation    [env, agent, NUM_CELLS]  written
template <typename Word, int NUM_CELLS>
__device__ __forceinline__ void show_in_words(int env, int first, int second, unsigned char* observation)
{
    constexpr int SIZE = sizeof(Word);
    Word* const row = reinterpret_cast<Word*>(observation + (long long)env * NUM_CELLS);
    for (int i = 0; i < NUM_CELLS / SIZE; ++i) {
        Word word = 0;
        if (first >= 0 && first / SIZE == i) word |= (Word)1 << (8 * (first % SIZE));
        if (second >= 0 && second / SIZE == i) word |= (Word)1 << (8 * (second % SIZE));
        row[i] = word;
    }
}

// The same, in words as wide as rows allow.
template <int NUM_CELLS>
__device__ __forceinline__ void show_cells(int env, int first, int second, unsigned char* observation)
{
    if (NUM_CELLS % 8 == 0) {
        show_in_words<unsigned long long, NUM_CELLS>(env, first, second, observation);
    } else if (NUM_CELLS % 4 == 0) {
        show_in_words<unsigned int, NUM_CELLS>(env, first, second, observation);
    } else if (NUM_CELLS % 2 == 0) {
        show_in_words<unsigned short, NUM_CELLS>(env, first, second, observation);
    } else {
        show_in_words<unsigned char, NUM_CELLS>(env, first, second, observation);
    }
}
