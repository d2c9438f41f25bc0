// The layers of mlp.cuh by whole warpgroups.
// 64 rows read every weight from shared memory once, where a warp alone reads it for its 16.
// Activations stay in registers all the same: what a warp holds of a warpgroup's sums is what it holds of its own.
//
// Constants, besides those of mlp.cuh:
//   GROUP_TILES  of a layer that are summed at once

constexpr int NUM_SUMS_AT_ONCE = 2 * GROUP_TILES;
constexpr bool OVERLAPS = HAS_FEW_OUTPUTS;

// What a layer's products read: weights [row / 8][column / 8][8][8].
//   tiles       of columns a row
//   TRANSPOSED  as in load_weights: sums are over the rows of the weights, else over their columns
template <bool TRANSPOSED>
struct LayerWeights {
    unsigned long long matrix;
    int along, across;

    __device__ __forceinline__ LayerWeights(const Element* weights, int tiles)
        : along(TRANSPOSED ? tiles * 256 : 128), across(TRANSPOSED ? 128 : tiles * 256)
    {
        matrix = describe(weights, along, across);
    }
    // From tile k of what is summed over, and from tile n of the columns of sums.
    __device__ __forceinline__ unsigned long long at(int k, int n) const
    {
        return moved(matrix, 2 * (k * along + n * across));
    }
};

// A layer's biases, added by a product of their own: loads would come one after the other, with all else waiting. They
// are weights, [row / 8][8][8], of inputs of which the first three are 1, for a number is the sum of three bfloat16, and
// all others 0. Those inputs are a block of 8 x 8 and one of zeros, which serve all rows, and stand first.
constexpr int INPUTS_BYTES = 256;
static_assert(ADDED_BYTES == 0 || ADDED_BYTES == INPUTS_BYTES + (TILES1 + TILES2) * 256, "biases have no room");
__device__ __forceinline__ void write_added(Element* added, const float* biases)
{
    Bytes16* inputs = (Bytes16*)added;
    const unsigned shown = threadIdx.x < 8 ? 0xffffffffu : 0u;
    if (threadIdx.x < 16) inputs[threadIdx.x] = {{shown & 0x3f803f80u, shown & 0x3f80u, 0u, 0u}};
    for (int row = threadIdx.x; row < (TILES1 + TILES2) * 16; row += 32 * WARPS) {
        const float bias = biases[row];
        const float rest = bias - unpack(packed(bias, 0.0f)).low;
        const float last = rest - unpack(packed(rest, 0.0f)).low;
        inputs[16 + row] = {{packed(bias, rest), packed(last, 0.0f), 0u, 0u}};
    }
}

// What sums begin at where there is no room for that.
template <int BLOCKS>
__device__ __forceinline__ void set_to_biases(float (&sum)[BLOCKS][4], const float* bias)
{
#pragma unroll
    for (int i = 0; i < BLOCKS; ++i) {
        const FloatPair start = *(const FloatPair*)(bias + i * 8 + 2 * (lane_index() & 3));
        sum[i][0] = sum[i][2] = start.low;
        sum[i][1] = sum[i][3] = start.high;
    }
}

// One layer, GROUP_TILES of its tiles at once. If it OVERLAPS, products of the next tiles are under way while `finish` has
// the sums of these.
//   network, bias    of which network, and the first of the layer's biases, if it HAS_BIAS; else sums begin at 0
//   before(n)        may add products of its own; tiles before n - GROUP_TILES are finished
//   finish(n, sum)   takes sums
template <bool HAS_BIAS, bool TRANSPOSED, int IN_TILES, int OUT_TILES, typename Before, typename Finish>
__device__ __forceinline__ void layer_by_group(
    const Pair (&input)[IN_TILES][4], const Element* weights, const Network& network, int bias, Before before,
    Finish finish)
{
    static_assert(OUT_TILES % GROUP_TILES == 0, "tiles are left over");
    settle_input(input);
    const LayerWeights<TRANSPOSED> layer(weights, TRANSPOSED ? OUT_TILES : IN_TILES);
    constexpr bool ADDS = HAS_BIAS && ADDED_BYTES > 0;
    const unsigned long long ones = describe(network.added, 128, 0);
    const unsigned long long biases = describe((const char*)network.added + INPUTS_BYTES + 16 * bias, 0, 128);
    constexpr int SETS_OF_SUMS = OVERLAPS ? 2 : 1;
    float sums[SETS_OF_SUMS][NUM_SUMS_AT_ONCE][4];
    const auto finish_group = [&](int n) {
        float(&sum)[NUM_SUMS_AT_ONCE][4] = sums[n / GROUP_TILES % SETS_OF_SUMS];
        settle(sum);
        finish(n, sum);
        __syncwarp();  // what was stored until here goes now: put off, all stores would wait for each other
    };
#pragma unroll
    for (int n = 0; n < OUT_TILES; n += GROUP_TILES) {
        float(&sum)[NUM_SUMS_AT_ONCE][4] = sums[n / GROUP_TILES % SETS_OF_SUMS];
        if (HAS_BIAS && !ADDS) {
            set_to_biases(sum, network.bias1 + bias + 16 * n);
            settle(sum);
        } else {  // ptxas loses products of sums that were set nowhere
#pragma unroll
            for (int i = 0; i < 4 * NUM_SUMS_AT_ONCE; ++i) sum[i / 4][i % 4] = 0.0f;
        }
        begin_products();
        before(n);
        if (ADDS) add_product_in_shared<true, false, 0, NUM_SUMS_AT_ONCE>(sum, ones, moved(biases, n * 256), 128);
        add_product<!HAS_BIAS, TRANSPOSED, 0, NUM_SUMS_AT_ONCE>(sum, input[0], layer.at(0, n), layer.across);
#pragma unroll
        for (int k = 1; k < IN_TILES; ++k) {
            add_product<false, TRANSPOSED, 0, NUM_SUMS_AT_ONCE>(sum, input[k], layer.at(k, n), layer.across);
        }
        end_products();
        if (!OVERLAPS) {
            wait_for_products<0>();
            finish_group(n);
        } else if (n > 0) {
            wait_for_products<1>();
            finish_group(n - GROUP_TILES);
        }
    }
    wait_for_products<0>();
    if (OVERLAPS) finish_group(OUT_TILES - GROUP_TILES);
}

__device__ __forceinline__ void activate_sums(Pair (&tiles)[GROUP_TILES][4], const float (&sum)[NUM_SUMS_AT_ONCE][4])
{
#pragma unroll
    for (int i = 0; i < 4 * GROUP_TILES; ++i) {
        const float* two = &sum[i / 2][2 * (i % 2)];
        tiles[i / 4][i % 4] = packed(activate(two[0]), activate(two[1]));
    }
    settle_input(tiles);
}

// The outputs of the warp's 16 rows; as `forward` does.
template <typename KeepFeatures, typename Keep1, typename Keep2>
__device__ __forceinline__ void forward_by_group(
    const Network& network, const Fetched& fetched, const float* mean, const float* variance,
    float (&output)[1][2 * OUTPUT_TILES][4], KeepFeatures keep_features, Keep1 keep1, Keep2 keep2)
{
    const auto nothing = [](int) {};
    Pair hidden[TILES1][4];
    {
        Pair features[1][FEATURE_TILES][4];
        load_all_features(features[0], fetched, 0, mean, variance);
        keep_features(features);
        layer_by_group<true, false, FEATURE_TILES, TILES1>(
            features[0], network.weight1, network, 0, nothing,
            [&](int n, const float(&sum)[NUM_SUMS_AT_ONCE][4]) {
                Pair tiles[1][GROUP_TILES][4];
                activate_sums(tiles[0], sum);
                keep1(n, tiles);
                copy_tiles(hidden, n, tiles[0]);
            });
    }
    const LayerWeights<false> last(network.weight3, LAST_TILES);
    Pair hidden2[KEPT2][4];
    settle(output[0]);
    const auto add_to_outputs = [&](int n) {
#pragma unroll
        for (int k = n; k < n + GROUP_TILES; ++k) {
            add_product<false, false, 0, OUTPUT_BLOCKS>(output[0], hidden2[k], last.at(k, 0), last.across);
        }
    };
    layer_by_group<true, false, TILES1, KEPT2>(
        hidden, network.weight2, network, TILES1 * 16,
        [&](int n) {
            if (n > GROUP_TILES) add_to_outputs(n - 2 * GROUP_TILES);
        },
        [&](int n, const float(&sum)[NUM_SUMS_AT_ONCE][4]) {
            Pair tiles[1][GROUP_TILES][4];
            activate_sums(tiles[0], sum);
            keep2(n, tiles);
            copy_tiles(hidden2, n, tiles[0]);
        });
    settle(output[0]);
    settle_input(hidden2);
    begin_products();
    if (KEPT2 > GROUP_TILES) add_to_outputs(KEPT2 - 2 * GROUP_TILES);
    add_to_outputs(KEPT2 - GROUP_TILES);
    end_products();
    wait_for_products<0>();
    settle(output[0]);
}
