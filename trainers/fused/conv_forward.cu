// From images to outputs, in one launch: see layers/convolution.cuh, which lists the constants. A block has some images
// and shares the places of the convolution among its warps, whose sums of the dense layer are then added up.
#include "layers/convolution.cuh"

constexpr int SUM_PITCH = DENSE + 4;  // floats from a row of sums to the next

// A warp's tile of the dense layer to memory, from a row on of which `left` are rows.
__device__ __forceinline__ void write_tile(Pair* out, const Pair (&tile)[4], long long first, long long left)
{
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int row = (lane_index() >> 2) + i % 2 * 8;
        const int column = 16 * (threadIdx.x >> 5) + i / 2 * 8 + 2 * (lane_index() & 3);
        if (row < left) out[((first + row) * DENSE + column) / 2] = tile[i];
    }
}

// The dense layer's LayerNorm: its sums to what is activated. All threads of the block call it.
//   whole            of a warp's tile, as pairs of A stand   read, written
//   of_rows          [2][WARPS][16] in shared memory
//   standard, scale  as conv_forward has them                written, if they are kept
__device__ __forceinline__ void normalise(
    float (&whole)[4][2], const float* biases, float* of_rows, Pair* standard, float* scale, long long first,
    long long left)
{
    const int warp = threadIdx.x >> 5;
    const auto column_of = [&](int i) { return 16 * warp + i / 2 * 8 + 2 * (lane_index() & 3); };
    float sum[2] = {};
    float squares[2] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i % 2] += whole[i][0] + whole[i][1];
    over_dense(sum, of_rows);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        float& one = whole[i / 2][i % 2];
        one = column_of(i / 2) + i % 2 < DENSE_COLUMNS ? one - sum[i / 2 % 2] / DENSE_COLUMNS : 0.0f;
        squares[i / 2 % 2] += one * one;
    }
    over_dense(squares, of_rows + WARPS * 16);
    if (warp >= DENSE_TILES) return;
    const float* gain = biases + DENSE_BIASES_AT + DENSE;
    float by[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        by[half] = rsqrtf(squares[half] / DENSE_COLUMNS + NORM_EPS);
        const int row = (lane_index() >> 2) + 8 * half;
        if (standard && column_of(0) == 0 && row < left) scale[first + row] = by[half];
    }
    Pair kept[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        kept[i] = packed(whole[i][0] * by[i % 2], whole[i][1] * by[i % 2]);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const int column = column_of(i) + j;
            whole[i][j] = gain[column] * (whole[i][j] * by[i % 2]) + gain[DENSE + column];
        }
    }
    if (standard) write_tile(standard, kept, first, left);
}

// What a block of conv_forward has in shared memory. Sums take the place of the weights.
struct Forward {
    static constexpr int TILES = WARPS * STAGES * TILE * (int)sizeof(Element);
    static constexpr int SUMS = WARPS * 16 * SUM_PITCH * 4;
    static constexpr int FIRST = TILES > SUMS ? TILES : SUMS;
    static constexpr int HIDDEN = FIRST + 16 * ROW_PITCH * (int)sizeof(Element);
    static constexpr int BITS = HIDDEN + 16 * ROW_TILES * IMAGE_WORDS * 4;
    static constexpr int BYTES = BITS + 2 * WARPS * 16 * 4;
};
static_assert(FORWARD_BYTES >= Forward::BYTES, "conv_forward has too little shared memory");

// What a network is given and gives: addresses. What no backward pass will read has none.
struct Network {
    const bool* seen;          // [step, env, agent, row, column, channel]
    const Element* weight;     // see layers/convolution.cuh
    const float* biases;       // [BIAS_ROWS, 16], [BIAS_ROWS, DENSE], those of the outputs
    Element* hidden;           // [row, DENSE]: the dense layer
    Element* standard;         // likewise, its sums at mean 0 and deviation 1, if it NORMS
    float* scale;              // [row]  by which they were made so
    int* kept;                 // [row, IMAGE_WORDS]  the bits
    float* outputs;            // [row, OUTPUTS]  without biases
};

// Images to outputs, of several networks; each has as many blocks.
//   networks   [network, 8]  see Network                                    read; what they give is written
//   order      [num_rows..] images, if it HAS_ORDER                         read
//   first_row, num_rows  which rows of `order`, or of all
//   num_blocks of a network
extern "C" __global__ void __launch_bounds__(THREADS) conv_forward(
    const long long* networks, const int* order, long long first_row, long long num_rows, int num_blocks)
{
    extern __shared__ char shared[];
    const Network one = ((const Network*)networks)[blockIdx.x / num_blocks];
    const Element* weight = one.weight;
    const float* biases = one.biases;
    float* outputs = one.outputs;
    const int warp = threadIdx.x >> 5;
    const int g = lane_index() >> 2;
    const int t = lane_index() & 3;
    Element* tiles = (Element*)shared + warp * STAGES * TILE;  // of this warp, which take turns
    float* sums = (float*)shared;                              // [WARPS][16][SUM_PITCH]
    Element* rows = (Element*)(shared + Forward::FIRST);       // [16][ROW_PITCH] of the dense layer
    unsigned* bits = (unsigned*)(shared + Forward::HIDDEN);
    float* of_rows = (float*)(shared + Forward::BITS);  // [2][WARPS][16]
    const long long first = (long long)(blockIdx.x % num_blocks) * (16 * ROW_TILES);
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) {
        if (warp + i * WARPS < PLACES) start_tile(tiles + i * TILE, weight, warp + i * WARPS);
        close_copies();
    }
    load_images<16 * ROW_TILES>(bits, one.seen, order, one.kept, first_row, first, num_rows);
    const Filters filters = load_filters(weight, biases);
    __syncthreads();

    float sum[ROW_TILES][2 * DENSE_TILES][4] = {};
    int turn = 0;
    for (int place = warp; place < PLACES; place += WARPS) {
        wait_for_groups<STAGES - 2>();
        __syncwarp();
        const int next = place + (STAGES - 1) * WARPS;
        if (next < PLACES) start_tile(tiles + (turn + STAGES - 1) % STAGES * TILE, weight, next);
        close_copies();
        const Patch mine = patch_at(bits + lane_index() % (16 * ROW_TILES) * IMAGE_WORDS, place);
        Pair found[ROW_TILES][4];
#pragma unroll
        for (int r = 0; r < ROW_TILES; ++r) {
            const Patch upper = patch_of_lane(mine, 16 * r + g);
            const Patch lower = patch_of_lane(mine, 16 * r + g + 8);
            Standard unread;
            convolve(found[r], unread, upper, lower, filters);
        }
#pragma unroll
        for (int n = 0; n < DENSE_TILES; ++n) {
            Pair b[4];
            load_weights<false, true>(b, tiles + turn * TILE, 2 * n, 0, 2);
#pragma unroll
            for (int r = 0; r < ROW_TILES; ++r) {
                multiply(sum[r][2 * n], found[r], b[0], b[1]);
                multiply(sum[r][2 * n + 1], found[r], b[2], b[3]);
            }
        }
        turn = (turn + 1) % STAGES;
    }

#pragma unroll
    for (int r = 0; r < ROW_TILES; ++r) {
        const long long left = num_rows - first - 16 * r;
        __syncthreads();  // what stands in the sums' place is read
        float* own = sums + (warp * 16 + g) * SUM_PITCH + 2 * t;
#pragma unroll
        for (int n = 0; n < 2 * DENSE_TILES; ++n) {
            *(FloatPair*)(own + 8 * n) = {sum[r][n][0], sum[r][n][1]};
            *(FloatPair*)(own + 8 * SUM_PITCH + 8 * n) = {sum[r][n][2], sum[r][n][3]};
        }
        __syncthreads();
        float whole[4][2] = {};
        if (warp < DENSE_TILES) {  // adds up a tile, always in the same order
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int column = 16 * warp + i / 2 * 8 + 2 * t;
                const FloatPair bias = *(const FloatPair*)(biases + DENSE_BIASES_AT + column);
                whole[i][0] = bias.low;
                whole[i][1] = bias.high;
                for (int w = 0; w < WARPS; ++w) {
                    const FloatPair part = *(const FloatPair*)(sums + (w * 16 + g + i % 2 * 8) * SUM_PITCH + column);
                    whole[i][0] += part.low;
                    whole[i][1] += part.high;
                }
            }
        }
        if constexpr (NORMS) normalise(whole, biases, of_rows, (Pair*)one.standard, one.scale, first + 16 * r, left);
        if (warp < DENSE_TILES) {
            Pair made[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) made[i] = packed(activate(whole[i][0]), activate(whole[i][1]));
            if (one.hidden) write_tile((Pair*)one.hidden, made, first + 16 * r, left);
            store_rows<ROW_PITCH>(rows + 16 * warp, made);
        }
        __syncthreads();
        for (int o = warp; o < OUTPUT_TILES; o += WARPS) {
            float out[2][4] = {};
#pragma unroll
            for (int k = 0; k < DENSE_TILES; ++k) {
                Pair a[4], b[4];
                load_rows<ROW_PITCH>(a, rows + 16 * k);
                load_weights<false, false>(b, weight + OUTPUTS_AT, 2 * o, 2 * k, 2 * DENSE_TILES);
                multiply(out[0], a, b[0], b[1]);
                multiply(out[1], a, b[2], b[3]);
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int row = g + i % 2 * 8;
                const float* two = &out[i / 2][2 * (i % 2)];
                if (row >= left) continue;
                *(FloatPair*)(outputs + (first + 16 * r + row) * OUTPUTS + 16 * o + i / 2 * 8 + 2 * t) = {two[0], two[1]};
            }
        }
    }
}
