#include "warpdrive.cuh"

// Searches of what a rollout holds for the first row with a NaN or an infinity. They find nothing once anything was
// found in an earlier rollout of the run: what follows from it would hide where it began.
//   halted     [1]   not 0 once anything was found in an earlier search  read
//   first      [1]   the first such row; NOTHING_FOUND before            read, written
//   num_rows   more than 2^31 of them, too
//   width      numbers of a row

template <typename T>
struct alignas(16) Piece {
    T value[16 / sizeof(T)];
};

//   values     [row, width], from an address that 16 divides                read
//   first_row  what its first row is called
template <typename T>
__device__ __forceinline__ void search(
    const T* values, const float* halted, long long* first, long long num_rows, int width, long long first_row = 0)
{
    if (halted[0] != 0.0f) return;
    constexpr int SIZE = 16 / sizeof(T);
    const long long num_values = num_rows * width;
    const long long num_pieces = num_values / SIZE;
    for (long long i = global_thread(); i < num_pieces; i += num_global_threads()) {
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
    for (long long i = num_pieces * SIZE + global_thread(); i < num_values; i += num_global_threads()) {
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
    const T* values, const bool* truncated, const float* halted, long long* first, long long num_rows, int width,
    int num_agents, int num_steps)
{
    if (halted[0] != 0.0f) return;
    const long long num_values = num_rows * width;
    for (long long i = global_thread(); i < num_values; i += num_global_threads()) {
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

extern "C" __global__ void first_nonfinite(
    const float* values, const float* halted, long long* first, long long num_rows, int width)
{
    search(values, halted, first, num_rows, width);
}

extern "C" __global__ void first_nonfinite_double(
    const double* values, const float* halted, long long* first, long long num_rows, int width)
{
    search(values, halted, first, num_rows, width);
}

extern "C" __global__ void first_nonfinite_final(
    const float* values, const bool* truncated, const float* halted, long long* first, long long num_rows, int width,
    int num_agents, int num_steps)
{
    search_final(values, truncated, halted, first, num_rows, width, num_agents, num_steps);
}

extern "C" __global__ void first_nonfinite_final_double(
    const double* values, const bool* truncated, const float* halted, long long* first, long long num_rows, int width,
    int num_agents, int num_steps)
{
    search_final(values, truncated, halted, first, num_rows, width, num_agents, num_steps);
}
