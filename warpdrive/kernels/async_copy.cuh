// Copies from global to shared memory that threads do not wait for, from compute capability 8.0 on; elsewhere, and on a
// CPU, they are there at once.
#pragma once
#include "warpdrive.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define HAS_ASYNC_COPIES 1
#else
#define HAS_ASYNC_COPIES 0
#endif

// A word is on its way until it was waited for; one of less than 4 bytes is there at once.
template <typename Word>
__device__ __forceinline__ void start_copy(Word* shared, const Word* global)
{
#if HAS_ASYNC_COPIES
    const unsigned address = (unsigned)__cvta_generic_to_shared(shared);
    if constexpr (sizeof(Word) == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(global) : "memory");
        return;
    } else if constexpr (sizeof(Word) == 4 || sizeof(Word) == 8) {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address), "l"(global), "n"(sizeof(Word))
                     : "memory");
        return;
    }
#endif
    *shared = *global;
}

// Waits until all that this thread started are there. Then a barrier, before other threads read them.
__device__ __forceinline__ void wait_for_copies()
{
#if HAS_ASYNC_COPIES
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// The same in groups: closes the group of the copies started since the last; waits until all but the last LEFT are there.
__device__ __forceinline__ void close_copies()
{
#if HAS_ASYNC_COPIES
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int LEFT>
__device__ __forceinline__ void wait_for_groups()
{
#if HAS_ASYNC_COPIES
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}
