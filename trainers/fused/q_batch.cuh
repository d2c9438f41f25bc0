// What an update of a Q-network makes of the rows of a block: what is drawn is gathered, goes forward through the network
// and the target network, is judged, and goes back; see q_learn.cu, whose constants are these.
#pragma once

#include "q_rows.cuh"

constexpr int ROW_TILES = ROWS / 16;

static_assert(TEAM * ROWS >= BATCH && (TEAM - 1) * ROWS < BATCH, "a block without rows, or rows without a block");

struct alignas(16) Shared {
    static constexpr int Q_PITCH = padded(NUM_ACTIONS) + 1;
    Element weight[2][WEIGHTS];              // of the network, and of the target network
    Element features[2 * ROWS * PITCH0];     // of the rows, then of what came after them
    Element hidden1[2 * ROWS * PITCH1];
    Element hidden2[2 * ROWS * PITCH2];
    Element delta1[ROWS * PITCH1];           // at first the target network's hidden layer
    Element delta2[ROWS * PITCH2];
    Element delta_out[ROWS * PITCH_OUT];
    float bias[2][BIASES];
    float q[2 * ROWS * Q_PITCH];
    float q_of_target[ROWS * Q_PITCH];
    float reward[ROWS], discount[ROWS], item_weight[ROWS], of_batch[NUM_FIGURES][ROWS];
    int action[ROWS];
    Next next[ROWS];
    Rates rates;
    float squares[WARPS];
    int low[TOP_NODES], high[TOP_NODES];
    int lowest;
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "the block has less shared memory");

// ---- forwards

// What a layer of the network makes of the rows and, if it is DOUBLE, of what came after them; and what the target
// network's makes of that. Calls take(by_target, row, column, sum) for each 16 by 16 of it, before its activation.
template <int LAYER, typename Take>
__device__ __forceinline__ void by_both_networks(
    const Shared& shared, const Element* given, const Element* given_to_target, Take take)
{
    constexpr int TILES = (DOUBLE ? 2 : 1) * ROW_TILES, ALL_TILES = TILES + ROW_TILES;
    for (int unit = threadIdx.x / 32; unit < ALL_TILES * padded(out_of(LAYER)) / 16; unit += WARPS) {
        const int column = unit / ALL_TILES * 16;
        const bool by_target = unit % ALL_TILES >= TILES;
        const int row = (unit % ALL_TILES - (by_target ? TILES : 0)) * 16;
        float sum[2][4];
        multiply_rows<LAYER>(sum, (by_target ? given_to_target : given) + row * pitch_of(in_of(LAYER)),
                             shared.weight[by_target] + weights_at(LAYER), shared.bias[by_target] + biases_at(LAYER),
                             column);
        take(by_target, row, column, sum);
    }
    if (LAYER == 0) wait_for_copies();  // of the other layers
    __syncthreads();
}

template <int LAYER>
__device__ __forceinline__ void hidden_layer(
    Shared& shared, const Element* given, const Element* given_to_target, Element* out, Element* out_of_target)
{
    constexpr int PITCH = pitch_of(out_of(LAYER));
    by_both_networks<LAYER>(
        shared, given, given_to_target, [&](bool by_target, int row, int column, const float(&sum)[2][4]) {
            Element* place = (by_target ? out_of_target : out) + row * PITCH + column;
            for_each_pair(sum, [&](int r, int c, float low, float high) {
                *(Pair*)(place + r * PITCH + c) = packed(activate(low), activate(high));
            });
        });
}

__device__ __forceinline__ void last_layer(Shared& shared, const Element* given, const Element* given_to_target)
{
    by_both_networks<LAYERS - 1>(
        shared, given, given_to_target, [&](bool by_target, int row, int column, const float(&sum)[2][4]) {
            float* place = (by_target ? shared.q_of_target : shared.q) + row * Shared::Q_PITCH + column;
            for_each_pair(sum, [&](int r, int c, float low, float high) {
                place[r * Shared::Q_PITCH + c] = low;
                place[r * Shared::Q_PITCH + c + 1] = high;
            });
        });
}

// ---- backwards

__device__ __forceinline__ void judge(Shared& shared)
{
    for (int row = threadIdx.x; row < ROWS; row += THREADS) judge_row(shared, row);
    __syncthreads();
}

// Deltas of a hidden layer, by those of what it was given to.
template <int LAYER>
__device__ __forceinline__ void hidden_deltas(
    Shared& shared, const Element* delta, const Element* hidden, Element* out)
{
    constexpr int IN = in_of(LAYER), PITCH = pitch_of(IN), DELTA_PITCH = pitch_of(out_of(LAYER));
    for (int unit = threadIdx.x / 32; unit < ROW_TILES * padded(IN) / 16; unit += WARPS) {
        const int row = unit % ROW_TILES * 16;
        const int column = unit / ROW_TILES * 16;
        const Element* weight = shared.weight[0] + weights_at(LAYER);
        float sum[2][4] = {};
#pragma unroll
        for (int k = 0; k < padded(out_of(LAYER)); k += 16) {
            Pair a[4], b[4];
            load_rows<true>(a, delta + row * DELTA_PITCH, DELTA_PITCH, k);
            load_columns<false, false>(b, weight + k * PITCH, PITCH, column);
            multiply(sum[0], a, b[0], b[1]);
            multiply(sum[1], a, b[2], b[3]);
        }
        for_each_pair(sum, [&](int r, int c, float low, float high) {
            const int place = (row + r) * PITCH + column + c;
            *(Pair*)(out + place) = through_activation(low, high, *(const Pair*)(hidden + place));
        });
    }
    __syncthreads();
}

template <int LAYER>
__device__ __forceinline__ int gradient_of(int unit, const Element* delta, const Element* rows, Quad* part)
{
    constexpr int UNITS = padded(out_of(LAYER)) / 16 * (padded(in_of(LAYER)) / 16);
    for (; unit < UNITS; unit += WARPS) multiply_columns<LAYER>(delta, rows, part, unit);
    return unit - UNITS;
}
