// A policy of Box actions and its critics, or a Q-network, which is a critic without a policy: where their parameters
// are, and what they make of rows in shared memory.
//
// Constants, besides those of rows.cuh:
//   NUM_FEATURES, NUM_NUMBERS      of what is seen, and of an action that critics see beside it
//   HAS_POLICY                     whether there is one
//   ACTOR_WIDTH1, ACTOR_WIDTH2     of the policy's hidden layers; the second is 0 where there is one
//   CRITIC_WIDTH1, CRITIC_WIDTH2   of each critic's
//   NUM_CRITICS, CRITIC_OUTPUTS    and what each of them says
//   SAMPLES                        whether actions are drawn from what the policy says, as in SAC; else, as in TD3, it
//                                  says them, and has a target copy of its own
//   THREADS                        of a block
//
// Products read weights as fragments: tiles of 16 by 16 in the order in which lanes hold them, 16 bytes a lane. A
// weight is read once a block, straight into registers. Networks that are learned have them twice: as a forward pass
// multiplies, then as a backward pass does.
#pragma once
#include "rows.cuh"

constexpr int WARPS = THREADS / 32;
constexpr int TILE = 256;    // elements of a fragment
constexpr int NUM_SUMS = 4;  // figures of a block

// A layer of a network, and where its numbers begin among the network's.
struct Layer {
    int in, out;
    int elements;    // of fragments
    int biases;      // of padded biases
    int parameters;  // of weights, then biases, as torch has them
};

template <bool CRITIC>
struct Widths {
    static constexpr int WIDTH1 = CRITIC ? CRITIC_WIDTH1 : ACTOR_WIDTH1;
    static constexpr int WIDTH2 = CRITIC ? CRITIC_WIDTH2 : ACTOR_WIDTH2;
    static constexpr int LAYERS = WIDTH2 > 0 ? 3 : 2;
    static constexpr int INPUTS = NUM_FEATURES + (CRITIC ? NUM_NUMBERS : 0);
    static constexpr int OUTPUTS = CRITIC ? CRITIC_OUTPUTS : SAMPLES ? 2 * NUM_NUMBERS : NUM_NUMBERS;
    static constexpr int IS_THERE = CRITIC || HAS_POLICY ? 1 : 0;
};

// The layer of a number; of one beyond them all, where it would begin.
template <bool CRITIC>
__device__ constexpr Layer layer_of(int number)
{
    using W = Widths<CRITIC>;
    Layer found = {W::INPUTS, W::WIDTH1, 0, 0, 0};
    for (int i = 0; i < number; ++i) {
        found.elements += padded(found.in) * padded(found.out);
        found.biases += padded(found.out);
        found.parameters += (found.in + 1) * found.out;
        found.in = found.out;
        found.out = i + 2 < W::LAYERS ? W::WIDTH2 : W::OUTPUTS;
    }
    return found;
}

template <bool CRITIC>
struct Net : Widths<CRITIC> {
    static constexpr int ELEMENTS = Widths<CRITIC>::IS_THERE * layer_of<CRITIC>(Widths<CRITIC>::LAYERS).elements;
    static constexpr int BIASES = Widths<CRITIC>::IS_THERE * layer_of<CRITIC>(Widths<CRITIC>::LAYERS).biases;
    static constexpr int PARAMETERS = Widths<CRITIC>::IS_THERE * layer_of<CRITIC>(Widths<CRITIC>::LAYERS).parameters;
};
using Actor = Net<false>;
using Critic = Net<true>;

// Among all networks: the policy, the critics, their target copies, which need no backward pass, and the policy's.
__device__ constexpr int critic_elements(int critic)
{
    return 2 * Actor::ELEMENTS + critic * 2 * Critic::ELEMENTS;
}
__device__ constexpr int target_elements(int critic)
{
    return critic_elements(NUM_CRITICS) + critic * Critic::ELEMENTS;
}
constexpr int TARGET_POLICY_ELEMENTS = target_elements(NUM_CRITICS);
__device__ constexpr int critic_biases(int critic)  // those of targets follow, as if they were more critics
{
    return Actor::BIASES + critic * Critic::BIASES;
}
constexpr int TARGET_POLICY_BIASES = critic_biases(2 * NUM_CRITICS);

// Where an element of B stands in its fragment.
__device__ __forceinline__ int place_in_tile(int row, int column)
{
    const int lane = (column & 7) * 4 + (row & 7) / 2;
    const int pair = (column & 15) / 8 * 2 + (row & 15) / 8;
    return lane * 8 + pair * 2 + (row & 1);
}

// A parameter where products read it.
//   number  of the parameter, as torch has them: layer by layer, weights [out, in] and biases
//   TWICE   whether a backward pass reads it, too
template <bool CRITIC, bool TWICE>
__device__ __forceinline__ void put(Element* elements, float* biases, int number, float parameter)
{
    using N = Net<CRITIC>;
#pragma unroll
    for (int i = 0; i < N::LAYERS; ++i) {
        const Layer layer = layer_of<CRITIC>(i);
        const int within = number - layer.parameters;
        if (within < 0 || within >= (layer.in + 1) * layer.out) continue;
        if (within >= layer.in * layer.out) {
            biases[layer.biases + within - layer.in * layer.out] = parameter;
            continue;
        }
        const int out = within / layer.in;
        const int in = within - out * layer.in;
        Element element;
        narrow(element, parameter);
        const int forward = out / 16 * (padded(layer.in) / 16) + in / 16;
        elements[layer.elements + forward * TILE + place_in_tile(in, out)] = element;
        if (!TWICE) continue;
        const int backward = in / 16 * (padded(layer.out) / 16) + out / 16;
        elements[N::ELEMENTS + layer.elements + backward * TILE + place_in_tile(out, in)] = element;
    }
}

// Where a network's parameters are.
template <bool CRITIC>
struct Tensors {
    const long long* addresses;  // [network, 2 LAYERS] of weights, biases
    __device__ __forceinline__ float& operator()(int network, int number) const
    {
        using N = Net<CRITIC>;
        float* found = nullptr;
#pragma unroll
        for (int i = 0; i < N::LAYERS; ++i) {
            const Layer layer = layer_of<CRITIC>(i);
            const int within = number - layer.parameters;
            if (within < 0 || within >= (layer.in + 1) * layer.out) continue;
            const int weights = layer.in * layer.out;
            const long long* pair = addresses + (network * N::LAYERS + i) * 2;
            found = within < weights ? (float*)pair[0] + within : (float*)pair[1] + within - weights;
        }
        return *found;
    }
};

__device__ __forceinline__ void load_fragment(unsigned (&pairs)[4], const unsigned short* tile)
{
    const Bytes16 four = ((const Bytes16*)tile)[lane_index()];
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = four.word[i];
}
__device__ __forceinline__ void load_fragment(FloatPair (&pairs)[4], const float* tile)
{
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = ((const FloatPair*)tile)[lane_index() * 4 + i];
}

// TOGETHER tiles of rows, from `first_row` on, times one column of tiles.
template <int TOGETHER, int K_TILES, typename Take>
__device__ __forceinline__ void multiply_tiles(
    const Element* rows, int pitch, const Element* fragments, const float* bias, int tile, int first_row, Take take)
{
    const int t = lane_index() & 3;
    float sum[TOGETHER][2][4];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const float start = bias == nullptr ? 0.0f : bias[tile * 16 + i / 4 * 8 + 2 * t + i % 2];
#pragma unroll
        for (int r = 0; r < TOGETHER; ++r) sum[r][i / 4][i % 4] = start;
    }
    constexpr int AHEAD = TOGETHER > 2 ? 8 : 16;  // fragments on their way at once
    for (int some = 0; some < K_TILES; some += AHEAD) {
        Pair b[AHEAD][4];
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            if (some + i < K_TILES) load_fragment(b[i], fragments + (tile * K_TILES + some + i) * TILE);
        }
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            if (some + i >= K_TILES) break;
#pragma unroll
            for (int r = 0; r < TOGETHER; ++r) {
                Pair a[4];
                load_rows<true>(a, rows + (first_row + 16 * r) * pitch, pitch, 16 * (some + i));
                multiply(sum[r][0], a, b[i][0], b[i][1]);
                multiply(sum[r][1], a, b[i][2], b[i][3]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < TOGETHER; ++r) take(first_row + 16 * r, tile * 16, sum[r]);
}

// Networks of one kind that rows go through side by side, and how far apart their numbers are: fragments of a layer's
// weights [column tile, tile of what is summed over], and biases, or null.
template <int NUMBER>
struct Networks {
    const Element* elements;
    const float* biases;
    int elements_apart, biases_apart;
};

// Rows of each network times a matrix of its own: calls take(network, row, column, sum) for each 16 by 16 of it, by the
// warp that has it.
//   rows  16 ROW_TILES of 16 K_TILES columns, in shared memory; `rows_apart` from one network's to the next one's
//   of    from that layer on, of which the tiles `first_tile` up to `last_tile`
// A warp has a column of tiles, or one tile where there are more warps than tiles.
template <int ROW_TILES, int K_TILES, int NUMBER, typename Take>
__device__ __forceinline__ void multiply_rows(
    const Element* rows, int rows_apart, int pitch, const Networks<NUMBER>& of, int first_tile, int last_tile, Take take)
{
    const int num_tiles = last_tile - first_tile;
    const bool is_wide = num_tiles * ROW_TILES * NUMBER > WARPS;
    const int num_units = num_tiles * NUMBER * (is_wide ? 1 : ROW_TILES);
    for (int unit = threadIdx.x / 32; unit < num_units; unit += WARPS) {
        const int column = is_wide ? unit : unit / ROW_TILES;
        const int network = NUMBER == 1 ? 0 : column / num_tiles;
        const int tile = first_tile + column - network * num_tiles;
        const Element* own = rows + network * rows_apart;
        const Element* fragments = of.elements + network * of.elements_apart;
        const float* bias = of.biases == nullptr ? nullptr : of.biases + network * of.biases_apart;
        const auto take_of = [&](int row, int at, const float(&sum)[2][4]) { take(network, row, at, sum); };
        if (is_wide) {
            multiply_tiles<ROW_TILES, K_TILES>(own, pitch, fragments, bias, tile, 0, take_of);
        } else {
            multiply_tiles<1, K_TILES>(own, pitch, fragments, bias, tile, unit % ROW_TILES * 16, take_of);
        }
    }
}

// The networks, from a layer on.
template <int NUMBER>
__device__ __forceinline__ Networks<NUMBER> from(const Networks<NUMBER>& of, const Layer& layer)
{
    return {of.elements + layer.elements, of.biases + layer.biases, of.elements_apart, of.biases_apart};
}

// A hidden layer of rows.
template <bool CRITIC, int LAYER, int ROW_TILES, int NUMBER>
__device__ __forceinline__ void hidden_layer(
    const Element* rows, int rows_apart, int pitch, const Networks<NUMBER>& of, Element* out)
{
    constexpr Layer layer = layer_of<CRITIC>(LAYER);
    constexpr int PITCH = pitch_of(layer.out);
    multiply_rows<ROW_TILES, padded(layer.in) / 16>(
        rows, rows_apart, pitch, from(of, layer), 0, padded(layer.out) / 16,
        [&](int network, int row, int column, const float(&sum)[2][4]) {
            for_each_pair(sum, [&](int r, int c, float low, float high) {
                Element* place = out + (network * 16 * ROW_TILES + row + r) * PITCH + column + c;
                *(Pair*)place = packed(activate(low), activate(high));
            });
        });
    __syncthreads();
}

// All of some networks that see the same: calls take(network, row, column, low, high) for two neighbouring outputs of a
// row. A network's rows of hidden layers follow those of the one before it.
template <bool CRITIC, int ROW_TILES, int NUMBER, typename Take>
__device__ __forceinline__ void forward(
    const Element* rows, int pitch, const Networks<NUMBER>& of, Element* hidden1, Element* hidden2, Take take)
{
    using N = Net<CRITIC>;
    hidden_layer<CRITIC, 0, ROW_TILES>(rows, 0, pitch, of, hidden1);
    if constexpr (N::LAYERS > 2) {
        constexpr int PITCH = pitch_of(N::WIDTH1);
        hidden_layer<CRITIC, 1, ROW_TILES>(hidden1, 16 * ROW_TILES * PITCH, PITCH, of, hidden2);
    }
    constexpr Layer last = layer_of<CRITIC>(N::LAYERS - 1);
    multiply_rows<ROW_TILES, padded(last.in) / 16>(
        N::LAYERS > 2 ? hidden2 : hidden1, 16 * ROW_TILES * pitch_of(last.in), pitch_of(last.in), from(of, last), 0,
        padded(last.out) / 16, [&](int network, int row, int column, const float(&sum)[2][4]) {
            for_each_pair(
                sum, [&](int r, int c, float low, float high) { take(network, row + r, column + c, low, high); });
        });
    __syncthreads();
}

// What the policy says of rows, as floats: outputs [row, Actor::OUTPUTS].
template <int ROW_TILES>
__device__ __forceinline__ void forward_policy(
    const Element* rows, int pitch, const Element* elements, const float* biases, Element* hidden1, Element* hidden2,
    float* outputs)
{
    forward<false, ROW_TILES>(
        rows, pitch, Networks<1>{elements, biases, 0, 0}, hidden1, hidden2,
        [&](int, int row, int column, float low, float high) {
            float* two = outputs + row * Actor::OUTPUTS + column;
            if (column < Actor::OUTPUTS) two[0] = low;
            if (column + 1 < Actor::OUTPUTS) two[1] = high;
        });
}

// Deltas of a layer's inputs, which an activation gave, take their place.
template <bool CRITIC, int LAYER, int ROW_TILES, int NUMBER>
__device__ __forceinline__ void hidden_deltas(const Element* delta, const Networks<NUMBER>& of, Element* given)
{
    constexpr Layer layer = layer_of<CRITIC>(LAYER);
    constexpr int PITCH = pitch_of(layer.in), DELTA_PITCH = pitch_of(layer.out);
    const Networks<NUMBER> back = {
        of.elements + Net<CRITIC>::ELEMENTS + layer.elements, nullptr, of.elements_apart, 0};
    multiply_rows<ROW_TILES, padded(layer.out) / 16>(
        delta, 16 * ROW_TILES * DELTA_PITCH, DELTA_PITCH, back, 0, padded(layer.in) / 16,
        [&](int network, int row, int column, const float(&sum)[2][4]) {
            for_each_pair(sum, [&](int r, int c, float low, float high) {
                Element* place = given + (network * 16 * ROW_TILES + row + r) * PITCH + column + c;
                *(Pair*)place = through_activation(low, high, *(const Pair*)place);
            });
        });
    __syncthreads();
}

// Of all hidden layers, by those of the outputs: they take the place of what the layers gave.
template <bool CRITIC, int ROW_TILES, int NUMBER>
__device__ __forceinline__ void backward(
    const Element* delta_out, const Networks<NUMBER>& of, Element* hidden1, Element* hidden2)
{
    if constexpr (Net<CRITIC>::LAYERS > 2) {
        hidden_deltas<CRITIC, 2, ROW_TILES>(delta_out, of, hidden2);
        hidden_deltas<CRITIC, 1, ROW_TILES>(hidden2, of, hidden1);
    } else {
        hidden_deltas<CRITIC, 1, ROW_TILES>(delta_out, of, hidden1);
    }
}

__device__ __forceinline__ void clear(void* memory, int bytes)
{
    for (int i = threadIdx.x; i < bytes / 16; i += THREADS) ((Bytes16*)memory)[i] = {};
    __syncthreads();
}
