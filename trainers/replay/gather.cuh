// Draws items, and gathers what a batch wants of them. An item is a step and a row: an env, or an agent of an env.
//
// Constants, besides those of drawable.cuh:
//   N_STEP           rewards that are added up
//   STACK            observations that are put behind each other
//   GAMMA            [N_STEP + 1] powers of the discount, as the host rounded them
//   IS_LARGE         whether the rings are larger than the L2 cache
//   LANES            threads that gather an item together; each finds out all that it needs for itself
#pragma once
#include "drawable.cuh"
#include "warpdrive.cuh"

constexpr int AGENTS_OF_ITEM = OF_AGENTS ? 1 : GROUP_SIZE;
#ifdef STEP_ENVS
constexpr bool STEPS_ENVS = true;  // see with_envs.py
#else
constexpr bool STEPS_ENVS = false;
#endif

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

// Where a field has an env's values of a slot, in words: in a ring of its own, or in records.
template <long long SLOT_STRIDE, long long ENV_STRIDE>
struct Strides {
    __device__ __forceinline__ static long long place(long long slot, long long env)
    {
        return slot * SLOT_STRIDE + env * ENV_STRIDE;
    }
};

// What is gathered is not soon read again, so it is marked to leave a cache first: L2 where the rings are larger than it,
// so that the tree stays; the multiprocessor's own where the block steps envs, so that what these read each step stays.
template <typename Word>
__device__ __forceinline__ Word read_once(const Word* place)
{
#ifndef WARPDRIVE_CPU
    if constexpr ((IS_LARGE || STEPS_ENVS) && sizeof(Word) == 16) {
        const uint4 found = __ldcs((const uint4*)place);
        return *(const Word*)&found;
    } else if constexpr ((IS_LARGE || STEPS_ENVS) && sizeof(Word) == 4) {
        const unsigned found = __ldcs((const unsigned*)place);
        return *(const Word*)&found;
    } else if constexpr (STEPS_ENVS && sizeof(Word) == 1) {
        return (Word)__ldcs((const unsigned char*)place);
    }
#endif
    return *place;
}

// A code or an action, whose neighbours may be read soon; not where the block steps envs, which need the cache more.
template <typename Code>
__device__ __forceinline__ Code read_code(const Code* place)
{
    return STEPS_ENVS ? read_once(place) : *place;
}

// The codes around an item's step: loaded at once, and looked at when what else is loaded is on its way.
template <typename At, typename Done>
struct Codes {
    unsigned ahead[N_STEP];  // from its step on
    unsigned behind[STACK];  // from its step back

    __device__ __forceinline__ Codes(const Done* done, int slot, int env)
    {
#pragma unroll
        for (int k = 0; k < N_STEP; ++k) ahead[k] = read_code(done + At::place(slot_after(slot, k), env));
#pragma unroll
        for (int k = 1; k < STACK; ++k) behind[k] = read_code(done + At::place(slot_before(slot, k), env));
    }

    __device__ __forceinline__ Fate fate() const
    {
        // The first end is the least of all, by k and its code: were one chosen by looking at another, a compiler would
        // let its load wait for the other's.
        u64 first = ~0ull;
#pragma unroll
        for (int k = 0; k < N_STEP; ++k) {
            const u64 end = ahead[k] != 0u || k == N_STEP - 1 ? (u64)k << 32 | ahead[k] : ~0ull;
            first = end < first ? end : first;
        }
        Fate fate = {0, (int)(first >> 32) + 1, (int)(unsigned)first};
        bool is_same = true;
#pragma unroll
        for (int k = 1; k < STACK; ++k) {
            is_same &= behind[k] == 0u;
            fate.reach += is_same;
        }
        return fate;
    }
};

template <typename At, typename Done>
__device__ __forceinline__ Fate fate_of(const Done* done, int slot, int env)
{
    return Codes<At, Done>(done, slot, env).fate();
}

// Where a field has an item's values in a slot: as many rows of WORDS words as the item has agents, if it is BY_AGENT.
template <bool BY_AGENT, int WORDS, typename At>
__device__ __forceinline__ long long place_of(const Item& item, int slot)
{
    return At::place(slot, item.env()) + (BY_AGENT ? item.agent() * WORDS : 0);
}

// Of a ring of its own.
template <bool BY_AGENT, int WORDS, int ROW = (BY_AGENT ? GROUP_SIZE : 1) * WORDS>
using OwnRing = Strides<(long long)NUM_ENVS * ROW, ROW>;

// A row's words that a thread keeps between their load and their store: all fields of an item are loaded before one is
// stored, so that no load waits for another. Of a long row they are loaded as they are stored.
template <typename Word, int COUNT>
struct Row {
    static constexpr int MINE = (COUNT + LANES - 1) / LANES;
    static constexpr bool IS_SHORT = MINE <= 4;
    const Word* from;
    Word words[IS_SHORT && MINE > 0 ? MINE : 1];

    __device__ __forceinline__ Row(const Word* from_, int lane) : from(from_)
    {
#pragma unroll
        for (int k = 0; IS_SHORT && k < MINE; ++k) {
            if (lane + k * LANES < COUNT) words[k] = read_once(from + lane + k * LANES);
        }
    }

    template <typename Out>
    __device__ __forceinline__ void store(Out* to, int lane) const
    {
        if (IS_SHORT) {
#pragma unroll
            for (int k = 0; k < MINE; ++k) {
                if (lane + k * LANES < COUNT) to[lane + k * LANES] = (Out)words[k];
            }
        } else {
#pragma unroll 4
            for (int w = lane; w < COUNT; w += LANES) to[w] = (Out)from[w];
        }
    }
};

// A field as it was at the item's step.
template <typename Word, int WORDS, bool BY_AGENT, typename At>
struct FieldRow : Row<Word, (BY_AGENT ? AGENTS_OF_ITEM : 1) * WORDS> {
    static constexpr int COUNT = (BY_AGENT ? AGENTS_OF_ITEM : 1) * WORDS;

    template <typename Given>
    __device__ __forceinline__ FieldRow(const Item& item, int lane, const Given* field)
        : Row<Word, COUNT>((const Word*)field + place_of<BY_AGENT, WORDS, At>(item, item.slot), lane)
    {
    }

    // Whole numbers become those that torch wants to index by, flags 0 and 1.
    template <typename Out>
    __device__ __forceinline__ void store_as(Out* out, long long i, int lane) const
    {
        this->store(out + i * COUNT, lane);
    }
};

// The item's observation and the next one, each with those before it up to its episode's start and zeros beyond. What
// both need is read once.
//   field  [slot, env(, agent), WORDS]  read
//   side   [side, env(, agent), WORDS]  read
//   out, out_next  [item(, agent), STACK, WORDS]  written
template <typename Word, int WORDS, bool BY_AGENT, typename At>
struct Observation {
    static constexpr int RUNS = BY_AGENT ? AGENTS_OF_ITEM : 1;
    const Word *field, *side;
    Row<Word, RUNS * WORDS> newest;
    Row<Word, STACK == 1 ? RUNS * WORDS : 0> following;  // the next one, unless the episode ends: loaded on that chance

    __device__ __forceinline__ Observation(
        const Item& item, int lane, const unsigned char* field_, const unsigned char* side_)
        : field((const Word*)field_),
          side((const Word*)side_),
          newest(field + place_in_ring(item, item.slot), lane),
          following(field + place_in_ring(item, slot_after(item.slot, N_STEP)), lane)
    {
    }

    // Of an episode that ends by then: what it saw last. Ahead of `store`.
    __device__ __forceinline__ void follow(const Item& item, const Fate& fate, int lane)
    {
        if constexpr (STACK == 1) {
            const Word* from = row_after(item, fate, fate.num_steps);
            if (from != following.from) following = Row<Word, RUNS * WORDS>(from, lane);
        }
    }

    __device__ __forceinline__ void store(const Item& item, const Fate& fate, long long i, int lane, unsigned char* out,
                                          unsigned char* out_next) const
    {
        Word* now = (Word*)out + i * RUNS * STACK * WORDS;
        Word* next = (Word*)out_next + i * RUNS * STACK * WORDS;
        const int ahead = fate.num_steps;
        if constexpr (STACK == 1) {
            newest.store(now, lane);
            following.store(next, lane);
            return;
        }
        const Word zero = {};
#pragma unroll
        for (int place = 0; place < STACK; ++place) {
            const int steps = STACK - 1 - place;
            const bool is_there = steps <= fate.reach;
            const Word* from = field + place_in_ring(item, slot_before(item.slot, steps));
            const int of_next = place - ahead;
            copy(lane, now, place, next, of_next, [&](int w) { return is_there ? from[w] : zero; });
        }
#pragma unroll
        for (int back = 0; back < STACK && back < N_STEP; ++back) {  // what comes after now
            if (back >= ahead) break;
            const Word* from = row_after(item, fate, ahead - back);
            copy(lane, next, STACK - 1 - back, next, -1, [&](int w) { return from[w]; });
        }
    }

private:
    __device__ __forceinline__ static long long place_in_ring(const Item& item, int slot)
    {
        return place_of<BY_AGENT, WORDS, At>(item, slot);
    }

    // So many steps on: what a truncated episode saw last is in no slot.
    __device__ __forceinline__ const Word* row_after(const Item& item, const Fate& fate, int steps) const
    {
        if (steps == fate.num_steps && fate.code > 1) {
            return side + place_of<BY_AGENT, WORDS, OwnRing<BY_AGENT, WORDS>>(item, fate.code - 2);
        }
        return field + place_in_ring(item, slot_after(item.slot, steps));
    }

    // To a place of one stack, and to one of another unless it is below 0.
    template <typename Read>
    __device__ __forceinline__ static void copy(int lane, Word* stack, int place, Word* other, int of_other, Read read)
    {
#pragma unroll 4
        for (int w = lane; w < RUNS * WORDS; w += LANES) {
            const Word word = read(w);
            const int run = RUNS == 1 ? 0 : w / WORDS;
            const long long start = (long long)run * STACK * WORDS + (w - run * WORDS);
            stack[start + place * WORDS] = word;
            if (of_other >= 0) other[start + of_other * WORDS] = word;
        }
    }
};

// What may be done at the item's step, and after its last one: everything, where the episode has ended.
//   field  [slot, env(, agent), COUNT_OF_ROW]  read
template <int COUNT_OF_ROW, bool BY_AGENT, typename At>
__device__ __forceinline__ void gather_mask(const Item& item, const Fate& fate, int i, int lane, const bool* field,
                                            bool* out, bool* out_next)
{
    constexpr int COUNT = (BY_AGENT ? AGENTS_OF_ITEM : 1) * COUNT_OF_ROW;
    const int after = slot_after(item.slot, fate.num_steps);
    const bool* now = field + place_of<BY_AGENT, COUNT_OF_ROW, At>(item, item.slot);
    const bool* next = field + place_of<BY_AGENT, COUNT_OF_ROW, At>(item, after);
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
template <bool BY_AGENT, typename At, bool SOME_LEAVE, typename AtSurvived>
struct Returns {
    static constexpr int RUNS = BY_AGENT ? AGENTS_OF_ITEM : 1;
    static constexpr bool IS_SHORT = RUNS <= LANES;  // loaded ahead, as a Row is
    const float* reward;
    const bool* survived;
    float earned[N_STEP] = {};  // of lanes that load none, too: in a loop, a register would keep what was here before
    bool is_there[N_STEP] = {};

    __device__ __forceinline__ Returns(const Item& item, int lane, const float* reward_, const bool* survived_)
        : reward(reward_), survived(survived_)
    {
        if (IS_SHORT && lane < RUNS) load(item, lane);
    }

    __device__ __forceinline__ void store(
        const Item& item, const Fate& fate, long long i, int lane, float* out, float* discount)
    {
        for (int run = lane; run < RUNS; run += LANES) {
            if (!IS_SHORT) load(item, run);
            float sum = 0.0f;
            bool stays = true;
#pragma unroll
            for (int k = 0; k < N_STEP; ++k) {
                // Rounded by itself: a fused product would give another last bit on a GPU.
                if (stays && k < fate.num_steps) {
                    sum = k == 0 ? earned[k] : __fadd_rn(sum, __fmul_rn(GAMMA[k], earned[k]));
                    stays = is_there[k];
                }
            }
            out[i * RUNS + run] = sum;
            float power = GAMMA[N_STEP];
#pragma unroll
            for (int k = 1; k < N_STEP; ++k) power = k == fate.num_steps ? GAMMA[k] : power;  // no way to memory
            discount[i * RUNS + run] = stays && fate.code != 1 ? power : 0.0f;
        }
    }

private:
    __device__ __forceinline__ void load(const Item& item, int run)
    {
#pragma unroll
        for (int k = 0; k < N_STEP; ++k) {
            const int slot = slot_after(item.slot, k);
            earned[k] = read_once(reward + place_of<BY_AGENT, 1, At>(item, slot) + run);
            is_there[k] = SOME_LEAVE ? survived[place_of<BY_AGENT, 1, AtSurvived>(item, slot) + run] : true;
        }
    }
};
