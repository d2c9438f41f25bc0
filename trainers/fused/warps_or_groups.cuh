// Products by warpgroups on an sm_90a; elsewhere each warp makes its own, which are there at once.
#pragma once
#include "warpgroup.cuh"

// sum += A B of 16 columns of A, of which `tile` is the warp's, and 8 BLOCKS of B, in shared memory in blocks of 8 x 8.
//   TRANSPOSED     a row of a block of B is what is summed over, else a column of it
//   IN_CLUSTER     as `describe` has it
//   along, across  bytes from a block to the next one along what is summed over, and along B's columns
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
template <bool TRANSPOSED, bool IN_CLUSTER = false, int BLOCKS>
__device__ __forceinline__ void add_tile(
    float (&sum)[BLOCKS][4], const Pair (&tile)[4], const Element* b, int along, int across)
{
    add_product<false, TRANSPOSED, 0, BLOCKS>(sum, tile, describe<IN_CLUSTER>(b, along, across), across);
}
#else
// Not inlined: hundreds of products by shuffles would take the compiler hours.
template <bool TRANSPOSED, bool IN_CLUSTER = false, int BLOCKS>
__device__ __noinline__ void add_tile(
    float (&sum)[BLOCKS][4], const Pair (&tile)[4], const Element* b, int along, int across)
{
    const int g = lane_index() >> 2;
    const int t = lane_index() & 3;
    for (int i = 0; i < BLOCKS; ++i) {
        Pair both[2];
        for (int half = 0; half < 2; ++half) {
            const Element* block = (const Element*)((const char*)b + half * along + i * across);
            if (TRANSPOSED) {
                join(both[half], block[2 * t * 8 + g], block[(2 * t + 1) * 8 + g]);
            } else {
                join(both[half], block[g * 8 + 2 * t], block[g * 8 + 2 * t + 1]);
            }
        }
        multiply(sum[i], tile, both[0], both[1]);
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
