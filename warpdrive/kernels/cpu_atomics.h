// Atomics, relaxed as in CUDA. Blocks run on different OS threads, so these must be real ones.
#pragma once
#include <stdint.h>
#include <string.h>

namespace warpdrive_cpu {

// Replaces *place by change(*place) in one step; returns what was there before.
template <class T, class Change>
static inline T atomic_change(T* place, Change change) {
    T old = __atomic_load_n(place, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(place, &old, change(old), true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return old;
}

template <class Float, class Bits, class Change>
static inline Float atomic_change_float(Float* place, Change change) {
    const Bits old = atomic_change(reinterpret_cast<Bits*>(place), [&](Bits bits) {
        Float value;
        memcpy(&value, &bits, sizeof value);
        value = change(value);
        memcpy(&bits, &value, sizeof bits);
        return bits;
    });
    Float value;
    memcpy(&value, &old, sizeof value);
    return value;
}

}  // namespace warpdrive_cpu

#define WARPDRIVE_ATOMICS(T)                                                                               \
    static inline T atomicAdd(T* place, T value) { return __atomic_fetch_add(place, value, __ATOMIC_RELAXED); } \
    static inline T atomicSub(T* place, T value) { return __atomic_fetch_sub(place, value, __ATOMIC_RELAXED); } \
    static inline T atomicAnd(T* place, T value) { return __atomic_fetch_and(place, value, __ATOMIC_RELAXED); } \
    static inline T atomicOr(T* place, T value) { return __atomic_fetch_or(place, value, __ATOMIC_RELAXED); }   \
    static inline T atomicXor(T* place, T value) { return __atomic_fetch_xor(place, value, __ATOMIC_RELAXED); } \
    static inline T atomicExch(T* place, T value) { return __atomic_exchange_n(place, value, __ATOMIC_RELAXED); } \
    static inline T atomicCAS(T* place, T expected, T value) {                                             \
        __atomic_compare_exchange_n(place, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);   \
        return expected;                                                                                   \
    }                                                                                                      \
    static inline T atomicMin(T* place, T value) {                                                         \
        return warpdrive_cpu::atomic_change(place, [=](T old) { return value < old ? value : old; });      \
    }                                                                                                      \
    static inline T atomicMax(T* place, T value) {                                                         \
        return warpdrive_cpu::atomic_change(place, [=](T old) { return old < value ? value : old; });      \
    }
WARPDRIVE_ATOMICS(int)
WARPDRIVE_ATOMICS(unsigned)
WARPDRIVE_ATOMICS(long long)
WARPDRIVE_ATOMICS(unsigned long long)

static inline unsigned atomicInc(unsigned* place, unsigned limit) {
    return warpdrive_cpu::atomic_change(place, [=](unsigned old) { return old >= limit ? 0u : old + 1u; });
}
static inline unsigned atomicDec(unsigned* place, unsigned limit) {
    return warpdrive_cpu::atomic_change(place,
                                        [=](unsigned old) { return old == 0u || old > limit ? limit : old - 1u; });
}
static inline float atomicAdd(float* place, float value) {
    return warpdrive_cpu::atomic_change_float<float, uint32_t>(place, [=](float old) { return old + value; });
}
static inline double atomicAdd(double* place, double value) {
    return warpdrive_cpu::atomic_change_float<double, uint64_t>(place, [=](double old) { return old + value; });
}
static inline float atomicExch(float* place, float value) {
    return warpdrive_cpu::atomic_change_float<float, uint32_t>(place, [=](float) { return value; });
}

// A scope makes no difference here: every atomic is seen by all.
#define atomicAdd_block atomicAdd
#define atomicAdd_system atomicAdd
#define atomicMin_block atomicMin
#define atomicMax_block atomicMax
#define atomicCAS_block atomicCAS
#define atomicExch_block atomicExch
#define atomicOr_block atomicOr
#define atomicAnd_block atomicAnd
