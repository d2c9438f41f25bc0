// Bulk copies through shared memory, by the copy engine of compute capability 9.0 and above.
#pragma once

typedef unsigned long long u64;

constexpr unsigned ALL_LANES = 0xffffffffu;

__device__ __forceinline__ unsigned shared_place(const void* place)
{
    return (unsigned)__cvta_generic_to_shared(place);
}

__device__ __forceinline__ void begin_arrival(u64* arrival)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_place(arrival)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void expect_bytes(u64* arrival, int num_bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_place(arrival)), "r"(num_bytes)
                 : "memory");
}

__device__ __forceinline__ void load_bytes(void* shared, const void* global, int num_bytes, u64* arrival)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_place(shared)),
                 "l"(__cvta_generic_to_global(global)), "r"(num_bytes), "r"(shared_place(arrival))
                 : "memory");
}

__device__ __forceinline__ void wait_for_bytes(u64* arrival, int round)
{
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}\n" ::"r"(shared_place(arrival)),
        "r"(round & 1)
        : "memory");
}

__device__ __forceinline__ void store_bytes(void* global, const void* shared, int num_bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(global)),
                 "r"(shared_place(shared)), "r"(num_bytes)
                 : "memory");
}

__device__ __forceinline__ void end_stores()
{
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
}
