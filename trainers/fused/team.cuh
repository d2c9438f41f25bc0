// Blocks that work on one thing together, and wait for each other without leaving their kernel.
//
// Constants:
//   TEAM        blocks of the grid, all of them
//   IN_CLUSTER  whether they are one thread-block cluster (sm_90 on), else all must be resident at once
// What a block wrote to global memory before `arrive` others read after `wait`, by __ldcg.
#pragma once
#include "cluster.cuh"

static_assert(!IN_CLUSTER || TEAM <= 8, "a portable cluster has 8 blocks at most");

// All threads of a block call these, in turns.
//   arrivals  [1]  blocks that ever arrived  read, written
struct Team {
    unsigned long long* arrivals;
    unsigned long long awaited;

    __device__ __forceinline__ void arrive()
    {
        if (TEAM > 1 && !IN_CLUSTER) __threadfence();
        __syncthreads();
        if constexpr (IN_CLUSTER) arrive_at_cluster<TEAM>();
        if (TEAM > 1 && !IN_CLUSTER && threadIdx.x == 0) {
            awaited = (atomicAdd(arrivals, 1ull) / TEAM + 1ull) * TEAM;
        }
    }

    __device__ __forceinline__ void wait()
    {
        if constexpr (IN_CLUSTER) wait_for_cluster<TEAM>();
        if (TEAM > 1 && !IN_CLUSTER) {
            if (threadIdx.x == 0) {
                while (*(volatile unsigned long long*)arrivals < awaited) {
                }
                __threadfence();
            }
            __syncthreads();
        }
        if (TEAM == 1) {
            __threadfence();  // what atomics changed in global memory is read again
            __syncthreads();
        }
    }

    __device__ __forceinline__ void together()
    {
        arrive();
        wait();
    }
};
