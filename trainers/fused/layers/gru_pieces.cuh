// How the weights of a gated recurrent unit of UNITS come out of gru_pack.cu.
#pragma once
#include "tensor_core.cuh"

constexpr int WEIGHTS = 3 * UNITS * UNITS;

// What a lane has of 16 x 16 weights, or of 16 rows of 16 numbers.
struct alignas(4 * sizeof(Pair)) Fragment {
    Pair pair[4];
};

// Pieces of 16 x 16 weights as gru_pack.cu has them, to blocks of 8 x 8 in shared memory: calls place(number, column,
// depth) for each pair of weights, which are neighbours in depth; it gives where they go.
//   PARTS   pieces of 16 columns
//   number  of the piece among those
template <int PARTS, typename Place>
__device__ __forceinline__ void spread(Element* shared, const unsigned char* weights, int num_threads, Place place)
{
#pragma unroll 4
    for (int i = threadIdx.x; i < WEIGHTS / 8; i += num_threads) {
        const Fragment found = ((const Fragment*)weights)[i];
        const int lane = i % 32;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const int column = i / (32 * PARTS) * 16 + lane / 8 * 4 + 2 * (k / 2) + lane / 4 % 2;
            const int depth = 8 * (k % 2) + 2 * (lane % 4);
            *(Pair*)(shared + place(i / 32 % PARTS, column, depth)) = found.pair[k];
        }
    }
}
