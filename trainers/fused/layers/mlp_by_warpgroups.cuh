// The layers of mlp.cuh by whole warpgroups.
// 64 rows read every weight from shared memory once, where a warp alone reads it for its 16.
// Activations stay in registers all the same: what a warp holds of a warpgroup's sums is what it holds of its own.
//
// Constants, besides those of mlp.cuh:
//   GROUP_TILES  of a layer that are summed at once

constexpr int NUM_SUMS_AT_ONCE = 2 * GROUP_TILES;

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
// are weights, [row / 8][column / 8][8][8], of 16 inputs, of which the first three are 1: a number is the sum of three
// bfloat16.
static_assert(ADDED_BYTES == (TILES1 + TILES2) * 512, "biases have no room");
__device__ __forceinline__ void write_added(Element* added, const float* biases)
{
    for (int i = threadIdx.x; i < ADDED_BYTES / 2; i += 32 * WARPS) {
        const int column = i % 128 / 64 * 8 + i % 8;
        float rest = biases[i / 128 * 8 + i % 64 / 8];
        Pair part = packed(rest, 0.0f);
        for (int k = 0; k < column; ++k) {
            rest -= unpack(part).low;
            part = packed(rest, 0.0f);
        }
        added[i] = column < 3 ? (Element)part : 0;
    }
}
__device__ __forceinline__ void three_ones(Pair (&tile)[4])
{
    const int t = lane_index() & 3;
    tile[0] = tile[1] = t == 0 ? 0x3f803f80u : t == 1 ? 0x3f80u : 0u;
    tile[2] = tile[3] = 0u;
}

// One layer, GROUP_TILES of its tiles at once:
//   added            biases, or null: then sums begin at 0
//   before(n)        may add products of its own; tiles before n are finished
//   finish(n, sum)   takes them
template <bool HAS_BIAS, bool TRANSPOSED, int IN_TILES, int OUT_TILES, typename Before, typename Finish>
__device__ __forceinline__ void layer_by_group(
    const Pair (&input)[IN_TILES][4], const Element* weights, const Element* added, Before before, Finish finish)
{
    settle_input(input);
    const LayerWeights<TRANSPOSED> layer(weights, TRANSPOSED ? OUT_TILES : IN_TILES);
    const LayerWeights<false> biases(added, 1);
    Pair ones[4];
    three_ones(ones);
#pragma unroll
    for (int n = 0; n < OUT_TILES; n += GROUP_TILES) {
        float sum[NUM_SUMS_AT_ONCE][4];
        begin_products();
        before(n);
        if (HAS_BIAS) add_product<true, false, 0, NUM_SUMS_AT_ONCE>(sum, ones, biases.at(0, n), biases.across);
        add_product<!HAS_BIAS, TRANSPOSED, 0, NUM_SUMS_AT_ONCE>(sum, input[0], layer.at(0, n), layer.across);
#pragma unroll
        for (int k = 1; k < IN_TILES; ++k) {
            add_product<false, TRANSPOSED, 0, NUM_SUMS_AT_ONCE>(sum, input[k], layer.at(k, n), layer.across);
        }
        end_products();
        wait_for_products<0>();
        settle(sum);
        finish(n, sum);
        __syncwarp();  // what was stored until here goes now: put off, all stores would wait for each other
    }
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
            features[0], network.weight1, network.added, nothing,
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
        hidden, network.weight2, network.added + TILES1 * 256,
        [&](int n) {
            if (n > 0) add_to_outputs(n - GROUP_TILES);
        },
        [&](int n, const float(&sum)[NUM_SUMS_AT_ONCE][4]) {
            Pair tiles[1][GROUP_TILES][4];
            activate_sums(tiles[0], sum);
            keep2(n, tiles);
            copy_tiles(hidden2, n, tiles[0]);
        });
    settle(output[0]);
    begin_products();
    add_to_outputs(KEPT2 - GROUP_TILES);
    end_products();
    wait_for_products<0>();
    settle(output[0]);
}
