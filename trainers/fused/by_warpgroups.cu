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

constexpr int PIECE = 16 / (int)sizeof(Element);  // elements that are copied at once

// Which rows a warp has: of 64 rows that its warpgroup has at once.
struct Rows {
    long long step;  // from 64 rows to the next
    long long first;
    int num_rows;

    __device__ __forceinline__ Rows(int block, int num_blocks, int num_rows) : num_rows(num_rows)
    {
        const int group = threadIdx.x / 128;
        step = (long long)num_blocks * (WARPS / 4) * 64;
        first = ((long long)block * (WARPS / 4) + group) * 64 + threadIdx.x / 32 % 4 * 16 + lane_index() / 4;
    }
    // Where a row begins, or the last one where there is none.
    __device__ __forceinline__ long long place(long long row, int width) const
    {
        return (row < num_rows ? row : num_rows - 1) * width;
    }
};

// What a thread takes of memory comes to shared memory ahead of its turn, where it alone reads it: a unit is what it has
// of 32 columns of its two rows, the upper and the lower. Of each 64 rows, units of the input come first, then those of
// what the output's columns hold so far.
struct Units {
    static constexpr int LANE = 8;  // elements of a row
    static constexpr int HALF = LANE * THREADS;
    const Rows& rows;
    const Element* input;
    const Element* output;
    Element* place;  // [AHEAD][2][thread][LANE]
    int width, out, num_inputs, num_all;
    int oldest = 0;   // of those on their way
    int unit = 0;     // the next to come
    long long row;    // of which row

    //   num_inputs, num_outputs  units of a row
    __device__ __forceinline__ Units(
        const Rows& rows, const Element* input, int width, int num_inputs, const Element* output, int out,
        int num_outputs, Element* shared)
        : rows(rows), input(input), output(output), place(shared + LANE * threadIdx.x), width(width), out(out),
          num_inputs(num_inputs), num_all(num_inputs + num_outputs), row(rows.first)
    {
        const int column = place_of_lane<8, 2>(lane_index() & 3);
        this->input += column;
        this->output += column;
#pragma unroll 1
        for (int i = 0; i < AHEAD; ++i) call();
    }
    // Starts one more, in the place of the oldest, which must have been read.
    __device__ __forceinline__ void call()
    {
        if (row / 64 * 64 < rows.num_rows) {
            const bool is_input = unit < num_inputs;
            const Element* column = is_input ? input + 32 * unit : output + 32 * (unit - num_inputs);
            const int pitch = is_input ? width : out;
            Element* to = place + 2 * HALF * oldest;
            copy(to, column + rows.place(row, pitch));
            copy(to + HALF, column + rows.place(row + 8, pitch));
        }
        close_copies();
        oldest = oldest + 1 < AHEAD ? oldest + 1 : 0;
        if (++unit < num_all) return;
        unit = 0;
        row += rows.step;
    }
    // Waits until the COUNT oldest are there.
    template <int COUNT>
    __device__ __forceinline__ void wait() const
    {
        wait_for_groups<AHEAD - COUNT>();
    }
    // The oldest but so many.
    __device__ __forceinline__ void read(Pair (&tiles)[2][4], int younger) const
    {
        const int slot = oldest + younger < AHEAD ? oldest + younger : oldest + younger - AHEAD;
        load_tiles(tiles, place + 2 * HALF * slot, place + 2 * HALF * slot + HALF);
    }

private:
    static __device__ __forceinline__ void copy(Element* to, const Element* from)
    {
#pragma unroll
        for (int i = 0; i < LANE; i += PIECE) start_copy((Bytes16*)(to + i), (const Bytes16*)(from + i));
    }
};

// All rows of a block through its weights, TILES of 16 columns at once: calls finish(row, sum) for each 64 of a warpgroup.
//   take(tiles, row, chunk)  brings the next columns of a row
//   start(sum)               gives sums their first values
template <int TILES, bool TRANSPOSED, typename Take, typename Start, typename Finish>
__device__ __forceinline__ void go_through(
    const Rows& rows, int width, const Element* weights, Take take, Start start, Finish finish)
{
    const int num_chunks = width / (16 * TILES);
    constexpr int BLOCK_BYTES = 64 * (int)sizeof(Element);
    const int along = BLOCK_BYTES * (TRANSPOSED ? PANEL / 8 : 1);
    const int across = BLOCK_BYTES * (TRANSPOSED ? 1 : width / 8);
    // Of a warpgroup, all warps go on as long as one of them has a row.
    for (long long row = rows.first; row / 64 * 64 < rows.num_rows; row += rows.step) {
        float sum[BLOCKS][4];
        start(sum);
        settle(sum);
        for (int chunk = 0; chunk < num_chunks; ++chunk) {
            Pair tiles[TILES][4];
            take(tiles, row, chunk);
            begin_products();
#pragma unroll
            for (int k = 0; k < TILES; ++k) {
                const char* b = (const char*)weights + 2 * (chunk * TILES + k) * along;
                add_tile<TRANSPOSED>(sum, tiles[k], (const Element*)b, along, across);
            }
            end_products();
            wait_for_products<0>();
            settle(sum);
        }
        finish(row, sum);
    }
}

// Columns of a layer, which are units; of outputs, which lie as those of a record do, 16 at a time.
struct Layer {
    Units& units;

    __device__ __forceinline__ void operator()(Pair (&tiles)[4][4], long long, int)
    {
        units.wait<2>();
        units.read((Pair(&)[2][4])tiles[0], 0);
        units.read((Pair(&)[2][4])tiles[2], 1);
        settle_input(tiles);
        units.call();
        units.call();
    }
};
struct Outputs {
    const Rows& rows;
    const Element* input;
    int width;
    Pair next[1][4];

    __device__ __forceinline__ Outputs(const Rows& rows, const Element* input, int width)
        : rows(rows), input(input + place_of_lane<8, 1>(lane_index() & 3)), width(width)
    {
        load(rows.first, 0);
    }
    __device__ __forceinline__ void load(long long row, int k)
    {
        const Element* from = input + 16 * k;
        load_tiles(next, from + rows.place(row, width), from + rows.place(row + 8, width));
    }
    __device__ __forceinline__ void operator()(Pair (&tiles)[1][4], long long row, int k)
    {
#pragma unroll
        for (int i = 0; i < 4; ++i) tiles[0][i] = next[0][i];
        const bool is_last = 16 * (k + 1) == width;
        load(is_last ? row + rows.step : row, is_last ? 0 : k + 1);
        settle_input(tiles);
    }
};

// The delta of a layer from that of the next: (delta weights) times the slope of what the layer gave, the last PANEL / 32
// units of each row.
//   to            [row, out]  where it goes; it may be where these are
//   sums_of_warp  [PANEL]  in shared memory, to which its sums over the warp's rows are added
template <int TILES, bool TRANSPOSED, typename Take>
__device__ __forceinline__ void go_back_through(
    const Rows& rows, Units& units, int width, const Element* weights, Take take, Element* to, int out,
    float* sums_of_warp)
{
    const int t = lane_index() & 3;
    const auto start = [&](float(&sum)[BLOCKS][4]) {
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i) sum[i][0] = sum[i][1] = sum[i][2] = sum[i][3] = 0.0f;
    };
    const auto finish = [&](long long row, float(&sum)[BLOCKS][4]) {
        const bool has_upper = row < rows.num_rows;
        const bool has_lower = row + 8 < rows.num_rows;
        Element* upper = to + place_of_lane<8, 2>(t) + row * out;
        Element* lower = upper + 8 * out;
#pragma unroll
        for (int n = 0; n < BLOCKS / 2; n += 2) {
            Pair gave[2][4];
            Pair tiles[2][4];
            units.wait<1>();
            units.read(gave, 0);
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const FloatPair activated = unpack(gave[i / 4][i % 4]);
                float* two = &sum[2 * n + i / 2][2 * (i % 2)];
                const bool is_there = i % 2 ? has_lower : has_upper;
                two[0] = is_there ? two[0] * slope(activated.low) : 0.0f;
                two[1] = is_there ? two[1] * slope(activated.high) : 0.0f;
                tiles[i / 4][i % 4] = packed(two[0], two[1]);
            }
            if (has_upper) put(upper + 16 * n, tiles, 0, 0u);
            if (has_lower) put(lower + 16 * n, tiles, 1, 0u);
            units.call();
        }
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i) {  // over the warp's 16 rows
            float low = sum[i][0] + sum[i][2];
            float high = sum[i][1] + sum[i][3];
#pragma unroll
            for (int flip = 4; flip < 32; flip *= 2) {
                low += __shfl_xor_sync(ALL_LANES, low, flip);
                high += __shfl_xor_sync(ALL_LANES, high, flip);
            }
            if (lane_index() < 4) {
                sums_of_warp[8 * i + 2 * t] += low;
                sums_of_warp[8 * i + 2 * t + 1] += high;
            }
        }
    };
    go_through<TILES, TRANSPOSED>(rows, width, weights, take, start, finish);
}

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
