// Of a gated recurrent unit whose units are rows of products, and its sequences columns: what a lane has of both, and
// how they are turned around on their way to and from shared memory. A part of gru_by_columns.cu, whose constants it
// takes.
//
// A lane has, of 8 sequences at a time, two neighbours: pairs[j][half] are of sequences 8 j + 2 t and the next, and of
// unit g, or g + 8, of its warp's.
#pragma once
#include "layers/gru_pieces.cuh"
#include "warps_or_groups.cuh"

constexpr int COMPUTING = 2 * UNITS, THREADS = COMPUTING + 128;  // the last four warps carry rows to and fro
constexpr int ROWS = 8 * COLUMNS;
constexpr int TILES = UNITS / 16;
constexpr int BLOCK = 64;  // elements of a block of 8 x 8
constexpr int ALONG = BLOCK * (int)sizeof(Element);
constexpr int OF_UNITS = ROWS * UNITS;  // elements of all units of all sequences
constexpr int MADE_PITCH = 5 * UNITS + 8, MADE = ROWS * MADE_PITCH;
constexpr int STAGE = MADE + ROWS * OUTPUTS;
constexpr int INPUTS = 3, STAGES = 4;  // steps that shared memory has room for

static_assert(OUTPUTS % 16 == 0, "products take 16 in depth");
static_assert(UNITS % 64 == 0, "units are not those of whole warpgroups");
static_assert(COLUMNS % 2 == 0, "blocks are turned around by twos");
static_assert(COMPUTING % (UNITS / 8) == 0 && ROWS * UNITS / 8 % COMPUTING == 0, "threads have other pieces of an input");
static_assert(INPUTS >= 3, "the next step's products read an input while the one after it comes");
static_assert(STAGES >= 3, "what a step waits for is asked for behind it");
static_assert(ROWS <= 32, "a carrier's lanes have a row each");

// Which of the carriers a thread is of; -1: it computes.
__device__ __forceinline__ int carrier()
{
    return (int)threadIdx.x < COMPUTING ? -1 : (int)(threadIdx.x - COMPUTING) / 32;
}

// The first of a warp's units, and those of a lane; and a lane's rows.
__device__ __forceinline__ int warp_unit()
{
    return threadIdx.x / 32 * 16;
}
__device__ __forceinline__ int unit_of_lane(int half)
{
    return warp_unit() + lane_index() / 4 + 8 * half;
}
__device__ __forceinline__ int row_of_lane(int j, int i)
{
    return 8 * j + 2 * (lane_index() & 3) + i;
}

// The sequences of a block.
struct Sequences {
    int first, num_rows;

    __device__ __forceinline__ Sequences(int number, int num_rows) : first(number * ROWS), num_rows(num_rows) {}
    __device__ __forceinline__ bool has(int row) const { return first + row < num_rows; }
    __device__ __forceinline__ int num_there() const { return min(ROWS, num_rows - first); }
    __device__ __forceinline__ bool has_of_lane(int j, int i) const { return has(row_of_lane(j, i)); }
    // Of a step, or the last row of it where there is none.
    __device__ __forceinline__ long long place(int step, int row) const
    {
        return (long long)step * num_rows + min(first + row, num_rows - 1);
    }
    // Whether a row starts something new in a step, as memory has it: nothing waits for it before it is looked at.
    __device__ __forceinline__ unsigned starts(const bool* starts, int step, int row) const
    {
        return ((const unsigned char*)starts)[place(step, row)];
    }
    __device__ __forceinline__ unsigned starts_of_lane(const bool* of, int step, int j, int i) const
    {
        return starts(of, step, row_of_lane(j, i));
    }
};

// All warps of the block: __syncthreads may not be called in one place by carriers and in another by the rest.
__device__ __forceinline__ void meet()
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("barrier.sync 1, %0;" ::"n"(THREADS) : "memory");
#else
    __syncthreads();
#endif
}

// Whole warpgroups call them: carriers need few registers, which the others take.
__device__ __forceinline__ void leave_registers()
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
#endif
}
__device__ __forceinline__ void take_registers()
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
#endif
}

template <typename Each>
__device__ __forceinline__ void for_each_column(Each each)
{
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) each(j, i);
    }
}

__device__ __forceinline__ void round_to(Pair (&pairs)[COLUMNS][2], const float (&x)[COLUMNS][4])
{
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j) {
        pairs[j][0] = packed(x[j][0], x[j][1]);
        pairs[j][1] = packed(x[j][2], x[j][3]);
    }
}

// A lane's, summed over the four that have the same units.
__device__ __forceinline__ float over_rows(float x)
{
    x += __shfl_xor_sync(ALL_LANES, x, 1);
    return x + __shfl_xor_sync(ALL_LANES, x, 2);
}

// ----------------------------------------------------------------------------------------------- B and A

// Where 8 neighbouring numbers of a row stand in what products read as B: blocks [row / 8][DEPTH / 8] of 8 x 8.
template <int DEPTH>
__device__ __forceinline__ Element* place_in_b(Element* b, int row, int depth)
{
    return b + (row / 8 * (DEPTH / 8) + depth / 8) * BLOCK + row % 8 * 8;
}

// A 16 x 16 piece of weights as gru_pack.cu has it, as A: its columns become rows.
__device__ __forceinline__ void load_piece(Pair (&a)[4], const unsigned char* weights, int piece)
{
    const int g = lane_index() / 4, t = lane_index() % 4;
    const Pair* pairs = (const Pair*)weights + (piece * 32 + g / 4 * 8 + g % 2 * 4 + t) * 4 + g % 4 / 2 * 2;
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = pairs[i % 2 * 64 + i / 2];
}
__device__ __forceinline__ void load_weights_of_warp(Pair (&a)[3 * TILES][4], const unsigned char* weights)
{
#pragma unroll
    for (int i = 0; i < 3 * TILES; ++i) load_piece(a[i], weights, threadIdx.x / 32 * 3 * TILES + i);
}
// Those of the input, [gate][unit / 8][UNITS / 8] blocks of 8 x 8.
__device__ __forceinline__ void place_input_weights(Element* shared, const unsigned char* weights)
{
    spread<3 * TILES>(shared, weights, THREADS, [&](int number, int unit, int depth) {
        const int from = number / 3 * 16 + depth;
        const int block = (number % 3 * (UNITS / 8) + unit / 8) * (UNITS / 8) + from / 8;
        return block * BLOCK + unit % 8 * 8 + from % 8;
    });
}

// Those of the layer after it, [OUTPUTS, UNITS], to fragments of A, [UNITS / 16][OUTPUTS / 16][lane].
__device__ __forceinline__ void place_out_weights(Fragment* shared, const Element* weights)
{
    for (int i = threadIdx.x; i < UNITS * OUTPUTS / 8; i += THREADS) {
        const int k = i / 32 % (OUTPUTS / 16), g = i % 32 / 4, t = i % 4;
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            const int unit = i / (2 * OUTPUTS) * 16 + g + part % 2 * 8, from = 16 * k + part / 2 * 8 + 2 * t;
            join(shared[i].pair[part], weights[from * UNITS + unit], weights[(from + 1) * UNITS + unit]);
        }
    }
}
// sum += those B, where B are rows of OUTPUTS in shared memory.
__device__ __forceinline__ void add_outputs(float (&sum)[COLUMNS][4], const Fragment* weights, const Element* rows)
{
    const int g = lane_index() >> 2, t = lane_index() & 3;
#pragma unroll
    for (int k = 0; k < OUTPUTS / 16; ++k) {
        const Fragment a = weights[(threadIdx.x / 32 * (OUTPUTS / 16) + k) * 32 + lane_index()];
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) {
            const Pair* b = (const Pair*)(rows + (8 * j + g) * OUTPUTS + 16 * k + 2 * t);
            multiply(sum[j], a.pair, b[0], b[4]);
        }
    }
}

// sum += a B of 16 numbers in depth.
template <int DEPTH>
__device__ __forceinline__ void add(float (&sum)[COLUMNS][4], const Pair (&a)[4], const Element* b)
{
    add_tile<false>(sum, a, b, ALONG, DEPTH / 8 * ALONG);
}
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// sum += A B of the k-th 16 numbers in depth, where A are weights of the input of a gate.
struct InputWeights {
    unsigned low, high;  // of the first gate's, as a product is told of them

    __device__ __forceinline__ explicit InputWeights(const Element* weights)
    {
        const unsigned long long a = describe(weights + threadIdx.x / 128 * 64 * UNITS, ALONG, UNITS / 8 * ALONG);
        low = __shfl_sync(ALL_LANES, (unsigned)a, 0);
        high = (unsigned)(a >> 32);
    }
    __device__ __forceinline__ void add(float (&sum)[COLUMNS][4], int gate, int k, const Element* b) const
    {
        constexpr int ACROSS = UNITS / 8 * ALONG;
        const unsigned at = low + ((gate * UNITS * UNITS * (int)sizeof(Element) + k * 2 * ALONG) >> 4);
        unsigned long long a;
        asm("mov.b64 %0, {%1, %2};" : "=l"(a) : "r"(at), "r"(high));
        add_product_in_shared<false, false, 0, COLUMNS>(sum, a, describe(b, ALONG, ACROSS), ACROSS);
    }
};
#else
struct InputWeights {
    const Element* weights;

    __device__ __forceinline__ explicit InputWeights(const Element* weights) : weights(weights) {}
    __device__ __forceinline__ void add(float (&sum)[COLUMNS][4], int gate, int k, const Element* b) const
    {
        const int g = lane_index() / 4, t = lane_index() % 4;
        Pair a[4];
        for (int i = 0; i < 4; ++i) {
            const int block = ((gate * UNITS + warp_unit()) / 8 + i % 2) * (UNITS / 8) + 2 * k + i / 2;
            a[i] = *(const Pair*)(weights + block * BLOCK + g * 8 + 2 * t);
        }
        ::add<UNITS>(sum, a, b);
    }
};
#endif

// ------------------------------------------------------------------------------------------------ gates

// Of a lane's units, for gates r, z, q, n.
__device__ __forceinline__ void load_biases(float (&bias)[4][2], const float* bias_input, const float* bias_hidden)
{
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int unit = unit_of_lane(half);
        bias[0][half] = bias_input[UNITS + unit] + bias_hidden[unit];
        bias[1][half] = bias_input[2 * UNITS + unit] + bias_hidden[UNITS + unit];
        bias[2][half] = bias_hidden[2 * UNITS + unit];
        bias[3][half] = bias_input[unit];
    }
}
// What goes into gates r, z, q, n: biases, the input's products, then the states'; `wait_for_sums` waits for both.
__device__ __forceinline__ void begin_sums(
    float (&sum)[4][COLUMNS][4], const float (&bias)[4][2], const InputWeights& by_input, const Element* input)
{
#pragma unroll
    for (int gate = 0; gate < 4; ++gate) {
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) {
            sum[gate][j][0] = sum[gate][j][1] = bias[gate][0];
            sum[gate][j][2] = sum[gate][j][3] = bias[gate][1];
        }
        settle(sum[gate]);
    }
    begin_products();
#pragma unroll
    for (int k = 0; k < TILES; ++k) {
        by_input.add(sum[0], 0, k, input + k * 2 * BLOCK);
        by_input.add(sum[1], 1, k, input + k * 2 * BLOCK);
        by_input.add(sum[3], 2, k, input + k * 2 * BLOCK);
    }
    end_products();
}
__device__ __forceinline__ void add_states(
    float (&sum)[4][COLUMNS][4], const Pair (&by_state)[3 * TILES][4], const Element* states)
{
    begin_products();
#pragma unroll
    for (int k = 0; k < TILES; ++k) {
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) add<UNITS>(sum[gate], by_state[3 * k + gate], states + k * 2 * BLOCK);
    }
    end_products();
}
__device__ __forceinline__ void wait_for_sums(float (&sum)[4][COLUMNS][4])
{
    wait_for_products<0>();
#pragma unroll
    for (int gate = 0; gate < 4; ++gate) settle(sum[gate]);
}

// One unit of a row, whose sums are those at [j][at].
struct Stepped {
    float n, r, z, q, after;
};
__device__ __forceinline__ Stepped step_unit(const float (&sum)[4][COLUMNS][4], int j, int at, float before)
{
    Stepped found;
    found.r = sigmoid(sum[0][j][at]), found.z = sigmoid(sum[1][j][at]), found.q = sum[2][j][at];
    found.n = quick_tanh(sum[3][j][at] + found.r * found.q);
    found.after = found.n + found.z * (before - found.n);
    return found;
}

// --------------------------------------------------------------------------------- to and from shared memory

// A warp's units of all rows [ROWS][pitch], of which `rows` is the first's.
__device__ __forceinline__ void load_turned(Pair (&pairs)[COLUMNS][2], const Element* rows, int pitch)
{
#pragma unroll
    for (int j = 0; j < COLUMNS; j += 2) {
        Pair a[4];
        load_columns<true, false>(a, rows + 8 * j * pitch, pitch, 0);
        pairs[j][0] = a[0], pairs[j][1] = a[1], pairs[j + 1][0] = a[2], pairs[j + 1][1] = a[3];
    }
}
// The other way; at(row, half) is where 8 units of a row go.
template <typename At>
__device__ __forceinline__ void store_turned(const Pair (&pairs)[COLUMNS][2], At at)
{
    const int lane = lane_index();
#pragma unroll
    for (int j = 0; j < COLUMNS; j += 2) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
        const unsigned place = (unsigned)__cvta_generic_to_shared(at(8 * (j + lane / 16) + lane % 8, lane / 8 % 2));
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(place),
                     "r"(pairs[j][0]), "r"(pairs[j][1]), "r"(pairs[j + 1][0]), "r"(pairs[j + 1][1])
                     : "memory");
#else
        for (int i = 0; i < 4; ++i) {
            const FloatPair two = unpack(pairs[j + i / 2][i % 2]);
            const int row = 8 * (j + i / 2) + 2 * (lane % 4);
            narrow(at(row, i % 2)[lane / 4], two.low);
            narrow(at(row + 1, i % 2)[lane / 4], two.high);
        }
#endif
    }
}

// A warp's units of all rows, to [ROWS][MADE_PITCH], and to what products read as B.
__device__ __forceinline__ void put_in_rows(Element* rows, const Pair (&pairs)[COLUMNS][2])
{
    store_turned(pairs, [&](int row, int half) { return rows + row * MADE_PITCH + warp_unit() + 8 * half; });
}
__device__ __forceinline__ void put_in_b(Element* b, const Pair (&pairs)[COLUMNS][2])
{
    store_turned(pairs, [&](int row, int half) { return place_in_b<UNITS>(b, row, warp_unit() + 8 * half); });
}
// Rows [step, row, UNITS] to what products read as B; all who compute call it.
__device__ __forceinline__ void fetch_rows(Element* b, const Element* from, const Sequences& rows, int step)
{
#pragma unroll
    for (int i = 0; i < ROWS * UNITS / 8 / COMPUTING; ++i) {
        const int row = (i * COMPUTING + threadIdx.x) / (UNITS / 8), piece = threadIdx.x % (UNITS / 8);
        const Bytes16* place = (const Bytes16*)(from + rows.place(step, row) * UNITS);
        start_copy((Bytes16*)place_in_b<UNITS>(b, row, 8 * piece), place + piece);
    }
    close_copies();
}

// Rows of `width` elements, from [step, row, width] to [ROWS][MADE_PITCH] in shared memory: a lane of the carrier that
// calls it brings one. `wait_for_rows` waits for all that comes by an arrival, for the round-th time.
//   num  elements that will
__device__ __forceinline__ void prepare_arrivals(unsigned long long* arrival)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    prepare_arrival(arrival);
#endif
}
__device__ __forceinline__ void expect_rows(unsigned long long* arrival, int num)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    if (lane_index() == 0) expect_bytes(arrival, num * (int)sizeof(Element));
    __syncwarp();
#endif
}
__device__ __forceinline__ void bring_rows(
    const Sequences& rows, int step, const Element* from, int width, Element* to, unsigned long long* arrival)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    const int row = lane_index();
    if (row < ROWS) {
        const Element* place = from + rows.place(step, row) * width;
        start_bulk_copy(to + row * MADE_PITCH, place, width * (int)sizeof(Element), arrival);
    }
#else
    for (int i = lane_index(); i < ROWS * width; i += 32) {
        to[i / width * MADE_PITCH + i % width] = from[rows.place(step, i / width) * width + i % width];
    }
#endif
}
// Those of OUTPUTS that are there, one after the other.
__device__ __forceinline__ void bring_outputs(
    const Sequences& rows, int step, const Element* from, Element* to, unsigned long long* arrival)
{
    const Element* place = from + rows.place(step, 0) * OUTPUTS;
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    if (lane_index() > 0) return;
    start_bulk_copy(to, place, rows.num_there() * OUTPUTS * (int)sizeof(Element), arrival);
#else
    for (int i = lane_index(); i < rows.num_there() * OUTPUTS; i += 32) to[i] = place[i];
#endif
}
__device__ __forceinline__ void wait_for_rows(unsigned long long* arrival, int round)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    wait_for_bytes(arrival, round);
#endif
}
// And back, those that are there.
__device__ __forceinline__ void store_rows(
    const Sequences& rows, int step, Element* to, int width, const Element* from)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    const int row = lane_index();
    if (row < ROWS && rows.has(row)) {
        start_bulk_store(to + rows.place(step, row) * width, from + row * MADE_PITCH, width * (int)sizeof(Element));
        close_bulk_stores();
    }
#else
    for (int i = lane_index(); i < ROWS * width; i += 32) {
        const int row = i / width, column = i % width;
        if (rows.has(row)) to[rows.place(step, row) * width + column] = from[row * MADE_PITCH + column];
    }
#endif
}
// Until what this thread gave may change.
__device__ __forceinline__ void wait_for_stored_rows()
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    wait_for_bulk_stores();
#endif
}

// 0 for the state before a step that remembers nothing; a carrier calls it.
__device__ __forceinline__ void forget_rows(const Sequences& rows, int step, const bool* starts, Element* hidden)
{
    const int mine = min(lane_index(), ROWS - 1);
    const bool forgets = lane_index() < ROWS && rows.has(mine) && rows.starts(starts, step, mine) > 0;
    unsigned left = __ballot_sync(ALL_LANES, forgets);
    for (; left != 0; left &= left - 1) {
        Element* place = hidden + rows.place(step, __ffs((int)left) - 1) * UNITS;
        for (int i = lane_index(); i < UNITS / 8; i += 32) ((Bytes16*)place)[i] = {};
    }
}
