// Takes in windows by the copy engine, while other threads look at how their steps ended.
//
// Constants, besides those of add.cuh:
//   COPIER_BYTES  of dynamic shared memory
#pragma once
#include "add.cuh"
#include "bulk.cuh"

static_assert(COPIER_BYTES == Copier::PIECES * Copier::PIECE_BYTES, "pieces do not fit");

// As add_rows, of rows of BYTES bytes, by one thread of each block.
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
