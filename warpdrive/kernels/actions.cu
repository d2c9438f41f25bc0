// Brings actions that a caller gives into their space, and counts those that were not in it.
//   action       [num_envs x num_columns]  one number of one agent's action         read, written
//   lowest       [num_columns]             of the numbers that may stand there      read
//   highest      [num_columns]             likewise                                 read
//   num_invalid  [1]                       numbers that were outside; NaN is        read, written
#include "warpdrive.cuh"

template <typename Number>
__device__ __forceinline__ void clamp_all(Number* action, const Number* lowest, const Number* highest,
                                          long long* num_invalid, int num_envs, int num_columns)
{
    const long long num_elements = (long long)num_envs * num_columns;
    const int stride = (int)(num_global_threads() % num_columns);
    int column = (int)(global_thread() % num_columns);  // of element i, kept without a division for each
    unsigned long long found = 0;
    for (long long i = global_thread(); i < num_elements; i += num_global_threads()) {
        const Number value = action[i], low = lowest[column], high = highest[column];
        if (!(value >= low && value <= high)) {
            action[i] = value > high ? high : low;
            found += 1;
        }
        column += stride;
        if (column >= num_columns) column -= num_columns;
    }
    if (found) atomicAdd((unsigned long long*)num_invalid, found);  // CUDA adds no other of 64 bits
}

extern "C" __global__ void clamp_choices(int* action, const int* lowest, const int* highest, long long* num_invalid,
                                         int num_envs, int num_columns)
{
    clamp_all(action, lowest, highest, num_invalid, num_envs, num_columns);
}

extern "C" __global__ void clamp_numbers(float* action, const float* lowest, const float* highest,
                                         long long* num_invalid, int num_envs, int num_columns)
{
    clamp_all(action, lowest, highest, num_invalid, num_envs, num_columns);
}
