// What goes to the input of a GRU on its way back, where gru_by_warpgroups.cu or gru_by_columns.cu walked through it: of
// all steps at once, as nothing waits for it.
//
// Constants, besides those of by_warpgroups.cuh, of which WARPS are those of a block:
//   UNITS    of the cell; its input has as many columns
//   WALKERS  as gru_by_warpgroups.cu has them
#include "layers/gru_of_warp.cuh"

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
    spread_backwards(of_input, weights, THREADS);
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
