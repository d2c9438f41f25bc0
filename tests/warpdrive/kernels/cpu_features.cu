// What CUDA C kernels use, each in one kernel whose result can be worked out by hand. All of it is correct.
#include <assert.h>
#include <cuda_runtime.h>
#include <stdio.h>

__constant__ float weight[4] = {1.0f, 2.0f, 3.0f, 4.0f};
__device__ int num_calls;

template <typename T, int N>
struct Ring {
    T value[N];
    __device__ T sum() const
    {
        T total = 0;
        for (int i = 0; i < N; ++i) total += value[i];
        return total;
    }
};

// A barrier in a device function, in a loop.
template <typename T>
__device__ T block_sum(T mine, T* buffer)
{
    buffer[threadIdx.x] = mine;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) buffer[threadIdx.x] += buffer[threadIdx.x + half];
        __syncthreads();
    }
    return buffer[0];
}

extern "C" __global__ void indices(int* out)
{
    const int thread = threadIdx.x + blockDim.x * threadIdx.y;
    int* mine = out + (blockIdx.x * blockDim.x * blockDim.y + thread) * 4;
    mine[0] = blockIdx.x;
    mine[1] = threadIdx.x;
    mine[2] = threadIdx.y;
    mine[3] = gridDim.x;
}

extern "C" __global__ void __launch_bounds__(1024) dynamic_sum(const float* x, float* out, int n)
{
    extern __shared__ float buffer[];
    const float sum = block_sum<float>(threadIdx.x < n ? x[blockIdx.x * n + threadIdx.x] : 0.0f, buffer);
    if (threadIdx.x == 0) out[blockIdx.x] = sum + weight[blockIdx.x & 3] + BIAS;
}

extern "C" __global__ void reversed(const float* x, float* out)
{
    __shared__ float tile[32];
    tile[threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
    __syncthreads();
    out[blockIdx.x * blockDim.x + threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x];
}

extern "C" __global__ void votes(int* out, int chosen)
{
    const int thread = threadIdx.x;
    out[thread * 3] = __syncthreads_or(thread == chosen);
    out[thread * 3 + 1] = __syncthreads_and(thread != chosen);
    out[thread * 3 + 2] = __syncthreads_count(thread % 3 == 0);
}

// The last warp may be partial; threads leave early.
extern "C" __global__ void shuffles(int* out, int n)
{
    const int thread = threadIdx.x;
    if (thread >= n) return;
    int* mine = out + thread * 8;
    mine[0] = __shfl_up_sync(0xffffffffu, thread, 1);
    mine[1] = __shfl_down_sync(0xffffffffu, thread, 2);
    mine[2] = __shfl_sync(0xffffffffu, thread, 3, 8);
    mine[3] = __shfl_xor_sync(0xffffffffu, thread, 1);
    mine[4] = __popc(__ballot_sync(0xffffffffu, thread % 4 == 0));
    mine[5] = __any_sync(0xffffffffu, thread % 32 == 2);
    mine[6] = __all_sync(0xffffffffu, thread >= 0);
    __syncwarp();
    mine[7] = thread % 32 < 16 ? __shfl_sync(0x0000ffffu, thread, 5) : __shfl_sync(0xffff0000u, thread, 20);
}

extern "C" __global__ void early_return(int* out)
{
    __shared__ int count;
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    if (threadIdx.x % 3 == 1) return;
    atomicAdd(&count, 1);
    __syncthreads();
    out[threadIdx.x] = count;
}

extern "C" __global__ void atomics(int* i, unsigned* u, float* f)
{
    const int thread = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(&i[0], 1);
    atomicMax(&i[1], thread);
    atomicMin(&i[2], -thread);
    atomicExch(&i[3], 7);
    atomicCAS(&i[4], 0, 9);
    atomicSub(&i[5], 2);
    atomicInc(&u[0], 9u);
    atomicOr(&u[1], 1u << (thread & 31));
    atomicAdd(&f[0], 0.5f);
    atomicAdd(&num_calls, 1);
}

extern "C" __global__ void read_num_calls(int* out)
{
    out[0] = num_calls;
}

extern "C" __global__ void math(float* out)
{
    const Ring<float, 3> ring = {{1.0f, 2.0f, 4.0f}};
    const float4 four = make_float4(1, 2, 3, 4);
    const float not_a_number = __int_as_float(0x7fc00000);
    const float result[] = {ring.sum(), four.w, fminf(1.0f, not_a_number), fmaxf(not_a_number, 2.0f), rsqrtf(4.0f),
                            __fdividef(1.0f, 4.0f), __saturatef(-1.0f), (float)__float2int_rn(2.5f),
                            (float)__float2int_rz(1e20f), (float)min(3, 2), (float)__clz(1), (float)__ffs(8),
                            (float)(__brev(1u) >> 31), (float)__umulhi(1u << 31, 2u)};
    for (int i = 0; i < sizeof(result) / sizeof(float); ++i) out[i] = result[i];
}

// One rounding would give 2^-24: the product 1 + 2^-11 + 2^-24 must be rounded before the subtraction.
extern "C" __global__ void rounds_twice(const float* x, float* out)
{
    out[0] = x[0] * x[0] - x[1];
}

extern "C" __global__ void heavy(const float* x, float* out)
{
    float value = x[blockIdx.x];
    for (int i = 0; i < 2000; ++i) value = sinf(value) + 0.5f * cosf(value);
    out[blockIdx.x] = value;
}

extern "C" __global__ void says_hello(int* out)
{
    if (threadIdx.x == 0) printf("hello from the kernel\n");
    assert(blockDim.x == 2);
    out[threadIdx.x] = 1;
}
