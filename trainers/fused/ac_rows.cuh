// A block's rows of a batch, and what of them goes to memory for their gradients (ac_gradient.cu and its twin).
//
// Constants, besides those of ac_networks.cuh:
//   BATCH      rows that are there; arrays of elements hold as many as all blocks have, or IN_BLOCKS whole 64
//   ROWS       of a block
//   SPLIT      blocks of a cluster, which have the same rows, and of NUM_CRITICS as many each; 1: there are no clusters
//   IN_BLOCKS  whether they go there as warpgroups multiply them: each 64 rows in panels of 64 columns, or what is
//              left of them, and these in blocks of 8 x 8, [row / 8][column / 8][row][column]
#pragma once
#include "ac_networks.cuh"
#include "bulk.cuh"
#include "cluster.cuh"

constexpr int ROW_TILES = ROWS / 16;
constexpr int OWN_CRITICS = NUM_CRITICS / SPLIT;  // of a block
static_assert(NUM_CRITICS % SPLIT == 0 && SPLIT <= 8, "a portable cluster has 8 blocks at most");

__device__ __forceinline__ int first_row()
{
    return blockIdx.x / SPLIT * ROWS;
}
// The first block of a cluster makes what all its rows need once.
__device__ __forceinline__ bool is_first()
{
    return blockIdx.x % SPLIT == 0;
}
__device__ __forceinline__ int first_critic()
{
    return blockIdx.x % SPLIT * OWN_CRITICS;
}
// What blocks of a cluster tell each other of their own critics: of COUNT numbers each, which are there once they came.
// Where a cluster is one block, they are there anyway.
struct Told {
    unsigned long long arrival;  // in shared memory

    // One thread does, before blocks meet.
    //   num_bytes  that others will tell
    __device__ __forceinline__ void prepare(int num_bytes)
    {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        if (SPLIT == 1) return;
        prepare_arrival(&arrival);
        expect_bytes(&arrival, num_bytes);
#endif
    }
    // All threads do, after a barrier; once.
    template <int COUNT>
    __device__ __forceinline__ void share(float (*of_critics)[COUNT])
    {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        if (SPLIT == 1) return;
        const float* own = of_critics[first_critic()];
        for (int i = threadIdx.x; i < OWN_CRITICS * COUNT; i += THREADS) {
            for (int block = 0; block < SPLIT; ++block) {
                if (block == blockIdx.x % SPLIT) continue;
                const unsigned there = place_in_block(own + i, block), counts = place_in_block(&arrival, block);
                asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(there),
                             "f"(own[i]), "r"(counts)
                             : "memory");
            }
        }
        wait_for_bytes<true>(&arrival, 0);
#endif
    }
};
// That others tell of so many numbers of each critic.
__device__ constexpr int bytes_told(int count)
{
    return (NUM_CRITICS - OWN_CRITICS) * count * 4;
}

// The batch's rows that count, at least 1.
__device__ __forceinline__ float number_of(const float* weight, float* of_warp)
{
    float sum = 0.0f;
    for (int row = threadIdx.x; row < BATCH; row += THREADS) sum += weight[row] > 0.0f ? 1.0f : 0.0f;
    return fmaxf(over_block(sum, of_warp), 1.0f);
}

// Rows that arrays of elements have room for.
__device__ __forceinline__ long long num_rows()
{
    const long long rows = (long long)(gridDim.x / SPLIT) * ROWS;
    return IN_BLOCKS ? (rows + 63) / 64 * 64 : rows;
}

// Calls each(place, piece) for what the block's rows of a layer have, 16 bytes a piece: in shared memory and in global,
// where it is the piece of that number. Neighbours among threads have neighbours there.
template <typename Each>
__device__ __forceinline__ void for_each_piece(int width, Each each)
{
    constexpr int PIECE = 16 / (int)sizeof(Element), OF_BLOCK = 8 / PIECE;  // of a row of it
    const int pieces = padded(width) / PIECE, blocks = padded(width) / 8;
    const long long first = first_row();
    for (int i = threadIdx.x; i < ROWS * pieces; i += THREADS) {
        if (!IN_BLOCKS) {
            each(i / pieces * pitch_of(width) + i % pieces * PIECE, first * pieces + i);
            continue;
        }
        const int within = i % (8 * OF_BLOCK), block = i / (8 * OF_BLOCK);
        const int row = block / blocks * 8 + within / OF_BLOCK, column = block % blocks;
        const int panel = column / 8, of_panel = min(8, blocks - 8 * panel);
        const int row_in_stage = (int)((first + row) % 64);
        const int place = panel * 64 + row_in_stage / 8 * of_panel + column % 8;  // a block, among those of 64 rows
        each(row * pitch_of(width) + column * 8 + within % OF_BLOCK * PIECE,
             (first + row) / 64 * 64 * pieces + place * 8 * OF_BLOCK + within);
    }
}
// Rows of a layer go to memory: [row, padded(width)]; or IN_BLOCKS.
__device__ __forceinline__ void keep(const Element* rows, int width, unsigned char* memory)
{
    for_each_piece(width, [&](int place, long long piece) {
        ((Bytes16*)memory)[piece] = *(const Bytes16*)(rows + place);
    });
}
// And back, on their way until `wait_for_copies`.
__device__ __forceinline__ void start_fetch(const unsigned char* memory, int width, Element* rows)
{
    for_each_piece(width, [&](int place, long long piece) {
        start_copy((Bytes16*)(rows + place), (const Bytes16*)memory + piece);
    });
}
__device__ __forceinline__ long long bytes_of(long long rows, int width)
{
    return rows * padded(width) * (long long)sizeof(Element);
}
