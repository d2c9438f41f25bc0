// What a policy does in a Box: numbers of normal distributions, or those it says, which the hyperbolic tangent squashes.
//
// Constants:
//   NUM_NUMBERS   of an action
//   LOG_STD_INIT  what logarithms of deviations are more than the policy's outputs
#pragma once
#include "gaussian.cuh"

constexpr float LEAST_LOG_STD = -20.0f, LARGEST_LOG_STD = 2.0f;  // heads/squashed.py has them

// Between two ends; a NaN stays one.
__device__ __forceinline__ float between(float x, float low, float high)
{
    return x < low ? low : x > high ? high : x;
}

// A number that is drawn: what it is in parts of the Box, and what it adds to the action's log-probability there.
struct Drawn {
    float log_std, deviation, part, log_prob;
    bool is_clamped;  // its deviation

    //   outputs  [2 NUM_NUMBERS]  of the policy: means, then logarithms of deviations
    __device__ __forceinline__ Drawn(const float* outputs, int i, float deviate)
    {
        const float log = outputs[NUM_NUMBERS + i] + LOG_STD_INIT;
        is_clamped = log < LEAST_LOG_STD || log > LARGEST_LOG_STD;
        log_std = between(log, LEAST_LOG_STD, LARGEST_LOG_STD);
        deviation = expf(log_std) * deviate;
        const float number = outputs[i] + deviation;
        part = tanhf(number);
        log_prob = -(0.5f * deviate * deviate + HALF_LOG_TWO_PI + log_std + log_slope_of_tanh(number));
    }
};
