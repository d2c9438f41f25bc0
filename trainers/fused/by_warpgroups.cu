// Layers that go through memory one after the other, each a product by whole warpgroups with what follows it at once.
//
// A block keeps 128 columns of a layer's weights in shared memory, and brings 64 rows a warpgroup through them: what
// goes in comes from memory to registers, what comes out goes to memory with bias and activation, or times a slope.
// Rows of elements lie as those of a record do (tensor_core.cuh), padded by zeros.
//
// A launch does this for several networks. A problem of one is 9 numbers:
//   input       where bytes of [num_rows, width] elements are
//   weights     where bytes of elements are
//   sums        where floats are: biases, or sums of deltas
//   output      where bytes of [num_rows, 128 num_panels] elements are
//   num_rows, width
//   num_panels  which take turns among the problem's blocks
//   first_block, num_blocks
//
// Constants:
//   FULL_PRECISION  of the elements; false where warpgroups multiply
//   IS_TANH         the activation: tanh, or else the positive part
//   WARPS           of a block, 8 or 16: a multiprocessor has 16
//   AHEAD           units of memory that are on their way ahead of a thread, two at least
// Elsewhere than on an sm_90a, as on a CPU, warps multiply alone: to test where everything lies.
#include "by_warpgroups.cuh"

struct Problem {
    long long input, weights, sums, output, num_rows, width, num_panels, first_block, num_blocks;
};

// What this block does of the launch.
struct Work {
    const Element* input;
    const Element* weights;
    float* sums;
    Element* output;
    int num_rows, width, num_panels;
    int panel, block, num_blocks;  // of those with the same panel

    __device__ __forceinline__ Work(const long long* problems, int num_problems)
    {
        const Problem* one = (const Problem*)problems;
        for (int i = 1; i < num_problems; ++i) {
            if (((const Problem*)problems)[i].first_block <= blockIdx.x) one = (const Problem*)problems + i;
        }
        input = (const Element*)one->input;
        weights = (const Element*)one->weights;
        sums = (float*)one->sums;
        output = (Element*)one->output;
        num_rows = (int)one->num_rows;
        width = (int)one->width;
        num_panels = (int)one->num_panels;
        panel = ((int)blockIdx.x - (int)one->first_block) % num_panels;
        block = ((int)blockIdx.x - (int)one->first_block) / num_panels;
        num_blocks = (int)one->num_blocks / num_panels;
    }
};

// Hidden layers, the first among them: output = activation of (weights input + bias).
//   problems  [num_problems, 9]  64 divides a width; weights are [out / 8][width / 8][8][8]    read
extern "C" __global__ void __launch_bounds__(THREADS, 16 / WARPS) layer_forward(
    const long long* problems, int num_problems)
{
    extern __shared__ char shared[];
    const Work work(problems, num_problems);
    const int num_pieces = PANEL * work.width / PIECE;
    const Bytes16* from = (const Bytes16*)work.weights + work.panel * num_pieces;
    for (int i = threadIdx.x; i < num_pieces; i += THREADS) start_copy((Bytes16*)shared + i, from + i);
    wait_for_copies();
    show_to_products();
    __syncthreads();
    const Rows rows(work.block, work.num_blocks, work.num_rows);
    const int t = lane_index() & 3;
    const int out = work.num_panels * PANEL;
    const float* start = work.sums + work.panel * PANEL + 2 * t;
    Units units(
        rows, work.input, work.width, work.width / 32, nullptr, 0, 0, (Element*)shared + PANEL * work.width);
    go_through<4, false>(
        rows, work.width, (const Element*)shared, Layer{units},
        [&](float(&sum)[BLOCKS][4]) {
#pragma unroll
            for (int i = 0; i < BLOCKS; ++i) {
                const FloatPair two = *(const FloatPair*)(start + 8 * i);
                sum[i][0] = sum[i][2] = two.low;
                sum[i][1] = sum[i][3] = two.high;
            }
        },
        [&](long long row, const float(&sum)[BLOCKS][4]) {
            Element* place = work.output + row * out + work.panel * PANEL + place_of_lane<8, 2>(t);
#pragma unroll
            for (int n = 0; n < BLOCKS / 2; n += 2) {
                Pair tiles[2][4];
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    const float* two = &sum[2 * n + i / 2][2 * (i % 2)];
                    tiles[i / 4][i % 4] = packed(activate(two[0]), activate(two[1]));
                }
                if (row < rows.num_rows) put(place + 16 * n, tiles, 0, 0u);
                if (row + 8 < rows.num_rows) put(place + 8 * out + 16 * n, tiles, 1, 0u);
            }
        });
}

// The delta of a layer from that of the next: (delta weights) times the slope of what the layer gave, in its place.
template <bool FROM_OUTPUTS>
__device__ __forceinline__ void backward(char* shared, const Work& work, bool goes_on)
{
    float* sums = (float*)(shared + PANEL * work.width * sizeof(Element));  // [warp][PANEL]
    for (int i = threadIdx.x; i < WARPS * PANEL; i += THREADS) sums[i] = 0.0f;
    wait_for_copies();
    show_to_products();
    __syncthreads();
    const Rows rows(work.block, work.num_blocks, work.num_rows);
    const int out = work.num_panels * PANEL;
    Element* place = work.output + work.panel * PANEL;
    float* sums_of_warp = sums + threadIdx.x / 32 * PANEL;
    Units units(
        rows, work.input, work.width, FROM_OUTPUTS ? 0 : work.width / 32, place, out, PANEL / 32,
        (Element*)(sums + WARPS * PANEL));
    const Element* weights = (const Element*)shared;
    if constexpr (FROM_OUTPUTS) {
        const Outputs take(rows, work.input, work.width);
        go_back_through<1, true>(rows, units, work.width, weights, take, place, out, sums_of_warp);
    } else {
        go_back_through<4, true>(rows, units, work.width, weights, Layer{units}, place, out, sums_of_warp);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < PANEL; i += THREADS) {
        float* place = work.sums + (long long)work.block * out + work.panel * PANEL + i;
        float all = goes_on ? *place : 0.0f;
        for (int warp = 0; warp < WARPS; ++warp) all += sums[warp * PANEL + i];
        *place = all;
    }
}

// From hidden layers to those before them: what these gave is the output, in whose place their deltas come.
//   problems  [num_problems, 9]  64 divides a width; weights are [width / 8][out / 8][8][8]; each block has a row of
//             the sums: those of the deltas over its rows                                      read
//   goes_on   whether they are added to what is there
extern "C" __global__ void __launch_bounds__(THREADS, 16 / WARPS) layer_backward(
    const long long* problems, int num_problems, bool goes_on)
{
    extern __shared__ char shared[];
    constexpr int PIECES = PANEL * 8 / PIECE;  // of 8 rows of weights
    const Work work(problems, num_problems);
    for (int i = threadIdx.x; i < work.width / 8 * PIECES; i += THREADS) {
        const int at = (i / PIECES * work.num_panels + work.panel) * PIECES + i % PIECES;
        start_copy((Bytes16*)shared + i, (const Bytes16*)work.weights + at);
    }
    backward<false>(shared, work, goes_on);
}

// From outputs to the last hidden layers: the same, of weights [width, out] whose columns, and whose rows 16 at a time,
// lie as a record's do.
//   problems, num_problems, goes_on  as above; 16 divides a width
extern "C" __global__ void __launch_bounds__(THREADS, 16 / WARPS) outputs_backward(
    const long long* problems, int num_problems, bool goes_on)
{
    extern __shared__ char shared[];
    const Work work(problems, num_problems);
    for (int i = threadIdx.x; i < work.width * PANEL; i += THREADS) {
        const int row = i / PANEL;
        const int column = i % PANEL;
        const int out = work.num_panels * PANEL;
        const int from = place_of_column<1>(row) * out + work.panel * PANEL + place_of_column<2>(column);
        const int block = row / 8 * (PANEL / 8) + column / 8;
        ((Element*)shared)[block * 64 + row % 8 * 8 + column % 8] = work.weights[from];
    }
    backward<true>(shared, work, goes_on);
}
