// Gathers long observations by the copy engine of compute capability 9.0 and above: it reads every different one of an
// item into shared memory, once, and stores it in one stack or in both. A block is one warp and works for one item.
#pragma once
#include "bulk.cuh"
#include "gather.cuh"

// As Observation, of rows of BYTES bytes, a multiple of 16.
//   frames   [STACK + N_STEP, runs, BYTES] dynamic shared memory  written
//   arrival  [1] shared, begun; `round` counts its uses
template <int BYTES, bool BY_AGENT>
__device__ __forceinline__ void gather_frames(const Item& item, const Fate& fate, int i, int lane,
                                              const unsigned char* field, const unsigned char* side, unsigned char* out,
                                              unsigned char* out_next, unsigned char* frames, u64* arrival, int round)
{
    constexpr int RUNS = BY_AGENT ? AGENTS_OF_ITEM : 1;
    constexpr int NUM_FRAMES = STACK + N_STEP;
    unsigned char* now = out + (long long)i * RUNS * STACK * BYTES;
    unsigned char* next = out_next + (long long)i * RUNS * STACK * BYTES;
    const int ahead = fate.num_steps;
    // Frames that are read: up to now's, and those of the next stack beyond.
    const int first_beyond = ahead - STACK + 1 > 1 ? ahead - STACK + 1 : 1;
    if (lane == 0) expect_bytes(arrival, (fate.reach + 1 + ahead - first_beyond + 1) * RUNS * BYTES);
    __syncwarp();
    for (int unit = lane; unit < NUM_FRAMES * RUNS; unit += 32) {
        const int offset = unit / RUNS - (STACK - 1), run = unit % RUNS;
        if (offset < -fate.reach || offset > ahead || (offset > 0 && offset < first_beyond)) continue;
        const int slot = offset < 0 ? slot_before(item.slot, -offset) : slot_after(item.slot, offset);
        const bool is_side = offset == ahead && fate.code > 1;
        typedef OwnRing<BY_AGENT, BYTES> At;
        const unsigned char* from = is_side ? side + place_of<BY_AGENT, BYTES, At>(item, fate.code - 2)
                                            : field + place_of<BY_AGENT, BYTES, At>(item, slot);
        start_bulk_copy(frames + (long long)unit * BYTES, from + (long long)run * BYTES, BYTES, arrival);
    }
    const uint4 zero = {};
    for (int place = 0; place < STACK - 1; ++place) {  // ahead of the episode's start
        for (int run = 0; run < RUNS; ++run) {
            uint4* of_now = (uint4*)(now + (long long)(run * STACK + place) * BYTES);
            uint4* of_next = (uint4*)(next + (long long)(run * STACK + place) * BYTES);
            const int offset = place - (STACK - 1);
            for (int w = lane; offset < -fate.reach && w < BYTES / 16; w += 32) of_now[w] = zero;
            for (int w = lane; offset + ahead < -fate.reach && w < BYTES / 16; w += 32) of_next[w] = zero;
        }
    }
    wait_for_bytes(arrival, round);
    for (int unit = lane; unit < NUM_FRAMES * RUNS; unit += 32) {
        const int offset = unit / RUNS - (STACK - 1), run = unit % RUNS;
        const int of_now = offset + STACK - 1, of_next = STACK - 1 - (ahead - offset);
        if (offset < -fate.reach || offset > ahead || (offset > 0 && offset < first_beyond)) continue;
        const unsigned char* frame = frames + (long long)unit * BYTES;
        if (offset <= 0) start_bulk_store(now + (long long)(run * STACK + of_now) * BYTES, frame, BYTES);
        if (of_next >= 0) start_bulk_store(next + (long long)(run * STACK + of_next) * BYTES, frame, BYTES);
    }
    finish_bulk_stores();
    __syncwarp();
}
