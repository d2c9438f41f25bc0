// Sums over a warp, and over a block of whole warps; in the same order every time.
#pragma once
#include "tensor_core.cuh"

__device__ __forceinline__ float over_warp(float sum, int lanes = 32)
{
    for (int distance = lanes / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, distance);
    return sum;
}

// All threads of the block call it, and get it.
//   of_warp  [warps of the block] in shared memory
__device__ __forceinline__ float over_block(float sum, float* of_warp)
{
    sum = over_warp(sum);
    __syncthreads();
    if (lane_index() == 0) of_warp[threadIdx.x / 32] = sum;
    __syncthreads();
    float whole = 0.0f;
    for (int warp = 0; warp < (int)blockDim.x / 32; ++warp) whole += of_warp[warp];
    return whole;
}
