// Gathers rows of sequences whose items were drawn before: NUM_BEFORE steps to warm a memory up, LENGTH to learn from,
// and N_STEP more observations. Row r of item i is number r * num_items + i of a batch.
//
// Constants besides those of gather.cuh:
//   NUM_BEFORE, LENGTH  see above
#pragma once
#include "gather.cuh"

__device__ __forceinline__ Item at_row(const Item& item, int r)
{
    const int first = slot_before(item.slot, NUM_BEFORE);
    return {slot_after(first, r), item.row, item.weight};
}

// Whether what was remembered ends ahead of row r: an episode ended with the step before it, or the agent was out of
// the game before or after that step. What is stored with a sequence's first row was emptied already.
//   done              [slot, env]         read
//   active, survived  [slot, env, agent]  read, if SOME_LEAVE
//   starts            [row, item(, agent)]  written
template <typename AtDone, bool SOME_LEAVE, typename AtActive, typename AtSurvived, typename Done>
__device__ __forceinline__ void gather_starts(const Item& at, int r, long long number, int lane, const Done* done,
                                              const bool* active, const bool* survived, bool* starts)
{
    constexpr int RUNS = SOME_LEAVE ? AGENTS_OF_ITEM : 1;
    const int before = slot_before(at.slot, 1);
    for (int run = lane; run < RUNS; run += LANES) {
        bool is_start = false;
        if (r > 0) {
            is_start = done[AtDone::place(before, at.env())] != 0;
            if (SOME_LEAVE) {
                is_start |= !(active[place_of<true, 1, AtActive>(at, before) + run] &&
                              survived[place_of<true, 1, AtSurvived>(at, before) + run]);
            }
        }
        starts[number * RUNS + run] = is_start;
    }
}

// Rewards from a step on, up to N_STEP of them, and where their sum goes on: `discount` times the value of row
// `bootstrap`. A truncated episode's last observation is in no row, so its sums end one step earlier, at the last row
// they have; the truncated step itself is not valid.
//   reward             [slot, env(, agent)]        read
//   active, survived   [slot, env, agent]          read, if SOME_LEAVE
//   out, discount      [step, item(, agent)]       written
//   valid              [step, item(, agent)]       0 where there is nothing to learn  written
//   bootstrap          [step, item]                written
template <bool BY_AGENT, typename At, typename AtDone, bool SOME_LEAVE, typename AtActive, typename AtSurvived, typename Done>
__device__ __forceinline__ void gather_targets(const Item& at, int r, long long number, int lane, const Done* done,
                                               const float* reward, const bool* active, const bool* survived,
                                               float* out, float* discount, float* valid, long long* bootstrap)
{
    constexpr int RUNS = BY_AGENT ? AGENTS_OF_ITEM : 1;
    int num_steps = 0;
    int code = 0;
    for (int k = 0; k < N_STEP && code == 0; ++k) {
        code = done[AtDone::place(slot_after(at.slot, k), at.env())];
        if (code < 2 || k == 0) ++num_steps;
    }
    const bool is_cut = code > 1 && num_steps == 1 && done[AtDone::place(at.slot, at.env())] > 1;
    for (int run = lane; run < RUNS; run += LANES) {
        float sum = 0.0f;
        bool stays = true;
        for (int k = 0; k < num_steps && stays; ++k) {
            const int slot = slot_after(at.slot, k);
            const float earned = reward[place_of<BY_AGENT, 1, At>(at, slot) + run];
            sum = k == 0 ? earned : __fadd_rn(sum, __fmul_rn(GAMMA[k], earned));
            if (SOME_LEAVE) stays = survived[place_of<BY_AGENT, 1, AtSurvived>(at, slot) + run];
        }
        const bool is_here = SOME_LEAVE ? active[place_of<BY_AGENT, 1, AtActive>(at, at.slot) + run] : true;
        const bool ends = code == 1 || is_cut || !stays;
        out[number * RUNS + run] = sum;
        discount[number * RUNS + run] = ends ? 0.0f : GAMMA[num_steps];
        // Whoever left with the truncated step needs nothing that was seen after it.
        valid[number * RUNS + run] = is_here && !(is_cut && stays) ? 1.0f : 0.0f;
    }
    if (lane == 0) bootstrap[number] = r + num_steps;
}
