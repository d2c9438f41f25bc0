// What a network sees where that is one array of floats: whole rows, which lanes read in pairs. A part of mlp.cuh.

using Rows = PlacesOfRows<float>;

// Where the features of a row of [env's step, agent of the group] are.
__device__ __forceinline__ const float* place_of_row(const Seen& seen, int row)
{
    const long long column = (long long)(row / GROUP_SIZE) * SEEN_COLUMNS + FIRST_SEEN + row % GROUP_SIZE;
    return seen.seen0 + column * NUM_FEATURES;
}

// Every lane brings the row of its number, below 16 ROW_TILES; -1 for none.
__device__ __forceinline__ Rows find_rows(const Seen& seen, const bool*, int row)
{
    return share_places(row >= 0 ? place_of_row(seen, row) : nullptr);
}

// Brings what a row needs nearer.
__device__ __forceinline__ void fetch_row_ahead(const Seen& seen, int row)
{
    const float* place = place_of_row(seen, row);
    for (int i = 0; i < NUM_FEATURES; i += 32) fetch_ahead(place + i);
    fetch_ahead(place + NUM_FEATURES - 1);
}

__device__ __forceinline__ float feature(const float* row, int column, const float* mean, const float* variance)
{
    if (column == NUM_FEATURES) return 1.0f;
    if (!row || column > NUM_FEATURES) return 0.0f;
    return normalised(row[column], column, mean, variance);
}

__device__ __forceinline__ Pair feature_pair(const float* row, int column, const float* mean, const float* variance)
{
    if constexpr (NUM_FEATURES % 2 == 0 && !NORMALISES) {  // then rows begin at multiples of 8 bytes
        if (column < NUM_FEATURES) {
            if (!row) return packed(0.0f, 0.0f);
            const FloatPair both = *(const FloatPair*)(row + column);
            return packed(both.low, both.high);
        }
    }
    return packed(feature(row, column, mean, variance), feature(row, column + 1, mean, variance));
}

// Tile k of the features: 16 columns.
__device__ __forceinline__ void load_features(
    Pair (&tile)[4], const Rows& rows, int r, int k, const float* mean, const float* variance)
{
    const int column = 16 * k + 2 * (lane_index() & 3);
    tile[0] = feature_pair(rows.upper[r], column, mean, variance);
    tile[1] = feature_pair(rows.lower[r], column, mean, variance);
    tile[2] = feature_pair(rows.upper[r], column + 8, mean, variance);
    tile[3] = feature_pair(rows.lower[r], column + 8, mean, variance);
}

// The features of a warp's tiles, on their way from global memory to the registers of the lanes that will pack them.
// All are asked for before the first is needed, without a branch.
struct Fetched {
    float value[ROW_TILES][FEATURE_TILES][4][2];
};
__device__ __forceinline__ Fetched fetch_features(const Rows& rows)
{
    Fetched fetched;
#pragma unroll
    for (int i = 0; i < ROW_TILES * FEATURE_TILES * 4; ++i) {
        const int r = i / (4 * FEATURE_TILES), k = i / 4 % FEATURE_TILES, part = i % 4;
        const float* row = part % 2 ? rows.lower[r] : rows.upper[r];
        const int column = 16 * k + 8 * (part / 2) + 2 * (lane_index() & 3);
        float(&two)[2] = fetched.value[r][k][part];
        two[0] = two[1] = 0.0f;
        if (NUM_FEATURES % 2 == 0) {
            if (row && column < NUM_FEATURES) {
                const FloatPair both = *(const FloatPair*)(row + column);
                two[0] = both.low;
                two[1] = both.high;
            }
        } else {
            if (row && column < NUM_FEATURES) two[0] = row[column];
            if (row && column + 1 < NUM_FEATURES) two[1] = row[column + 1];
        }
    }
    return fetched;
}

// Tile k of them, as of rows. Where there is no row, it may be the features of no agent: nobody reads what comes of it.
__device__ __forceinline__ void load_features(
    Pair (&tile)[4], const Fetched& fetched, int r, int k, const float* mean, const float* variance)
{
    const auto finished = [&](float x, int column) {
        if (column == NUM_FEATURES) return 1.0f;
        return column > NUM_FEATURES ? 0.0f : normalised(x, column, mean, variance);
    };
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int column = 16 * k + 8 * (i / 2) + 2 * (lane_index() & 3);
        const float(&two)[2] = fetched.value[r][k][i];
        tile[i] = packed(finished(two[0], column), finished(two[1], column + 1));
    }
}

// The two numbers, before a one after the last feature, that load_features packs to part i of tile k.
__device__ __forceinline__ void read_two(
    float (&two)[2], const Rows& rows, int r, int k, int i, const float* mean, const float* variance)
{
    const int column = 16 * k + 8 * (i / 2) + 2 * (lane_index() & 3);
    const float* row = i % 2 ? rows.lower[r] : rows.upper[r];
    for (int j = 0; j < 2; ++j) two[j] = column + j < NUM_FEATURES ? feature(row, column + j, mean, variance) : 0.0f;
}
__device__ __forceinline__ void read_two(
    float (&two)[2], const Fetched& fetched, int r, int k, int i, const float* mean, const float* variance)
{
    const int column = 16 * k + 8 * (i / 2) + 2 * (lane_index() & 3);
    const float(&raw)[2] = fetched.value[r][k][i];
    for (int j = 0; j < 2; ++j) {
        two[j] = column + j < NUM_FEATURES ? normalised(raw[j], column + j, mean, variance) : 0.0f;
    }
}
