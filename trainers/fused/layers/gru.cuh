// A gated recurrent unit (Cho et al. 2014, arXiv:1406.1078), as torch.nn.GRUCell has it:
//   r = sigmoid(x_r + h_r), z = sigmoid(x_z + h_z), q = h_n, n = tanh(x_n + r q), h' = (1 - z) n + z h
// where x_* are products of the input and h_* of the state. Those of the input are given; or, of an input of IN_TILES,
// made here, too, out of weights in shared memory.
//
// A warp computes 16 units of all gates for ROWS rows; a lane has four neighbouring units of the rows g and g + 8 of
// each 16, for which gru_pack.cu orders the columns of B. Recurrent weights stay in registers, KEPT fragments of a lane;
// where blocks share a cell the others stay in shared memory.
//
// Constants:
//   UNITS         of the cell
//   SPLIT         blocks that share them: a cluster, each with a warp for 16 of its units
//   ROW_TILES     of 16 rows
//   KEPT          fragments of the recurrent weights that a lane holds in registers: all, or none, but where blocks share
//   IN_TILES      of the input; 0: its products are given
//   IN_PITCH      elements from a row's input in shared memory to the next
//   HIDDEN_PITCH  elements from a row's state in shared memory to the next
#pragma once
#include "cluster.cuh"
#include "tensor_core.cuh"

constexpr int TILES = UNITS / 16;  // of a state
constexpr int THREADS = 2 * UNITS / SPLIT;
constexpr int ROWS = 16 * ROW_TILES;
constexpr int PIECE = 16 / (int)sizeof(Element);  // elements that are loaded at once
constexpr int INPUTS = 16 * IN_TILES;
constexpr int INPUT_FRAGMENTS = 3 * TILES * IN_TILES * 32;
constexpr int WEIGHTS = 3 * TILES;  // fragments of a lane
constexpr int SHARED_WEIGHTS = SPLIT > 1 ? WEIGHTS - KEPT : 0;  // of these, in shared memory
constexpr int SHARED_FRAGMENTS = INPUT_FRAGMENTS + SHARED_WEIGHTS * THREADS;

static_assert(UNITS % (16 * SPLIT) == 0, "units of a block are not whole tiles");
static_assert(SPLIT == 1 || (SPLIT <= 8 && IN_TILES == 0), "a portable cluster has 8 blocks at most");
static_assert(KEPT == WEIGHTS || KEPT == 0 || SPLIT > 1, "who keeps a part of the weights has the others nowhere");
static_assert(HIDDEN_PITCH >= UNITS && HIDDEN_PITCH % PIECE == 0, "rows of states meet");
static_assert(IN_PITCH >= INPUTS && IN_PITCH % PIECE == 0, "rows of inputs meet");
static_assert(IN_TILES <= TILES, "a warp has 16 columns of the input's delta, at most");

// Times that a loop over weights is unrolled; products by shuffles would take the compiler long.
constexpr int SOME_UNROLLED = HAS_TENSOR_CORES ? 2 : 1;
constexpr bool UNROLLS = HAS_TENSOR_CORES && KEPT > 0;
template <int COUNT>
constexpr int UNROLLED = UNROLLS ? COUNT : SOME_UNROLLED;

// What a lane holds of two neighbouring tiles of B.
struct alignas(16) Fragment {
    Pair pair[4];
};

// A tile of A out of 16 rows in shared memory.
__device__ __forceinline__ void load_rows(Pair (&a)[4], const Element* rows, int pitch)
{
    const int lane = lane_index();
    if constexpr (HAS_TENSOR_CORES && !FULL_PRECISION) {
        const int matrix = lane >> 3;
        load_matrices<false>(a, rows + ((matrix & 1) * 8 + (lane & 7)) * pitch + (matrix >> 1) * 8);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const Element* place = rows + ((lane >> 2) + 8 * (i & 1)) * pitch + 8 * (i >> 1) + 2 * (lane & 3);
        join(a[i], place[0], place[1]);
    }
}

// Four neighbouring units of a row as elements; as floats they are Floats.
struct alignas(4 * sizeof(Element)) Four {
    Pair pair[2];
};
__device__ __forceinline__ Floats floats(const Four& four)
{
    const FloatPair low = unpack(four.pair[0]), high = unpack(four.pair[1]);
    return {low.low, low.high, high.low, high.high};
}
__device__ __forceinline__ Four elements(const Floats& floats)
{
    return {packed(floats.of[0], floats.of[1]), packed(floats.of[2], floats.of[3])};
}
__device__ __forceinline__ Four& four_at(Element* place)
{
    return *(Four*)place;
}
__device__ __forceinline__ const Four& four_at(const Element* place)
{
    return *(const Four*)place;
}

// Which warp of the cell this is, of all its blocks; and which cell of the grid, of how many.
__device__ __forceinline__ int warp_of_cell()
{
    return (blockIdx.x % SPLIT * THREADS + threadIdx.x) >> 5;
}
__device__ __forceinline__ int cell_index()
{
    return blockIdx.x / SPLIT;
}
__device__ __forceinline__ int num_cells()
{
    return gridDim.x / SPLIT;
}

// The first of the four units that a lane has: of the cell's, and of its block's.
__device__ __forceinline__ int first_unit()
{
    return 16 * warp_of_cell() + 4 * (lane_index() & 3);
}
__device__ __forceinline__ int first_of_block()
{
    return 16 * (threadIdx.x >> 5) + 4 * (lane_index() & 3);
}

// Waits for all threads of the cell: what they shared is there.
__device__ __forceinline__ void meet()
{
    meet_cluster<SPLIT>();
}

// Writes a place of shared memory, in all blocks of the cell.
__device__ __forceinline__ void share(Element* place, const Four& four)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if constexpr (SPLIT > 1) {
        const unsigned long long* words = (const unsigned long long*)&four;
#pragma unroll
        for (int block = 0; block < SPLIT; ++block) {
            const unsigned there = place_in_block(place, block);
#pragma unroll
            for (int i = 0; i < (int)sizeof(Four) / 8; ++i) {
                asm volatile("st.shared::cluster.b64 [%0], %1;" ::"r"(there + 8 * i), "l"(words[i]) : "memory");
            }
        }
        return;
    }
#endif
    four_at(place) = four;
}

// Calls each(row, half) for the rows of an item that a lane has.
//   half  which of its 2 ROW_TILES
template <typename Each>
__device__ __forceinline__ void for_each_row(Each each)
{
#pragma unroll
    for (int half = 0; half < 2 * ROW_TILES; ++half) each(8 * half + (lane_index() >> 2), half);
}

// What a product gave for a lane's units of a row.
//   sum  of a tile of 16 rows: the 16 units by two tiles of B
__device__ __forceinline__ Floats sums_of(const float (&sum)[2][4], int half)
{
    const int lower = 2 * (half % 2);
    return {sum[0][lower], sum[0][lower + 1], sum[1][lower], sum[1][lower + 1]};
}

// The recurrent weights of a warp, [number][lane]: in registers, in shared memory, or read again and again.
//   shared  SHARED_WEIGHTS fragments of each thread, on their way there until `wait_for_copies`
struct Weights {
    const Fragment* place;
    const Fragment* rest;
    Fragment kept[KEPT > 0 ? KEPT : 1];

    __device__ __forceinline__ Weights(const unsigned char* weights, Fragment* shared)
    {
        place = (const Fragment*)weights + warp_of_cell() * (WEIGHTS * 32) + lane_index();
        Fragment* mine = shared + (threadIdx.x >> 5) * (SHARED_WEIGHTS * 32) + lane_index();
        rest = mine;
#pragma unroll 1
        for (int i = 0; i < SHARED_WEIGHTS; ++i) {
#pragma unroll
            for (int piece = 0; piece < (int)sizeof(Fragment) / 16; ++piece) {
                start_copy((Bytes16*)(mine + i * 32) + piece, (const Bytes16*)(place + (KEPT + i) * 32) + piece);
            }
        }
#pragma unroll
        for (int i = 0; i < KEPT; ++i) kept[i] = place[i * 32];
    }
    __device__ __forceinline__ Fragment operator[](int i) const
    {
        if (KEPT == WEIGHTS || i < KEPT) return kept[KEPT > 0 ? i : 0];
        return SHARED_WEIGHTS > 0 ? rest[(i - KEPT) * 32] : place[i * 32];
    }
};

// The weights of the input, on their way to shared memory until `wait_for_copies`. All threads call it.
__device__ __forceinline__ void fetch_input_weights(Fragment* shared, const unsigned char* weights)
{
    constexpr int PIECES = INPUT_FRAGMENTS * (int)sizeof(Fragment) / 16;
    for (int i = threadIdx.x; i < PIECES; i += THREADS) start_copy((Bytes16*)shared + i, (const Bytes16*)weights + i);
}

// Rows of inputs, likewise.
__device__ __forceinline__ void fetch_input(Element* shared, const Element* input, int rows)
{
    constexpr int PIECES = INPUTS / PIECE;
    for (int i = threadIdx.x; i < rows * PIECES; i += THREADS) {
        const int row = i / PIECES;
        const int column = i % PIECES * PIECE;
        start_copy((Bytes16*)(shared + row * IN_PITCH + column), (const Bytes16*)(input + row * INPUTS + column));
    }
}

// The biases of a lane's units: n of the input, r, z, q.
struct Biases {
    Floats of[4];

    __device__ __forceinline__ Biases(const float* bias_input, const float* bias_hidden)
    {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int at = first_unit() + i;
            of[0].of[i] = bias_input[at];
            of[1].of[i] = bias_input[UNITS + at] + bias_hidden[at];
            of[2].of[i] = bias_input[2 * UNITS + at] + bias_hidden[UNITS + at];
            of[3].of[i] = bias_hidden[2 * UNITS + at];
        }
    }
};

// What goes into gates r and z, with all biases; q; and what the input adds to n, as far as it is made here.
//   before         [ROWS, HIDDEN_PITCH]  states, in shared memory
//   input          [ROWS, IN_PITCH]  likewise, if there are IN_TILES
//   input_weights  likewise
struct Sums {
    float of[ROW_TILES][4][2][4];
};
__device__ __forceinline__ Sums multiply_states(
    const Element* before, const Weights& weights, const Biases& bias, const Element* input,
    const Fragment* input_weights)
{
    Sums sum;
#pragma unroll
    for (int i = 0; i < ROW_TILES * 32; ++i) {
        sum.of[i / 32][i / 8 % 4][i / 4 % 2][i % 4] = bias.of[(1 + i / 8) % 4].of[i / 4 % 2 * 2 + i % 2];
    }
    const auto add = [&](const Element* rows, int pitch, const Fragment(&b)[3], int of_n) {
#pragma unroll
        for (int r = 0; r < ROW_TILES; ++r) {
            Pair a[4];
            load_rows(a, rows + r * 16 * pitch, pitch);
#pragma unroll
            for (int gate = 0; gate < 3; ++gate) {
                float(&two)[2][4] = sum.of[r][gate < 2 ? gate : of_n];
                multiply(two[0], a, b[gate].pair[0], b[gate].pair[1]);
                multiply(two[1], a, b[gate].pair[2], b[gate].pair[3]);
            }
        }
    };
    if constexpr (IN_TILES > 0) {
        const Fragment* mine = input_weights + (threadIdx.x >> 5) * (3 * IN_TILES * 32) + lane_index();
#pragma unroll(SOME_UNROLLED)
        for (int tile = 0; tile < IN_TILES; ++tile) {
            const Fragment b[3] = {mine[3 * tile * 32], mine[(3 * tile + 1) * 32], mine[(3 * tile + 2) * 32]};
            add(input + 16 * tile, IN_PITCH, b, 3);
        }
    }
#pragma unroll(UNROLLED<TILES>)
    for (int tile = 0; tile < TILES; ++tile) {
        const Fragment b[3] = {weights[3 * tile], weights[3 * tile + 1], weights[3 * tile + 2]};
        add(before + 16 * tile, HIDDEN_PITCH, b, 2);
    }
    return sum;
}

// What the input gives to a lane's units of an item, if that is given: gates n, r, z of each row. Zeros where there is
// no row.
struct Given {
    Four of[IN_TILES > 0 ? 1 : 2 * ROW_TILES][3];
};
//   gates  [row, pitch]  of the item's first row
__device__ __forceinline__ Given read_gates(const Element* gates, int pitch, int rows)
{
    Given given;
    if constexpr (IN_TILES == 0) {
        for_each_row([&](int row, int half) {
#pragma unroll
            for (int gate = 0; gate < 3; ++gate) {
                given.of[half][gate] = elements({0.0f, 0.0f, 0.0f, 0.0f});
                if (row < rows) given.of[half][gate] = four_at(gates + row * pitch + gate * UNITS + first_unit());
            }
        });
    }
    return given;
}

// The gates of a lane's units of a row, and their state after the step.
struct Stepped {
    Floats n, r, z, q, after;
};
__device__ __forceinline__ Stepped step_row(
    const Sums& sum, const Given& given, int half, const Floats& before)
{
    const float(&of_row)[4][2][4] = sum.of[half / 2];
    Floats sum_r = sums_of(of_row[0], half), sum_z = sums_of(of_row[1], half), sum_n = sums_of(of_row[3], half);
    if constexpr (IN_TILES == 0) {
        const Floats x_n = floats(given.of[half][0]), x_r = floats(given.of[half][1]), x_z = floats(given.of[half][2]);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            sum_r.of[i] += x_r.of[i];
            sum_z.of[i] += x_z.of[i];
            sum_n.of[i] += x_n.of[i];
        }
    }
    Stepped found;
    found.q = sums_of(of_row[2], half);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        found.r.of[i] = sigmoid(sum_r.of[i]);
        found.z.of[i] = sigmoid(sum_z.of[i]);
        found.n.of[i] = quick_tanh(sum_n.of[i] + found.r.of[i] * found.q.of[i]);
        found.after.of[i] = found.n.of[i] + found.z.of[i] * (before.of[i] - found.n.of[i]);
    }
    return found;
}
