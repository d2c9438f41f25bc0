// The sums of products that the weights' gradient is made of; a part of fused_learn.cuh, if it ACCUMULATES.
// A block has records of its samples in shared memory.
//
// A unit of this work is 16 columns of the record, loaded once, times up to MOVING tiles of 16 columns. It is one of
//   features times deltas of the first layer
//   deltas of a later layer times what it got, and times ones, which gives its biases
// Where there are fewer units than warps, several warps have the same unit, each for a slice of the samples.

__device__ constexpr int num_chunks(int tiles, int moving)
{
    return (tiles + moving - 1) / moving;
}
__device__ constexpr int num_units(int moving)
{
    return (FEATURE_TILES + TILES2) * num_chunks(TILES1, moving) + OUTPUT_TILES * num_chunks(LAST_TILES, moving);
}
__device__ constexpr int num_slices(int moving)
{
    int slices = 1;
    while (2 * slices * num_units(moving) <= WARPS) slices *= 2;
    return slices;
}
__device__ constexpr int num_units_a_warp(int moving)
{
    return num_chunks(num_units(moving), WARPS / num_slices(moving));
}
// The fewest loads from shared memory, with few more registers than blocks of 16 x 16, dealt evenly, would take.
__device__ constexpr int choose_moving()
{
    const int most_sums = 2 * num_chunks(NUM_BLOCKS, WARPS) + 2;  // of 16 x 8
    int best = 0;
    int fewest_loads = 0;
    for (int moving = 1; moving <= (TILES1 > LAST_TILES ? TILES1 : LAST_TILES); ++moving) {
        const int units = num_units_a_warp(moving);
        const int loads = units * (moving + 1) * (WARPS / num_slices(moving));
        if (units * (2 * moving + 1) > most_sums || (best > 0 && loads >= fewest_loads)) continue;
        best = moving;
        fewest_loads = loads;
    }
    return best > 0 ? best : 1;
}
constexpr int MOVING = ACCUMULATES ? choose_moving() : 1;
constexpr int UNITS = num_units(MOVING);
constexpr int NUM_SLICES = ACCUMULATES ? num_slices(MOVING) : 1;
constexpr int UNITS_AT_ONCE = WARPS / NUM_SLICES;
constexpr int UNITS_A_WARP = ACCUMULATES ? num_units_a_warp(MOVING) : 1;

// The gradient is blocks of 16 x 16, each the product of 16 columns of deltas and 16 of what they go with.
// The biases of the first layer come with its weights.
static_assert(BLOCKS2_AT == TILES1 * FEATURE_TILES, "blocks of the gradient meet");
static_assert(BLOCKS3_AT - BLOCKS2_AT == TILES2 * TILES1, "blocks of the gradient meet");
static_assert(BIASES_AT - BLOCKS3_AT == OUTPUT_TILES * LAST_TILES, "blocks of the gradient meet");
static_assert(NUM_BLOCKS - BIASES_AT == TILES2 + OUTPUT_TILES, "blocks of the gradient meet");

struct Sums {
    float product[UNITS_A_WARP][MOVING][2][4];
    float bias[UNITS_A_WARP][4];
};

struct Unit {
    int fixed;         // where its 16 columns begin in the record
    int moving;        // and the tiles that they are multiplied by,
    int count;         // so many of them
    int number, step;  // of the first product among the blocks of the gradient, and from one to the next
    int bias;          // the block of biases; -1 for none
    bool is_first;     // whether it is of the first layer: its products are the blocks' transposes
};

__device__ __forceinline__ Unit unit_of(int i)
{
    constexpr int CHUNKS1 = num_chunks(TILES1, MOVING);
    constexpr int CHUNKS3 = num_chunks(LAST_TILES, MOVING);
    if (i < FEATURE_TILES * CHUNKS1) {
        const int tile = i / CHUNKS1;
        const int first = i % CHUNKS1 * MOVING;
        return {16 * tile,     DELTA1_AT + 16 * first, min(MOVING, TILES1 - first), first * FEATURE_TILES + tile,
                FEATURE_TILES, -1,                     true};
    }
    i -= FEATURE_TILES * CHUNKS1;
    if (i < TILES2 * CHUNKS1) {
        const int tile = i / CHUNKS1;
        const int first = i % CHUNKS1 * MOVING;
        return {DELTA2_AT + 16 * tile,
                HIDDEN1_AT + 16 * first,
                min(MOVING, TILES1 - first),
                BLOCKS2_AT + tile * TILES1 + first,
                1,
                first == 0 ? BIASES_AT + tile : -1,
                false};
    }
    i -= TILES2 * CHUNKS1;
    const int tile = i / CHUNKS3;
    const int first = i % CHUNKS3 * MOVING;
    return {DELTA_OUT_AT + 16 * tile,
            LAST_AT + 16 * first,
            min(MOVING, LAST_TILES - first),
            BLOCKS3_AT + tile * LAST_TILES + first,
            1,
            first == 0 ? BIASES_AT + TILES2 + tile : -1,
            false};
}

// Adds the products of a block's records. A warp that has no unit left does the last one again, which nobody writes.
__device__ __forceinline__ void add_products(Sums& sums, const Element* records)
{
    constexpr int STEPS = WARPS * ROW_TILES / NUM_SLICES;
    const int warp = threadIdx.x >> 5;
    const Element* slice = records + warp / UNITS_AT_ONCE * STEPS * 16 * PITCH;
    const float one_or_zero = lane_index() >> 2 == ONES_AT % 8 ? 1.0f : 0.0f;
    const Pair ones = packed(one_or_zero, one_or_zero);
#pragma unroll
    for (int i = 0; i < UNITS_A_WARP; ++i) {
        const Unit unit = unit_of(min(warp % UNITS_AT_ONCE + i * UNITS_AT_ONCE, UNITS - 1));
#pragma unroll
        for (int k = 0; k < STEPS; ++k) {
            const Element* rows = slice + k * 16 * PITCH;
            Pair a[4];
            load_columns<true, SWIZZLES>(a, rows, PITCH, unit.fixed);
#pragma unroll
            for (int j = 0; j < MOVING; ++j) {
                Pair b[4];
                load_columns<false, SWIZZLES>(b, rows, PITCH, unit.moving + 16 * min(j, unit.count - 1));
                multiply(sums.product[i][j][0], a, b[0], b[1]);
                multiply(sums.product[i][j][1], a, b[2], b[3]);
            }
            multiply(sums.bias[i], a, ones, ones);
        }
    }
}

// Adds the slices up, in their order, and writes the part of the gradient.
//   shared  as much of it as the records took, which nobody reads any more
//   out     [NUM_BLOCKS, 16, 16]; of a block of biases, eight columns
__device__ __forceinline__ void write_products(Sums& sums, char* shared, float* out)
{
    constexpr int PIECES = (int)sizeof(Sums) / 8;  // of a lane
    constexpr int RECORD_BYTES = WARPS * WARP_ROWS * PITCH * (int)sizeof(Element);
    static_assert((NUM_SLICES - 1) * UNITS_AT_ONCE * PIECES * 256 <= RECORD_BYTES, "slices are more than records");
    const int warp = threadIdx.x >> 5;
    const int lane = lane_index();
    FloatPair* all = (FloatPair*)shared + lane;  // [slice - 1][unit at once][piece][lane]
    FloatPair* mine = (FloatPair*)&sums;
    if (NUM_SLICES > 1) {
        if (warp >= UNITS_AT_ONCE) {
#pragma unroll
            for (int i = 0; i < PIECES; ++i) all[((warp - UNITS_AT_ONCE) * PIECES + i) * 32] = mine[i];
        }
        __syncthreads();
        if (warp >= UNITS_AT_ONCE) return;
#pragma unroll
        for (int slice = 0; slice < NUM_SLICES - 1; ++slice) {
#pragma unroll
            for (int i = 0; i < PIECES; ++i) {
                const FloatPair more = all[((slice * UNITS_AT_ONCE + warp) * PIECES + i) * 32];
                mine[i].low += more.low;
                mine[i].high += more.high;
            }
        }
    }
    const int g = lane >> 2;
    const int t = lane & 3;
#pragma unroll
    for (int i = 0; i < UNITS_A_WARP; ++i) {
        const int number = warp + i * UNITS_AT_ONCE;
        if (number >= UNITS) break;
        const Unit unit = unit_of(number);
#pragma unroll
        for (int j = 0; j < MOVING; ++j) {
            if (j >= unit.count) break;
            float* block = out + (unit.number + j * unit.step) * 256;
#pragma unroll
            for (int k = 0; k < 8; ++k) {
                const int row = g + 8 * (k / 2 % 2);
                const int column = 8 * (k / 4) + 2 * t + k % 2;
                block[unit.is_first ? column * 16 + row : row * 16 + column] = sums.product[i][j][k / 4][k % 4];
            }
        }
        if (unit.bias >= 0) {
            float* block = out + unit.bias * 256 + ONES_AT % 16 / 8 * 8 + 2 * t;
            *(FloatPair*)(block + g * 16) = {sums.bias[i][0], sums.bias[i][1]};
            *(FloatPair*)(block + (g + 8) * 16) = {sums.bias[i][2], sums.bias[i][3]};
        }
    }
}
