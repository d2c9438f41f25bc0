// Sums over a warp, and over a block of whole warps; in the same order every time.
#pragma once
#include "tensor_core.cuh"

__device__ __forceinline__ float over_warp(float sum, int lanes = 32)
{
    for (int distance = lanes / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, distance);
    return sum;
}

// Several at once, each in its place. All threads of the block call it, and get them.
//   of_warps  [COUNT, warps of the block] in shared memory
template <int COUNT>
__device__ __forceinline__ void over_block(float (&sums)[COUNT], float* of_warps)
{
    const int warps = (int)blockDim.x / 32;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) sums[i] = over_warp(sums[i]);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        if (lane_index() == 0) of_warps[i * warps + threadIdx.x / 32] = sums[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        sums[i] = 0.0f;
        for (int warp = 0; warp < warps; ++warp) sums[i] += of_warps[i * warps + warp];
    }
}
// One.
__device__ __forceinline__ float over_block(float sum, float* of_warp)
{
    float sums[1] = {sum};
    over_block(sums, of_warp);
    return sums[0];
}
