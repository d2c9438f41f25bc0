// Powers with the same bits on every device: of nothing but operations that IEEE 754 rounds.
// libm's, and a compiler that contracts, give a CPU and a GPU different last bits.
#pragma once

// log2 of a normal number > 0, to 2e-7 of its size or 1e-7.
__device__ __forceinline__ float log2_exact(float x)
{
    const int bits = __float_as_int(x);
    int exponent = (bits >> 23) - 127;
    float mantissa = __int_as_float((bits & 0x007fffff) | 0x3f800000);  // [1, 2)
    if (mantissa > 1.41421356f) {
        mantissa = __fmul_rn(mantissa, 0.5f);
        exponent += 1;
    }
    // log(m) = 2 atanh(s), |s| < 0.172
    const float s = __fdiv_rn(__fsub_rn(mantissa, 1.0f), __fadd_rn(mantissa, 1.0f));
    const float square = __fmul_rn(s, s);
    float sum = 0.26230818f;  // 2 / (11 ln 2)
    sum = __fmaf_rn(sum, square, 0.32059890f);
    sum = __fmaf_rn(sum, square, 0.41219859f);
    sum = __fmaf_rn(sum, square, 0.57707802f);
    sum = __fmaf_rn(sum, square, 0.96179669f);
    sum = __fmaf_rn(sum, square, 2.88539008f);
    return __fmaf_rn(sum, s, (float)exponent);
}

// 2^x, to 2e-7 of it; what is below 2^-126 is 2^-126, and above 2^127 is that.
__device__ __forceinline__ float exp2_exact(float x)
{
    x = x < -126.0f ? -126.0f : x > 127.0f ? 127.0f : x;
    const int whole = __float2int_rn(x);
    const float rest = __fsub_rn(x, (float)whole);  // [-0.5, 0.5]
    float sum = 1.5252734e-5f;  // ln(2)^k / k!, k = 7 .. 0
    sum = __fmaf_rn(sum, rest, 1.5403530e-4f);
    sum = __fmaf_rn(sum, rest, 1.3333558e-3f);
    sum = __fmaf_rn(sum, rest, 9.6181291e-3f);
    sum = __fmaf_rn(sum, rest, 5.5504109e-2f);
    sum = __fmaf_rn(sum, rest, 2.4022651e-1f);
    sum = __fmaf_rn(sum, rest, 6.9314718e-1f);
    sum = __fmaf_rn(sum, rest, 1.0f);
    return __fmul_rn(sum, __int_as_float((whole + 127) << 23));
}

// x^exponent for x >= 0; 0^0 is 1. What is too small for a normal number counts as 0.
__device__ __forceinline__ float power_exact(float x, float exponent)
{
    if (exponent == 0.0f) return 1.0f;
    if (x < 1.17549435e-38f) return 0.0f;
    if (exponent == 1.0f) return x;
    if (x > 3.4028235e38f) return x;
    return exp2_exact(__fmul_rn(exponent, log2_exact(x)));
}
