#include "warpdrive.cuh"

// Searches of what a rollout holds for the first row with a NaN or an infinity.
//   first      [1]   the first such row; NOTHING_FOUND before            read, written
//   num_rows   more than 2^31 of them, too
//   width      numbers of a row
//   thread, num_threads  who searches

constexpr long long NOTHING_FOUND = 1LL << 62;

template <typename T>
struct alignas(16) Piece {
    T value[16 / sizeof(T)];
};

//   values     [row, width], from an address that 16 divides                read
//   first_row  what its first row is called
template <typename T>
__device__ __forceinline__ void search(
    const T* values, long long* first, long long num_rows, int width, long long thread, long long num_threads,
    long long first_row = 0)
{
    constexpr int SIZE = 16 / sizeof(T);
    const long long num_values = num_rows * width;
    const long long num_pieces = num_values / SIZE;
    for (long long i = thread; i < num_pieces; i += num_threads) {
        const Piece<T> piece = ((const Piece<T>*)values)[i];
        T sum = 0;  // 0 times a number is 0, save for a NaN and an infinity
#pragma unroll
        for (int k = 0; k < SIZE; ++k) sum += piece.value[k] * (T)0;
        if (sum == (T)0) continue;
        int k = 0;
        while (isfinite(piece.value[k])) ++k;
        atomicMin(first, first_row + (i * SIZE + k) / width);
        return;  // a thread's numbers come in order
    }
    for (long long i = num_pieces * SIZE + thread; i < num_values; i += num_threads) {
        if (!isfinite(values[i])) atomicMin(first, first_row + i / width);
    }
}

// The same in what truncated episodes saw last: a row found there is told as the row of the step that truncated.
//   values      [kept, env, agent, width]                                read
//   truncated   [step, env]                                              read
//   num_agents  that see this array
//   num_steps   of the rollout
template <typename T>
__device__ __forceinline__ void search_final(
    const T* values, const bool* truncated, long long* first, long long num_rows, int width, int num_agents,
    int num_steps, long long thread, long long num_threads)
{
    const long long num_values = num_rows * width;
    for (long long i = thread; i < num_values; i += num_threads) {
        if (isfinite(values[i])) continue;
        const long long row = i / width;
        const long long agent = row % num_agents;
        const int env = (int)(row / num_agents % NUM_ENVS);
        int before = (int)(row / num_agents / NUM_ENVS);  // truncations of this env before that one
        for (int t = 0; t < num_steps; ++t) {
            if (!truncated[(long long)t * NUM_ENVS + env] || before-- > 0) continue;
            atomicMin(first, ((long long)t * NUM_ENVS + env) * num_agents + agent);
            break;
        }
    }
}

// One array, by all blocks: where there are many bytes, they are what it takes. Nothing is searched once anything was
// found in an earlier rollout of the run: what follows from it would hide where it began.
//   halted  [1]  not 0 once anything was found in an earlier search  read
extern "C" __global__ void first_nonfinite(
    const float* values, const float* halted, long long* first, long long num_rows, int width)
{
    if (halted[0] == 0.0f) search(values, first, num_rows, width, global_thread(), num_global_threads());
}

extern "C" __global__ void first_nonfinite_double(
    const double* values, const float* halted, long long* first, long long num_rows, int width)
{
    if (halted[0] == 0.0f) search(values, first, num_rows, width, global_thread(), num_global_threads());
}

extern "C" __global__ void first_nonfinite_final(
    const float* values, const bool* truncated, const float* halted, long long* first, long long num_rows, int width,
    int num_agents, int num_steps)
{
    if (halted[0] != 0.0f) return;
    search_final(
        values, truncated, first, num_rows, width, num_agents, num_steps, global_thread(), num_global_threads());
}

extern "C" __global__ void first_nonfinite_final_double(
    const double* values, const bool* truncated, const float* halted, long long* first, long long num_rows, int width,
    int num_agents, int num_steps)
{
    if (halted[0] != 0.0f) return;
    search_final(
        values, truncated, first, num_rows, width, num_agents, num_steps, global_thread(), num_global_threads());
}

// What was found is kept: by a policy, unless it had found something before, and for all policies, which `halted` stops.
// These are launched with one block, and are many an update: each stands for a dozen of torch's launches.

__device__ __forceinline__ void keep(long long row, long long* first, float* flag, float* halted)
{
    if (flag[0] != 0.0f || row == NOTHING_FOUND) return;
    if (row < first[0]) first[0] = row;
    flag[0] = halted[0] = 1.0f;
}

//   row     [1]  the first bad one, or NOTHING_FOUND                     read
//   first   [1]  of this tensor                                          read, written
//   flag    [1]  the policy's                                            read, written
//   halted  [1]                                                          written
extern "C" __global__ void keep_row(const long long* row, long long* first, float* flag, float* halted)
{
    if (global_thread() == 0) keep(row[0], first, flag, halted);
}

// Of a gradient: how long it is, what it is shortened by, whether it is finite, and whether a step may be made.
//   norms      [parameter]  of each parameter's gradient                 read
//   first_row               what the first parameter is called
//   max_norm                a longer gradient is shortened to it
//   stopped    [1]          not 0: no step                               read
//   norm       [1]          of all of it                                 written
//   scale      [1]          what it is multiplied by                     written
//   skip       [1]          not 0: no step                               written
extern "C" __global__ void keep_gradient(
    const float* norms, int num_parameters, long long first_row, float max_norm, const float* stopped, long long* first,
    float* flag, float* halted, float* norm, float* scale, float* skip)
{
    constexpr int MOST = 256;
    __shared__ float some[MOST];
    double sum = 0.0;  // thread 0 adds up, always in the same order
    int bad = -1;
    for (int start = 0; start < num_parameters; start += MOST) {
        const int number = min(MOST, num_parameters - start);
        for (int i = threadIdx.x; i < number; i += blockDim.x) some[i] = norms[start + i];
        __syncthreads();
        for (int i = 0; threadIdx.x == 0 && i < number; ++i) {
            if (bad < 0 && !isfinite(some[i])) bad = start + i;
            sum += (double)some[i] * some[i];
        }
        __syncthreads();
    }
    if (threadIdx.x != 0) return;
    const float whole = (float)sqrt(sum);
    if (bad < 0 && !isfinite(whole)) bad = 0;
    keep(bad < 0 ? NOTHING_FOUND : first_row + bad, first, flag, halted);
    norm[0] = whole;
    scale[0] = fminf(max_norm / (whole + 1e-6f), 1.0f);
    skip[0] = fmaxf(stopped[0], flag[0]);
}

// What any search found halts all policies. One block.
//   first       [place]                                                  read
//   halted      [1]                                                      read, written
//   flags       [policy]                                                 written
//   num_halted  [1]       iterations since it was found                  read, written
//   begun                 iterations that have begun since the last call
__device__ __forceinline__ void halt(
    const volatile long long* first, int num_places, float* halted, float* flags, int num_policies,
    long long* num_halted, int begun)
{
    __shared__ int is_found;
    if (threadIdx.x == 0) is_found = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < num_places; i += blockDim.x) {
        if (first[i] != NOTHING_FOUND) is_found = 1;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < num_policies; i += blockDim.x) flags[i] = is_found;
    if (threadIdx.x != 0) return;
    if (halted[0] != 0.0f) num_halted[0] += begun;
    halted[0] = is_found;
}

extern "C" __global__ void halt_all(
    const long long* first, int num_places, float* halted, float* flags, int num_policies, long long* num_halted,
    int begun)
{
    halt(first, num_places, halted, flags, num_policies, num_halted, begun);
}

// An array that is searched.
struct Searched {
    long long number;  // among all places
    long long values;  // its address
    long long num_rows, width, is_double;
    long long num_agents;  // that see it, of what truncated episodes saw last; else 0
};

template <typename T>
__device__ __forceinline__ void search_array(
    const Searched& array, const bool* truncated, long long* first, int num_steps, long long thread,
    long long num_threads)
{
    const T* values = (const T*)array.values;
    long long* row = first + array.number;
    const int width = (int)array.width;
    if (array.num_agents == 0) {
        search(values, row, array.num_rows, width, thread, num_threads);
    } else {
        search_final(
            values, truncated, row, array.num_rows, width, (int)array.num_agents, num_steps, thread, num_threads);
    }
}

// Searches all that a rollout holds, as many blocks an array; the last block that is done halts all policies. Where there
// are few bytes, launches are what it takes.
//   searched    [array, 6]  see Searched                                 read
//   truncated   [step, env]                                              read
//   arrivals    [1]         0 between launches                           read, written
//   first, halted, flags, num_halted  see halt                           read, written
extern "C" __global__ void look_at_rollout(
    const long long* searched, int num_searched, const bool* truncated, int num_steps, long long* first, int num_places,
    float* halted, float* flags, int num_policies, long long* num_halted, unsigned long long* arrivals)
{
    const Searched array = ((const Searched*)searched)[blockIdx.x % num_searched];
    const long long thread = (long long)(blockIdx.x / num_searched) * blockDim.x + threadIdx.x;
    const long long num_threads = (long long)(gridDim.x / num_searched) * blockDim.x;
    if (halted[0] == 0.0f) {
        if (array.is_double) {
            search_array<double>(array, truncated, first, num_steps, thread, num_threads);
        } else {
            search_array<float>(array, truncated, first, num_steps, thread, num_threads);
        }
    }
    __shared__ int is_last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) is_last = atomicAdd(arrivals, 1ull) == gridDim.x - 1;
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    if (threadIdx.x == 0) arrivals[0] = 0;
    halt(first, num_places, halted, flags, num_policies, num_halted, 1);
}
