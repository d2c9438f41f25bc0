// A multilayer perceptron of one or two hidden layers.
// Its activations never leave the warp that computes them.
//
// A warp carries ROW_TILES x 16 rows through all layers:
// the sums of one layer, packed, are the input of the next.
// The weights are copied to shared memory once a launch, as far as they fit.
//
// Constants (plan.py and shape.py make them):
//   NUM_FEATURES               of the observation
//   FEATURE_TILES              16 columns each: of the features, and a column of ones after them
//   TILES1, TILES2             of the hidden layers; TILES2 is 0 if there is one
//   NORMS_INPUT, NORM_EPS      whether a row of features is brought to mean 0 and deviation 1; added to its variance
//   NUM_OUTPUTS                numbers of the action's distribution; 0 for a critic alone
//   HAS_VALUE                  whether the last output is the value
//   IS_EITHER                  whether this serves an actor and a critic of one size, a network each: one has the
//                              distribution alone, the other the value alone
//   OUTPUT_TILES               of the outputs
//   IS_TANH                    the activation: tanh, or else the positive part
//   NORMALISES, CLIP           whether features are brought to mean 0 and deviation 1; and clipped
//   SIZE1, SIZE2, SIZE3        elements of each layer's weights
//   NUM_BIASES                 of all layers
//   SHARED1, SHARED2, SHARED3  which layers' weights are in shared memory
//   WARPS, ROW_TILES           a block's, a warp's
//   STAGE_PITCH, STAGE_FLOATS  of a warp's outputs in shared memory: a row's, all
//   AT_ONCE1, AT_ONCE2         tiles of a hidden layer that are computed, and stand in a record, side by side
//   WARPGROUPS                 whether four warps multiply together (mlp_by_warpgroups.cuh)
//   ADDED_BYTES                of shared memory, for biases as they take them; 0 where it has no room for that
//
//   Seen                       where rows are: one array of floats, or what layers/sources.cuh says (seen.py)
//   GROUP_SIZE, FIRST_AGENT, ALL_AGENTS, SEEN_COLUMNS, FIRST_SEEN  as fused_act.cuh has them
//
// WARPGROUPS asks for hidden layers of 128 or 256, all weights in shared memory, ROW_TILES of 1, and sm_90a.
// BY_WARPGROUPS is the same for the preprocessor: what follows it compiles for nothing else. So does SEES_SOURCES what
// a network needs that does not see one array of floats alone, and SEES_GATHERED where its rows were brought together.
// BY_LAYERS, too: the layers were computed before the launch (by_layers.cu), and their outputs stand for the weights.
//
// One launch may serve several networks: source.py includes this file once for each size, in a namespace of its own,
// after tensor_core.cuh and random.cuh.

constexpr int NUM_ALL = NUM_OUTPUTS + (HAS_VALUE && !IS_EITHER ? 1 : 0);
constexpr int OUTPUT_BLOCKS = (NUM_ALL + 7) / 8;  // of 8, of which the forward pass computes no more than it must
constexpr int KEPT2 = TILES2 > 0 ? TILES2 : 1;  // an array of none is no array
constexpr int LAST_TILES = TILES2 > 0 ? TILES2 : TILES1;
constexpr int AT_ONCE_LAST = TILES2 > 0 ? AT_ONCE2 : AT_ONCE1;
constexpr bool HAS_FEW_OUTPUTS = OUTPUT_TILES == 1;
// Where a warp has half as many rows as lanes, two lanes share a row's outputs: each takes every other head.
constexpr int SHARE = ROW_TILES == 1 ? 2 : 1;
constexpr bool FEATURES_IN_REGISTERS = FEATURE_TILES <= 8;
// Whether the next tile's features are fetched into registers while a tile is at work: where these are few.
constexpr bool FETCHES_AHEAD = WARPGROUPS || ROW_TILES * FEATURE_TILES <= (SEES_GATHERED ? 4 : 2);
// Tiles that a layer reads: those of thousands of features would take hours to compile.
constexpr int MOST_UNROLLED = 16;

static_assert(!IS_EITHER || NUM_OUTPUTS > 0 && HAS_VALUE, "there are an actor and a critic");
static_assert(!NORMS_INPUT || FEATURES_IN_REGISTERS || BY_LAYERS, "a row has to be known as a whole");
static_assert(16 * FEATURE_TILES > NUM_FEATURES, "no room for a column of ones");
static_assert(16 * OUTPUT_TILES >= NUM_ALL, "no room for the outputs");
static_assert(SIZE1 == TILES1 * FEATURE_TILES * 256, "a layer is whole tiles of weights");
static_assert(SIZE2 == TILES2 * TILES1 * 256, "a layer is whole tiles of weights");
static_assert(SIZE3 == OUTPUT_TILES * LAST_TILES * 256, "a layer is whole tiles of weights");
static_assert(NUM_BIASES == (TILES1 + TILES2 + OUTPUT_TILES) * 16, "a layer has a bias a row");
static_assert(STAGE_PITCH >= 16 * OUTPUT_TILES && STAGE_PITCH % 2 == 1, "rows of outputs meet");
static_assert(STAGE_FLOATS >= ROW_TILES * 16 * STAGE_PITCH && STAGE_FLOATS % 4 == 0, "warps' outputs meet");
static_assert(TILES1 % AT_ONCE1 == 0 && KEPT2 % AT_ONCE2 == 0, "tiles are left over");

// What the outputs of the network at hand are, for functions that have a parameter `is_critic`. Macros, so that they are
// constants from the start where a network is alone.
#define HAS_POLICY_HERE (NUM_OUTPUTS > 0 && !(IS_EITHER && is_critic))
#define HAS_VALUE_HERE (HAS_VALUE && !(IS_EITHER && !is_critic))
#define VALUE_AT (IS_EITHER ? 0 : NUM_OUTPUTS)

// Shared memory of a block: weights, `added`, biases, then a stage [16 ROW_TILES][STAGE_PITCH] a warp.
struct Network {
    const Element *weight1, *weight2, *weight3;
    const float *bias1, *bias2, *bias3;
#if BY_WARPGROUPS
    const Element* added;  // of both hidden layers: see mlp_by_warpgroups.cuh
#endif
    float* stage;  // of this warp
    char* free;    // shared memory after all that
};

// Copies a layer's weights if there is room; where they are to be read afterwards.
template <bool IN_SHARED>
__device__ __forceinline__ const Element* place_weights(char*& shared, const Element* weights, int size)
{
    if (!IN_SHARED) return weights;
    const int num_pieces = size * (int)sizeof(Element) / 16;
    for (int i = threadIdx.x; i < num_pieces; i += blockDim.x) {
        start_copy((Bytes16*)shared + i, (const Bytes16*)weights + i);
    }
    const Element* place = (const Element*)shared;
    shared += size * sizeof(Element);
    return place;
}

#if BY_WARPGROUPS
__device__ __forceinline__ void write_added(Element* added, const float* biases);
#endif

// Every thread of the block calls it; before the weights are used, `wait_for_network`.
__device__ __forceinline__ Network place_network(char* shared, const Element* weights, const float* biases)
{
    Network network;
    network.weight1 = place_weights<SHARED1>(shared, weights, SIZE1);
    network.weight2 = place_weights<SHARED2>(shared, weights + SIZE1, SIZE2);
    network.weight3 = place_weights<SHARED3>(shared, weights + SIZE1 + SIZE2, SIZE3);
#if BY_WARPGROUPS
    network.added = (const Element*)shared;
    if (ADDED_BYTES > 0) write_added((Element*)shared, biases);
    shared += ADDED_BYTES;
#endif
    float* bias = (float*)shared;
    for (int i = threadIdx.x; i < NUM_BIASES; i += blockDim.x) bias[i] = biases[i];
    network.bias1 = bias;
    network.bias2 = bias + TILES1 * 16;
    network.bias3 = bias + (TILES1 + TILES2) * 16;
    network.stage = bias + NUM_BIASES + (threadIdx.x >> 5) * STAGE_FLOATS;
    network.free = (char*)(bias + NUM_BIASES + WARPS * STAGE_FLOATS);
    return network;
}

__device__ __forceinline__ void wait_for_network()
{
    wait_for_copies();
#if BY_WARPGROUPS
    show_to_products();
#endif
    __syncthreads();
}

__device__ __forceinline__ float activate(float x)
{
    return IS_TANH ? quick_tanh(x) : positive_part(x);
}

// The deltas of two neighbours: the loss's derivatives by what they gave, times the activation's slope there.
// A slope of 0 or 1 is applied to both at once, and by warpgroups that of tanh, too; but of warpgroups with many outputs
// as floats: the compiler keeps pairs of slopes from the way there, which then takes more registers than there are.
__device__ __forceinline__ Pair delta_of(float low, float high, Pair gave)
{
    constexpr bool IN_PAIRS = WARPGROUPS ? HAS_FEW_OUTPUTS : !IS_TANH;
#if BY_WARPGROUPS
    if constexpr (IN_PAIRS && IS_TANH) return times_slope_of_tanh(packed(low, high), gave);
#endif
    if constexpr (IN_PAIRS) return where_positive(packed(low, high), gave);
    const FloatPair y = unpack(gave);
    const auto slope = [](float y) { return IS_TANH ? 1.0f - y * y : y > 0.0f ? 1.0f : 0.0f; };
    return packed(low * slope(y.low), high * slope(y.high));
}

__device__ __forceinline__ float normalised(float x, int column, const float* mean, const float* variance)
{
    if (!NORMALISES) return x;
    return fminf(fmaxf((x - mean[column]) * rsqrtf(variance[column] + 1e-8f), -CLIP), CLIP);
}

// Where rows' numbers are; null where there is no row.
template <typename Number>
struct PlacesOfRows {
    const Number* upper[ROW_TILES];  // of row g of each tile
    const Number* lower[ROW_TILES];  // of row g + 8
};
// Every lane brings that of the row of its number, below 16 ROW_TILES.
template <typename Number>
__device__ __forceinline__ PlacesOfRows<Number> share_places(const Number* of_lane)
{
    const int g = lane_index() >> 2;
    PlacesOfRows<Number> rows;
#pragma unroll
    for (int r = 0; r < ROW_TILES; ++r) {
        rows.upper[r] = (const Number*)__shfl_sync(ALL_LANES, (unsigned long long)of_lane, r * 16 + g);
        rows.lower[r] = (const Number*)__shfl_sync(ALL_LANES, (unsigned long long)of_lane, r * 16 + g + 8);
    }
    return rows;
}

#if SEES_GATHERED
#include "layers/gathered.cuh"
#elif SEES_SOURCES
#include "layers/sources.cuh"
#else
#include "layers/row.cuh"
#endif

// The sum over a row, whose columns its four lanes have between them.
__device__ __forceinline__ float over_row(float sum)
{
    sum += __shfl_xor_sync(ALL_LANES, sum, 1);
    return sum + __shfl_xor_sync(ALL_LANES, sum, 2);
}

// All tiles of the features, where they fit registers; brought to mean 0 and deviation 1 if it NORMS_INPUT. The four
// lanes of a row have its columns between them.
template <typename Given>
__device__ __forceinline__ void load_all_features(
    Pair (&tiles)[FEATURE_TILES][4], const Given& rows, int r, const float* mean, const float* variance)
{
    if constexpr (NORMS_INPUT) {
        float value[FEATURE_TILES][4][2];
        const auto column_of = [&](int k, int i, int j) { return 16 * k + 8 * (i / 2) + 2 * (lane_index() & 3) + j; };
#pragma unroll
        for (int half = 0; half < 2; ++half) {  // row g, row g + 8
            float sum = 0.0f;
            float squares = 0.0f;
#pragma unroll
            for (int n = 0; n < 2 * FEATURE_TILES; ++n) {
                float(&two)[2] = value[n / 2][n % 2 * 2 + half];
                read_two(two, rows, r, n / 2, n % 2 * 2 + half, mean, variance);
                sum += two[0] + two[1];
            }
            const float middle = over_row(sum) / NUM_FEATURES;
#pragma unroll
            for (int n = 0; n < 4 * FEATURE_TILES; ++n) {
                const int k = n / 4, i = n % 4 / 2 * 2 + half, j = n % 2;
                value[k][i][j] = column_of(k, i, j) < NUM_FEATURES ? value[k][i][j] - middle : 0.0f;
                squares += value[k][i][j] * value[k][i][j];
            }
            const float scale = rsqrtf(over_row(squares) / NUM_FEATURES + NORM_EPS);
#pragma unroll
            for (int n = 0; n < 4 * FEATURE_TILES; ++n) {
                const int k = n / 4, i = n % 4 / 2 * 2 + half, j = n % 2;
                value[k][i][j] = column_of(k, i, j) == NUM_FEATURES ? 1.0f : value[k][i][j] * scale;
            }
        }
#pragma unroll
        for (int n = 0; n < 4 * FEATURE_TILES; ++n) {
            const float(&two)[2] = value[n / 4][n % 4];
            tiles[n / 4][n % 4] = packed(two[0], two[1]);
        }
    } else {
#pragma unroll
        for (int k = 0; k < FEATURE_TILES; ++k) load_features(tiles[k], rows, r, k, mean, variance);
    }
}

// What `forward` takes: the features of these rows, or where they are.
__device__ __forceinline__ auto given_rows(const Rows& rows)
{
    if constexpr (FETCHES_AHEAD) {
        return fetch_features(rows);
    } else {
        return rows;
    }
}

#if BY_LAYERS
#include "layers/given_outputs.cuh"
#else
// Puts some tiles among those of a layer, from its tile n on.
template <int TILES, int COUNT>
__device__ __forceinline__ void copy_tiles(Pair (&all)[TILES][4], int n, const Pair (&some)[COUNT][4])
{
#pragma unroll
    for (int i = 0; i < 4 * COUNT; ++i) all[n + i / 4][i % 4] = some[i / 4][i % 4];
}

// One hidden layer: calls take(n, tiles) for each one or two of its tiles, tiles[r] being those of row tile r.
//   input(r, k, tile)  gives tile k of the layer's input
//   UNROLL             1 keeps the code short; all of OUT_TILES lets `take` keep tiles in registers
template <int IN_TILES, int OUT_TILES, bool IN_SHARED, int UNROLL, typename Input, typename Take>
__device__ __forceinline__ void hidden_layer(const Element* weights, const float* bias, Input input, Take take)
{
    constexpr int AT_ONCE = OUT_TILES % 2 == 0 ? 2 : 1;
    constexpr int STEPS = IN_TILES <= MOST_UNROLLED ? IN_TILES : 4;
    const int t = lane_index() & 3;
#pragma unroll UNROLL
    for (int n = 0; n < OUT_TILES; n += AT_ONCE) {
        float sum[ROW_TILES][2 * AT_ONCE][4];
#pragma unroll
        for (int i = 0; i < 2 * AT_ONCE; ++i) {
            const FloatPair start = *(const FloatPair*)(bias + n * 16 + i * 8 + 2 * t);
#pragma unroll
            for (int r = 0; r < ROW_TILES; ++r) {
                sum[r][i][0] = sum[r][i][2] = start.low;
                sum[r][i][1] = sum[r][i][3] = start.high;
            }
        }
#pragma unroll STEPS
        for (int k = 0; k < IN_TILES; ++k) {
            Pair tile[ROW_TILES][4];
#pragma unroll
            for (int r = 0; r < ROW_TILES; ++r) input(r, k, tile[r]);
#pragma unroll
            for (int s = 0; s < AT_ONCE; ++s) {
                Pair b[4];
                load_weights<false, IN_SHARED>(b, weights, (n + s) * 2, k * 2, IN_TILES * 2);
#pragma unroll
                for (int r = 0; r < ROW_TILES; ++r) {
                    multiply(sum[r][2 * s], tile[r], b[0], b[1]);
                    multiply(sum[r][2 * s + 1], tile[r], b[2], b[3]);
                }
            }
        }
        Pair tiles[ROW_TILES][AT_ONCE][4];
#pragma unroll
        for (int r = 0; r < ROW_TILES; ++r) {
#pragma unroll
            for (int i = 0; i < 4 * AT_ONCE; ++i) {
                const float* two = &sum[r][i / 2][2 * (i % 2)];
                tiles[r][i / 4][i % 4] = packed(activate(two[0]), activate(two[1]));
            }
        }
        take(n, tiles);
    }
}

template <typename Given, typename KeepFeatures, typename Take>
__device__ __forceinline__ void first_layer(
    const Network& network, const Given& rows, const float* mean, const float* variance, KeepFeatures keep, Take take)
{
    if constexpr (FEATURES_IN_REGISTERS) {
        Pair features[ROW_TILES][FEATURE_TILES][4];
#pragma unroll
        for (int r = 0; r < ROW_TILES; ++r) load_all_features(features[r], rows, r, mean, variance);
        keep(features);
        const auto input = [&](int r, int k, Pair(&tile)[4]) {
#pragma unroll
            for (int i = 0; i < 4; ++i) tile[i] = features[r][k][i];
        };
        hidden_layer<FEATURE_TILES, TILES1, SHARED1, TILES1>(network.weight1, network.bias1, input, take);
    } else {
        const auto input = [&](int r, int k, Pair(&tile)[4]) { load_features(tile, rows, r, k, mean, variance); };
        hidden_layer<FEATURE_TILES, TILES1, SHARED1, TILES1>(network.weight1, network.bias1, input, take);
    }
}

#if BY_WARPGROUPS
#include "layers/mlp_by_warpgroups.cuh"
#endif

// All outputs of the warp's rows, in its stage: row r's begin at network.stage + r * STAGE_PITCH.
//   rows                              where the features are, or those fetched from there
//   keep_features(tiles)              is shown the features, where they fit registers
//   keep1(n, tiles), keep2(n, tiles)  are shown the hidden layers, AT_ONCE1 and AT_ONCE2 tiles at a time
template <typename Given, typename KeepFeatures, typename Keep1, typename Keep2>
__device__ __forceinline__ void forward(
    const Network& network, const Given& rows, const float* mean, const float* variance, KeepFeatures keep_features,
    Keep1 keep1, Keep2 keep2)
{
    const int g = lane_index() >> 2;
    const int t = lane_index() & 3;
    float output[ROW_TILES][2 * OUTPUT_TILES][4];
#pragma unroll
    for (int i = 0; i < 2 * OUTPUT_TILES; ++i) {
        const FloatPair start = *(const FloatPair*)(network.bias3 + i * 8 + 2 * t);
#pragma unroll
        for (int r = 0; r < ROW_TILES; ++r) {
            output[r][i][0] = output[r][i][2] = start.low;
            output[r][i][1] = output[r][i][3] = start.high;
        }
    }
    const auto add_to_outputs = [&](int n, Pair(&tiles)[ROW_TILES][AT_ONCE_LAST][4]) {
#pragma unroll
        for (int s = 0; s < AT_ONCE_LAST; ++s) {
#pragma unroll
            for (int i = 0; i < OUTPUT_TILES; ++i) {
                Pair b[4];
                load_weights<false, SHARED3>(b, network.weight3, 2 * i, 2 * (n + s), LAST_TILES * 2);
#pragma unroll
                for (int r = 0; r < ROW_TILES; ++r) {
                    multiply(output[r][2 * i], tiles[r][s], b[0], b[1]);
                    if (2 * i + 1 < OUTPUT_BLOCKS) multiply(output[r][2 * i + 1], tiles[r][s], b[2], b[3]);
                }
            }
        }
    };
#if BY_WARPGROUPS
    forward_by_group(network, rows, mean, variance, output, keep_features, keep1, keep2);
#else
    if constexpr (TILES2 > 0) {
        Pair hidden[ROW_TILES][TILES1][4];
        first_layer(network, rows, mean, variance, keep_features, [&](int n, Pair(&tiles)[ROW_TILES][AT_ONCE1][4]) {
            keep1(n, tiles);
#pragma unroll
            for (int r = 0; r < ROW_TILES; ++r) copy_tiles(hidden[r], n, tiles[r]);
        });
        const auto input = [&](int r, int k, Pair(&tile)[4]) {
#pragma unroll
            for (int i = 0; i < 4; ++i) tile[i] = hidden[r][k][i];
        };
        hidden_layer<TILES1, TILES2, SHARED2, 1>(
            network.weight2, network.bias2, input, [&](int n, Pair(&tiles)[ROW_TILES][AT_ONCE2][4]) {
                keep2(n, tiles);
                add_to_outputs(n, tiles);
            });
    } else {
        first_layer(network, rows, mean, variance, keep_features, [&](int n, Pair(&tiles)[ROW_TILES][AT_ONCE1][4]) {
            keep1(n, tiles);
            add_to_outputs(n, tiles);
        });
    }
#endif
    __syncwarp();
#pragma unroll
    for (int r = 0; r < ROW_TILES; ++r) {
        float* upper = network.stage + (r * 16 + g) * STAGE_PITCH + 2 * t;
        float* lower = upper + 8 * STAGE_PITCH;
#pragma unroll
        for (int i = 0; i < OUTPUT_BLOCKS; ++i) {
            upper[i * 8] = output[r][i][0];
            upper[i * 8 + 1] = output[r][i][1];
            lower[i * 8] = output[r][i][2];
            lower[i * 8 + 1] = output[r][i][3];
        }
    }
    __syncwarp();
}
#endif
