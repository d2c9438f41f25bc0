// Rows of elements in a block's shared memory, which products read and write.
//
// Constants, besides that of tensor_core.cuh:
//   IS_TANH  the activation: tanh, or else the positive part
//
// Rows lie `pitch` elements apart, an odd multiple of 16 bytes, so that the same columns of 8 rows do not meet in a
// bank. What is beyond a layer's columns, up to whole tiles of 16, is 0.
#pragma once
#include "over_block.cuh"
#include "pairs.cuh"
#include "tensor_core.cuh"

__device__ constexpr int padded(int columns)
{
    return (columns + 15) / 16 * 16;
}
__device__ constexpr int pitch_of(int columns)
{
    return padded(columns) + 8;
}

// A tile of A (or two neighbouring tiles of B, columns of B being rows here) out of rows in shared memory.
template <bool IS_A>
__device__ __forceinline__ void load_rows(Pair (&pairs)[4], const Element* rows, int pitch, int column)
{
    const int lane = lane_index();
    if constexpr (HAS_TENSOR_CORES && !FULL_PRECISION) {
        const int matrix = lane >> 3;
        const int row = (IS_A ? matrix & 1 : matrix >> 1) * 8 + (lane & 7);
        load_matrices<false>(pairs, rows + row * pitch + column + (IS_A ? matrix >> 1 : matrix & 1) * 8);
        return;
    }
    for (int matrix = 0; matrix < 4; ++matrix) {
        const int row = (IS_A ? matrix & 1 : matrix >> 1) * 8 + (lane >> 2);
        const Element* two = rows + row * pitch + column + (IS_A ? matrix >> 1 : matrix & 1) * 8 + 2 * (lane & 3);
        join(pairs[matrix], two[0], two[1]);
    }
}

__device__ __forceinline__ float activate(float x)
{
    return IS_TANH ? quick_tanh(x) : positive_part(x);
}

// What an activation's slope makes of deltas, by what it gave.
__device__ __forceinline__ Pair through_activation(float low, float high, Pair given)
{
    if (!IS_TANH) return where_positive(packed(low, high), given);
    const FloatPair y = unpack(given);
    return packed(low * (1.0f - y.low * y.low), high * (1.0f - y.high * y.high));
}

// What Adam steps along, x / (sqrt(y) c + 1e-5), as exact as the elements are.
__device__ __forceinline__ float step_of(float x, float y, float c)
{
#if HAS_TENSOR_CORES
    if (!FULL_PRECISION) {
        float root, part;  // y below the smallest normal number is 0
        asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(y));
        asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(part) : "f"(root * c + 1e-5f));
        return x * part;
    }
#endif
    return x / (sqrtf(y) * c + 1e-5f);
}
