// What stands between the products of a network whose layers go through memory one after the other.
// A matrix library multiplies; arrays are rows of elements, sums rows of floats, both of whole tiles of 16 columns.
//
// Constants:
//   FULL_PRECISION  of the elements
//   IS_TANH         the activation: tanh, or else the positive part
//   THREADS         of a block
//   NORM_EPS        added to the variance of what a LayerNorm normalises
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

__device__ __forceinline__ void read_floats(float (&found)[COLUMNS], const float* place)
{
#pragma unroll
    for (int i = 0; i < COLUMNS; i += 4) {
        const Floats four = *(const Floats*)(place + i);
#pragma unroll
        for (int k = 0; k < 4; ++k) found[i + k] = four.of[k];
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

// ------------------------------------------------------------------------------------------- LayerNorms

// Which columns and rows a thread has where rows are normalised: a power of two of threads has all columns of a row.
// All threads of a block go through as many rows, so that they can wait for each other.
struct RowShare {
    int column;       // the first of a thread's columns
    long long row;    // the first of the block's rows that are its,
    long long step;   // and from one to the next
    int group;        // of the block's rows, which it works at
    int num_threads;  // of a row
    bool has_columns;

    __device__ __forceinline__ RowShare(int width)
    {
        num_threads = 2;
        while (num_threads * COLUMNS < width) num_threads *= 2;
        const int num_groups = THREADS / num_threads;
        group = threadIdx.x / num_threads;
        column = threadIdx.x % num_threads * COLUMNS;
        row = (long long)blockIdx.x * num_groups + group;
        step = (long long)gridDim.x * num_groups;
        has_columns = column < width;
    }
    // Turns in which all rows are done, those that are none among them.
    __device__ __forceinline__ long long num_turns(long long num_rows) const
    {
        return (num_rows + step - 1) / step;
    }
    // The sum over the threads of a row, in each of them. All threads of the block call it.
    __device__ __forceinline__ float over_row(float sum) const
    {
        __shared__ float of_warp[THREADS / 32];
        for (int flip = min(num_threads, 32) / 2; flip > 0; flip /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, flip);
        if (num_threads <= 32) return sum;
        const int warps = num_threads / 32;
        __syncthreads();  // the last sums are read
        if (lane_index() == 0) of_warp[threadIdx.x / 32] = sum;
        __syncthreads();
        sum = 0.0f;
        for (int i = 0; i < warps; ++i) sum += of_warp[group * warps + i];
        return sum;
    }
};

// A hidden layer from its sums of products, which a LayerNorm brings to mean 0 and deviation 1 before its activation.
//   sum       [row, width]                                                        read
//   bias      [3, width]  bias, gain, shift                                       read
//   hidden    bytes of [row, width] elements                                      written
//   standard  bytes of [row, width] elements: the sums at mean 0 and deviation 1  written, if it KEEPS
//   scale     [row]  by which they were made so                                   written, if it KEEPS
//   keeps     whether a backward pass will read them
//   num_rows, width
//   num_real  columns that are of the layer; those after them are zeros
extern "C" __global__ void __launch_bounds__(THREADS) activate_normed_layer(
    const float* sum, const float* bias, unsigned char* hidden, unsigned char* standard, float* scale, bool keeps,
    long long num_rows, int width, int num_real)
{
    const RowShare share(width);
    float start[COLUMNS] = {};
    float gain[COLUMNS] = {};
    float shift[COLUMNS] = {};
    if (share.has_columns) {
        read_floats(start, bias + share.column);
        read_floats(gain, bias + width + share.column);
        read_floats(shift, bias + 2 * width + share.column);
    }
    for (long long turn = 0; turn < share.num_turns(num_rows); ++turn) {
        const long long row = share.row + turn * share.step;
        const bool is_there = row < num_rows && share.has_columns;
        float x[COLUMNS] = {};
        if (is_there) read_floats(x, sum + row * width + share.column);
        float whole = 0.0f;
        float squares = 0.0f;
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i) whole += x[i] += start[i];
        const float mean = share.over_row(whole) / num_real;
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i) {
            x[i] = share.column + i < num_real ? x[i] - mean : 0.0f;
            squares += x[i] * x[i];
        }
        const float by = rsqrtf(share.over_row(squares) / num_real + NORM_EPS);
        if (!is_there) continue;
        const long long place = row * width + share.column;
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i) x[i] *= by;
        if (keeps) {
            write_elements((Element*)standard + place, x);
            if (share.column == 0) scale[row] = by;
        }
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i) x[i] = activate(gain[i] * x[i] + shift[i]);
        write_elements((Element*)hidden + place, x);
    }
}

// The delta of such a layer: the loss's derivative by its sums of products.
//   sum       [row, width]  the derivative by what it gave                        read
//   bias      [3, width]  bias, gain, shift                                       read
//   hidden    bytes of [row, width] elements: what it gave; then the delta        read, written
//   standard, scale  as above                                                     read
//   part      [3, block, width]  of biases, gains and shifts: sums over the
//             block's rows                                                        read, written
//   goes_on   whether those are added to what is there
//   num_rows, width, num_real  as above
extern "C" __global__ void __launch_bounds__(THREADS) differentiate_normed_layer(
    const float* sum, const float* bias, unsigned char* hidden, const unsigned char* standard, const float* scale,
    float* part, bool goes_on, long long num_rows, int width, int num_real)
{
    const RowShare share(width);
    float gain[COLUMNS] = {};
    if (share.has_columns) read_floats(gain, bias + width + share.column);
    float total[3][COLUMNS] = {};
    for (long long turn = 0; turn < share.num_turns(num_rows); ++turn) {
        const long long row = share.row + turn * share.step;
        const long long place = row * width + share.column;
        const bool is_there = row < num_rows && share.has_columns;
        float x[COLUMNS] = {};
        float was[COLUMNS] = {};
        if (is_there) {
            float gave[COLUMNS];
            read_floats(x, sum + place);
            read_elements(gave, (const Element*)hidden + place);
            read_elements(was, (const Element*)standard + place);
#pragma unroll
            for (int i = 0; i < COLUMNS; ++i) x[i] *= slope(gave[i]);
        }
        float whole = 0.0f;
        float along = 0.0f;
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i) {
            total[1][i] += x[i] * was[i];
            total[2][i] += x[i];
            x[i] *= gain[i];
            whole += x[i];
            along += x[i] * was[i];
        }
        const float mean = share.over_row(whole) / num_real;
        const float slant = share.over_row(along) / num_real;
        if (!is_there) continue;
        const float by = scale[row];
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i) {
            x[i] = share.column + i < num_real ? by * (x[i] - mean - was[i] * slant) : 0.0f;
            total[0][i] += x[i];
        }
        write_elements((Element*)hidden + place, x);
    }
    __shared__ float of_thread[COLUMNS][THREADS];
    for (int k = 0; k < 3; ++k) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i) of_thread[i][threadIdx.x] = total[k][i];
        __syncthreads();
        if (share.group > 0 || !share.has_columns) continue;
        float* place = part + ((long long)k * gridDim.x + blockIdx.x) * width + share.column;
        for (int i = 0; i < COLUMNS; ++i) {
            float all = goes_on ? place[i] : 0.0f;
            for (int j = threadIdx.x; j < THREADS; j += share.num_threads) all += of_thread[i][j];
            place[i] = all;
        }
    }
}
