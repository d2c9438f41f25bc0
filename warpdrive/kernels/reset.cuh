// What happens to an env between two steps. reset.py writes the kernel that calls these, because its
// parameters are the arrays of the env at hand.
#pragma once
#include "warpdrive.cuh"
#include "random.cuh"

// Copies one env's row of an array.
template <typename T>
__device__ __forceinline__ void copy_row(T* to, long long to_row, const T* from, long long from_row, int size)
{
    for (int i = first_agent(); i < size; i += agent_stride()) to[to_row * size + i] = from[from_row * size + i];
}

// Keeps the observation of an env that ends, which the reset is about to overwrite.
//   observation        [env, agent, feature]        what was seen after the last step    read
//   final_observation  [kept, env, agent, feature]  what truncated episodes saw last     written
//   num_kept           how many of this env are there already; beyond NUM_KEPT nothing is kept
template <typename T>
__device__ __forceinline__ void keep_observation(
    const T* observation, T* final_observation, int env, int num_kept, int size)
{
    if (num_kept >= NUM_KEPT) return;
    copy_row(final_observation, (long long)num_kept * NUM_ENVS + env, observation, env, size);
}
