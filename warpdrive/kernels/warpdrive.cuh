// The words kernels are written in. With them one source runs with any number of threads an env:
// one an agent on a GPU, several envs to a block, or a single thread on a CPU.
//
//   const int env = env_index();
//   if (env >= NUM_ENVS) return;
//   ENV_SHARED(float, x, NUM_AGENTS);
//   for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) { ... }
//   env_sync();
//
// What one loop leaves for the next goes in an array (shared or not), never in a local: the next
// loop may run on another thread. NUM_ENVS and NUM_AGENTS are constants that the framework sets, as
// are ENVS_PER_BLOCK and THREADS_PER_ENV.
#pragma once

#ifdef __CUDACC_RTC__  // NVRTC has neither <math.h> nor <stdint.h>
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
#endif

// Which of the block's envs this thread works for. A block is (threads of one env, envs in the block); or, where a kernel
// does more than step envs, one row of threads, of which the first are those of its envs, one env after the other.
__device__ __forceinline__ int env_slot()
{
    if (ENVS_PER_BLOCK == 1) return 0;
#ifdef BLOCK_IS_A_ROW
    return threadIdx.x / THREADS_PER_ENV;
#else
    return threadIdx.y;
#endif
}

#ifndef BLOCK_OF_ENVS  // which of its run's blocks this is, where a launch has those of several runs
#define BLOCK_OF_ENVS blockIdx.x
#endif

__device__ __forceinline__ int env_index()
{
    return BLOCK_OF_ENVS * ENVS_PER_BLOCK + env_slot();
}

__device__ __forceinline__ int first_agent()
{
    if (THREADS_PER_ENV == 1) return 0;  // a constant lets the compiler unroll
#ifdef BLOCK_IS_A_ROW
    return threadIdx.x % THREADS_PER_ENV;
#else
#ifdef __CUDA_ARCH__
    __builtin_assume(threadIdx.x < THREADS_PER_ENV);  // a loop over fewer agents than threads is no loop
#endif
    return threadIdx.x;
#endif
}

__device__ __forceinline__ int agent_stride()
{
    return THREADS_PER_ENV;
}

// Every thread of this env waits here for the others; what they wrote before is seen after.
// Threads of other envs in the block may be anywhere else, or have returned.
#ifdef WARPDRIVE_CPU  // debug mode tells one env_sync() from another by its line
#define PLACE_PARAMETER warpdrive_cpu::Place place = WARPDRIVE_HERE
#define PLACE_ALONE place
#define PLACE_NEXT , place
#else
#define PLACE_PARAMETER
#define PLACE_ALONE
#define PLACE_NEXT
#endif
__device__ __forceinline__ void env_sync(PLACE_PARAMETER)
{
    if (THREADS_PER_ENV == 1) return;
    if (ENVS_PER_BLOCK == 1) {
        __syncthreads(PLACE_ALONE);
    } else {
        // The framework packs envs only as powers of two of at most 32 threads: an env is a part of one warp.
#ifdef __CUDA_ARCH__
        // Whole warps come here at once but where an env has returned, and a wait for all of one costs a fifth of waits
        // for its parts.
        if (__activemask() == 0xffffffffu) {
            __syncwarp();
            return;
        }
#endif
        const unsigned lane = (env_slot() * THREADS_PER_ENV) & 31u;
        const unsigned lanes = THREADS_PER_ENV >= 32 ? 0xffffffffu : (1u << (THREADS_PER_ENV & 31)) - 1u;
        __syncwarp(lanes << lane PLACE_NEXT);
    }
}
#undef PLACE_PARAMETER
#undef PLACE_ALONE
#undef PLACE_NEXT

// Shared memory of one env: `ENV_SHARED(float, x, NUM_AGENTS);` declares `float x[NUM_AGENTS]`.
#define ENV_SHARED(type, name, count)                       \
    __shared__ type name##_of_block[ENVS_PER_BLOCK][count]; \
    type(&name)[count] = name##_of_block[env_slot()]

// Combines value[0] .. value[COUNT - 1] in an order that does not depend on how many threads there are:
// lane i of at most 32 takes i, i + 32, i + 64 ..., then the lanes are combined from the first to the last.
// Every thread of the env calls it and gets the result; what was written to `value` must be visible (env_sync).
//   partial  [REDUCE_LANES] shared memory of this env; free again after the next env_sync
constexpr int REDUCE_LANES = 32;

template <int COUNT, typename T, typename Combine>
__device__ __forceinline__ T env_reduce(const T* value, T* partial, Combine combine)
{
    constexpr int lanes = COUNT < REDUCE_LANES ? COUNT : REDUCE_LANES;
    for (int lane = first_agent(); lane < lanes; lane += agent_stride()) {
        T result = value[lane];
        for (int i = lane + REDUCE_LANES; i < COUNT; i += REDUCE_LANES) result = combine(result, value[i]);
        partial[lane] = result;
    }
    env_sync();
    T result = partial[0];
    for (int lane = 1; lane < lanes; ++lane) result = combine(result, partial[lane]);
    return result;
}

template <int COUNT, typename T>
__device__ __forceinline__ T env_sum(const T* value, T* partial)
{
    return env_reduce<COUNT>(value, partial, [](T a, T b) { return a + b; });
}

template <int COUNT, typename T>
__device__ __forceinline__ T env_min(const T* value, T* partial)
{
    return env_reduce<COUNT>(value, partial, [](T a, T b) { return b < a ? b : a; });
}

template <int COUNT, typename T>
__device__ __forceinline__ T env_max(const T* value, T* partial)
{
    return env_reduce<COUNT>(value, partial, [](T a, T b) { return a < b ? b : a; });
}

// One thread an element, for kernels that do not care for envs: i = global_thread(); i < N; i += num_global_threads().
__device__ __forceinline__ long long global_thread()
{
    const long long block_threads = (long long)blockDim.x * blockDim.y;
    return blockIdx.x * block_threads + threadIdx.y * blockDim.x + threadIdx.x;
}

__device__ __forceinline__ long long num_global_threads()
{
    return (long long)gridDim.x * blockDim.x * blockDim.y;
}
