// What a network sees in several arrays, of any type, and in the number of the agent; a part of mlp.cuh.
// A row's columns are those of each source, one after another, then a one at the agent's number among zeros.
//
// seen.py writes, besides the constants of fused_act.cuh:
//   Seen                  the arrays: seen0, seen1 ..
//   Source<i>             one of them:
//     Number, array()       its type, and itself
//     START, SIZE           its columns of a row
//     PITCH, STRIDE, FIRST  numbers from an env to the next, from an agent to the next, and where an env's begin
//     SCALES, LOW, SCALE    whether a number is x, or (x - LOW) SCALE
//   NUM_SOURCES, NUM_IDS  how many; agents of the group, if a row ends with which of them it is, else 0
//   HIDES                 whether agents that are out of the game see zeros, and their number alone

constexpr int FIRST_ID = NUM_FEATURES - NUM_IDS;
constexpr int NO_ROW = -2147483647 - 1;

// A number on its way from memory: in 32 bits, as it is read, so that nothing waits for it before it is needed.
template <typename Number>
constexpr bool STAYS_WHOLE = sizeof(Number) < 4 || (sizeof(Number) == 4 && Number(0.5f) == Number(0));
template <typename Number>
__device__ __forceinline__ unsigned bits_of(Number x)
{
    if constexpr (STAYS_WHOLE<Number>) return (unsigned)x;
    return __float_as_uint((float)x);
}
template <typename Number>
__device__ __forceinline__ float number_of(unsigned bits)
{
    if constexpr (STAYS_WHOLE<Number>) return (float)(Number)bits;
    return __uint_as_float(bits);
}

// Whether neighbours, of which the first has an even column, are read at once.
template <typename From>
constexpr bool IN_PAIRS = sizeof(typename From::Number) <= 4 && From::START % 2 == 0 && From::SIZE % 2 == 0 &&
                          From::PITCH % 2 == 0 && From::STRIDE % 2 == 0 && From::FIRST % 2 == 0;
template <typename Number>
__device__ __forceinline__ void read_pair(const Number* place, unsigned (&bits)[2])
{
    if constexpr (sizeof(Number) == 1) {
        bits[0] = *(const unsigned short*)place;  // both
    } else if constexpr (sizeof(Number) == 2) {
        bits[0] = *(const unsigned*)place;
    } else {
        const Bytes8 both = *(const Bytes8*)place;
        bits[0] = both.word[0];
        bits[1] = both.word[1];
    }
}
template <typename From, int WHICH>
__device__ __forceinline__ float number_of_pair(const unsigned (&bits)[2])
{
    constexpr unsigned SIZE = 8 * sizeof(typename From::Number);
    if constexpr (IN_PAIRS<From> && SIZE < 32) {
        return number_of<typename From::Number>(bits[0] >> SIZE * WHICH & ((1u << SIZE % 32) - 1u));
    }
    return number_of<typename From::Number>(bits[WHICH]);
}

// Which rows a warp has: a row of [env's step, agent of the group]; ~row if the agent is out of the game and the
// network HIDES; NO_ROW.
struct Rows {
    Seen seen;
    int upper[ROW_TILES];  // row g of each tile
    int lower[ROW_TILES];  // row g + 8
};

// Every lane brings the row of its number, below 16 ROW_TILES; -1 for none.
__device__ __forceinline__ Rows find_rows(const Seen& seen, const bool* active, int row)
{
    int of_lane = row < 0 ? NO_ROW : row;
    if (HIDES && row >= 0) {
        const long long place = (long long)(row / GROUP_SIZE) * ALL_AGENTS + FIRST_AGENT + row % GROUP_SIZE;
        of_lane = active[place] ? row : ~row;
    }
    const int g = lane_index() >> 2;
    Rows rows;
    rows.seen = seen;
#pragma unroll
    for (int r = 0; r < ROW_TILES; ++r) {
        rows.upper[r] = __shfl_sync(ALL_LANES, of_lane, r * 16 + g);
        rows.lower[r] = __shfl_sync(ALL_LANES, of_lane, r * 16 + g + 8);
    }
    return rows;
}

// Where the numbers of a row begin, which is one.
template <typename From>
__device__ __forceinline__ const typename From::Number* place_of_row(const Seen& seen, int row)
{
    return From::array(seen) + (row / GROUP_SIZE * From::PITCH + row % GROUP_SIZE * From::STRIDE + From::FIRST);
}

// Brings what a row needs nearer.
template <int I = 0>
__device__ __forceinline__ void fetch_row_ahead(const Seen& seen, int row)
{
    if constexpr (I < NUM_SOURCES) {
        using From = Source<I>;
        const typename From::Number* place = place_of_row<From>(seen, row);
        for (int i = 0; i < From::SIZE; i += 128 / (int)sizeof(typename From::Number)) fetch_ahead(place + i);
        fetch_ahead(place + From::SIZE - 1);
        fetch_row_ahead<I + 1>(seen, row);
    }
}

// Asks the arrays for columns: see fetch_pair.
template <int I = 0>
__device__ __forceinline__ void fetch_from(unsigned (&bits)[2], const Seen& seen, int row, int first, int column)
{
    if constexpr (I < NUM_SOURCES) {
        using From = Source<I>;
        constexpr int END = From::START + From::SIZE;
        if (first + 8 > From::START && first < END && row >= 0) {
            const bool all = first >= From::START && first + 8 <= END;
            const typename From::Number* place = place_of_row<From>(seen, row) + (column - From::START);
            if constexpr (IN_PAIRS<From>) {
                if (all || (column >= From::START && column < END)) read_pair(place, bits);
            } else {
                if (all || (column >= From::START && column < END)) bits[0] = bits_of(place[0]);
                if (all || (column + 1 >= From::START && column + 1 < END)) bits[1] = bits_of(place[1]);
            }
        }
        fetch_from<I + 1>(bits, seen, row, first, column);
    }
}

// Asks for the columns `column` and `column + 1` of a row, which are among the eight from `first` on, and 0 before. What
// says which agent it is comes first: it would wait for what is asked for.
__device__ __forceinline__ void fetch_pair(unsigned (&bits)[2], const Seen& seen, int row, int first, int column)
{
    if (NUM_IDS > 0 && first + 8 > FIRST_ID && first < NUM_FEATURES) {
        const int column_of_agent = FIRST_ID + (row < 0 ? ~row : row) % GROUP_SIZE;
        if (column == column_of_agent) bits[0] = __float_as_uint(1.0f);
        if (column + 1 == column_of_agent) bits[1] = __float_as_uint(1.0f);
    }
    fetch_from(bits, seen, row, first, column);
}

// What came of it, as numbers.
template <int I = 0>
__device__ __forceinline__ void read_numbers(float (&two)[2], const unsigned (&bits)[2], int first, int column)
{
    if constexpr (I < NUM_SOURCES) {
        using From = Source<I>;
        constexpr int END = From::START + From::SIZE;
        if (first + 8 > From::START && first < END) {
            const bool all = first >= From::START && first + 8 <= END;
            const auto scaled = [](float x) { return From::SCALES ? (x - From::LOW) * From::SCALE : x; };
            if (all || (column >= From::START && column < END)) two[0] = scaled(number_of_pair<From, 0>(bits));
            if (all || (column + 1 >= From::START && column + 1 < END)) two[1] = scaled(number_of_pair<From, 1>(bits));
        }
        read_numbers<I + 1>(two, bits, first, column);
    } else if (NUM_IDS > 0 && first + 8 > FIRST_ID && first < NUM_FEATURES) {
        if (column >= FIRST_ID) two[0] = __uint_as_float(bits[0]);
        if (column + 1 >= FIRST_ID) two[1] = __uint_as_float(bits[1]);
    }
}

// The two, ready for the network: normalised, and a one after the last feature. Nobody reads what comes of no row.
__device__ __forceinline__ Pair finished_pair(
    const unsigned (&bits)[2], int first, int column, const float* mean, const float* variance)
{
    float two[2] = {};
    read_numbers(two, bits, first, column);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        if (column + i < NUM_FEATURES) two[i] = normalised(two[i], column + i, mean, variance);
        if (first + 8 > NUM_FEATURES && column + i >= NUM_FEATURES) two[i] = column + i == NUM_FEATURES ? 1.0f : 0.0f;
    }
    return packed(two[0], two[1]);
}

// Tile k of the features: 16 columns.
__device__ __forceinline__ void load_features(
    Pair (&tile)[4], const Rows& rows, int r, int k, const float* mean, const float* variance)
{
    unsigned bits[4][2] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int first = 16 * k + 8 * (i / 2);
        const int row = i % 2 ? rows.lower[r] : rows.upper[r];
        fetch_pair(bits[i], rows.seen, row, first, first + 2 * (lane_index() & 3));
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int first = 16 * k + 8 * (i / 2);
        tile[i] = finished_pair(bits[i], first, first + 2 * (lane_index() & 3), mean, variance);
    }
}

// The features of a warp's tiles, on their way from global memory to the registers of the lanes that will pack them.
struct Fetched {
    unsigned bits[ROW_TILES][FEATURE_TILES][4][2];
};
__device__ __forceinline__ Fetched fetch_features(const Rows& rows)
{
    Fetched fetched = {};
#pragma unroll
    for (int i = 0; i < ROW_TILES * FEATURE_TILES * 4; ++i) {
        const int r = i / (4 * FEATURE_TILES), k = i / 4 % FEATURE_TILES, part = i % 4;
        const int first = 16 * k + 8 * (part / 2);
        const int row = part % 2 ? rows.lower[r] : rows.upper[r];
        fetch_pair(fetched.bits[r][k][part], rows.seen, row, first, first + 2 * (lane_index() & 3));
    }
    return fetched;
}

// Tile k of them, as of rows.
__device__ __forceinline__ void load_features(
    Pair (&tile)[4], const Fetched& fetched, int r, int k, const float* mean, const float* variance)
{
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int first = 16 * k + 8 * (i / 2);
        const int column = first + 2 * (lane_index() & 3);
        tile[i] = finished_pair(fetched.bits[r][k][i], first, column, mean, variance);
    }
}

// The two numbers, before a one after the last feature, that load_features packs to part i of tile k.
__device__ __forceinline__ void numbers_of(
    float (&two)[2], const unsigned (&bits)[2], int k, int i, const float* mean, const float* variance)
{
    const int first = 16 * k + 8 * (i / 2);
    const int column = first + 2 * (lane_index() & 3);
    two[0] = two[1] = 0.0f;
    read_numbers(two, bits, first, column);
    for (int j = 0; j < 2; ++j) {
        two[j] = column + j < NUM_FEATURES ? normalised(two[j], column + j, mean, variance) : 0.0f;
    }
}
__device__ __forceinline__ void read_two(
    float (&two)[2], const Rows& rows, int r, int k, int i, const float* mean, const float* variance)
{
    const int first = 16 * k + 8 * (i / 2);
    unsigned bits[2] = {};
    fetch_pair(bits, rows.seen, i % 2 ? rows.lower[r] : rows.upper[r], first, first + 2 * (lane_index() & 3));
    numbers_of(two, bits, k, i, mean, variance);
}
__device__ __forceinline__ void read_two(
    float (&two)[2], const Fetched& fetched, int r, int k, int i, const float* mean, const float* variance)
{
    numbers_of(two, fetched.bits[r][k][i], k, i, mean, variance);
}
