// What a minibatch's advantages are normalised by, of constants that are the same for all networks:
//   NORMALISES_ADVANTAGE  whether they are
//   MIN_DEVIATION         the part of the returns' deviation that they are divided by at least; 0: their own alone
//   NUM_SUMS              of them
#pragma once
#include "warpdrive.cuh"

struct Advantage {
    float mean, deviation;
    float share;  // of one sample in the loss: 1 / how many count
};

// Combines the sums of advantage_sums, in every lane, always in the same order.
//   sums             [NUM_SUMS, 3]  how many count, sum of their advantages, sum of the squares
//   value_deviation  of the returns
__device__ __forceinline__ Advantage read_advantage(const double* sums, float value_deviation)
{
    double number = 0.0;
    double sum = 0.0;
    double squares = 0.0;
    for (int i = threadIdx.x & 31; i < NUM_SUMS; i += 32) {
        number += sums[3 * i];
        sum += sums[3 * i + 1];
        squares += sums[3 * i + 2];
    }
    for (int flip = 16; flip > 0; flip /= 2) {
        number += __shfl_xor_sync(0xffffffffu, number, flip);
        sum += __shfl_xor_sync(0xffffffffu, sum, flip);
        squares += __shfl_xor_sync(0xffffffffu, squares, flip);
    }
    number = number < 1.0 ? 1.0 : number;
    Advantage found = {0.0f, 1.0f, (float)(1.0 / number)};
    if (NORMALISES_ADVANTAGE) {
        const double mean = sum / number;
        const double variance = squares / number - mean * mean;
        found.mean = (float)mean;
        const float deviation = (float)sqrt(variance > 0.0 ? variance : 0.0) + 1e-8f;
        found.deviation = MIN_DEVIATION > 0.0f ? fmaxf(deviation, MIN_DEVIATION * value_deviation) : deviation;
    }
    return found;
}
