// CUDA's device functions of numbers. libm's own (sinf, sqrtf, ...) are used where the names agree.
#pragma once
#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

template <class T>
static inline T __ldg(const T* place) { return *place; }
template <class T>
static inline T __ldcg(const T* place) { return *place; }
template <class T>
static inline T __ldca(const T* place) { return *place; }

// ---- least and greatest
// libm's fminf is a call, because of its rule for NaN; these keep the rule, inline and vectorise.
#define fminf warpdrive_fminf
#define fmaxf warpdrive_fmaxf
#define fmin warpdrive_fmin
#define fmax warpdrive_fmax
static inline float fminf(float a, float b) { return b != b ? a : a < b ? a : b; }
static inline float fmaxf(float a, float b) { return b != b ? a : a > b ? a : b; }
static inline double fmin(double a, double b) { return b != b ? a : a < b ? a : b; }
static inline double fmax(double a, double b) { return b != b ? a : a > b ? a : b; }
static inline float fmin(float a, float b) { return fminf(a, b); }
static inline float fmax(float a, float b) { return fmaxf(a, b); }
#define WARPDRIVE_MIN_MAX(T)                               \
    static inline T min(T a, T b) { return b < a ? b : a; } \
    static inline T max(T a, T b) { return a < b ? b : a; }
WARPDRIVE_MIN_MAX(int)
WARPDRIVE_MIN_MAX(unsigned)
WARPDRIVE_MIN_MAX(long)
WARPDRIVE_MIN_MAX(unsigned long)
WARPDRIVE_MIN_MAX(long long)
WARPDRIVE_MIN_MAX(unsigned long long)
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(static_cast<double>(a), static_cast<double>(b)); }
static inline double max(double a, double b) { return fmax(static_cast<double>(a), static_cast<double>(b)); }
static inline double min(float a, double b) { return fmin(static_cast<double>(a), static_cast<double>(b)); }
static inline double max(float a, double b) { return fmax(static_cast<double>(a), static_cast<double>(b)); }
static inline double min(double a, float b) { return fmin(static_cast<double>(a), static_cast<double>(b)); }
static inline double max(double a, float b) { return fmax(static_cast<double>(a), static_cast<double>(b)); }
static inline unsigned min(int a, unsigned b) { return min(static_cast<unsigned>(a), b); }
static inline unsigned min(unsigned a, int b) { return min(a, static_cast<unsigned>(b)); }
static inline unsigned max(int a, unsigned b) { return max(static_cast<unsigned>(a), b); }
static inline unsigned max(unsigned a, int b) { return max(a, static_cast<unsigned>(b)); }

// ---- names that some C libraries declare too
#define rsqrtf warpdrive_rsqrtf
#define rsqrt warpdrive_rsqrt
#define sinpif warpdrive_sinpif
#define cospif warpdrive_cospif
#define sincospif warpdrive_sincospif
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
static inline float sinpif(float x) { return static_cast<float>(sin(M_PI * static_cast<double>(x))); }
static inline float cospif(float x) { return static_cast<float>(cos(M_PI * static_cast<double>(x))); }
static inline void sincospif(float x, float* sine, float* cosine) {
    *sine = sinpif(x);
    *cosine = cospif(x);
}
static inline float rcbrtf(float x) { return 1.0f / cbrtf(x); }
static inline float norm3df(float x, float y, float z) { return sqrtf(x * x + y * y + z * z); }
static inline float rnorm3df(float x, float y, float z) { return 1.0f / norm3df(x, y, z); }
static inline float rhypotf(float x, float y) { return 1.0f / hypotf(x, y); }

// ---- arithmetic with a named rounding; nothing is contracted, so the plain operators round each step
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
static inline float __frcp_rn(float a) { return 1.0f / a; }
static inline float __fsqrt_rn(float a) { return sqrtf(a); }
static inline float __frsqrt_rn(float a) { return static_cast<float>(1.0 / sqrt(static_cast<double>(a))); }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __saturatef(float x) { return x != x ? 0.0f : fminf(fmaxf(x, 0.0f), 1.0f); }

// ---- fast intrinsics; the C library declares these very names, so they are renamed
#define __sinf warpdrive_fast_sinf
#define __cosf warpdrive_fast_cosf
#define __tanf warpdrive_fast_tanf
#define __expf warpdrive_fast_expf
#define __exp10f warpdrive_fast_exp10f
#define __logf warpdrive_fast_logf
#define __log2f warpdrive_fast_log2f
#define __log10f warpdrive_fast_log10f
#define __powf warpdrive_fast_powf
#define __sincosf warpdrive_fast_sincosf
static inline float __sinf(float x) { return sinf(x); }
static inline float __cosf(float x) { return cosf(x); }
static inline float __tanf(float x) { return tanf(x); }
static inline float __expf(float x) { return expf(x); }
static inline float __exp10f(float x) { return powf(10.0f, x); }
static inline float __logf(float x) { return logf(x); }
static inline float __log2f(float x) { return log2f(x); }
static inline float __log10f(float x) { return log10f(x); }
static inline float __powf(float x, float y) { return powf(x, y); }
static inline void __sincosf(float x, float* sine, float* cosine) {
    *sine = sinf(x);
    *cosine = cosf(x);
}

// ---- conversions; CUDA saturates and turns NaN into 0
#define WARPDRIVE_TO_INTEGER(NAME, T, ROUND, LEAST, GREATEST)                                 \
    static inline T NAME(float x) {                                                           \
        if (x != x) return 0;                                                                 \
        const double rounded = ROUND(static_cast<double>(x));                                 \
        return rounded <= static_cast<double>(LEAST)      ? LEAST                             \
               : rounded >= static_cast<double>(GREATEST) ? GREATEST                          \
                                                          : static_cast<T>(rounded);          \
    }
WARPDRIVE_TO_INTEGER(__float2int_rn, int, rint, INT_MIN, INT_MAX)
WARPDRIVE_TO_INTEGER(__float2int_rz, int, trunc, INT_MIN, INT_MAX)
WARPDRIVE_TO_INTEGER(__float2int_rd, int, floor, INT_MIN, INT_MAX)
WARPDRIVE_TO_INTEGER(__float2int_ru, int, ceil, INT_MIN, INT_MAX)
WARPDRIVE_TO_INTEGER(__float2uint_rn, unsigned, rint, 0u, UINT_MAX)
WARPDRIVE_TO_INTEGER(__float2uint_rz, unsigned, trunc, 0u, UINT_MAX)
WARPDRIVE_TO_INTEGER(__float2uint_rd, unsigned, floor, 0u, UINT_MAX)
WARPDRIVE_TO_INTEGER(__float2uint_ru, unsigned, ceil, 0u, UINT_MAX)
static inline float __int2float_rn(int x) { return static_cast<float>(x); }
static inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }

namespace warpdrive_cpu {
template <class To, class From>
static inline To reinterpret(From value) {
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To result;
    memcpy(&result, &value, sizeof result);
    return result;
}
}  // namespace warpdrive_cpu
static inline int __float_as_int(float x) { return warpdrive_cpu::reinterpret<int>(x); }
static inline unsigned __float_as_uint(float x) { return warpdrive_cpu::reinterpret<unsigned>(x); }
static inline float __int_as_float(int x) { return warpdrive_cpu::reinterpret<float>(x); }
static inline float __uint_as_float(unsigned x) { return warpdrive_cpu::reinterpret<float>(x); }
static inline long long __double_as_longlong(double x) { return warpdrive_cpu::reinterpret<long long>(x); }
static inline double __longlong_as_double(long long x) { return warpdrive_cpu::reinterpret<double>(x); }

// ---- integers
static inline unsigned __umulhi(unsigned a, unsigned b) {
    return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32);
}
static inline int __mulhi(int a, int b) { return static_cast<int>(static_cast<int64_t>(a) * b >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
static inline int __mul24(int a, int b) {
    const auto low_24_bits = [](int x) { return static_cast<int>(static_cast<unsigned>(x) << 8) >> 8; };
    return low_24_bits(a) * low_24_bits(b);
}
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline unsigned __brev(unsigned x) {
    x = (x & 0x55555555u) << 1 | (x >> 1 & 0x55555555u);
    x = (x & 0x33333333u) << 2 | (x >> 2 & 0x33333333u);
    x = (x & 0x0f0f0f0fu) << 4 | (x >> 4 & 0x0f0f0f0fu);
    return __builtin_bswap32(x);
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    shift &= 31;
    return shift ? high << shift | low >> (32 - shift) : high;
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    shift &= 31;
    return shift ? low >> shift | high << (32 - shift) : low;
}

// ---- time
#if defined(__x86_64__)
static inline long long clock64() { return static_cast<long long>(__builtin_ia32_rdtsc()); }
#else
static inline long long clock64() {
    unsigned long long ticks;
    asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return static_cast<long long>(ticks);
}
#endif
#define clock warpdrive_clock  // <time.h> has another
static inline long clock() { return static_cast<long>(clock64()); }
static inline void __nanosleep(unsigned) {}
