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
//   SPLIT                          blocks, one cluster (sm_90 on), that share each hidden layer's columns; 1: a block has
//                                  them all
//
// Products read weights as fragments: tiles of 16 by 16 in the order in which lanes hold them, 16 bytes a lane. A
// weight is read once a block, straight into registers. Networks that are learned have them twice: as a forward pass
// multiplies, then as a backward pass does.
#pragma once
#include "rows.cuh"

constexpr int WARPS = THREADS / 32;
constexpr int TILE = 256;    // elements of a fragment
constexpr int NUM_SUMS = 4;  // figures of a block

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define HAS_CLUSTERS 1
#else
#define HAS_CLUSTERS 0
#endif
static_assert(SPLIT <= 8, "a portable cluster has 8 blocks at most");

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
    constexpr int AHEAD = TOGETHER > 4 ? 8 : 16;  // fragments on their way at once
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

// ---- blocks that share columns

// Which of them a block is.
__device__ __forceinline__ int part_index()
{
    return SPLIT > 1 ? blockIdx.x % SPLIT : 0;
}
// All threads of them wait for each other; what they wrote before is there for all.
__device__ __forceinline__ void meet()
{
#if HAS_CLUSTERS
    if constexpr (SPLIT > 1) {
        asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
        asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
        return;
    }
#endif
    __syncthreads();
}
// Writes a pair to the same place of the shared memory of each of them.
__device__ __forceinline__ void give(Element* place, Pair pair)
{
#if HAS_CLUSTERS
    if constexpr (SPLIT > 1) {
        const unsigned own = (unsigned)__cvta_generic_to_shared(place);
#pragma unroll
        for (int i = 0; i < SPLIT; ++i) {
            unsigned theirs;
            asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(theirs) : "r"(own), "r"(i));
#pragma unroll
            for (int word = 0; word < (int)sizeof(Pair) / 4; ++word) {
                const unsigned value = ((const unsigned*)&pair)[word];
                asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(theirs + 4 * word), "r"(value) : "memory");
            }
        }
        return;
    }
#endif
    *(Pair*)place = pair;
}
// The tiles of a layer's columns that are a block's.
struct Share {
    int first, last;
    __device__ __forceinline__ explicit Share(int columns)
    {
        const int tiles = padded(columns) / 16;
        const int each = (tiles + SPLIT - 1) / SPLIT;
        first = min(part_index() * each, tiles);
        last = min(first + each, tiles);
    }
};

// ---- layers

// Networks of one kind that rows go through side by side, and how far apart their numbers are.
template <int NUMBER>
struct Networks {
    const Element* elements;
    const float* biases;
    int elements_apart, biases_apart;
};

// Rows of each network times a matrix of its own: calls take(network, row, column, sum) for each 16 by 16 of it, by the
// warp that has it.
//   rows       16 ROW_TILES of 16 K_TILES columns, in shared memory; `rows_apart` from one network's to the next one's
//   fragments  [COLUMN_TILES, K_TILES]
//   bias       [16 COLUMN_TILES]; none if null
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

// A hidden layer of rows; all blocks get all of it.
template <bool CRITIC, int LAYER, int ROW_TILES, int NUMBER>
__device__ __forceinline__ void hidden_layer(
    const Element* rows, int rows_apart, int pitch, const Networks<NUMBER>& of, Element* out)
{
    constexpr Layer layer = layer_of<CRITIC>(LAYER);
    constexpr int PITCH = pitch_of(layer.out);
    const Share share(layer.out);
    multiply_rows<ROW_TILES, padded(layer.in) / 16>(
        rows, rows_apart, pitch, from(of, layer), share.first, share.last,
        [&](int network, int row, int column, const float(&sum)[2][4]) {
            for_each_pair(sum, [&](int r, int c, float low, float high) {
                Element* place = out + (network * 16 * ROW_TILES + row + r) * PITCH + column + c;
                give(place, packed(activate(low), activate(high)));
            });
        });
    meet();
}

// All of some networks that see the same: calls take(network, row, column, low, high) for two neighbouring outputs of a
// row. A network's rows of hidden layers follow those of the one before it.
template <bool CRITIC, int ROW_TILES, int NUMBER, typename Take>
__device__ __forceinline__ void forward(
    const Element* rows, int pitch, const Networks<NUMBER>& of, Element* hidden1, Element* hidden2, Take take)
{
    using N = Net<CRITIC>;
    static_assert(SPLIT == 1 || N::LAYERS > 2, "blocks still read a layer when others write the next network's");
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

// Deltas of a layer's inputs, which an activation gave, take their place. Of the last layer's all blocks make all; else a
// block makes its columns, and all get them if EVERYWHERE.
template <bool CRITIC, int LAYER, int ROW_TILES, bool EVERYWHERE, int NUMBER>
__device__ __forceinline__ void hidden_deltas(const Element* delta, const Networks<NUMBER>& of, Element* given)
{
    constexpr Layer layer = layer_of<CRITIC>(LAYER);
    constexpr int PITCH = pitch_of(layer.in), DELTA_PITCH = pitch_of(layer.out);
    constexpr bool IS_LAST = LAYER == Net<CRITIC>::LAYERS - 1;
    const Share share(layer.in);
    const Networks<NUMBER> back = {
        of.elements + Net<CRITIC>::ELEMENTS + layer.elements, nullptr, of.elements_apart, 0};
    multiply_rows<ROW_TILES, padded(layer.out) / 16>(
        delta, 16 * ROW_TILES * DELTA_PITCH, DELTA_PITCH, back, IS_LAST ? 0 : share.first,
        IS_LAST ? padded(layer.in) / 16 : share.last,
        [&](int network, int row, int column, const float(&sum)[2][4]) {
            for_each_pair(sum, [&](int r, int c, float low, float high) {
                Element* place = given + (network * 16 * ROW_TILES + row + r) * PITCH + column + c;
                const Pair found = through_activation(low, high, *(const Pair*)place);
                if (EVERYWHERE && !IS_LAST) give(place, found);
                else *(Pair*)place = found;
            });
        });
    if (EVERYWHERE && !IS_LAST) meet();
    else __syncthreads();
}

// Of all hidden layers, by those of the outputs: they take the place of what the layers gave.
template <bool CRITIC, int ROW_TILES, bool EVERYWHERE, int NUMBER>
__device__ __forceinline__ void backward(
    const Element* delta_out, const Networks<NUMBER>& of, Element* hidden1, Element* hidden2)
{
    if constexpr (Net<CRITIC>::LAYERS > 2) {
        hidden_deltas<CRITIC, 2, ROW_TILES, EVERYWHERE>(delta_out, of, hidden2);
        hidden_deltas<CRITIC, 1, ROW_TILES, EVERYWHERE>(hidden2, of, hidden1);
    } else {
        hidden_deltas<CRITIC, 1, ROW_TILES, EVERYWHERE>(delta_out, of, hidden1);
    }
}

// Brings what a block reads of a network nearer, for a forward pass or for a backward one down to the first layer.
template <bool CRITIC, bool BACK>
__device__ __forceinline__ void fetch_network(const Element* elements)
{
    if constexpr (SPLIT > 1) {
#pragma unroll
        for (int i = BACK ? 1 : 0; i < Net<CRITIC>::LAYERS; ++i) {
            const Layer layer = layer_of<CRITIC>(i);
            const Share share(BACK ? layer.in : layer.out);
            const bool is_last = i == Net<CRITIC>::LAYERS - 1;  // all of it
            const int lines = padded(BACK ? layer.out : layer.in) / 16 * TILE * (int)sizeof(Element) / 128;  // of a tile
            const int first = is_last ? 0 : share.first * lines;
            const int last = is_last ? padded(BACK ? layer.in : layer.out) / 16 * lines : share.last * lines;
            const char* own = (const char*)(elements + (BACK ? Net<CRITIC>::ELEMENTS : 0) + layer.elements);
            for (int line = first + threadIdx.x; line < last; line += THREADS) fetch_ahead(own + line * 128);
        }
    }
}

__device__ __forceinline__ void clear(void* memory, int bytes)
{
    for (int i = threadIdx.x; i < bytes / 16; i += THREADS) ((Bytes16*)memory)[i] = {};
    __syncthreads();
}
