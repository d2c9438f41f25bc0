// What all kernels need that draw numbers of a Box.
#pragma once

__device__ const float HALF_LOG_TWO_PI = 0.918938533204672742f;

// log(1 - tanh(x)^2), also where that is 0 in float.
__device__ __forceinline__ float log_slope_of_tanh(float x)
{
    const float far = -2.0f * fabsf(x);
    return 2.0f * (0.693147180559945309f + 0.5f * far - log1pf(expf(far)));
}
