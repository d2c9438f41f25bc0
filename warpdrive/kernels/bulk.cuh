// Bulk copies between global and shared memory, by the copy engine of compute capability 9.0 and above: included
// elsewhere, this file holds nothing.
#pragma once
#include "warpdrive.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// Counts bytes on their way into shared memory; one thread prepares it, before a barrier.
__device__ __forceinline__ void prepare_arrival(unsigned long long* arrival)
{
    const unsigned place = (unsigned)__cvta_generic_to_shared(arrival);
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(place) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// Says how many bytes will come next; one thread does.
__device__ __forceinline__ void expect_bytes(unsigned long long* arrival, int num_bytes)
{
    const unsigned place = (unsigned)__cvta_generic_to_shared(arrival);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(place), "r"(num_bytes) : "memory");
}
// One thread starts it; 16 divides the addresses and the number.
__device__ __forceinline__ void start_bulk_copy(
    void* shared, const void* global, int num_bytes, unsigned long long* arrival)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            (unsigned)__cvta_generic_to_shared(shared)),
        "l"(__cvta_generic_to_global(global)), "r"(num_bytes), "r"((unsigned)__cvta_generic_to_shared(arrival))
        : "memory");
}
// Waits until all bytes have come; `round` counts the times that this place was filled, from 0.
//   OF_CLUSTER  whether other blocks of the cluster sent them
template <bool OF_CLUSTER = false>
__device__ __forceinline__ void wait_for_bytes(unsigned long long* arrival, int round)
{
    const unsigned place = (unsigned)__cvta_generic_to_shared(arrival);
#define WAIT_IN(SCOPE)                                                        \
    asm volatile(                                                             \
        "{\n"                                                                 \
        ".reg .pred done;\n"                                                  \
        "again:\n"                                                            \
        "mbarrier.try_wait.parity" SCOPE ".shared::cta.b64 done, [%0], %1;\n" \
        "@!done bra again;\n"                                                 \
        "}\n" ::"r"(place),                                                   \
        "r"(round & 1)                                                        \
        : "memory")
    if constexpr (OF_CLUSTER) {
        WAIT_IN(".acquire.cluster");
    } else {
        WAIT_IN("");
    }
#undef WAIT_IN
}
// The other way, by any thread; `finish_bulk_stores` waits until it may change what it gave.
__device__ __forceinline__ void start_bulk_store(void* global, const void* shared, int num_bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(global)),
                 "r"((unsigned)__cvta_generic_to_shared(shared)), "r"(num_bytes)
                 : "memory");
}
__device__ __forceinline__ void close_bulk_stores()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Waits until all that this thread closed has been read, so that it may change what it gave.
__device__ __forceinline__ void wait_for_bulk_stores()
{
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void finish_bulk_stores()
{
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
}

#endif
