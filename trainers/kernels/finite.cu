#include "warpdrive.cuh"

// Finds the first row that holds a NaN or an infinity, unless an earlier search of this run has found one.
//   values     [row, width]                                              read
//   halted     [1]   not 0 once anything was found in an earlier search  read
//   first      [1]   the first such row; NOTHING_FOUND before            read, written
//   num_rows
//   width
extern "C" __global__ void first_nonfinite(
    const float* values, const float* halted, int* first, long long num_rows, int width)
{
    if (halted[0] != 0.0f) return;
    const long long num_values = num_rows * width;
    long long found = num_values;
    for (long long i = global_thread(); i < num_values; i += num_global_threads()) {
        if (!isfinite(values[i])) {
            found = i;  // a thread's numbers come in order
            break;
        }
    }
    if (found < num_values) atomicMin(first, (int)(found / width));
}
