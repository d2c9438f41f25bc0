// What conv_outputs.cu and conv_backward.cu do alike on a convolution's way back: see convolution.cuh.
#pragma once
#include "convolution.cuh"

// Derivatives by what two products side by side gave, to those by what went into their activation, as pairs of A stand.
__device__ __forceinline__ void slant(float (&slanted)[4][2], const float (&sum)[2][4], const Pair (&gave)[4])
{
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const FloatPair activated = unpack(gave[i]);
        slanted[i][0] = sum[i / 2][2 * (i % 2)] * slope(activated.low);
        slanted[i][1] = sum[i / 2][2 * (i % 2) + 1] * slope(activated.high);
    }
}

// Through a LayerNorm: first the derivatives by its gains and shifts, and by its standard sums, with what a row needs
// of them; and once that is summed up over the row, the derivatives by what went into it.
//   derivative       by what is activated; then by the standard sums; at last by what went in  read, written
//   by_gain, by_shift  added to
//   whole, along     of row g and of row g + 8: sums of derivatives, and of these times the standard sums
//   num_columns      of a row
__device__ __forceinline__ void begin_normed(
    float (&derivative)[4][2], const Standard& standard, const float (&gain)[2][2], float (&by_gain)[2][2],
    float (&by_shift)[2][2], float (&whole)[2], float (&along)[2])
{
    whole[0] = whole[1] = along[0] = along[1] = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int of_row = i / 2 % 2;
        float& one = derivative[i / 2][i % 2];
        const float value = standard.value[i / 2][i % 2];
        by_gain[i / 4][i % 2] += one * value;
        by_shift[i / 4][i % 2] += one;
        one *= gain[i / 4][i % 2];
        whole[of_row] += one;
        along[of_row] += one * value;
    }
}
__device__ __forceinline__ void end_normed(
    float (&derivative)[4][2], const Standard& standard, const float (&whole)[2], const float (&along)[2],
    int num_columns)
{
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int of_row = i / 2 % 2;
        float& one = derivative[i / 2][i % 2];
        one = (one - (whole[of_row] + standard.value[i / 2][i % 2] * along[of_row]) / num_columns) * standard.scale[of_row];
    }
}

// Adds up what a lane has of the columns 2 t and 2 t + 1, over the eight lanes of each t; all of them get it.
__device__ __forceinline__ void over_rows(float (&two)[2])
{
#pragma unroll
    for (int flip = 4; flip <= 16; flip *= 2) {
        two[0] += __shfl_xor_sync(ALL_LANES, two[0], flip);
        two[1] += __shfl_xor_sync(ALL_LANES, two[1], flip);
    }
}

// Of gains and shifts of two columns, to [2, step] floats.
__device__ __forceinline__ void write_norm(float* place, int step, float (&gain)[2], float (&shift)[2])
{
    over_rows(gain);
    over_rows(shift);
    if (lane_index() >= 4) return;
    *(FloatPair*)place = {gain[0], gain[1]};
    *(FloatPair*)(place + step) = {shift[0], shift[1]};
}

// Sums of 16 x 8 to [16, pitch] floats.
__device__ __forceinline__ void write_sums(float* out, int pitch, const float (&sum)[4])
{
    float* place = out + (lane_index() >> 2) * pitch + 2 * (lane_index() & 3);
    *(FloatPair*)place = {sum[0], sum[1]};
    *(FloatPair*)(place + 8 * pitch) = {sum[2], sum[3]};
}
