// A block's rows of a batch, and what of them goes to memory for what follows (ac_step.cu).
//
// Constants, besides those of ac_networks.cuh:
//   BATCH  rows that are there; arrays of elements hold as many as all blocks have
//   ROWS   of a block
#pragma once
#include "ac_networks.cuh"

constexpr int ROW_TILES = ROWS / 16;

// The batch's rows that count, at least 1.
__device__ __forceinline__ float number_of(const float* weight, float* of_warp)
{
    float sum = 0.0f;
    for (int row = threadIdx.x; row < BATCH; row += THREADS) sum += weight[row] > 0.0f ? 1.0f : 0.0f;
    return fmaxf(over_block(sum, of_warp), 1.0f);
}

// Rows of a layer go to memory: [row, padded(width)].
__device__ __forceinline__ void keep(const Element* rows, int width, unsigned char* memory)
{
    constexpr int PIECE = 16 / (int)sizeof(Element);
    const int pieces = padded(width) / PIECE;
    Bytes16* place = (Bytes16*)memory + (long long)blockIdx.x * ROWS * pieces;
    for (int i = threadIdx.x; i < ROWS * pieces; i += THREADS) {
        place[i] = *(const Bytes16*)(rows + i / pieces * pitch_of(width) + i % pieces * PIECE);
    }
}
// And back, on their way until `wait_for_copies`.
__device__ __forceinline__ void start_fetch(const unsigned char* memory, int width, Element* rows)
{
    constexpr int PIECE = 16 / (int)sizeof(Element);
    const int pieces = padded(width) / PIECE;
    const Bytes16* place = (const Bytes16*)memory + (long long)blockIdx.x * ROWS * pieces;
    for (int i = threadIdx.x; i < ROWS * pieces; i += THREADS) {
        start_copy((Bytes16*)(rows + i / pieces * pitch_of(width) + i % pieces * PIECE), place + i);
    }
}
__device__ __forceinline__ long long bytes_of(long long rows, int width)
{
    return rows * padded(width) * (long long)sizeof(Element);
}
