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

// Pieces of memory on their way through shared memory, by one thread: of the last PIECES the younger half is being read,
// the older half written.
struct Copier {
    static constexpr int PIECES = 8;
    static constexpr int PIECE_BYTES = 8192;

    struct Shared {  // of a block
        u64 arrival[PIECES];
        unsigned char* places[PIECES];  // where pieces go
        int sizes[PIECES];
    };

    Shared& shared;
    unsigned char* pieces;  // [PIECES, PIECE_BYTES] shared
    int num_begun = 0, num_stored = 0;

    __device__ __forceinline__ Copier(Shared& shared_, unsigned char* pieces_) : shared(shared_), pieces(pieces_)
    {
        for (int i = 0; i < PIECES; ++i) begin_arrival(shared.arrival + i);
    }

    // At most PIECE_BYTES; 16 divides the number and both addresses.
    __device__ __forceinline__ void copy(unsigned char* to, const unsigned char* from, int num_bytes)
    {
        const int i = num_begun % PIECES;
        asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PIECES / 2 - 1) : "memory");
        expect_bytes(shared.arrival + i, num_bytes);
        load_bytes(pieces + i * PIECE_BYTES, from, num_bytes, shared.arrival + i);
        shared.places[i] = to;
        shared.sizes[i] = num_bytes;
        if (++num_begun - num_stored > PIECES / 2) store();
    }

    __device__ __forceinline__ void end()
    {
        while (num_stored < num_begun) store();
        end_stores();
    }

private:
    __device__ __forceinline__ void store()
    {
        const int i = num_stored % PIECES;
        wait_for_bytes(shared.arrival + i, num_stored / PIECES);
        store_bytes(shared.places[i], pieces + i * PIECE_BYTES, shared.sizes[i]);
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        ++num_stored;
    }
};
