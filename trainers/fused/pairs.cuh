// Where a lane has two neighbouring sums of a tile: i of 4, the first two of row g, the others of row g + 8.
#pragma once
#include "tensor_core.cuh"

template <typename Take>
__device__ __forceinline__ void for_each_pair(const float (&sum)[2][4], Take take)
{
    const int g = lane_index() >> 2;
    const int t = lane_index() & 3;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float* two = &sum[i & 1][i & 2];
        take(g + (i >> 1) * 8, (i & 1) * 8 + 2 * t, two[0], two[1]);
    }
}
