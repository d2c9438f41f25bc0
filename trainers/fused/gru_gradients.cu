// The gradient of a gated recurrent unit's weights and biases, and the deltas of what its input came out of, in one go
// through what gru_by_warpgroups.cu left of all steps: blocks of two kinds go through the same rows side by side, so that
// memory is asked for most of it once.
//
// Some multiply the deltas of n, r, z by the input, and these deltas by the input's weights, which go on to the
// activation that the input came out of. The others multiply the deltas of r, z, q by the states before. Biases are
// products with ones. A block has 64 rows at once, whatever step and sequence they are of, and keeps its sums in
// registers.
//
// Constants, besides those of by_warpgroups.cuh:
//   UNITS     of the cell; its input has as many columns
//   OF_STATE  blocks of the second kind
#include "layers/gru_of_warp.cuh"
#include "sums_of_group.cuh"

constexpr int ROWS = 64;
constexpr int ACROSS = ROWS * 8 * (int)sizeof(Element);  // bytes from 8 columns of those rows to the next
constexpr int COLUMN_BLOCK = ROWS * 8;                   // and elements
constexpr int GATES = 3 * UNITS;                         // that a block has
constexpr int STAGE = (GATES + UNITS) * ROWS;            // elements: of gates, then of what else a block takes
constexpr int GROUP_ROWS = GATES / (WARPS / 4);          // gates of a warpgroup, 64 at once
constexpr int NUM_PANELS = GROUP_ROWS / 64;
constexpr int OF_WEIGHTS = GATES * UNITS;
constexpr int RECORD = OF_WEIGHTS + GATES;  // floats of a block's sums; the first kind has UNITS more

static_assert(WARPS == 8 && UNITS == 128, "two warpgroups have the gates between them, and the units of the input");

// What a block has in shared memory.
struct Shared {
    Element* ones;       // 16 rows of 8
    float* column_sums;  // [warp][UNITS / 2]
    Element* stages;     // [2][STAGE]
    Element* of_input;   // the input's weights

    __device__ __forceinline__ Shared(char* shared)
        : ones((Element*)shared), column_sums((float*)(ones + 128)),
          stages((Element*)(column_sums + WARPS * (UNITS / 2))), of_input(stages + 2 * STAGE)
    {
    }
};

// Starts copying 64 rows, 8 a warp: of gates, and of what has UNITS a row. Rows that are none are zeros.
__device__ __forceinline__ void fetch_rows(
    Element* stage, const Element* gates, const Element* given, long long first, int num_rows)
{
    const int row = threadIdx.x / 32 * 8 + lane_index() % 8;
    const int block = lane_index() / 8;  // of 8 columns, and every fourth after it
    Element* to = stage + block * COLUMN_BLOCK + row * 8;
    const bool is_there = first + row < num_rows;
    const Element* of_gates = gates + (first + row) * (4 * UNITS) + block * 8;
    const Element* of_given = given + (first + row) * UNITS + block * 8;
    if (is_there) {
#pragma unroll
        for (int i = 0; i < GATES / 32; ++i) start_eight((Eight*)(to + i * (4 * COLUMN_BLOCK)), of_gates + 32 * i);
        to += GATES / 8 * COLUMN_BLOCK;
#pragma unroll
        for (int i = 0; i < UNITS / 32; ++i) start_eight((Eight*)(to + i * (4 * COLUMN_BLOCK)), of_given + 32 * i);
    } else {
#pragma unroll
        for (int i = 0; i < (GATES + UNITS) / 32; ++i) eight_at(to + i * (4 * COLUMN_BLOCK)) = Eight{};
    }
    close_copies();
}

// Deltas of 32 units of what the input came out of, from sums, and what they add to the columns' sums.
//   unit    the first of them
//   given   in shared memory: what the activation gave, 64 rows
//   first   row, of memory
//   of_warp column sums of these units
__device__ __forceinline__ void go_to_input(
    const float (&sum)[4][4], int unit, const Element* given, Element* by_input, long long first, int num_rows,
    float* of_warp)
{
    const int t = lane_index() & 3;
    float columns[8] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = threadIdx.x / 32 % 4 * 16 + lane_index() / 4 + 8 * half;
        const Eight gave = eight_at((Element*)given + (unit / 8 + t) * COLUMN_BLOCK + row * 8);
        Eight deltas;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const FloatPair y = unpack(gave.pair[i]);
            const float low = sum[i][2 * half] * slope(y.low);
            const float high = sum[i][2 * half + 1] * slope(y.high);
            columns[2 * i] += low;
            columns[2 * i + 1] += high;
            deltas.pair[i] = packed(low, high);
        }
        if (first + row < num_rows) eight_at(by_input + (first + row) * UNITS + unit + 8 * t) = deltas;
    }
    // Over the warp's rows: of two lanes each adds up half of what both have, until each has one column.
    int column = 8 * t;
#pragma unroll
    for (int half = 4; half > 0; half /= 2) {
        const bool is_upper = lane_index() & (4 * half);
#pragma unroll
        for (int i = 0; i < half; ++i) {
            const float own = is_upper ? columns[i + half] : columns[i];
            const float others = is_upper ? columns[i] : columns[i + half];
            columns[i] = own + __shfl_xor_sync(ALL_LANES, others, 4 * half);
        }
        column += is_upper ? half : 0;
    }
    of_warp[column] += columns[0];
}

// What blocks of a kind do.
//   share, num_shares  of the rows, 64 at once
//   gates              of a row, the first of those it takes
//   given              input, or states before each step
//   record             where its sums go
template <bool OF_INPUT>
__device__ __forceinline__ void go_through_rows(
    const Shared& shared, int share, int num_shares, const Element* gates, const Element* given, Element* by_input,
    float* record, int num_rows, bool goes_on)
{
    const int group = threadIdx.x / 128;
    float* column_sums = shared.column_sums + threadIdx.x / 32 * (UNITS / 2);
    float sum[NUM_PANELS][BLOCKS][4], bias[NUM_PANELS][1][4];
    float* out = record + group * GROUP_ROWS * UNITS;
    float* out_bias = record + OF_WEIGHTS + group * GROUP_ROWS;
#pragma unroll
    for (int m = 0; m < NUM_PANELS; ++m) {
        begin_sums(sum[m], out + m * 64 * UNITS, UNITS, goes_on);
        begin_row_sums(bias[m], out_bias + m * 64, goes_on);
    }
    const InShared ones(shared.ones, ALONG, ALONG), of_input(shared.of_input, ALONG, OF_GATES);
    int round = 0;
    if (share * ROWS < num_rows) fetch_rows(shared.stages, gates, given, (long long)share * ROWS, num_rows);
    for (int tile = share; tile * ROWS < num_rows; tile += num_shares, ++round) {
        const Element* stage = shared.stages + round % 2 * STAGE;
        wait_for_groups<0>();
        show_to_products();
        __syncthreads();
        const long long next = (long long)(tile + num_shares) * ROWS;
        if (next < num_rows) fetch_rows(shared.stages + (round + 1) % 2 * STAGE, gates, given, next, num_rows);
        const InShared deltas(stage + group * GROUP_ROWS * ROWS, ALONG, ACROSS);  // summed over rows
        const InShared factor(stage + GATES * ROWS, ALONG, ACROSS);
        const auto add_panel = [&](int m) {
            begin_products();
#pragma unroll
            for (int k = 0; k < ROWS / 16; ++k) {
                const InShared panel = deltas.at(m * 64 * ROWS + k * 128);
                add_shared<true>(sum[m], panel, factor.at(k * 128));
                add_shared<true>(bias[m], panel, ones);
            }
            end_products();
        };
        const InShared by_gates(stage, ACROSS, ALONG);  // summed over gates
        float by[4][4];
        const auto add_to_input = [&](int unit) {
#pragma unroll
            for (int i = 0; i < 16; ++i) by[i / 4][i % 4] = 0.0f;
            begin_products();
#pragma unroll
            for (int k = 0; k < GATES / 16; ++k) {
                add_shared<false>(by, by_gates.at(2 * k * COLUMN_BLOCK), of_input.at(unit * GATES + 2 * k * BLOCK));
            }
            end_products();
        };
        const auto finish_input = [&](int unit) {
            settle(by);
            go_to_input(
                by, unit, stage + GATES * ROWS, by_input, (long long)tile * ROWS, num_rows, column_sums + unit % 64);
        };
        const int unit = group * (UNITS / 2);
        if (OF_INPUT) add_to_input(unit);
        add_panel(0);
        if (OF_INPUT) {
            wait_for_products<1>();
            finish_input(unit);
            add_to_input(unit + 32);
        }
#pragma unroll
        for (int m = 1; m < NUM_PANELS; ++m) add_panel(m);
        if (OF_INPUT) {
            wait_for_products<NUM_PANELS - 1>();
            finish_input(unit + 32);
        }
        wait_for_products<0>();
    }
#pragma unroll
    for (int m = 0; m < NUM_PANELS; ++m) {
        write_sums(sum[m], out + m * 64 * UNITS, UNITS);
        write_row_sums(bias[m], out_bias + m * 64);
    }
    if (!OF_INPUT) return;
    __syncthreads();
    for (int i = threadIdx.x; i < UNITS; i += THREADS) {
        const float* of_warp = shared.column_sums + i / 64 * (4 * 64) + i % 64;  // the first of four that had this unit
        const float sum = of_warp[0] + of_warp[64] + of_warp[2 * 64] + of_warp[3 * 64];
        record[RECORD + i] = goes_on ? record[RECORD + i] + sum : sum;
    }
}

//   weights   as gru_pack.cu has the input's, backwards                                          read
//   gates     [row, 4 UNITS]  deltas of n, r, z, q                                               read
//   hidden    [row.., UNITS]  the states before each step                                        read
//   input     [row, UNITS]  what the activation gave                                             read
//   by_input  [row, UNITS]  deltas of what went into it                                          written
//   gradient  [block of the first kind, 3 UNITS UNITS + 4 UNITS]  of the input's weights, its biases, and the biases of
//             what goes into the activation; then [block of the second kind, 3 UNITS UNITS + 3 UNITS]  of the state's
//             weights and biases                                                                 written
//   num_rows  of all steps
//   goes_on   whether this adds to the gradient that an earlier launch wrote
extern "C" __global__ void __launch_bounds__(THREADS, 1) gru_gradients(
    const unsigned char* weights, const unsigned char* gates, const unsigned char* hidden, const unsigned char* input,
    unsigned char* by_input, float* gradient, int num_rows, bool goes_on)
{
    extern __shared__ char bytes[];
    const Shared shared(bytes);
    const int before = (int)blockIdx.x * OF_STATE / gridDim.x;  // blocks of the second kind
    const int of_input = gridDim.x - OF_STATE;
    const bool is_second = ((int)blockIdx.x + 1) * OF_STATE / (int)gridDim.x > before;
    if (threadIdx.x < 64) ((Pair*)shared.ones)[threadIdx.x] = packed(1.0f, 1.0f);
    for (int i = threadIdx.x; i < WARPS * (UNITS / 2); i += THREADS) shared.column_sums[i] = 0.0f;
    if (!is_second) spread_backwards<true>(shared.of_input, weights);
    const Element* first_gate = (const Element*)gates;
    if (is_second) {
        float* record = gradient + (long long)of_input * (RECORD + UNITS) + (long long)before * RECORD;
        go_through_rows<false>(
            shared, before, OF_STATE, first_gate + UNITS, (const Element*)hidden, nullptr, record, num_rows, goes_on);
    } else {
        const int share = (int)blockIdx.x - before;
        go_through_rows<true>(
            shared, share, of_input, first_gate, (const Element*)input, (Element*)by_input,
            gradient + (long long)share * (RECORD + UNITS), num_rows, goes_on);
    }
}
