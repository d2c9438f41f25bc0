// The outputs of a network whose layers went through memory one after the other; a part of mlp.cuh, if BY_LAYERS.

constexpr int OUTPUT_COLUMNS = 16 * OUTPUT_TILES;
constexpr int OUTPUT_ROWS = 16 * ROW_TILES;  // of a warp

// Brings the warp's rows of outputs, with their biases, to its stage, as `forward` does.
// In memory they stand without biases, [row, OUTPUT_COLUMNS] floats, a row's columns in the order of a record's.
//   first  of the warp's rows
__device__ __forceinline__ void read_outputs(const Network& network, long long first, int num_rows)
{
    const float* outputs = (const float*)network.weight3 + first * OUTPUT_COLUMNS;
    __syncwarp();
    for (int i = lane_index(); i < OUTPUT_ROWS * OUTPUT_COLUMNS; i += 32) {
        const int row = i / OUTPUT_COLUMNS;
        const int column = i % OUTPUT_COLUMNS;
        const int place = place_of_column<1>(column);
        const bool is_there = first + row < num_rows;  // what is not has no part in sums: 0 times a NaN would
        network.stage[row * STAGE_PITCH + column] =
            is_there ? outputs[row * OUTPUT_COLUMNS + place] + network.bias3[place] : 0.0f;
    }
    __syncwarp();
}
