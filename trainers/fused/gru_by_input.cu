// What goes to the input of a GRU on its way back, where gru_by_columns.cu walked through it: of all steps at once, as
// nothing waits for it. A warp has all units of 16 rows; what a lane has of 32 units of a row are 8 neighbours, 16 bytes,
// and weights stand in shared memory in the order of what lanes hold.
//
// Constants, besides those of by_warpgroups.cuh:
//   UNITS  of the cell; its input has as many columns
#include "by_warpgroups.cuh"
#include "layers/gru_pieces.cuh"

constexpr int TILES = UNITS / 16;
constexpr int BLOCK = 64;  // elements of a block of 8 x 8

static_assert(UNITS == PANEL, "registers hold sums of as many");

// Where a unit stands among those of a product.
__device__ __forceinline__ int logical(int unit)
{
    return unit / 32 * 32 + unit % 8 / 2 * 8 + unit / 8 % 4 * 2 + unit % 2;
}

// The input's weights on the way back, [unit / 8][3 UNITS / 8][8][8].
__device__ __forceinline__ void spread_backwards(Element* shared, const unsigned char* weights)
{
    spread<3 * TILES>(shared, weights, THREADS, [&](int number, int column, int depth) {
        const int to = logical(column), from = logical(number * 16 + depth);
        return (to / 8 * (3 * UNITS / 8) + from / 8) * BLOCK + to % 8 * 8 + from % 8;
    });
}

// From the deltas of n, r, z to those of what went into the activation that the input came out of.
//   weights   as gru_pack.cu has the input's, backwards                                          read
//   gates     [row, 4 UNITS]  of which the first three                                           read
//   input     [row, UNITS]  what the activation gave                                             read
//   by_input  [row, UNITS]                                                                       written
//   bias_gradient  [block, 5 UNITS]  the last: sums over the block's rows                        written
//   num_rows  of all steps
extern "C" __global__ void __launch_bounds__(THREADS, 1) gru_by_input(
    const unsigned char* weights, const unsigned char* gates, const unsigned char* input, unsigned char* by_input,
    float* bias_gradient, int num_rows)
{
    extern __shared__ char shared[];
    Element* of_input = (Element*)shared;
    float* sums = (float*)(of_input + WEIGHTS);  // [warp][UNITS]
    spread_backwards(of_input, weights);
    for (int i = threadIdx.x; i < WARPS * UNITS; i += THREADS) sums[i] = 0.0f;
    show_to_products();
    __syncthreads();
    const Rows rows(blockIdx.x, gridDim.x, num_rows);
    Units units(
        rows, (const Element*)gates, 4 * UNITS, 3 * UNITS / 32, (const Element*)input, UNITS, UNITS / 32,
        (Element*)(sums + WARPS * UNITS));
    go_back_through<4, false>(
        rows, units, 3 * UNITS, of_input, Layer{units}, (Element*)by_input, UNITS, sums + threadIdx.x / 32 * UNITS);
    __syncthreads();
    for (int i = threadIdx.x; i < UNITS; i += THREADS) {
        float all = 0.0f;
        for (int warp = 0; warp < WARPS; ++warp) all += sums[warp * UNITS + logical(i)];
        bias_gradient[blockIdx.x * (5 * UNITS) + 4 * UNITS + i] = all;
    }
}
