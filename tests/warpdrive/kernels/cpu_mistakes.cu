// Planted mistakes, one a kernel. The tests look for the line of the comment that starts with the kernel's name.
#include <assert.h>

extern "C" __global__ void correct(const float* x, float* out)
{
    __shared__ float tile[8];
    tile[threadIdx.x] = x[blockIdx.x * 8 + threadIdx.x];
    __syncthreads();
    float value = tile[7 - threadIdx.x];
    for (int i = 0; i < 2; ++i) {
        __syncthreads();
        tile[7 - threadIdx.x] = value;
        __syncthreads();
        value = tile[threadIdx.x];
    }
    __syncwarp();
    out[blockIdx.x * 8 + threadIdx.x] = value;
    if (threadIdx.x == 3) return;
    __syncthreads();
}

extern "C" __global__ void missing_barrier(const float* x, float* out)
{
    __shared__ float tile[8];
    tile[threadIdx.x] = x[blockIdx.x * 8 + threadIdx.x];
    out[blockIdx.x * 8 + threadIdx.x] = tile[7 - threadIdx.x];  // missing_barrier
}

// The second write may come before another thread's first read.
extern "C" __global__ void missing_second_barrier(const float* x, float* out)
{
    __shared__ float tile[8];
    tile[threadIdx.x] = x[blockIdx.x * 8 + threadIdx.x];
    __syncthreads();
    const float value = tile[7 - threadIdx.x];  // missing_second_barrier
    tile[threadIdx.x] = -value;
    __syncthreads();
    out[blockIdx.x * 8 + threadIdx.x] = tile[threadIdx.x];
}

extern "C" __global__ void race_of_blocks(const float* x, float* out)
{
    if (threadIdx.x == 0) out[5] = x[blockIdx.x * 8];  // race_of_blocks
}

extern "C" __global__ void lost_additions(int* out)
{
    out[3] = out[3] + 1;  // lost_additions
}

extern "C" __global__ void index_out_of_range(float* out, int offset)
{
    out[(int)(blockIdx.x * 8 + threadIdx.x) + offset] = 1.0f;  // index_out_of_range
}

extern "C" __global__ void atomic_out_of_range(int* out)
{
    atomicAdd(&out[24], 1);  // atomic_out_of_range
}

extern "C" __global__ void shared_index_out_of_range(float* out, int offset)
{
    __shared__ float tile[8];
    tile[threadIdx.x + offset] = 1.0f;  // shared_index_out_of_range
    __syncthreads();
    out[threadIdx.x] = tile[threadIdx.x];
}

extern "C" __global__ void unset_shared(float* out)
{
    __shared__ float tile[9];
    tile[threadIdx.x] = 1.0f;
    __syncthreads();
    out[blockIdx.x * 8 + threadIdx.x] = tile[threadIdx.x + 1];  // unset_shared
}

extern "C" __global__ void unset_local(float* out, int n)
{
    float value;
    if (n > 5) value = 1.0f;
    out[blockIdx.x * 8 + threadIdx.x] = value;  // unset_local
}

extern "C" __global__ void unset_local_array(float* out, int n)
{
    float value[4];
    for (int i = 0; i < n; ++i) value[i] = 1.0f;
    out[blockIdx.x * 8 + threadIdx.x] = value[threadIdx.x % 4];  // unset_local_array
}

extern "C" __global__ void failed_assert(float* out)
{
    assert(threadIdx.x < 6);  // failed_assert
    out[threadIdx.x] = 0.0f;
}

extern "C" __global__ void division_by_zero(int* out, int divisor)
{
    out[threadIdx.x] = 10 / (divisor + (int)threadIdx.x - 4);  // division_by_zero
}

extern "C" __global__ void divergent_barrier(int* out)
{
    if (threadIdx.x < 4) {
        __syncthreads();
    } else {
        out[threadIdx.x] = 1;
        __syncthreads();  // divergent_barrier
    }
}

extern "C" __global__ void deadlock(int* out)
{
    if (threadIdx.x < 2) {
        __syncwarp(0xffu);
    } else {
        __syncthreads();  // deadlock
    }
    out[0] = 1;
}

__device__ int deep(int n)
{
    volatile char pad[1024];
    pad[n & 1023] = 1;
    return n ? deep(n - 1) + pad[0] : 0;  // stack_overflow
}

extern "C" __global__ void stack_overflow(int* out, int n)
{
    out[threadIdx.x] = deep(n);
}

// Floats added in another order give another sum.
extern "C" __global__ void order_of_sums(float* out)
{
    atomicAdd(&out[0], threadIdx.x ? 1.0f : 16777216.0f);  // order_of_sums
}

// ---- lost updates: both orders of threads give the same sum

extern "C" __global__ void lost_in_shared(int* out)
{
    __shared__ int count;
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    count += 1;  // lost_in_shared
    __syncthreads();
    if (threadIdx.x == 0) out[blockIdx.x] = count;
}

extern "C" __global__ void lost_among_blocks(int* out)
{
    if (threadIdx.x == 0) out[3] += 2;  // lost_among_blocks
}

// Each kind of order that a kernel can give to writes of one place, and writes that need none.
extern "C" __global__ void ordered_writes(int* out, int* lock, bool* flag)
{
    __shared__ int count;
    int* mine = out + blockIdx.x * 8;
    if (threadIdx.x == 0) count = 1;
    __syncthreads();
    if (threadIdx.x == 1) count = 2;
    __syncthreads();
    mine[threadIdx.x] = count;
    mine[threadIdx.x] += 1;
    __syncwarp();
    mine[(threadIdx.x + 1) % 8] += 1;
    __syncwarp();
    if (mine[threadIdx.x] == 4) flag[blockIdx.x] = true;
    flag[3] = true;
    while (atomicCAS(&lock[0], 0, 1) != 0) {
    }
    lock[1] += 1;
    __threadfence();
    atomicExch(&lock[0], 0);
    int local = 0;
    int* there = &local;
    for (int i = 0; i < 3; ++i) atomicAdd(there, i);
    mine[threadIdx.x] += local;
}

// ---- never ending

extern "C" __global__ void endless_loop(int* out)
{
    volatile int* flag = out;
    if (threadIdx.x == 2) {
        while (flag[20] == 0) flag[21] = 5;  // endless_loop
    }
    out[threadIdx.x] = 1;
}

extern "C" __global__ void endless_barriers(int* out)
{
    for (int i = 0; i >= 0; i = (i + 1) & 1023) {
        __syncthreads();  // endless_barriers
    }
    out[0] = 1;
}

extern "C" __global__ void trap(int* out, int never)
{
    if (threadIdx.x == 5 && never == 0) __builtin_trap();  // trap
    out[threadIdx.x] = 1;
}

extern "C" __global__ void copies_from_afar(float* out, int offset)
{
    memcpy(out, out + offset, 4 * (8 + offset % 2));  // copies_from_afar
}

extern "C" __global__ void far_behind_a_barrier(float* out, int offset)
{
    __syncthreads();
    if (threadIdx.x == 3) out[offset] = 1.0f;  // far_behind_a_barrier
    __syncthreads();
}
