// Products of one block that has a whole batch: tiles by the warp, large enough that tensor cores, not shared memory,
// limit them; and which parameters a thread steps: those whose gradient its warp multiplies, so that it never moves.
//
// Constants: those of q_layers.cuh, of which ROWS is the batch, up to a multiple of 16.
#pragma once
#include "q_layers.cuh"

constexpr int ROW_TILES = ROWS / 16;

__device__ constexpr int tiles_of(int columns)
{
    return padded(columns) / 16;
}
__device__ constexpr int parts_of(int whole, int part)
{
    return (whole + part - 1) / part;
}

// Tiles of 16 by 16 that a warp multiplies at once: `down` of A by `across` of B.
struct Block {
    int down, across;

    // Times that each warp has one, of so many tiles.
    __device__ constexpr int rounds(int tiles_down, int tiles_across) const
    {
        return parts_of(parts_of(tiles_down, down) * parts_of(tiles_across, across), WARPS);
    }
};

// The one with which warps are done first: a product of two tiles takes as long as the loads of one.
__device__ constexpr Block best_block(int tiles_down, int tiles_across, int most_down, int most_across)
{
    Block best = {1, 1};
    long long least = 1ll << 60;
    for (int down = 1; down <= most_down; ++down) {
        for (int across = 1; across <= most_across; ++across) {
            if (down > tiles_down || across > tiles_across) continue;
            const Block block = {down, across};
            const long long cost = (long long)block.rounds(tiles_down, tiles_across) * (3 * down * across + down + across);
            if (cost >= least) continue;
            least = cost;
            best = block;
        }
    }
    return best;
}

// The thread's number, of which a compiler keeps nothing that follows in registers from one product to the next: Adam's
// memory has no room for it.
__device__ __forceinline__ int fresh_thread()
{
    int now = threadIdx.x;
#ifndef WARPDRIVE_CPU
    asm volatile("" : "+r"(now));
#endif
    return now;
}

// Tiles of 16 by 16 that a warp loads out of rows in shared memory: of A, or two neighbouring ones of B. TRANSPOSED as
// load_columns has them, else as load_rows. A tensor core's address is worked out once, and all that follows a number.
template <bool IS_A, bool TRANSPOSED, int PITCH>
struct Tiles {
    const Element* first;
    unsigned address;

    __device__ __forceinline__ explicit Tiles(const Element* first_) : first(first_), address(0)
    {
#if HAS_TENSOR_CORES
        if (FULL_PRECISION) return;
        const int lane = fresh_thread() & 31, matrix = lane >> 3;
        const bool is_below = (IS_A != TRANSPOSED ? matrix : matrix >> 1) & 1, is_right = (IS_A != TRANSPOSED ? matrix >> 1 : matrix) & 1;
        address = (unsigned)__cvta_generic_to_shared(first + (is_below * 8 + (lane & 7)) * PITCH + is_right * 8);
#endif
    }

    // The tile that begins so many elements further on.
    __device__ __forceinline__ void load(Pair (&pairs)[4], int offset) const
    {
#if HAS_TENSOR_CORES
        if constexpr (!FULL_PRECISION) {
            load_matrices<TRANSPOSED>(pairs, address + offset * (int)sizeof(Element));
            return;
        }
#endif
        if (TRANSPOSED) {
            load_columns<IS_A, false>(pairs, first + offset, PITCH, 0);
        } else {
            load_rows<IS_A>(pairs, first + offset, PITCH, 0);
        }
    }
};

// ---- of rows

// Of all rows by all columns of B: calls take(row, column, sum) for each tile.
//   DEPTH, COLUMNS    that are summed over, and of B
//   B_TRANSPOSED      whether B's rows are summed over; else its columns are
//   rows              [ROWS] of A
//   start(sum, column)  what a tile's sums begin with
template <int DEPTH, int COLUMNS, bool B_TRANSPOSED, typename Start, typename Take>
__device__ __forceinline__ void multiply_all(const Element* rows, const Element* b, Start start, Take take)
{
    constexpr int ACROSS = tiles_of(COLUMNS);
    constexpr Block BLOCK = best_block(ROW_TILES, ACROSS, 2, DEPTH <= 16 ? 4 : 3);
    constexpr int BLOCKS_DOWN = parts_of(ROW_TILES, BLOCK.down), BLOCKS = BLOCKS_DOWN * parts_of(ACROSS, BLOCK.across);
    constexpr bool IS_EXACT = ROW_TILES % BLOCK.down == 0 && ACROSS % BLOCK.across == 0;
    constexpr int PITCH = pitch_of(DEPTH), B_PITCH = pitch_of(B_TRANSPOSED ? COLUMNS : DEPTH);
    constexpr int B_STEP = B_TRANSPOSED ? B_PITCH : 1, B_ACROSS = B_TRANSPOSED ? 16 : 16 * B_PITCH;
#pragma unroll 1
    for (int unit = threadIdx.x / 32; unit < BLOCKS; unit += WARPS) {
        const int row = unit % BLOCKS_DOWN * BLOCK.down, column = unit / BLOCKS_DOWN * BLOCK.across;  // in tiles
        const Tiles<true, false, PITCH> of_a(rows + row * 16 * PITCH);
        const Tiles<false, B_TRANSPOSED, B_PITCH> of_b(b + column * B_ACROSS);
        // Where a block reaches beyond, its last tiles again.
        const auto down = [&](int i) { return IS_EXACT ? i : min(i, ROW_TILES - 1 - row); };
        const auto across = [&](int j) { return IS_EXACT ? j : min(j, ACROSS - 1 - column); };
        float sum[BLOCK.down][BLOCK.across][2][4];
#pragma unroll
        for (int i = 0; i < BLOCK.down; ++i) {
#pragma unroll
            for (int j = 0; j < BLOCK.across; ++j) start(sum[i][j], (column + across(j)) * 16);
        }
#pragma unroll
        for (int k = 0; k < padded(DEPTH); k += 16) {
            Pair in_a[BLOCK.down][4], in_b[BLOCK.across][4];
#pragma unroll
            for (int i = 0; i < BLOCK.down; ++i) of_a.load(in_a[i], down(i) * 16 * PITCH + k);
#pragma unroll
            for (int j = 0; j < BLOCK.across; ++j) of_b.load(in_b[j], across(j) * B_ACROSS + k * B_STEP);
#pragma unroll
            for (int i = 0; i < BLOCK.down; ++i) {
#pragma unroll
                for (int j = 0; j < BLOCK.across; ++j) {
                    multiply(sum[i][j][0], in_a[i], in_b[j][0], in_b[j][1]);
                    multiply(sum[i][j][1], in_a[i], in_b[j][2], in_b[j][3]);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < BLOCK.down; ++i) {
#pragma unroll
            for (int j = 0; j < BLOCK.across; ++j) {
                if (!IS_EXACT && (down(i) < i || across(j) < j)) continue;
                take((row + i) * 16, (column + j) * 16, sum[i][j]);
            }
        }
    }
}

// A hidden layer of all rows.
//   rows  [ROWS]  what it is given; out [ROWS] written
template <int LAYER>
__device__ __forceinline__ void hidden_of_rows(
    const Element* rows, const Element* weights, const float* biases, Element* out)
{
    constexpr int OUT_PITCH = pitch_of(out_of(LAYER));
    const float* bias = biases + biases_at(LAYER) + 2 * (lane_index() & 3);
    multiply_all<in_of(LAYER), out_of(LAYER), false>(
        rows, weights + weights_at(LAYER),
        [&](float(&sum)[2][4], int column) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                sum[i][0] = sum[i][2] = bias[column + i * 8];
                sum[i][1] = sum[i][3] = bias[column + i * 8 + 1];
            }
        },
        [&](int row, int column, const float(&sum)[2][4]) {
            Element* place = out + row * OUT_PITCH + column;
            for_each_pair(sum, [&](int r, int c, float low, float high) {
                *(Pair*)(place + r * OUT_PITCH + c) = packed(activate(low), activate(high));
            });
        });
}

// The deltas of what a layer was given, in its place: by those of its outputs.
//   delta  [ROWS]  of its outputs
//   given  [ROWS]  read, written
template <int LAYER>
__device__ __forceinline__ void deltas_of_rows(const Element* delta, const Element* weights, Element* given)
{
    constexpr int PITCH = pitch_of(in_of(LAYER));
    multiply_all<out_of(LAYER), in_of(LAYER), true>(
        delta, weights + weights_at(LAYER),
        [&](float(&sum)[2][4], int) {
#pragma unroll
            for (int i = 0; i < 8; ++i) sum[i / 4][i % 4] = 0.0f;
        },
        [&](int row, int column, const float(&sum)[2][4]) {
            Element* place = given + row * PITCH + column;
            for_each_pair(sum, [&](int r, int c, float low, float high) {
                Pair* pair = (Pair*)(place + r * PITCH + c);
                *pair = through_activation(low, high, *pair);
            });
        });
}

// ---- of parameters

// A quad of parameters that a thread steps, if it has one: where products read its first, and how much further on its
// third; of which layer it is; and its number as Place numbers them, -1 if it is all beyond the layer's columns.
struct Owned {
    bool is_there;
    int element, down, layer, number;
};

// How warps share a layer's gradient.
template <int LAYER>
struct Division {
    static constexpr int DOWN = tiles_of(out_of(LAYER)), ACROSS = tiles_of(in_of(LAYER));
    static constexpr Block BLOCK = best_block(DOWN, ACROSS, 4, 3);
    static constexpr int BLOCKS_ACROSS = parts_of(ACROSS, BLOCK.across);
    static constexpr int BLOCKS = parts_of(DOWN, BLOCK.down) * BLOCKS_ACROSS;
    static constexpr int ROUNDS = BLOCK.rounds(DOWN, ACROSS);
    static constexpr int HALVES = fragments_across(LAYER) == 1 ? 1 : 2 * BLOCK.across;  // of a tile row of the block
    static constexpr int SLOTS = ROUNDS * BLOCK.down * HALVES;  // quads of parameters of a thread

    // The quad in a slot.
    __device__ __forceinline__ static Owned owned(int slot)
    {
        constexpr int PITCH = pitch_of(in_of(LAYER));
        constexpr bool IS_EXACT = DOWN % BLOCK.down == 0 && ACROSS % BLOCK.across == 0 && BLOCKS % WARPS == 0;
        const int lane = lane_index();
        const int unit = threadIdx.x / 32 + slot / (BLOCK.down * HALVES) * WARPS;
        const int first_out = unit / BLOCKS_ACROSS * BLOCK.down, first_column = unit % BLOCKS_ACROSS * 2 * BLOCK.across;
        const int out = first_out + slot / HALVES % BLOCK.down, column = first_column + slot % HALVES;
        const int first = weights_at(LAYER) + (first_out * 16 + lane / 4) * PITCH + first_column * 8 + lane % 4 * 2;
        const int number = (fragments_at(LAYER) + out * fragments_across(LAYER) + column) * 32 + lane;
        return {IS_EXACT || (out < DOWN && column < 2 * ACROSS),
                first + slot / HALVES % BLOCK.down * 16 * PITCH + slot % HALVES * 8, 8 * PITCH, LAYER,
                out < DOWN && column < fragments_across(LAYER) ? number : -1};
    }
};

// The gradient of a warp's share of a layer's parameters, over all rows.
//   delta  [ROWS]  of its outputs; given [ROWS] what it was given
//   of_bias  [BIASES]  written
template <int LAYER>
__device__ __forceinline__ void gradient_of_rows(
    const Element* delta, const Element* given, Quad (&gradient)[Division<LAYER>::SLOTS], float* of_bias)
{
    typedef Division<LAYER> Share;
    constexpr Block BLOCK = Share::BLOCK;
    constexpr int DELTA_PITCH = pitch_of(out_of(LAYER)), PITCH = pitch_of(in_of(LAYER));
    const int lane = lane_index();
    const Pair ones = packed(1.0f, 1.0f);
#pragma unroll
    for (int round = 0; round < Share::ROUNDS; ++round) {
        const int unit = threadIdx.x / 32 + round * WARPS;
        const int out = unit / Share::BLOCKS_ACROSS * BLOCK.down, column = unit % Share::BLOCKS_ACROSS * BLOCK.across;
        const int of_biases = unit % Share::BLOCKS_ACROSS;  // blocks side by side share out their rows' biases
        float sum[BLOCK.down][BLOCK.across][2][4] = {};
        constexpr int EACH = parts_of(BLOCK.down, Share::BLOCKS_ACROSS);
        float biases[EACH][4] = {};
        if (Share::BLOCKS % WARPS == 0 || unit < Share::BLOCKS) {
            const Tiles<true, true, DELTA_PITCH> of_a(delta + out * 16);
            const Tiles<false, true, PITCH> of_b(given + column * 16);
#pragma unroll
            for (int row = 0; row < ROWS; row += 16) {
                Pair a[BLOCK.down][4], b[BLOCK.across][4];
#pragma unroll
                for (int i = 0; i < BLOCK.down; ++i) {
                    const int tile = Share::DOWN % BLOCK.down == 0 ? i : min(i, Share::DOWN - 1 - out);
                    of_a.load(a[i], row * DELTA_PITCH + tile * 16);
                }
#pragma unroll
                for (int j = 0; j < BLOCK.across; ++j) {
                    const int tile = Share::ACROSS % BLOCK.across == 0 ? j : min(j, Share::ACROSS - 1 - column);
                    of_b.load(b[j], row * PITCH + tile * 16);
                }
#pragma unroll
                for (int i = 0; i < BLOCK.down; ++i) {
#pragma unroll
                    for (int j = 0; j < BLOCK.across; ++j) {
                        multiply(sum[i][j][0], a[i], b[j][0], b[j][1]);
                        if (Share::HALVES > 1) multiply(sum[i][j][1], a[i], b[j][2], b[j][3]);
                    }
                }
#pragma unroll
                for (int i = 0; i < EACH; ++i) {
                    Pair chosen[4];
#pragma unroll
                    for (int n = 0; n < 4; ++n) {
                        chosen[n] = a[i][n];
#pragma unroll
                        for (int from = EACH + i; from < BLOCK.down; from += EACH) {
                            if (from == of_biases * EACH + i) chosen[n] = a[from][n];
                        }
                    }
                    multiply(biases[i], chosen, ones, ones);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < BLOCK.down; ++i) {
#pragma unroll
            for (int half = 0; half < Share::HALVES; ++half) {
                Quad& mine = gradient[(round * BLOCK.down + i) * Share::HALVES + half];
#pragma unroll
                for (int n = 0; n < 4; ++n) mine.of[n] = sum[i][half / 2][half % 2][n];
            }
        }
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int from = of_biases * EACH + i;
            if (from >= BLOCK.down || out + from >= Share::DOWN || (lane & 3) != 0) continue;
            float* place = of_bias + biases_at(LAYER) + (out + from) * 16 + (lane >> 2);
            place[0] = biases[i][0];
            place[8] = biases[i][2];
        }
    }
}

// ---- numbers between their bfloat16, which products read, and what is left of them

// Lower halves of a quad's floats, two by two. Weights are rounded to the nearest bfloat16, ties upwards: a lower half
// then says by its highest bit whether its weight was rounded up.
struct alignas(8) Rest {
    unsigned pair[2];
};

// The lower halves of two words as one, or their upper ones: in one instruction each.
__device__ __forceinline__ unsigned lower_halves(unsigned low, unsigned high)
{
#ifdef WARPDRIVE_CPU
    return (low & 0xffffu) | high << 16;
#else
    return __byte_perm(low, high, 0x5410);
#endif
}
__device__ __forceinline__ unsigned upper_halves(unsigned low, unsigned high)
{
#ifdef WARPDRIVE_CPU
    return low >> 16 | (high & 0xffff0000u);
#else
    return __byte_perm(low, high, 0x7632);
#endif
}

// A quad of weights, at `weight` and `down` elements further on, made whole by the rest of it.
__device__ __forceinline__ Quad whole(const unsigned short* weight, int down, const Rest& rest)
{
    Quad found;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const unsigned pair = *(const unsigned*)(weight + i * down);
        found.of[2 * i] = __uint_as_float((pair << 16) + (unsigned)(int)(short)rest.pair[i]);
        found.of[2 * i + 1] = __uint_as_float((pair & 0xffff0000u) + (unsigned)((int)rest.pair[i] >> 16));
    }
    return found;
}
__device__ __forceinline__ Quad whole(const float* weight, int down, const Rest&)
{
    return {{weight[0], weight[1], weight[down], weight[down + 1]}};
}

__device__ __forceinline__ void part(const Quad& quad, unsigned short* weight, int down, Rest& rest)
{
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const unsigned low = __float_as_uint(quad.of[2 * i]), high = __float_as_uint(quad.of[2 * i + 1]);
        *(unsigned*)(weight + i * down) = upper_halves(low + 0x8000u, high + 0x8000u);
        rest.pair[i] = lower_halves(low, high);
    }
}
__device__ __forceinline__ void part(const Quad& quad, float* weight, int down, Rest&)
{
    *(FloatPair*)weight = {quad.of[0], quad.of[1]};
    *(FloatPair*)(weight + down) = {quad.of[2], quad.of[3]};
}
