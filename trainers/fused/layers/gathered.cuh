// What a network sees where `gather` has brought it together: rows of elements, [tile][lane of four][4], which the lanes
// of a row read side by side, a tile at once. A part of mlp.cuh.

constexpr int GATHERED_TILES = (NUM_FEATURES + 15) / 16;  // the column of ones, if it is a tile's first, is not there

using Rows = PlacesOfRows<Element>;

__device__ __forceinline__ const Element* place_of_row(const Seen& seen, int row)
{
    return (const Element*)seen.seen0 + (long long)row * (16 * GATHERED_TILES);
}

// Every lane brings the row of its number, below 16 ROW_TILES; -1 for none.
__device__ __forceinline__ Rows find_rows(const Seen& seen, const bool*, int row)
{
    return share_places(row >= 0 ? place_of_row(seen, row) : nullptr);
}

// Brings what a row needs nearer.
__device__ __forceinline__ void fetch_row_ahead(const Seen& seen, int row)
{
    const Element* place = place_of_row(seen, row);
    for (int i = 0; i < 16 * GATHERED_TILES; i += 128 / (int)sizeof(Element)) fetch_ahead(place + i);
}

// Tile k of the features as memory has it: 16 columns.
__device__ __forceinline__ void fetch_tile(Pair (&tile)[1][4], const Rows& rows, int r, int k)
{
    const Pair none = packed(0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < 4; ++i) tile[0][i] = none;
    if (k >= GATHERED_TILES) return;
    const int place = 16 * k + place_of_lane<8, 1>(lane_index() & 3);
    if (rows.upper[r]) get(tile, rows.upper[r] + place, 0);
    if (rows.lower[r]) get(tile, rows.lower[r] + place, 1);
}

// The same with a one after the last feature.
__device__ __forceinline__ void finish_tile(Pair (&tile)[4], int k)
{
    if (k != NUM_FEATURES / 16) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int column = 16 * k + 8 * (i / 2) + 2 * (lane_index() & 3);
        if (column == NUM_FEATURES) tile[i] = packed(1.0f, 0.0f);
        if (column + 1 == NUM_FEATURES) tile[i] = packed(unpack(tile[i]).low, 1.0f);
    }
}

// Tile k of the features, ready for the network; they were normalised when they were gathered.
__device__ __forceinline__ void load_features(
    Pair (&tile)[4], const Rows& rows, int r, int k, const float*, const float*)
{
    Pair found[1][4];
    fetch_tile(found, rows, r, k);
#pragma unroll
    for (int i = 0; i < 4; ++i) tile[i] = found[0][i];
    finish_tile(tile, k);
}

// The features of a warp's tiles, on their way from memory.
struct Fetched {
    Pair tile[ROW_TILES][FEATURE_TILES][1][4];
};
__device__ __forceinline__ Fetched fetch_features(const Rows& rows)
{
    Fetched fetched;
#pragma unroll
    for (int i = 0; i < ROW_TILES * FEATURE_TILES; ++i) {
        fetch_tile(fetched.tile[i / FEATURE_TILES][i % FEATURE_TILES], rows, i / FEATURE_TILES, i % FEATURE_TILES);
    }
    return fetched;
}

// Tile k of them, as of rows.
__device__ __forceinline__ void load_features(
    Pair (&tile)[4], const Fetched& fetched, int r, int k, const float*, const float*)
{
#pragma unroll
    for (int i = 0; i < 4; ++i) tile[i] = fetched.tile[r][k][0][i];
    finish_tile(tile, k);
}
