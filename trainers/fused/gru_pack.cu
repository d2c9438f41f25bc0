// The weights of a gated recurrent unit, as gru.cu reads them.
//
// Constants:
//   UNITS     of the cell
//   IN_TILES  of the input, 16 columns each; 0: its weights are multiplied elsewhere
//   INPUTS    columns of its weights
//   TURNS     whether weights and biases of the input are also given as a matrix library takes them: of gates n, r, z
#include "tensor_core.cuh"

constexpr int TILES = UNITS / 16;

// Where an element of a fragment stands in the 16 x 16 of B: columns 2 t and 2 t + 1 of both tiles are lane t's of C.
__device__ __forceinline__ int wide_of(int i)
{
    const int lane = i / 8 % 32;
    return lane / 8 * 4 + 2 * (i / 4 % 2) + lane / 4 % 2;
}
__device__ __forceinline__ int deep_of(int i)
{
    return 8 * (i / 2 % 2) + 2 * (i / 8 % 4) + i % 2;
}

// Brings weights into the order in which lanes hold them, once for each way.
//   weight           [3 UNITS, UNITS]  of the state, of gates r, z, n                        read
//   input_weight     [3 UNITS, INPUTS]  of the input, likewise, if there are IN_TILES        read
//   forwards         [warp][tile of the state][gate][lane] fragments of its products         written
//   backwards        [warp][tile of gates r, z, q][lane] fragments of the deltas' products   written
//   input_forwards   [warp][tile of the input][gate][lane], likewise                         written
//   input_backwards  [tile of the input][tile of gates n, r, z][lane], likewise              written
//   bias             [3 UNITS]  of the input, of gates r, z, n, if it TURNS                  read
//   turned           [3 UNITS, INPUTS]  elements of the input's weights, likewise            written
//   turned_bias      [3 UNITS]                                                               written
extern "C" __global__ void gru_pack(
    const float* weight, const float* input_weight, const float* bias, unsigned char* forwards,
    unsigned char* backwards, unsigned char* input_forwards, unsigned char* input_backwards, unsigned char* turned,
    float* turned_bias)
{
    for (int i = global_thread(); i < (TURNS ? 3 * UNITS * INPUTS : 0); i += num_global_threads()) {
        narrow(((Element*)turned)[i], input_weight[(i + 2 * UNITS * INPUTS) % (3 * UNITS * INPUTS)]);
        if (i < 3 * UNITS) turned_bias[i] = bias[(i + 2 * UNITS) % (3 * UNITS)];
    }
    for (int i = global_thread(); i < 3 * UNITS * (UNITS + 16 * IN_TILES); i += num_global_threads()) {
        const bool is_input = i >= 3 * UNITS * UNITS;
        const int j = is_input ? i - 3 * UNITS * UNITS : i;
        const int in_tiles = is_input ? IN_TILES : TILES;
        const int num_columns = is_input ? INPUTS : UNITS;
        const float* from = is_input ? input_weight : weight;
        const auto at = [&](int row, int column) {
            return column < num_columns ? from[row * num_columns + column] : 0.0f;
        };
        const int there = j / 256 % (3 * in_tiles);  // the tile of the state or the input, and the gate
        const int row = there % 3 * UNITS + j / 256 / (3 * in_tiles) * 16 + wide_of(j);
        narrow(((Element*)(is_input ? input_forwards : forwards))[j], at(row, there / 3 * 16 + deep_of(j)));
        const int delta = j / 256 % (3 * TILES) * 16 + deep_of(j);  // n, r, z of the input; r, z, q
        const int gate = is_input ? (delta / UNITS + 2) % 3 : delta / UNITS;
        const int column = j / 256 / (3 * TILES) * 16 + wide_of(j);
        narrow(((Element*)(is_input ? input_backwards : backwards))[j], at(gate * UNITS + delta % UNITS, column));
    }
}
