// What stands between the products of a network whose layers go through memory one after the other.
// A matrix library multiplies; arrays are rows of elements, sums rows of floats, both of whole tiles of 16 columns.
//
// Constants:
//   FULL_PRECISION  of the elements
//   IS_TANH         the activation: tanh, or else the positive part
//   THREADS         of a block
//
// A thread has the same 8 columns of all its rows; a block as many of them as fill it, and with them every
// STEP-th group of rows. All blocks of a launch share the columns, where they are more than one block takes.
#include "tensor_core.cuh"

constexpr int COLUMNS = 8;  // of a thread

__device__ __forceinline__ float activate(float x)
{
    return IS_TANH ? quick_tanh(x) : positive_part(x);
}

__device__ __forceinline__ float slope(float activated)
{
    if (IS_TANH) return 1.0f - activated * activated;
    return activated > 0.0f ? 1.0f : 0.0f;
}

struct alignas(16) Floats {
    float value[4];
};

__device__ __forceinline__ void read_floats(float (&found)[COLUMNS], const float* place)
{
#pragma unroll
    for (int i = 0; i < COLUMNS; i += 4) {
        const Floats four = *(const Floats*)(place + i);
#pragma unroll
        for (int k = 0; k < 4; ++k) found[i + k] = four.value[k];
    }
}

struct alignas(16) Pairs {
    Pair pair[sizeof(Pair) == 4 ? 4 : 2];
};
constexpr int PAIRS_AT_ONCE = sizeof(Pairs) / sizeof(Pair);

__device__ __forceinline__ void read_elements(float (&found)[COLUMNS], const Element* place)
{
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; i += PAIRS_AT_ONCE) {
        const Pairs some = *(const Pairs*)(place + 2 * i);
#pragma unroll
        for (int k = 0; k < PAIRS_AT_ONCE; ++k) {
            const FloatPair both = unpack(some.pair[k]);
            found[2 * (i + k)] = both.low;
            found[2 * (i + k) + 1] = both.high;
        }
    }
}

__device__ __forceinline__ void write_elements(Element* place, const float (&values)[COLUMNS])
{
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; i += PAIRS_AT_ONCE) {
        Pairs some;
#pragma unroll
        for (int k = 0; k < PAIRS_AT_ONCE; ++k) some.pair[k] = packed(values[2 * (i + k)], values[2 * (i + k) + 1]);
        *(Pairs*)(place + 2 * i) = some;
    }
}

// Which columns and rows of [.., width] a thread has.
struct Share {
    int column;       // the first of its columns
    long long row;    // the first of its rows,
    long long step;   // and from one to the next
    int group;        // of the block's groups of threads that have the same rows: which it is in
    int num_threads;  // of a group
    bool is_idle;     // it has none

    __device__ __forceinline__ Share(int width)
    {
        const int all = width / COLUMNS;
        const int num_panels = (all + THREADS - 1) / THREADS;
        const int panel = blockIdx.x % num_panels;
        num_threads = min(THREADS, all - panel * THREADS);
        const int num_groups = THREADS / num_threads;
        group = threadIdx.x / num_threads;
        column = (panel * THREADS + threadIdx.x % num_threads) * COLUMNS;
        row = (long long)(blockIdx.x / num_panels) * num_groups + group;
        step = (long long)(gridDim.x / num_panels) * num_groups;
        is_idle = group >= num_groups;
    }
};

// A hidden layer from its sums of products.
//   sum     [row, width]                                read
//   bias    [width]                                     read
//   hidden  bytes of [row, width] elements              written
//   num_rows, width
extern "C" __global__ void __launch_bounds__(THREADS) activate_layer(
    const float* sum, const float* bias, unsigned char* hidden, long long num_rows, int width)
{
    const Share share(width);
    if (share.is_idle) return;
    float start[COLUMNS];
    read_floats(start, bias + share.column);
    for (long long row = share.row; row < num_rows; row += share.step) {
        float x[COLUMNS];
        read_floats(x, sum + row * width + share.column);
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i) x[i] = activate(x[i] + start[i]);
        write_elements((Element*)hidden + row * width + share.column, x);
    }
}

// Sums over the rows of a block, of what its threads have summed up: the threads of its first group hold them then.
__device__ __forceinline__ void add_up_groups(float (&total)[COLUMNS], const Share& share)
{
    __shared__ float of_thread[COLUMNS][THREADS];
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i) of_thread[i][threadIdx.x] = total[i];
    __syncthreads();
    if (share.group > 0) return;
    for (int other = 1; other < THREADS / share.num_threads; ++other) {
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i) total[i] += of_thread[i][threadIdx.x + other * share.num_threads];
    }
}

// A block's row of the biases' gradient.
//   goes_on  added to what is there, else set
__device__ __forceinline__ void write_row(
    float* part, const float (&total)[COLUMNS], const Share& share, int num_panels, int width, bool goes_on)
{
    if (share.group > 0) return;
    float* place = part + (long long)(blockIdx.x / num_panels) * width + share.column;
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i) place[i] = (goes_on ? place[i] : 0.0f) + total[i];
}

// The delta of a hidden layer: the loss's derivative by what it gave, times the activation's slope.
//   sum      [row, width]  the derivative                                    read
//   hidden   bytes of [row, width] elements: what it gave; then the delta    read, written
//   part     [block, width]  sums of it over the block's rows                read, written
//   goes_on  whether those are added to what is there
//   num_rows, width
extern "C" __global__ void __launch_bounds__(THREADS) differentiate_layer(
    const float* sum, unsigned char* hidden, float* part, bool goes_on, long long num_rows, int width)
{
    const Share share(width);
    float total[COLUMNS] = {};
    for (long long row = share.row; row < num_rows && !share.is_idle; row += share.step) {
        float x[COLUMNS];
        float gave[COLUMNS];
        const long long place = row * width + share.column;
        read_floats(x, sum + place);
        read_elements(gave, (const Element*)hidden + place);
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i) {
            x[i] *= slope(gave[i]);
            total[i] += x[i];
        }
        write_elements((Element*)hidden + place, x);
    }
    add_up_groups(total, share);
    write_row(part, total, share, (width / COLUMNS + THREADS - 1) / THREADS, width, goes_on);
}

// Sums of deltas alone: those of the outputs, which fused_learn.cuh wrote.
//   delta    bytes of [row, width] elements                                  read
//   part, goes_on, num_rows, width  as above
extern "C" __global__ void __launch_bounds__(THREADS) add_up_deltas(
    const unsigned char* delta, float* part, bool goes_on, long long num_rows, int width)
{
    const Share share(width);
    float total[COLUMNS] = {};
    for (long long row = share.row; row < num_rows && !share.is_idle; row += share.step) {
        float x[COLUMNS];
        read_elements(x, (const Element*)delta + row * width + share.column);
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i) total[i] += x[i];
    }
    add_up_groups(total, share);
    write_row(part, total, share, (width / COLUMNS + THREADS - 1) / THREADS, width, goes_on);
}
