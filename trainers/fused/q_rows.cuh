// Rows of an update of a Q-network: what is known of them before they are gathered, the gathering, and what they lose.
//
// Constants: those of q_learn.cu; DONE_SLOT, DONE_ENV and so on, numbers of the store's rings from a slot, and from an
// env, to the next one. LANES threads gather a row. `Shared` is a block's memory, as q_batch.cuh has it.
#pragma once

#include "losses/huber.cuh"
#include "gather.cuh"
#include "q_layers.cuh"
#include "selectors.cuh"

constexpr int PITCH0 = pitch_of(NUM_FEATURES), PITCH1 = pitch_of(WIDTH1), PITCH2 = pitch_of(WIDTH2);
constexpr int PITCH_OUT = pitch_of(NUM_ACTIONS);
typedef Strides<DONE_SLOT, DONE_ENV> DoneAt;
typedef Strides<ACTION_SLOT, ACTION_ENV> ActionAt;
typedef Strides<REWARD_SLOT, REWARD_ENV> RewardAt;
typedef Strides<SEEN_SLOT, SEEN_ENV> SeenAt;
constexpr int NUM_FIGURES = 3;  // that are sums over a batch

static_assert(LANES * ROWS == THREADS, "each row is gathered by as many threads");

// What is known of a row of the next update, before it takes the place of this one.
struct Next {
    u64 point;  // that draws it
    Item item;  // and what follows, where it draws evenly
    Fate fate;
    bool is_stale;  // what was gathered of it, as what it needs has come or changed since
};

// Of an update's step.
struct Rates {
    bool follows;  // the target network does
    float step_size, correction;
};

// What the store keeps, of what is learned from.
struct Steps {
    const DoneCode* done;
    const float *observation, *side, *reward;
    const ActionCode* action;
};

// ---- what is drawn

// What a thread gathers of its row: loaded at once, and stored where the row before it is not needed any more.
struct Coming {
    typedef Row<float, NUM_FEATURES> Features;
    const Item item;
    const Fate fate;
    const int action;
    Returns<true, RewardAt, false, RewardAt> returns;
    const Features now, next;

    __device__ __forceinline__ Coming(const Steps& steps, const Item& item_, const Fate& fate_)
        : item(item_),
          fate(fate_),
          action((int)read_code(steps.action + place_of<true, 1, ActionAt>(item, item.slot))),
          returns(item, threadIdx.x % LANES, steps.reward, nullptr),
          now(steps.observation + seen_at(item, item.slot), threadIdx.x % LANES),
          next(fate.code > 1 ? steps.side + place_of<true, NUM_FEATURES, OwnRing<true, NUM_FEATURES>>(item, fate.code - 2)
                             : steps.observation + seen_at(item, slot_after(item.slot, fate.num_steps)),
               threadIdx.x % LANES)
    {
    }

    template <typename Shared>
    __device__ __forceinline__ void store(Shared& shared, bool is_there)
    {
        const int row = threadIdx.x / LANES;
        returns.store(item, fate, row, threadIdx.x % LANES, shared.reward, shared.discount);
        if (threadIdx.x % LANES == 0) {
            shared.action[row] = action;
            shared.item_weight[row] = is_there ? item.weight : 0.0f;
        }
        put(now, shared.features + row * PITCH0);
        put(next, shared.features + (ROWS + row) * PITCH0);
    }

private:
    __device__ __forceinline__ static long long seen_at(const Item& item, int slot)
    {
        return place_of<true, NUM_FEATURES, SeenAt>(item, slot);
    }

    __device__ __forceinline__ static void put(const Features& features, Element* to)
    {
#pragma unroll
        for (int k = 0; k < (Features::IS_SHORT ? Features::MINE : 0); ++k) {
            const int column = threadIdx.x % LANES + k * LANES;
            if (column < NUM_FEATURES) narrow(to[column], features.words[k]);
        }
        if (Features::IS_SHORT) return;
        for (int column = threadIdx.x % LANES; column < NUM_FEATURES; column += LANES) {
            narrow(to[column], features.from[column]);
        }
    }
};

// ---- what is lost

// What a row loses, and the delta of its outputs.
template <typename Shared>
__device__ __forceinline__ void judge_row(Shared& shared, int row)
{
    const float* after = shared.q_of_target + row * Shared::Q_PITCH;
    const float* chosen_by = DOUBLE ? shared.q + (ROWS + row) * Shared::Q_PITCH : after;
    int best = 0;
#pragma unroll
    for (int action = 1; action < NUM_ACTIONS; ++action) {
        if (chosen_by[action] > chosen_by[best]) best = action;
    }
    const int taken = shared.action[row];
    const float q = shared.q[row * Shared::Q_PITCH + taken];
    const float error = q - (shared.reward[row] + shared.discount[row] * after[best]);
    const float size = fabsf(error);
    const float weight = shared.item_weight[row];
    const HuberLoss huber = huber_loss(error);
    const bool counts = weight > 0.0f;
    shared.of_batch[0][row] = huber.loss * weight;
    shared.of_batch[1][row] = counts ? q : 0.0f;
    shared.of_batch[2][row] = counts ? size : 0.0f;
    Pair* delta = (Pair*)(shared.delta_out + row * PITCH_OUT);
    const float of_taken = huber.slope * weight / BATCH;
#pragma unroll
    for (int pair = 0; pair < padded(NUM_ACTIONS) / 2; ++pair) {
        delta[pair] = packed(2 * pair == taken ? of_taken : 0.0f, 2 * pair + 1 == taken ? of_taken : 0.0f);
    }
}
