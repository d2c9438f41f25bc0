// Products by whole warpgroups of what is in registers and weights in shared memory: what by_warpgroups.cu and
// gru_by_warpgroups.cu have in common. Elsewhere than on an sm_90a warps multiply alone.
//
// Constants: FULL_PRECISION, IS_TANH, WARPS, as by_warpgroups.cu has them.
#pragma once
#include "warpgroup.cuh"

constexpr int PANEL = 128;  // columns of B
constexpr int BLOCKS = PANEL / 8;
constexpr int THREADS = WARPS * 32;

__device__ __forceinline__ float activate(float x)
{
    return IS_TANH ? quick_tanh(x) : positive_part(x);
}
__device__ __forceinline__ float slope(float activated)
{
    if (IS_TANH) return 1.0f - activated * activated;
    return activated > 0.0f ? 1.0f : 0.0f;
}

// sum[FIRST ..] += A B of 16 columns of A, of which `tile` is the warp's, and 8 COUNT of B, in shared memory in blocks of
// 8 x 8.
//   TRANSPOSED     a row of a block of B is what is summed over, else a column of it
//   SETS           = instead of +=
//   along, across  bytes from a block to the next one along what is summed over, and along B's columns
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
template <bool TRANSPOSED, bool SETS = false, int FIRST = 0, int COUNT = BLOCKS>
__device__ __forceinline__ void add_tile(
    float (&sum)[BLOCKS][4], const Pair (&tile)[4], const Element* b, int along, int across)
{
    add_product<SETS, TRANSPOSED, FIRST, COUNT>(sum, tile, describe(b, along, across), across);
}

// A factor in shared memory, in blocks of 8 x 8.
//   along, across  as above; across rows of A, or columns of B
struct InShared {
    unsigned long long matrix;

    __device__ __forceinline__ InShared(const Element* place, int along, int across)
        : matrix(describe(place, along, across))
    {
    }
    // The same, so many elements further on.
    __device__ __forceinline__ InShared at(int elements) const
    {
        InShared found = *this;
        found.matrix = moved(matrix, elements * (int)sizeof(Element));
        return found;
    }
};
// sum += A B of 16 columns of A, and 8 COUNT of B, up to 128.
//   OF_ROWS  a row of a block is what is summed over, else a column of it
template <bool OF_ROWS, int COUNT>
__device__ __forceinline__ void add_shared(float (&sum)[COUNT][4], const InShared& a, const InShared& b)
{
    static_assert(8 * COUNT == widest_product(8 * COUNT), "one product");
    add_product_in_shared<false, OF_ROWS, 0, COUNT>(sum, a.matrix, b.matrix, 0);
}
#else
// Not inlined: hundreds of products by shuffles would take the compiler hours.
template <bool TRANSPOSED, bool SETS = false, int FIRST = 0, int COUNT = BLOCKS>
__device__ __noinline__ void add_tile(
    float (&sum)[BLOCKS][4], const Pair (&tile)[4], const Element* b, int along, int across)
{
    const int g = lane_index() >> 2;
    const int t = lane_index() & 3;
    for (int i = 0; i < COUNT; ++i) {
        Pair both[2];
        for (int half = 0; half < 2; ++half) {
            const Element* block = (const Element*)((const char*)b + half * along + i * across);
            if (TRANSPOSED) {
                join(both[half], block[2 * t * 8 + g], block[(2 * t + 1) * 8 + g]);
            } else {
                join(both[half], block[g * 8 + 2 * t], block[g * 8 + 2 * t + 1]);
            }
        }
        float(&of_block)[4] = sum[FIRST + i];
        if (SETS) of_block[0] = of_block[1] = of_block[2] = of_block[3] = 0.0f;
        multiply(of_block, tile, both[0], both[1]);
    }
}
struct InShared {
    const Element* place;
    int along, across;

    __device__ __forceinline__ InShared(const Element* place, int along, int across)
        : place(place), along(along), across(across)
    {
    }
    __device__ __forceinline__ InShared at(int elements) const { return InShared(place + elements, along, across); }
    template <bool OF_ROWS>
    __device__ __forceinline__ float element(int k, int column) const
    {
        const Element* block = (const Element*)((const char*)place + k / 8 * along + column / 8 * across);
        Pair found;
        join(found, block[OF_ROWS ? k % 8 * 8 + column % 8 : column % 8 * 8 + k % 8], block[0]);
        return unpack(found).low;
    }
};
template <bool OF_ROWS, int COUNT>
__device__ __noinline__ void add_shared(float (&sum)[COUNT][4], const InShared& a, const InShared& b)
{
    const int row = threadIdx.x / 32 % 4 * 16 + (lane_index() >> 2);
    for (int i = 0; i < 4 * COUNT; ++i) {
        const int column = i / 4 * 8 + 2 * (lane_index() & 3) + i % 2;
        for (int k = 0; k < 16; ++k) {
            sum[i / 4][i % 4] += a.element<OF_ROWS>(k, row + i % 4 / 2 * 8) * b.element<OF_ROWS>(k, column);
        }
    }
}
__device__ __forceinline__ void begin_products() {}
__device__ __forceinline__ void end_products() {}
template <int PENDING>
__device__ __forceinline__ void wait_for_products()
{
}
template <int SIZE>
__device__ __forceinline__ void settle(float (&)[SIZE][4])
{
}
template <int SIZE>
__device__ __forceinline__ void settle_input(const Pair (&)[SIZE][4])
{
}
__device__ __forceinline__ void show_to_products() {}
#endif
