// Blocks of a cluster, from sm_90 on: they meet, and write to each other's shared memory. Of one block, or elsewhere,
// there is nobody to wait for.
#pragma once
#include "warpdrive.cuh"

// All threads of all blocks call both, one after the other: what was written before the first is there after the second.
template <int BLOCKS>
__device__ __forceinline__ void arrive_at_cluster()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if constexpr (BLOCKS > 1) asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
template <int BLOCKS>
__device__ __forceinline__ void wait_for_cluster()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if constexpr (BLOCKS > 1) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
// Of one block, its threads meet.
template <int BLOCKS>
__device__ __forceinline__ void meet_cluster()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if constexpr (BLOCKS > 1) {
        arrive_at_cluster<BLOCKS>();
        wait_for_cluster<BLOCKS>();
        return;
    }
#endif
    __syncthreads();
}

// The first of both where nothing that was written need be there.
template <int BLOCKS>
__device__ __forceinline__ void arrive_with_nothing()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if constexpr (BLOCKS > 1) asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
// Before a block ends, of whose shared memory others read.
template <int BLOCKS>
__device__ __forceinline__ void leave_cluster()
{
    arrive_with_nothing<BLOCKS>();
    wait_for_cluster<BLOCKS>();
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
// The same place in the shared memory of a block of the cluster.
__device__ __forceinline__ unsigned place_in_block(const void* shared, int block)
{
    unsigned there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"((unsigned)__cvta_generic_to_shared(shared)), "r"(block));
    return there;
}
#endif
