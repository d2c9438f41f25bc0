// A step of all envs by the block that learns from it: what follows is kept as add.cuh keeps a window of one step.
//
// Constants, besides those of q_choice.cuh, q_rows.cuh and gather.cuh:
//   PLAYED_ROWS          agents of the envs, up to a multiple of 16
//   NUM_SIDES            truncations of an env whose last observations are kept
//   MAX_TRUNCATIONS      of an env in a rollout, whose last observations it has
//   ALL_AGENTS           columns of rewards
#pragma once
#include "q_choice.cuh"
#include "q_rows.cuh"

// What the envs' step reads and writes, of a whole rollout.
struct Rollout {
    const float* seen;    // [step + 1, env, column, feature]
    int* action;          // [step, env, column]
    float* q_value;       // [step, env, agent of the group]
    const float* reward;  // [step, env, agent]
    const bool *terminated, *truncated;  // [step, env]
    const float* last;       // [truncation, env, column, feature]  seen before the rollout's k-th truncation of an env
    const int* truncations;  // [env]  in this rollout so far
};

// The store, as it takes a step in.
struct Kept {
    DoneCode* done;
    float *observation, *side, *reward;
    ActionCode* action;
    long long *side_step, *num_truncated, *num_dropped;  // see add.cuh
};

// Takes step t of the rollout in, the store's `step`-th, whose slot it says. All threads of the block call it, between
// barriers.
//   has_lost  1 where a step that was kept before loses its future                     written
//   features  of what is seen next, as `act` takes them                                 written
__device__ __forceinline__ void keep_step(
    const Rollout& rollout, const Kept& kept, int t, long long step, int slot, int* has_lost, Element* features)
{
    const int next_slot = slot_after(slot, 1);
    const auto copy_row = [&](const float* from, float* to, int env) {
        for (int i = 0; i < GROUP_SIZE * NUM_FEATURES; ++i) {
            to[(long long)env * GROUP_SIZE * NUM_FEATURES + i] =
                from[((long long)env * SEEN_COLUMNS + FIRST_SEEN) * NUM_FEATURES + i];
        }
    };
#pragma unroll 1
    for (int env = THREADS - 1 - threadIdx.x; env < NUM_ENVS; env += THREADS) {  // others begin with what follows
        const bool is_terminated = rollout.terminated[t * NUM_ENVS + env];
        const bool is_truncated = rollout.truncated[t * NUM_ENVS + env] && !is_terminated;
        const int k = rollout.truncations[env] - 1;
        int code = is_terminated || is_truncated;
        if (is_truncated && k < MAX_TRUNCATIONS) {
            const int row = (int)(kept.num_truncated[env]++ % NUM_SIDES);
            const long long owner = kept.side_step[row * NUM_ENVS + env] - 1;
            if (owner >= 0 && owner > step - NUM_SLOTS) {  // its step is still there, and loses its future
                kept.done[DoneAt::place(owner % NUM_SLOTS, env)] = (DoneCode)1;
                ++kept.num_dropped[env];
                atomicExch(has_lost, 1);
            }
            kept.side_step[row * NUM_ENVS + env] = step + 1;
            code = 2 + row;
            copy_row(rollout.last + (long long)k * NUM_ENVS * SEEN_COLUMNS * NUM_FEATURES,
                     kept.side + (long long)row * NUM_ENVS * GROUP_SIZE * NUM_FEATURES, env);
        } else if (is_truncated) {
            ++kept.num_dropped[env];
        }
        kept.done[DoneAt::place(slot, env)] = (DoneCode)code;
    }
    constexpr int ROW = GROUP_SIZE * NUM_FEATURES;
#pragma unroll 1
    for (int i = threadIdx.x; i < NUM_ENVS * ROW; i += THREADS) {
        const int env = i / ROW, feature = i % ROW;
        const long long from = ((long long)env * SEEN_COLUMNS + FIRST_SEEN) * NUM_FEATURES + feature;
        constexpr long long STEP = (long long)NUM_ENVS * SEEN_COLUMNS * NUM_FEATURES;
        if (t == 0) kept.observation[SeenAt::place(slot, env) + feature] = rollout.seen[from];
        const float next = rollout.seen[(t + 1) * STEP + from];
        kept.observation[SeenAt::place(next_slot, env) + feature] = next;
        narrow(features[i / NUM_FEATURES * PITCH0 + i % NUM_FEATURES], next);
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < NUM_ENVS * GROUP_SIZE; i += THREADS) {
        const int env = i / GROUP_SIZE, agent = i % GROUP_SIZE;
        const long long row = (long long)t * NUM_ENVS + env;
        kept.reward[RewardAt::place(slot, env) + agent] = rollout.reward[row * ALL_AGENTS + FIRST_AGENT + agent];
        kept.action[ActionAt::place(slot, env) + agent] =
            (ActionCode)rollout.action[row * NUM_COLUMNS + FIRST_COLUMN + agent];
    }
}

// Updates that are due after so many env steps, as OffPolicyConfig counts them.
__device__ __forceinline__ long long updates_by(long long env_steps, long long learning_starts, double replay_ratio)
{
    return env_steps < learning_starts ? 0 : (long long)(replay_ratio * (double)(env_steps - learning_starts));
}
