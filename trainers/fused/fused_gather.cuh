// What goes into the first layer of a network whose layers go through memory: rows of features.
//
// Constants, besides those of layers/mlp.cuh:
//   GROUP_SIZE                agents of the group
//   SEEN_COLUMNS, FIRST_SEEN  columns of the array they observe in, and the first that is theirs
//   HAS_ORDER                 whether rows are those of a minibatch, else all in their order
//   ROW_COLUMNS               of a row; those after the features are zeros

static_assert(ROW_COLUMNS >= NUM_FEATURES && ROW_COLUMNS % 2 == 0, "rows of features meet");

//   shared               of no use
//   block, num_blocks    which of how many work for this network
//   observation          [step, env, column, feature]                        read
//   order                [num_rows..] samples, if it HAS_ORDER               read
//   mean, variance       [feature]  if it NORMALISES                         read
//   first_row, num_rows  which rows of `order`, or of all
//   features             bytes of [num_rows, ROW_COLUMNS] elements           written
__device__ __forceinline__ void gather(
    char* shared, int block, int num_blocks, const float* observation, const int* order, const float* mean,
    const float* variance, long long first_row, int num_rows, unsigned char* features)
{
    constexpr int PAIRS = ROW_COLUMNS / 2;
    const long long num_pairs = (long long)num_rows * PAIRS;
    const long long step = (long long)num_blocks * blockDim.x;
    for (long long i = (long long)block * blockDim.x + threadIdx.x; i < num_pairs; i += step) {
        const long long row = first_row + i / PAIRS;
        const int column = 2 * (int)(i % PAIRS);
        const int index = HAS_ORDER ? order[row] : (int)row;
        const long long seen = (long long)(index / GROUP_SIZE) * SEEN_COLUMNS + FIRST_SEEN + index % GROUP_SIZE;
        const float* from = observation + seen * NUM_FEATURES;
        const auto at = [&](int k) { return k < NUM_FEATURES ? feature(from, k, mean, variance) : 0.0f; };
        ((Pair*)features)[i] = packed(at(column), at(column + 1));
    }
}
