// What goes into the first layer of a network whose layers go through memory: rows of features.
//
// Constants, besides those of layers/mlp.cuh:
//   GROUP_SIZE                agents of the group
//   SEEN_COLUMNS, FIRST_SEEN  columns of the array they observe in, and the first that is theirs
//   HAS_ORDER                 whether rows are those of a minibatch, else all in their order
//   ROW_COLUMNS               of a row; those after the features are zeros
//   AS_RECORDS                whether columns lie as those of a record do, two tiles together

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
    const auto put_pair = [&](long long row, int column, float low, float high) {
        const int place = AS_RECORDS ? place_of_column<2>(column) : column;
        ((Pair*)features)[row * PAIRS + place / 2] = packed(low, high);
    };
    const auto row_of = [&](long long row) {
        const int index = HAS_ORDER ? order[first_row + row] : (int)(first_row + row);
        const long long seen = (long long)(index / GROUP_SIZE) * SEEN_COLUMNS + FIRST_SEEN + index % GROUP_SIZE;
        return observation + seen * NUM_FEATURES;
    };
    if constexpr (NORMS_INPUT) {  // a warp has a row
        const int lane = lane_index();
        const auto over_row = [](float sum) {
            for (int flip = 16; flip > 0; flip /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, flip);
            return sum;
        };
        const long long step = (long long)num_blocks * WARPS;
        for (long long row = (long long)block * WARPS + threadIdx.x / 32; row < num_rows; row += step) {
            const float* from = row_of(row);
            float sum = 0.0f;
            float squares = 0.0f;
            for (int i = lane; i < NUM_FEATURES; i += 32) sum += feature(from, i, mean, variance);
            const float middle = over_row(sum) / NUM_FEATURES;
            for (int i = lane; i < NUM_FEATURES; i += 32) {
                const float off = feature(from, i, mean, variance) - middle;
                squares += off * off;
            }
            const float scale = rsqrtf(over_row(squares) / NUM_FEATURES + NORM_EPS);
            const auto normed = [&](int column) {
                return column < NUM_FEATURES ? (feature(from, column, mean, variance) - middle) * scale : 0.0f;
            };
            for (int i = lane; i < PAIRS; i += 32) {
                put_pair(row, 2 * i, normed(2 * i), normed(2 * i + 1));
            }
        }
    } else {
        const long long step = (long long)num_blocks * blockDim.x;
        for (long long i = (long long)block * blockDim.x + threadIdx.x; i < num_rows * (long long)PAIRS; i += step) {
            const float* from = row_of(i / PAIRS);
            const auto at = [&](int k) { return k < NUM_FEATURES ? feature(from, k, mean, variance) : 0.0f; };
            const int column = 2 * (int)(i % PAIRS);
            put_pair(i / PAIRS, column, at(column), at(column + 1));
        }
    }
}
