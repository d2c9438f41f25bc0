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

// Pieces of memory on their way through shared memory, by one thread. Of the last PIECES the younger half is being
// read and the older half written.
//   pieces   [PIECES, PIECE_BYTES]  shared
//   arrival  [PIECES] shared, begun
struct Copier {
    static constexpr int PIECES = 8;
    static constexpr int PIECE_BYTES = 8192;
    unsigned char* pieces;
    u64* arrival;
    unsigned char** places;  // [PIECES] shared: where they go
    int* sizes;              // [PIECES] shared
    int num_begun = 0, num_stored = 0;

    // At most PIECE_BYTES; 16 divides the number and both addresses.
    __device__ __forceinline__ void copy(unsigned char* to, const unsigned char* from, int num_bytes)
    {
        const int i = num_begun % PIECES;
        asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PIECES / 2 - 1) : "memory");
        expect_bytes(arrival + i, num_bytes);
        load_bytes(pieces + i * PIECE_BYTES, from, num_bytes, arrival + i);
        places[i] = to;
        sizes[i] = num_bytes;
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
        wait_for_bytes(arrival + i, num_stored / PIECES);
        store_bytes(places[i], pieces + i * PIECE_BYTES, sizes[i]);
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        ++num_stored;
    }
};

// The same by the copy engine, of rows of BYTES bytes.
template <long long BYTES, long long STEP_BYTES, int RING>
__device__ __forceinline__ void add_rows_by_bulk(
    Copier& copier, const unsigned char* window, unsigned char* ring, int first, int num_rows)
{
    const int begin = num_rows > RING ? num_rows - RING : 0;
    constexpr int PIECES_OF_ROW = (int)((BYTES + Copier::PIECE_BYTES - 1) / Copier::PIECE_BYTES);
    for (int i = begin * PIECES_OF_ROW + blockIdx.x; i < num_rows * PIECES_OF_ROW; i += gridDim.x) {
        const int t = i / PIECES_OF_ROW;
        const long long start = (long long)(i % PIECES_OF_ROW) * Copier::PIECE_BYTES;
        const long long rest = BYTES - start;
        const int row = first + t < RING ? first + t : first + t - RING;
        copier.copy(ring + row * BYTES + start, window + t * STEP_BYTES + start,
                    (int)(rest < Copier::PIECE_BYTES ? rest : Copier::PIECE_BYTES));
    }
}
