// A small network whose weights, and what all its layers say of some rows, lie in a block's shared memory.
//
// Constants, besides those of rows.cuh:
//   NUM_FEATURES, WIDTH1, WIDTH2, NUM_ACTIONS  of each layer; WIDTH2 is 0 where there is one hidden layer
//   ROWS, THREADS  a block's
#pragma once
#include "rows.cuh"

constexpr int LAYERS = WIDTH2 > 0 ? 3 : 2;
constexpr int WARPS = THREADS / 32;

__device__ constexpr int in_of(int layer)
{
    return layer == 0 ? NUM_FEATURES : layer == 1 ? WIDTH1 : WIDTH2;
}
__device__ constexpr int out_of(int layer)
{
    return layer == LAYERS - 1 ? NUM_ACTIONS : layer == 0 ? WIDTH1 : WIDTH2;
}
// Where a layer's weights begin, among all; and its biases; and both, one after the other, as torch has them.
__device__ constexpr int weights_at(int layer)
{
    int at = 0;
    for (int i = 0; i < layer; ++i) at += padded(out_of(i)) * pitch_of(in_of(i));
    return at;
}
__device__ constexpr int biases_at(int layer)
{
    int at = 0;
    for (int i = 0; i < layer; ++i) at += padded(out_of(i));
    return at;
}
__device__ constexpr int parameters_at(int layer)
{
    int at = 0;
    for (int i = 0; i < layer; ++i) at += out_of(i) * (in_of(i) + 1);
    return at;
}
// Where the sums of a layer's gradient begin, as lanes hold them: a warp's four numbers of 16 rows by 8 columns. What is
// all beyond a layer's columns is left out.
__device__ constexpr int fragments_across(int layer)
{
    return (in_of(layer) + 7) / 8;
}
__device__ constexpr int fragments_at(int layer)
{
    int at = 0;
    for (int i = 0; i < layer; ++i) at += padded(out_of(i)) / 16 * fragments_across(i);
    return at;
}
constexpr int WEIGHTS = weights_at(LAYERS);
constexpr int BIASES = biases_at(LAYERS);
constexpr int PARAMETERS = parameters_at(LAYERS);
// Parameters by fours: 32 quads of a fragment, one a lane; then the biases. What is beyond a layer is there, too.
constexpr int FRAGMENTS = fragments_at(LAYERS);
constexpr int QUADS = FRAGMENTS * 32 + BIASES / 4;

struct alignas(16) Quad {
    float of[4];
};

// Parameters as torch has them, layer by layer.
template <typename Number>
struct Parameters {
    Number *weight[3], *bias[3];  // of which LAYERS are there

    __device__ __forceinline__ Number& operator[](int i) const
    {
#pragma unroll
        for (int layer = 0; layer < LAYERS - 1; ++layer) {
            if (i < parameters_at(layer + 1)) return of_layer(layer, i - parameters_at(layer));
        }
        return of_layer(LAYERS - 1, i - parameters_at(LAYERS - 1));
    }

    __device__ __forceinline__ Number& of_layer(int layer, int i) const
    {
        const int count = out_of(layer) * in_of(layer);
        return i < count ? weight[layer][i] : bias[layer][i - count];
    }
};

// Puts a layer's parameters where products read them: a thread reads some before it puts one, else each read waits until
// the one before it is put.
//   weight [outputs, inputs], bias [outputs]  as torch has them
//   weights, biases  of all layers; written
template <int LAYER>
__device__ __forceinline__ void put_layer(Element* weights, float* biases, const float* weight, const float* bias)
{
    constexpr int IN = in_of(LAYER), COUNT = out_of(LAYER) * IN, ALL = COUNT + out_of(LAYER);
    constexpr int EACH = (ALL + THREADS - 1) / THREADS, AT_ONCE = EACH < 24 ? EACH : 24;
#pragma unroll 1
    for (int first = threadIdx.x; first < ALL; first += AT_ONCE * THREADS) {
        float given[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int number = min(first + i * THREADS, ALL - 1);
            given[i] = *(number < COUNT ? weight + number : bias + (number - COUNT));
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int number = min(first + i * THREADS, ALL - 1);
            const int out = number / IN;
            if (number < COUNT) {
                narrow(weights[weights_at(LAYER) + out * pitch_of(IN) + number - out * IN], given[i]);
            } else {
                biases[biases_at(LAYER) + number - COUNT] = given[i];
            }
        }
    }
}

// 16 rows by 16 of a layer's columns: sums of two tiles of 8.
template <int LAYER>
__device__ __forceinline__ void multiply_rows(
    float (&sum)[2][4], const Element* rows, const Element* weight, const float* bias, int column)
{
    constexpr int PITCH = pitch_of(in_of(LAYER));
    const int t = lane_index() & 3;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        sum[i][0] = sum[i][2] = bias[column + i * 8 + 2 * t];
        sum[i][1] = sum[i][3] = bias[column + i * 8 + 2 * t + 1];
    }
#pragma unroll
    for (int k = 0; k < padded(in_of(LAYER)); k += 16) {
        Pair a[4], b[4];
        load_rows<true>(a, rows, PITCH, k);
        load_rows<false>(b, weight + column * PITCH, PITCH, k);
        multiply(sum[0], a, b[0], b[1]);
        multiply(sum[1], a, b[2], b[3]);
    }
}

// Of COUNT rows: calls take(row, column, sum) for each 16 by 16 of what a layer makes of them, before its activation.
//   rows     [COUNT]  what it is given
//   weights, biases  of all layers
template <int LAYER, int COUNT, typename Take>
__device__ __forceinline__ void for_each_tile(
    const Element* rows, const Element* weights, const float* biases, Take take)
{
    for (int unit = threadIdx.x / 32; unit < COUNT / 16 * padded(out_of(LAYER)) / 16; unit += WARPS) {
        const int row = unit % (COUNT / 16) * 16;
        const int column = unit / (COUNT / 16) * 16;
        float sum[2][4];
        multiply_rows<LAYER>(sum, rows + row * pitch_of(in_of(LAYER)), weights + weights_at(LAYER),
                             biases + biases_at(LAYER), column);
        take(row, column, sum);
    }
}

// The gradient of a layer's parameters, 16 by 16 of them, summed over ROWS rows.
//   delta  [ROWS]  of its outputs; rows [ROWS] of what it was given
//   part   [QUADS]  written
template <int LAYER>
__device__ __forceinline__ void multiply_columns(const Element* delta, const Element* rows, Quad* part, int unit)
{
    constexpr int ACROSS = padded(in_of(LAYER)) / 16;
    constexpr int DELTA_PITCH = pitch_of(out_of(LAYER)), PITCH = pitch_of(in_of(LAYER));
    const int out = unit / ACROSS * 16;
    const int column = unit % ACROSS * 16;
    const int lane = lane_index();
    Quad sum[2] = {};
    float of_bias[4] = {};
    const Pair ones = packed(1.0f, 1.0f);
#pragma unroll
    for (int row = 0; row < ROWS; row += 16) {
        Pair a[4], b[4];
        load_columns<true, false>(a, delta + row * DELTA_PITCH, DELTA_PITCH, out);
        load_columns<false, false>(b, rows + row * PITCH, PITCH, column);
        multiply(sum[0].of, a, b[0], b[1]);
        multiply(sum[1].of, a, b[2], b[3]);
        if (column == 0) multiply(of_bias, a, ones, ones);
    }
    constexpr int FRAGMENTS_ACROSS = fragments_across(LAYER);
    Quad* place = part + (fragments_at(LAYER) + unit / ACROSS * FRAGMENTS_ACROSS + column / 8) * 32 + lane;
    place[0] = sum[0];
    if (column / 8 + 1 < FRAGMENTS_ACROSS) place[32] = sum[1];
    if (column > 0 || (lane & 3) != 0) return;
    float* biases = (float*)(part + FRAGMENTS * 32) + biases_at(LAYER) + out + (lane >> 2);
    biases[0] = of_bias[0];
    biases[8] = of_bias[2];
}

// Quad parameters: of a fragment, or neighbours among the biases.
struct Place {
    int layer;
    bool is_bias;
    int out, column;  // of the first; the others of a fragment are one column, 8 outputs, and both further on

    __device__ __forceinline__ explicit Place(int quad)
    {
        is_bias = quad >= FRAGMENTS * 32;
        const int bias = (quad - FRAGMENTS * 32) * 4;
        const int fragment = quad / 32;
        const int lane = quad % 32;
#pragma unroll
        for (int i = 0; i < LAYERS; ++i) {
            const int across = fragments_across(i);
            if (is_bias ? bias < biases_at(i) : fragment < fragments_at(i)) break;
            layer = i;
            out = is_bias ? bias - biases_at(i) : (fragment - fragments_at(i)) / across * 16 + lane / 4;
            column = is_bias ? 0 : (fragment - fragments_at(i)) % across * 8 + lane % 4 * 2;
        }
    }

    // The number of the i-th, as torch has parameters; -1 if it is beyond its layer.
    __device__ __forceinline__ int number(int i) const
    {
        int found = -1;
#pragma unroll
        for (int l = 0; l < LAYERS; ++l) {
            if (l != layer) continue;
            const int row = out + (is_bias ? i : i / 2 * 8);
            const int across = column + (is_bias ? 0 : i % 2);
            if (row >= out_of(l) || across >= in_of(l)) continue;
            found = parameters_at(l) + (is_bias ? out_of(l) * in_of(l) + row : row * in_of(l) + across);
        }
        return found;
    }

    // Where products read the first, among the weights or the biases; and elements from there to the third.
    __device__ __forceinline__ int element() const
    {
        int found = 0;
#pragma unroll
        for (int l = 0; l < LAYERS; ++l) {
            if (l == layer) found = is_bias ? biases_at(l) + out : weights_at(l) + out * pitch_of(in_of(l)) + column;
        }
        return found;
    }
    __device__ __forceinline__ int step() const
    {
        int found = 0;
#pragma unroll
        for (int l = 0; l < LAYERS; ++l) {
            if (l == layer) found = 8 * pitch_of(in_of(l));
        }
        return found;
    }
};
