// Lets a host C++17 compiler (g++ or clang++) compile CUDA C unchanged. The user's text follows this header.
//
// A block runs on one OS thread. Its CUDA threads run in index order inside a plain loop; only a thread that
// reaches a barrier or a warp primitive is parked, on a fiber of its own. A kernel without a barrier is therefore
// a loop that the compiler can vectorise.
#pragma once
#ifndef __cplusplus
#error "kernels are compiled as C++"
#endif
#ifndef _GLIBCXX_BITS_SPECFUN_H
#define _GLIBCXX_BITS_SPECFUN_H 1  // libstdc++'s Bessel functions and their kin: reading them takes longer than a kernel
#endif
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cpu_abi.h"

#define WARPDRIVE_CPU 1  // user code may test this; __CUDA_ARCH__ stays undefined

#if defined(__SANITIZE_THREAD__)
#define WARPDRIVE_CPU_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define WARPDRIVE_CPU_TSAN 1
#endif
#endif

#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(n) alignas(n)
#define __restrict__ __restrict
// One block is on one OS thread, so what belongs to a block is thread-local. In function scope this implies
// static; `extern __shared__ T x[];` is defined when the kernel is linked.
#define __shared__ thread_local

// ---- vector types
struct int3 {
    int x, y, z;
};
struct float3 {
    float x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
    constexpr dim3(uint3 size) : x(size.x), y(size.y), z(size.z) {}
    constexpr operator uint3() const { return uint3{x, y, z}; }
};
#define WARPDRIVE_VECTORS(T, NAME)                                                          \
    struct alignas(2 * sizeof(T)) NAME##2 { T x, y; };                                      \
    struct alignas(sizeof(T) < 8 ? 4 * sizeof(T) : 16) NAME##4 { T x, y, z, w; };           \
    static inline NAME##2 make_##NAME##2(T x, T y) { return NAME##2{x, y}; }                \
    static inline NAME##4 make_##NAME##4(T x, T y, T z, T w) { return NAME##4{x, y, z, w}; }
WARPDRIVE_VECTORS(float, float)
WARPDRIVE_VECTORS(double, double)
WARPDRIVE_VECTORS(int, int)
WARPDRIVE_VECTORS(unsigned, uint)
WARPDRIVE_VECTORS(short, short)
WARPDRIVE_VECTORS(unsigned short, ushort)
WARPDRIVE_VECTORS(signed char, char)
WARPDRIVE_VECTORS(unsigned char, uchar)
WARPDRIVE_VECTORS(long long, longlong)
WARPDRIVE_VECTORS(unsigned long long, ulonglong)
static inline float3 make_float3(float x, float y, float z) { return float3{x, y, z}; }
static inline int3 make_int3(int x, int y, int z) { return int3{x, y, z}; }
static inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return uint3{x, y, z}; }

// ---- who am I
namespace warpdrive_cpu {

struct Self {
    uint3 thread_index, block_index, block_size, grid_size;
    unsigned thread;    // thread_index as one number
    bool is_muted, watches_reads;
    const Scheduler* scheduler;
    Block* block;
};
// Static and never passed by address, so the compiler keeps threadIdx in a register where no call is opaque.
static thread_local Self self;
// This thread has been parked: the loop over threads goes on elsewhere. Apart from `self`, so that the compiler sees
// that a kernel without barriers never changes it.
static thread_local bool is_detached;

#ifdef WARPDRIVE_CPU_TSAN
// All fibers of an OS thread write `self` in turn. That is no race, so ThreadSanitizer must not watch it.
#define WARPDRIVE_SELF __attribute__((noinline, no_sanitize("thread"))) static
#else
#define WARPDRIVE_SELF __attribute__((always_inline)) static inline
#endif
#define WARPDRIVE_COLD __attribute__((noinline, cold, no_sanitize("thread"))) static

#ifdef WARPDRIVE_CPU_TSAN
WARPDRIVE_SELF uint3 thread_index() { return self.thread_index; }
WARPDRIVE_SELF uint3 block_index() { return self.block_index; }
WARPDRIVE_SELF uint3 block_size() { return self.block_size; }
WARPDRIVE_SELF uint3 grid_size() { return self.grid_size; }
#else
WARPDRIVE_SELF const uint3& thread_index() { return self.thread_index; }
WARPDRIVE_SELF const uint3& block_index() { return self.block_index; }
WARPDRIVE_SELF const uint3& block_size() { return self.block_size; }
WARPDRIVE_SELF const uint3& grid_size() { return self.grid_size; }
#endif
WARPDRIVE_SELF unsigned this_thread() { return self.thread; }
WARPDRIVE_SELF bool is_muted() { return self.is_muted; }

// After a switch this OS thread has run other CUDA threads, of the same block: only the thread index changed.
WARPDRIVE_COLD Votes barrier(int predicate, Place place) {
    const uint3 index = self.thread_index;
    const unsigned thread = self.thread;
    const Votes votes = self.scheduler->barrier(self.block, thread, predicate, place);
    self.thread_index = index;
    self.thread = thread;
    is_detached = true;
    return votes;
}

WARPDRIVE_COLD void fail(Place place, const char* what) {
    self.scheduler->fail(self.block, self.thread, place, what);
    __builtin_unreachable();
}

WARPDRIVE_COLD void fence() { self.scheduler->fence(); }

}  // namespace warpdrive_cpu

#define threadIdx (warpdrive_cpu::thread_index())
#define blockIdx (warpdrive_cpu::block_index())
#define blockDim (warpdrive_cpu::block_size())
#define gridDim (warpdrive_cpu::grid_size())
static const int warpSize = 32;

// ---- barriers and fences
static inline void __syncthreads(warpdrive_cpu::Place place = WARPDRIVE_HERE) { warpdrive_cpu::barrier(0, place); }
static inline int __syncthreads_or(int predicate, warpdrive_cpu::Place place = WARPDRIVE_HERE) {
    return warpdrive_cpu::barrier(predicate, place).any;
}
static inline int __syncthreads_and(int predicate, warpdrive_cpu::Place place = WARPDRIVE_HERE) {
    return warpdrive_cpu::barrier(predicate, place).all;
}
static inline int __syncthreads_count(int predicate, warpdrive_cpu::Place place = WARPDRIVE_HERE) {
    return warpdrive_cpu::barrier(predicate, place).count;
}
#ifdef WARPDRIVE_CPU_TSAN  // it does not understand fences
static inline void __threadfence() { warpdrive_cpu::fence(); }
static inline void __threadfence_system() { warpdrive_cpu::fence(); }
static inline void __threadfence_block() { warpdrive_cpu::fence(); }
#else
static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_block() { __atomic_signal_fence(__ATOMIC_SEQ_CST); }
#endif

#include "cpu_atomics.h"
#include "cpu_math.h"
#include "cpu_warp.h"

// ---- assert, __trap, printf
static inline void __trap() { warpdrive_cpu::fail({nullptr, 0}, "__trap() was called. Correct what leads there."); }
#include "cpu_shadow/assert.h"

#ifdef WARPDRIVE_CPU_DEBUG
#include "cpu_checks.h"
template <class... Arguments>
static inline int warpdrive_cpu_printf(const char* format, Arguments... arguments) {
    return warpdrive_cpu::is_muted() ? 0 : printf(format, arguments...);
}
#define printf warpdrive_cpu_printf  // debug mode runs a launch several times, but it prints once
#endif

// ---- entry points, used by the text that follows the user's
namespace warpdrive_cpu {

struct NamedEntry {
    const char* name;
    Entry entry;
};

#ifdef __clang__
#define WARPDRIVE_IVDEP _Pragma("clang loop vectorize(assume_safety)")
#else
#define WARPDRIVE_IVDEP _Pragma("GCC ivdep")
#endif
#ifdef WARPDRIVE_CPU_TSAN  // the kernel stays a function of its own, which is watched
#define WARPDRIVE_LOOP __attribute__((noinline, no_sanitize("thread")))
#define WARPDRIVE_ENTRY __attribute__((no_sanitize("thread")))
#else
#define WARPDRIVE_LOOP __attribute__((noinline, flatten))
#define WARPDRIVE_ENTRY
#endif

template <size_t... I>
struct Indices {};
template <size_t N, size_t... I>
struct Count : Count<N - 1, N - 1, I...> {};
template <size_t... I>
struct Count<0, I...> {
    typedef Indices<I...> type;
};

template <auto function>
struct Kernel;
template <class... Parameter, void (*function)(Parameter...)>
struct Kernel<function> {
    // `flatten` inlines the kernel. Ignoring dependences among iterations is right because the threads of a block
    // may not depend on one another between barriers.
    WARPDRIVE_LOOP static void loop(const BlockView* view, Parameter... parameter) {
        self.block_index = view->block_index;
        self.block_size = view->block_size;
        self.grid_size = view->grid_size;
        self.scheduler = view->scheduler;
        self.block = view->block;
        self.is_muted = view->is_muted;
        self.watches_reads = view->watches_reads;
        is_detached = false;
        const unsigned limit = view->limit, width = view->block_size.x;
        unsigned thread = view->first;
        if (view->block_size.y == 1) {
            self.thread_index.y = self.thread_index.z = 0;
            WARPDRIVE_IVDEP
            for (; thread < limit; ++thread) {
                self.thread_index.x = thread;
                self.thread = thread;
                function(parameter...);
                if (is_detached) return;
            }
            return;
        }
        unsigned x = thread % width, y = thread / width;
        for (; thread < limit; ++thread) {
            self.thread_index = uint3{x, y, 0};
            self.thread = thread;
            function(parameter...);
            if (is_detached) return;
            if (++x == width) {
                x = 0;
                ++y;
            }
        }
    }

    template <size_t... I>
    WARPDRIVE_ENTRY static void unpack(const BlockView* view, void* const* arguments, Indices<I...>) {
        (void)arguments;
        loop(view, *static_cast<Parameter*>(arguments[I])...);
    }

    WARPDRIVE_ENTRY static void entry(const BlockView* view, void* const* arguments) {
        unpack(view, arguments, typename Count<sizeof...(Parameter)>::type());
    }
};

}  // namespace warpdrive_cpu
