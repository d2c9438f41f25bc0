// One layer of rows that are in memory, with bias and activation at once; its weights are in shared memory.
//
// A warp carries 16 rows; a lane has four neighbouring columns of the rows g and g + 8.
//
// Constants:
//   FULL_PRECISION       of the elements
//   IN_TILES, OUT_TILES  16 columns each: of what is given, and of what is made
//   PITCH                elements from a row of weights in shared memory to the next
//   WARPS                of a block
//   IS_TANH              the activation: tanh, or else the positive part
#include "tensor_core.cuh"

constexpr int INPUTS = 16 * IN_TILES;
constexpr int OUTPUTS = 16 * OUT_TILES;
constexpr int PIECE = 16 / (int)sizeof(Element);  // elements that are copied at once
constexpr int THREADS = 32 * WARPS;

static_assert(PITCH >= INPUTS && PITCH % PIECE == 0, "rows of weights meet");

struct alignas(4 * sizeof(Element)) Four {
    Pair pair[2];
};

__device__ __forceinline__ float activate(float x)
{
    return IS_TANH ? quick_tanh(x) : positive_part(x);
}

// Two tiles of B out of 16 rows of weights: columns 2 t and 2 t + 1 of both are the four rows of lane t.
__device__ __forceinline__ void load_four_rows(Pair (&b)[4], const Element* weights)
{
    const int lane = lane_index();
    if constexpr (HAS_TENSOR_CORES && !FULL_PRECISION) {
        const int column = lane & 7;  // of a tile of B
        const int row = column / 2 * 4 + (lane >> 4) * 2 + column % 2;
        load_matrices<false>(b, weights + row * PITCH + (lane >> 3 & 1) * 8);
        return;
    }
    const int column = lane >> 2;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const Element* place = weights + (column / 2 * 4 + i / 2 * 2 + column % 2) * PITCH + i % 2 * 8 + 2 * (lane & 3);
        join(b[i], place[0], place[1]);
    }
}

//   weights   [OUTPUTS, INPUTS]  bytes of elements      read
//   bias      [OUTPUTS]                                 read
//   input     [row, INPUTS]  bytes of elements          read
//   output    [row, OUTPUTS]  likewise                  written
//   num_rows
extern "C" __global__ void __launch_bounds__(THREADS) dense_forward(
    const unsigned char* weights, const float* bias, const unsigned char* input, unsigned char* output,
    long long num_rows)
{
    extern __shared__ char shared[];
    Element* weight = (Element*)shared;  // [OUTPUTS][PITCH]
    constexpr int PIECES = INPUTS / PIECE;
    for (int i = threadIdx.x; i < OUTPUTS * PIECES; i += THREADS) {
        start_copy((Bytes16*)(weight + i / PIECES * PITCH + i % PIECES * PIECE), (const Bytes16*)weights + i);
    }
    wait_for_copies();
    __syncthreads();
    const int g = lane_index() >> 2;
    const int t = lane_index() & 3;
    const long long step = (long long)gridDim.x * WARPS * 16;
    const long long start = ((long long)blockIdx.x * WARPS + (threadIdx.x >> 5)) * 16 + g;
    for (long long row = start; row - g < num_rows; row += step) {
        Pair a[IN_TILES][4];
#pragma unroll
        for (int i = 0; i < 4 * IN_TILES; ++i) {
            const long long mine = row + i % 2 * 8;
            const Element* place = (const Element*)input + mine * INPUTS + i / 4 * 16 + i / 2 % 2 * 8 + 2 * t;
            a[i / 4][i % 4] = mine < num_rows ? *(const Pair*)place : packed(0.0f, 0.0f);
        }
#pragma unroll 2
        for (int n = 0; n < OUT_TILES; ++n) {
            float sum[2][4];
#pragma unroll
            for (int i = 0; i < 8; ++i) sum[i / 4][i % 4] = bias[16 * n + 4 * t + i / 4 * 2 + i % 2];
#pragma unroll
            for (int k = 0; k < IN_TILES; ++k) {
                Pair b[4];
                load_four_rows(b, weight + 16 * n * PITCH + 16 * k);
                multiply(sum[0], a[k], b[0], b[1]);
                multiply(sum[1], a[k], b[2], b[3]);
            }
#pragma unroll
            for (int lower = 0; lower < 2; ++lower) {
                if (row + 8 * lower >= num_rows) continue;
                const float* low = &sum[0][2 * lower];
                const float* high = &sum[1][2 * lower];
                *(Four*)((Element*)output + (row + 8 * lower) * OUTPUTS + 16 * n + 4 * t) = {
                    packed(activate(low[0]), activate(low[1])), packed(activate(high[0]), activate(high[1]))};
            }
        }
    }
}
