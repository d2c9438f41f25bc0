// Draws items, and gathers what a batch wants of them. An item is a step and a row: an env, or an agent of an env.
//
// Constants, besides those of drawable.cuh:
//   N_STEP           rewards that are added up
//   STACK            observations that are put behind each other
//   GAMMA            [N_STEP + 1] powers of the discount, as the host rounded them
//   LANES            threads that gather an item together; each finds out all that it needs for itself
#pragma once
#include "drawable.cuh"
#include "warpdrive.cuh"

constexpr int AGENTS_OF_ITEM = OF_AGENTS ? 1 : GROUP_SIZE;

struct Item {
    int slot;      // of its step
    int row;
    float weight;  // that its loss takes
    __device__ int env() const { return OF_AGENTS ? row / GROUP_SIZE : row; }
    __device__ int agent() const { return OF_AGENTS ? row % GROUP_SIZE : 0; }  // the first, of an env with all
    __device__ long long index() const { return (long long)(slot / PERIOD) * NUM_ROWS + row; }
};

// The item that an index tells of.
__device__ __forceinline__ Item item_of(long long index)
{
    return {(int)(index / NUM_ROWS) * PERIOD, (int)(index % NUM_ROWS), 1.0f};
}

// ---- who is drawn

// Every item with the same chance. Where there is none, one that teaches nothing.
__device__ __forceinline__ Item draw_uniform(const Drawable& drawable, u64 point)
{
    const u64 number = __umul64hi(point, (u64)drawable.count * NUM_ROWS);
    const long long step = drawable.first + (long long)(number / NUM_ROWS) * PERIOD;
    return {(int)(step % NUM_SLOTS), (int)(number % NUM_ROWS), drawable.count ? 1.0f : 0.0f};
}

// ---- an item's window

__device__ __forceinline__ int slot_after(int slot, int steps)
{
    const int found = slot + steps;
    return found < NUM_SLOTS ? found : found - NUM_SLOTS;
}

__device__ __forceinline__ int slot_before(int slot, int steps)
{
    return slot < steps ? slot - steps + NUM_SLOTS : slot - steps;
}

// How an item's env fared around its step.
struct Fate {
    int reach;      // steps behind that belong to the same episode, at most STACK - 1
    int num_steps;  // that count: to the end of the episode, at most N_STEP
    int code;       // of the last of them; see storage.py
};

template <typename Done>
__device__ __forceinline__ Fate fate_of(const Done* done, int slot, int env)
{
    Fate fate = {0, 0, 0};
    bool goes_on = true;
#pragma unroll
    for (int k = 0; k < N_STEP; ++k) {  // all are read, so that no read waits for another
        const int code = done[(long long)slot_after(slot, k) * NUM_ENVS + env];
        if (goes_on) {
            fate.code = code;
            fate.num_steps = k + 1;
        }
        goes_on &= code == 0;
    }
    bool is_same = true;
#pragma unroll
    for (int k = 1; k < STACK; ++k) {
        is_same &= done[(long long)slot_before(slot, k) * NUM_ENVS + env] == 0;
        fate.reach += is_same;
    }
    return fate;
}

// Where a field has an item's values in a slot: RUNS rows of WORDS words, one an agent of the item.
template <bool BY_AGENT>
__device__ __forceinline__ long long row_of(const Item& item, int slot)
{
    const long long row = (long long)slot * NUM_ENVS + item.env();
    return BY_AGENT ? row * GROUP_SIZE + item.agent() : row;
}

// A field as it was at the item's step.
template <typename Word, int WORDS, bool BY_AGENT>
__device__ __forceinline__ void gather_field(const Item& item, long long i, int lane, const unsigned char* field,
                                             unsigned char* out)
{
    constexpr int COUNT = (BY_AGENT ? AGENTS_OF_ITEM : 1) * WORDS;
    const Word* from = (const Word*)field + row_of<BY_AGENT>(item, item.slot) * WORDS;
    Word* to = (Word*)out + i * COUNT;
    for (int w = lane; w < COUNT; w += LANES) to[w] = from[w];
}

// Whole numbers, as torch wants to index by.
template <int COUNT_OF_ROW, bool BY_AGENT, typename Number>
__device__ __forceinline__ void gather_numbers(const Item& item, long long i, int lane, const Number* field,
                                               long long* out)
{
    constexpr int COUNT = (BY_AGENT ? AGENTS_OF_ITEM : 1) * COUNT_OF_ROW;
    const Number* from = field + row_of<BY_AGENT>(item, item.slot) * COUNT_OF_ROW;
    for (int w = lane; w < COUNT; w += LANES) out[i * COUNT + w] = (long long)from[w];
}

// The item's observation and the next one, each with those before it up to its episode's start and zeros beyond. What
// both need is read once.
//   field  [slot, env(, agent), WORDS]  read
//   side   [side, env(, agent), WORDS]  read
//   out, out_next  [item(, agent), STACK, WORDS]  written
template <typename Word, int WORDS, bool BY_AGENT>
__device__ __forceinline__ void gather_observation(const Item& item, const Fate& fate, int i, int lane,
                                                   const unsigned char* field, const unsigned char* side,
                                                   unsigned char* out, unsigned char* out_next)
{
    constexpr int RUNS = BY_AGENT ? AGENTS_OF_ITEM : 1;
    const Word* ring = (const Word*)field;
    Word* now = (Word*)out + (long long)i * RUNS * STACK * WORDS;
    Word* next = (Word*)out_next + (long long)i * RUNS * STACK * WORDS;
    const Word zero = {};
    const int ahead = fate.num_steps;
#pragma unroll
    for (int offset = 1 - STACK; offset <= N_STEP; ++offset) {
        const int of_now = offset + STACK - 1, of_next = STACK - 1 - (ahead - offset);  // places, some of them beyond
        const bool goes_next = of_next >= 0 && of_next < STACK;
        if (offset > 0 && !goes_next) continue;
        const bool is_there = offset >= -fate.reach;
        const int slot = offset < 0 ? slot_before(item.slot, -offset) : slot_after(item.slot, offset);
        const Word* from = ring + row_of<BY_AGENT>(item, slot) * WORDS;
        if (offset == ahead && fate.code > 1) from = (const Word*)side + row_of<BY_AGENT>(item, fate.code - 2) * WORDS;
#pragma unroll 4
        for (int w = lane; w < RUNS * WORDS; w += LANES) {
            const Word word = is_there ? from[w] : zero;
            const int run = RUNS == 1 ? 0 : w / WORDS;
            const long long place = (long long)run * STACK * WORDS + (w - run * WORDS);
            if (offset <= 0) now[place + of_now * WORDS] = word;
            if (goes_next) next[place + of_next * WORDS] = word;
        }
    }
}

// What may be done at the item's step, and after its last one: everything, where the episode has ended.
//   field  [slot, env(, agent), COUNT_OF_ROW]  read
template <int COUNT_OF_ROW, bool BY_AGENT>
__device__ __forceinline__ void gather_mask(const Item& item, const Fate& fate, int i, int lane, const bool* field,
                                            bool* out, bool* out_next)
{
    constexpr int COUNT = (BY_AGENT ? AGENTS_OF_ITEM : 1) * COUNT_OF_ROW;
    const bool* now = field + row_of<BY_AGENT>(item, item.slot) * COUNT_OF_ROW;
    const bool* next = field + row_of<BY_AGENT>(item, slot_after(item.slot, fate.num_steps)) * COUNT_OF_ROW;
    for (int w = lane; w < COUNT; w += LANES) {
        out[(long long)i * COUNT + w] = now[w];
        out_next[(long long)i * COUNT + w] = fate.code ? true : next[w];
    }
}

// Rewards added up, and the discount of what comes after them: 0 where nothing does, as the episode terminated or the
// agent left. An agent that left earns nothing after it.
//   reward          [slot, env(, agent)]       read
//   survived        [slot, env(, agent)]       read, if SOME_LEAVE
//   out, discount   [item(, agent)]            written
template <bool BY_AGENT, bool SOME_LEAVE>
__device__ __forceinline__ void gather_returns(const Item& item, const Fate& fate, int i, int lane,
                                               const float* reward, const bool* survived, float* out, float* discount)
{
    constexpr int RUNS = BY_AGENT ? AGENTS_OF_ITEM : 1;
    for (int run = lane; run < RUNS; run += LANES) {
        float sum = 0.0f;
        bool stays = true;
#pragma unroll
        for (int k = 0; k < N_STEP; ++k) {
            const long long row = row_of<BY_AGENT>(item, slot_after(item.slot, k)) + run;
            const float earned = reward[row];
            const bool is_there = SOME_LEAVE ? survived[row] : true;
            // Rounded by itself: a fused product would give another last bit on a GPU.
            if (stays && k < fate.num_steps) {
                sum = k == 0 ? earned : __fadd_rn(sum, __fmul_rn(GAMMA[k], earned));
                stays = is_there;
            }
        }
        out[(long long)i * RUNS + run] = sum;
        discount[(long long)i * RUNS + run] = stays && fate.code != 1 ? GAMMA[fate.num_steps] : 0.0f;
    }
}

// Flags as 0 and 1.
template <bool BY_AGENT>
__device__ __forceinline__ void gather_flags(const Item& item, int i, int lane, const bool* field, float* out)
{
    constexpr int COUNT = BY_AGENT ? AGENTS_OF_ITEM : 1;
    const bool* from = field + row_of<BY_AGENT>(item, item.slot);
    for (int w = lane; w < COUNT; w += LANES) out[(long long)i * COUNT + w] = from[w] ? 1.0f : 0.0f;
}
