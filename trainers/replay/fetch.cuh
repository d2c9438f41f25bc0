// Fetches the steps that items of a batch need, wherever they lie, into a little ring in which each item has an env of
// its own: WIDTH steps of NUM_ITEMS envs. gather.cuh then makes the batch of it as of any store.
//
// Constants, besides those of drawable.cuh:
//   NUM_ITEMS     of the batch
//   WIDTH         steps of an item: BEHIND, its own, and AHEAD
//   LANES         threads that fetch a step of an item together
//   NUM_STEPS     of a window
//   HOT, WARM     slots of the ring on the device, and of that in host memory, which is read over the bus
//   FILE_CHUNK    steps of a file; 0: there are none
#pragma once
#include "drawable.cuh"
#include "warpdrive.cuh"

enum Source { ON_DEVICE, IN_HOST_MEMORY, IN_FILE };

__device__ __forceinline__ int slot_of(long long step, long long slots)
{
    const long long slot = step % slots;
    return (int)(slot < 0 ? slot + slots : slot);
}

// Steps from here on are taken from the device; see tiers.py.
__device__ __forceinline__ long long hot_from(long long head)
{
    const long long step = head - HOT + NUM_STEPS;
    return step > 0 ? step : 0;
}

// Steps from here on are in memory.
__device__ __forceinline__ long long warm_from(long long head)
{
    if (FILE_CHUNK == 0) return 0;
    const long long chunk = FILE_CHUNK > 0 ? FILE_CHUNK : 1;
    const long long step = head - HOT + 2 * NUM_STEPS - WARM;
    return step > 0 ? (step + chunk - 1) / chunk * chunk : 0;
}

// A step of an item.
struct Fetched {
    long long step;  // since the store's beginning
    int row;         // env, or agent of an env
    int source;
    int w, i, lane;  // which step of the item, which item, which of the threads that share it
};

// The step at which the item of an index begins, when `head` steps were added.
__device__ __forceinline__ long long anchor_of(long long index, long long head)
{
    const long long slot = index / NUM_ROWS * PERIOD;
    return head - 1 - slot_of(head - 1 - slot, NUM_SLOTS);
}

// Whether an item ends with what a window brings, or writes again, that comes between its fetch and its use.
__device__ __forceinline__ bool is_late(long long anchor, const long long* when)
{
    return when[1] < when[0] && anchor + AHEAD >= when[1];
}

// Number `unit` of the threads' shares.
//   index  [item]  which items                                               read
//   when   [2]     the head when the batch is used, and when it is fetched   read
__device__ __forceinline__ Fetched fetched_of(long long unit, const long long* index, const long long* when, bool late)
{
    Fetched at;
    at.lane = (int)(unit % LANES);
    at.i = (int)(unit / LANES % NUM_ITEMS);
    at.w = (int)(unit / LANES / NUM_ITEMS);
    const long long anchor = anchor_of(index[at.i], when[0]);
    at.step = anchor - BEHIND + at.w;
    at.row = (int)(index[at.i] % NUM_ROWS);
    at.source = at.step >= hot_from(late ? when[0] : when[1]) ? ON_DEVICE
                : at.step >= warm_from(when[0]) || at.step < 0 ? IN_HOST_MEMORY : IN_FILE;
    return at;
}

// A field of the step.
//   hot    [HOT / EVERY, env(, agent), WORDS]   read
//   warm   [WARM / EVERY, env(, agent), WORDS]  host memory  read
//   filed  [step, item(, agent), WORDS]         host memory: what a thread of the host read from files  read
//   stage  [step, item(, agent), WORDS]         written
template <typename Word, int WORDS, int EVERY, bool OF_ENV>
__device__ __forceinline__ void fetch_field(const Fetched& at, const unsigned char* hot, const unsigned char* warm,
                                            const unsigned char* filed, unsigned char* stage)
{
    if (EVERY > 1 && at.w > 0) return;  // known as it was at the item's first step
    constexpr long long ROWS = OF_ENV ? NUM_ENVS : NUM_ROWS;
    const long long row = OF_ENV && OF_AGENTS ? at.row / GROUP_SIZE : at.row;
    const long long place = (long long)at.w * NUM_ITEMS + at.i;
    const Word* from = (const Word*)filed + place * WORDS;
    if (at.source == ON_DEVICE) from = (const Word*)hot + (slot_of(at.step, HOT) / EVERY * ROWS + row) * WORDS;
    if (at.source == IN_HOST_MEMORY) from = (const Word*)warm + (slot_of(at.step, WARM) / EVERY * ROWS + row) * WORDS;
    Word* to = (Word*)stage + place * WORDS;
#pragma unroll 4
    for (int word = at.lane; word < WORDS; word += LANES) to[word] = from[word];
}

// How the step ended: its code, with row 0 of the item's own sides.
//   done   [slot, env]   read
//   stage  [step, item]  written
template <typename Done>
__device__ __forceinline__ int fetch_done(const Fetched& at, const Done* done, unsigned char* stage)
{
    const int env = OF_AGENTS ? at.row / GROUP_SIZE : at.row;
    const int code = done[(long long)slot_of(at.step, NUM_SLOTS) * NUM_ENVS + env];
    if (at.lane == 0) stage[(long long)at.w * NUM_ITEMS + at.i] = (unsigned char)(code < 2 ? code : 2);
    return code;
}

// Whether no episode ended from the item's own step to ahead of this one: of what comes later nothing is asked.
template <typename Done>
__device__ __forceinline__ bool is_first_end(const Fetched& at, const Done* done)
{
    const int env = OF_AGENTS ? at.row / GROUP_SIZE : at.row;
    for (int w = BEHIND; w < at.w; ++w) {
        if (done[(long long)slot_of(at.step - at.w + w, NUM_SLOTS) * NUM_ENVS + env] != 0) return false;
    }
    return at.w >= BEHIND;
}

// What was seen last in an episode that was truncated with the step.
//   side   [side, env(, agent), WORDS]  read
//   stage  [item(, agent), WORDS]       written
template <typename Word, int WORDS, bool OF_ENV>
__device__ __forceinline__ void fetch_side(const Fetched& at, int code, const unsigned char* side, unsigned char* stage)
{
    constexpr long long ROWS = OF_ENV ? NUM_ENVS : NUM_ROWS;
    const long long row = OF_ENV && OF_AGENTS ? at.row / GROUP_SIZE : at.row;
    const Word* from = (const Word*)side + ((code - 2) * ROWS + row) * WORDS;
    Word* to = (Word*)stage + (long long)at.i * WORDS;
    for (int word = at.lane; word < WORDS; word += LANES) to[word] = from[word];
}
