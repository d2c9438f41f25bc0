// What may be drawn, and by which random numbers.
//
// Constants:
//   NUM_SLOTS        of a ring
//   GROUP_SIZE       agents of an env
//   OF_AGENTS        whether a row is an agent; else it is an env with all of its agents
//   BEHIND, AHEAD    steps that an item needs before and after its own
//   PERIOD           steps from one item of a row to the next
//   TABLE            number of the table, which has draws of its own
#pragma once
#include "random.cuh"

typedef unsigned long long u64;

constexpr int NUM_ROWS = OF_AGENTS ? NUM_ENVS * GROUP_SIZE : NUM_ENVS;

// The steps whose windows lie in the ring as a whole. The slot of step `head` holds what was seen last already.
struct Drawable {
    long long first;  // a multiple of PERIOD
    long long count;  // of steps, PERIOD apart
};

__device__ __forceinline__ Drawable drawable_of(long long head)
{
    const long long oldest = head - NUM_SLOTS + 1 + BEHIND;
    const long long from = oldest > BEHIND ? oldest : BEHIND;
    const long long first = (from + PERIOD - 1) / PERIOD * PERIOD;
    const long long last = head - AHEAD;
    return {first, last < first ? 0 : (last - first) / PERIOD + 1};
}

// Item i's point of 0 .. 2^64 - 1, in its own stratum of a batch's; anywhere if strata have no width.
__device__ __forceinline__ u64 point_of(const unsigned* seed, unsigned i, u64 draw, u64 stratum)
{
    Random random(seed, i, TABLE, (long long)draw, STREAM_REPLAY);
    const u64 high = random.bits();
    const u64 anywhere = high << 32 | random.bits();
    return stratum == 0 ? anywhere : i * stratum + __umul64hi(anywhere, stratum);
}

// The number of this draw stands in the upper half of `draws`. A block that is done adds its share of one, so that no
// block moves the number before all have read it. All threads of the block call it, after they have read.
__device__ __forceinline__ void count_draw(u64* draws)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        const u64 share = (1ull << 32) / gridDim.x;
        atomicAdd(draws, blockIdx.x == 0 ? (1ull << 32) - share * (gridDim.x - 1) : share);
    }
}
