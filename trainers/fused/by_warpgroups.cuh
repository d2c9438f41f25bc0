// Rows of elements in memory through weights in shared memory, by whole warpgroups: what by_warpgroups.cu
// and gru_by_input.cu have in common. Elsewhere than on an sm_90a warps multiply alone.
//
// Constants: FULL_PRECISION, IS_TANH, WARPS, AHEAD, as by_warpgroups.cu has them.
#pragma once
#include "warps_or_groups.cuh"

constexpr int PANEL = 128;  // columns of B
constexpr int BLOCKS = PANEL / 8;
constexpr int THREADS = WARPS * 32;
constexpr int PIECE = 16 / (int)sizeof(Element);  // elements that are copied at once

__device__ __forceinline__ float activate(float x)
{
    return IS_TANH ? quick_tanh(x) : positive_part(x);
}
__device__ __forceinline__ float slope(float activated)
{
    if (IS_TANH) return 1.0f - activated * activated;
    return activated > 0.0f ? 1.0f : 0.0f;
}

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
