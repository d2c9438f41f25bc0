// What goes into the first layer of a network, brought together: rows of features. Of one whose layers go through memory,
// those of a minibatch; of another, all of a rollout, which are then read in every epoch (layers/gathered.cuh).
//
// Constants, besides those of layers/mlp.cuh:
//   HAS_ORDER                 whether rows are those of a minibatch, else all in their order
//   ROW_COLUMNS               of a row; those after the features are zeros
//   TOGETHER                  tiles whose columns lie as those of a record do, 1 or 2; 0: columns lie in their order

static_assert(ROW_COLUMNS >= NUM_FEATURES && ROW_COLUMNS % 16 == 0, "rows of features meet");

//   shared               of no use
//   block, num_blocks    which of how many work for this network
//   seen                 what the network sees                               read
//   active               [step, env, agent of all]  if it HIDES              read
//   order                [num_rows..] samples, if it HAS_ORDER               read
//   mean, variance       [feature]  if it NORMALISES                         read
//   first_row, num_rows  which rows of `order`, or of all
//   features             bytes of [num_rows, ROW_COLUMNS] elements           written
__device__ __forceinline__ void gather(
    char* shared, int block, int num_blocks, Seen seen, const bool* active, const int* order, const float* mean,
    const float* variance, long long first_row, int num_rows, unsigned char* features)
{
    const int g = lane_index() >> 2;
    const int t = lane_index() & 3;
    const long long step = (long long)num_blocks * WARPS * 16;
    for (long long first = ((long long)block * WARPS + threadIdx.x / 32) * 16; first < num_rows; first += step) {
        const long long of_lane = first + lane_index() % 16;
        const int index = of_lane >= num_rows ? -1 : HAS_ORDER ? order[first_row + of_lane] : (int)(first_row + of_lane);
        const Rows rows = find_rows(seen, active, index);
        float middle[2] = {};
        float scale[2] = {1.0f, 1.0f};  // of row g, of row g + 8
        if (NORMS_INPUT) {
            float sum[2] = {};
            float squares[2] = {};
            float two[2];
            for (int n = 0; n < 4 * FEATURE_TILES; ++n) {
                read_two(two, rows, 0, n / 4, n % 4, mean, variance);
                sum[n % 2] += two[0] + two[1];
            }
            for (int half = 0; half < 2; ++half) middle[half] = over_row(sum[half]) / NUM_FEATURES;
            for (int n = 0; n < 4 * FEATURE_TILES; ++n) {
                read_two(two, rows, 0, n / 4, n % 4, mean, variance);
                for (int j = 0; j < 2; ++j) {
                    if (16 * (n / 4) + 8 * (n % 4 / 2) + 2 * t + j >= NUM_FEATURES) continue;
                    squares[n % 2] += (two[j] - middle[n % 2]) * (two[j] - middle[n % 2]);
                }
            }
            for (int half = 0; half < 2; ++half) {
                scale[half] = rsqrtf(over_row(squares[half]) / NUM_FEATURES + NORM_EPS);
            }
        }
        for (int n = 0; n < ROW_COLUMNS / 4; ++n) {
            const int half = n % 2;
            const int column = 16 * (n / 4) + 8 * (n % 4 / 2) + 2 * t;
            float two[2] = {};
            if (column < NUM_FEATURES) {
                read_two(two, rows, 0, n / 4, n % 4, mean, variance);
                two[0] = (two[0] - middle[half]) * scale[half];
                two[1] = column + 1 < NUM_FEATURES ? (two[1] - middle[half]) * scale[half] : 0.0f;
            }
            const long long row = first + g + 8 * half;
            const int place = TOGETHER ? place_of_column<TOGETHER ? TOGETHER : 1>(column) : column;
            if (row < num_rows) ((Pair*)features)[(row * ROW_COLUMNS + place) / 2] = packed(two[0], two[1]);
        }
    }
}
