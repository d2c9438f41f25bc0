// The weights' gradient of a network of WARPGROUPS, out of the records that fused_learn.cuh wrote.
// Blocks that read the same parts of a record run side by side, so that device memory is asked for most of it once.
//
// A block keeps one piece of the gradient in its registers while it goes through its share of the samples, 64 at a
// time. A piece is one of
//   128 columns of deltas 2 by all of hidden 1, and the same columns of hidden 2 by all deltas of the outputs
//   all of deltas 1 by all features; one piece of a network
// Where it MAKES them, hidden 1 and deltas 2 are no part of a record: a block makes its own out of the features, and out
// of hidden 2 and the deltas of the outputs, while products of the 64 samples before are under way. Column sums, the
// biases' gradient, are products with ones, as is the column of ones among the features.
//
// Constants, besides those of layers/mlp.cuh, and of fused_learn.cuh those of records:
//   PIECES2                  pieces of the first kind
//   SHARES2, SHARES1         of the samples, for blocks of either kind: the second has less to do
//   BIAS2_AT, WEIGHT1_AT, WEIGHT3_AT, BIAS3_AT, PART
//                            where the products begin in a part of the gradient, and its size
//   TILE_BYTES               of 16 columns of 64 samples
//   HEAD_BYTES, MADE_BYTES   of shared memory before anything else; and of layer 1's weights and two times hidden 1, if
//                            it MAKES them
//   STAGES2, STAGES1         how many times what a piece of either kind needs of 64 samples is there at once
//   STAGE_BYTES2, STAGE_BYTES1
//                            of shared memory for each

// A part of the gradient, its columns in the order of records:
//   [delta 2, hidden 1]
//   [delta 2]
//   [delta 1, feature]
//   [hidden 2, delta of the outputs]
//   [delta of the outputs, up to 128]
static_assert(BIAS2_AT == TILES2 * TILES1 * 256 && WEIGHT1_AT - BIAS2_AT == TILES2 * 16, "pieces meet");
static_assert(WEIGHT3_AT - WEIGHT1_AT == TILES1 * FEATURE_TILES * 256, "pieces meet");
static_assert(BIAS3_AT - WEIGHT3_AT == TILES2 * OUTPUT_TILES * 256 && PART - BIAS3_AT == 128, "pieces meet");
static_assert(8 * PIECES2 == TILES2, "layer 2 has rows of no piece");
static_assert(TILES1 % 8 == 0, "layer 1 has rows of no piece");
static_assert(SHARES1 <= SHARES2, "there are parts for as many shares as layer 2 has");

constexpr int RECORD_TILES = RECORD / 16;
constexpr int ACROSS = 1024;  // bytes of shared memory from 8 columns of 64 samples to the next 8
constexpr int GIVEN_BYTES = TILES1 * TILE_BYTES;
static_assert(TILE_BYTES == 16 * 64 * 2, "a tile is 16 columns of 64 samples");
static_assert(MADE_BYTES == (MAKES ? 2 * SIZE1 + 2 * GIVEN_BYTES : 0), "what blocks make has no room");
static_assert(
    STAGE_BYTES2 >= (8 + (MAKES ? FEATURE_TILES : 8 + TILES1) + OUTPUT_TILES) * TILE_BYTES,
    "a stage has no room for a piece");
static_assert(STAGE_BYTES1 >= (TILES1 + FEATURE_TILES + OUTPUT_TILES) * TILE_BYTES, "a stage has no room for a piece");
constexpr int ARRIVAL_BYTES = 256;  // of shared memory; ones stand behind
static_assert(ARRIVAL_BYTES >= 8 * (STAGES1 > STAGES2 ? STAGES1 : STAGES2), "arrivals have no room");
static_assert(HEAD_BYTES >= ARRIVAL_BYTES + 256, "ones have no room");
static_assert(STAGES1 >= 1 && STAGES2 >= (MAKES ? 2 : 1), "the next samples have no room");
static_assert(WARPS == 8, "two warpgroups have the columns of a piece between them");

// What a stage of shared memory holds of 64 samples: some tiles of their records, one slab behind the other.
struct Slab {
    int first_tile, num_tiles;  // of a record
};

// Stages, which bulk copies fill with slabs of tiles `first`, `first + step` .. of `num_tiles`. Tiles are counted from
// the end, as the last that were written are still in L2.
template <int STAGES, int STAGE_BYTES, int COUNT>
struct Supply {
    char* stages;
    unsigned long long* arrivals;  // a stage's
    const unsigned char* records;
    Slab slabs[COUNT];
    int first, step, num_tiles;

    __device__ __forceinline__ int count() const
    {
        return first < num_tiles ? (num_tiles - first + step - 1) / step : 0;
    }
    __device__ __forceinline__ char* stage(int round) const { return stages + round % STAGES * STAGE_BYTES; }
    __device__ __forceinline__ void wait(int round) const { wait_for_bytes(arrivals + round % STAGES, round / STAGES); }

    // One thread calls it, when nobody reads any more what the stage held before.
    __device__ __forceinline__ void fill(int round) const
    {
        const long long tile = num_tiles - 1 - (first + (long long)round * step);
        const unsigned char* record = records + tile * (RECORD_TILES * TILE_BYTES);
        unsigned long long* arrival = arrivals + round % STAGES;
        char* place = stage(round);
        int num_bytes = 0;
        for (int i = 0; i < COUNT; ++i) num_bytes += slabs[i].num_tiles * TILE_BYTES;
        expect_bytes(arrival, num_bytes);
        for (int i = 0; i < COUNT; ++i) {
            const int size = slabs[i].num_tiles * TILE_BYTES;
            start_bulk_copy(place, record + slabs[i].first_tile * TILE_BYTES, size, arrival);
            place += size;
        }
    }
    // Fills the first stages.
    __device__ __forceinline__ void start() const
    {
        if (threadIdx.x == 0) {
            for (int i = 0; i < STAGES && i < count(); ++i) fill(i);
        }
        __syncwarp();
    }
};

// Goes through all that a supply brings: calls add(stage), which issues products.
template <int STAGES, int STAGE_BYTES, int COUNT, typename Add>
__device__ __forceinline__ void go_through(const Supply<STAGES, STAGE_BYTES, COUNT>& supply, Add add)
{
    const int count = supply.count();
    for (int i = 0; i < count; ++i) {
        supply.wait(i);
        begin_products();
        add(supply.stage(i));
        end_products();
        wait_for_products<0>();
        __syncthreads();
        if (threadIdx.x == 0 && i + STAGES < count) supply.fill(i + STAGES);
        __syncwarp();
    }
}

// Sums of 64 rows by 8 COUNT columns, to [.., pitch] floats, or from there; `out` is where the warpgroup's begin.
template <int COUNT, typename Each>
__device__ __forceinline__ void for_each_pair(float (&sum)[COUNT][4], float* out, int pitch, Each each)
{
    const int row = (threadIdx.x >> 5) % 4 * 16 + (lane_index() >> 2);
    float* place = out + row * pitch + 2 * (lane_index() & 3);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        each(sum[i][0], sum[i][1], (FloatPair*)(place + 8 * i));
        each(sum[i][2], sum[i][3], (FloatPair*)(place + 8 * pitch + 8 * i));
    }
}
template <int COUNT>
__device__ __forceinline__ void begin_sums(float (&sum)[COUNT][4], float* out, int pitch, bool goes_on)
{
    for_each_pair(sum, out, pitch, [&](float& low, float& high, const FloatPair* place) {
        const FloatPair was = goes_on ? *place : FloatPair{0.0f, 0.0f};
        low = was.low;
        high = was.high;
    });
    settle(sum);
}
template <int COUNT>
__device__ __forceinline__ void write_sums(float (&sum)[COUNT][4], float* out, int pitch)
{
    settle(sum);
    for_each_pair(sum, out, pitch, [](float low, float high, FloatPair* place) { *place = {low, high}; });
}

// Row sums alone, which stand in every column of a product with ones; `out` [64] is the warpgroup's.
__device__ __forceinline__ void begin_row_sums(float (&sum)[1][4], const float* out, bool goes_on)
{
    const float* place = out + (threadIdx.x >> 5) % 4 * 16 + (lane_index() >> 2);
    sum[0][0] = sum[0][1] = goes_on ? place[0] : 0.0f;
    sum[0][2] = sum[0][3] = goes_on ? place[8] : 0.0f;
    settle(sum);
}
__device__ __forceinline__ void write_row_sums(float (&sum)[1][4], float* out)
{
    settle(sum);
    if ((lane_index() & 3) != 0) return;
    float* place = out + (threadIdx.x >> 5) % 4 * 16 + (lane_index() >> 2);
    place[0] = sum[0][0];
    place[8] = sum[0][2];
}

// What comes of 64 columns of deltas 2, and of hidden 2, from `row` on.
struct SumsOfDeltas2 {
    float weight2[TILES1 * 2][4], weight3[OUTPUT_TILES * 2][4], bias2[1][4];

    __device__ __forceinline__ void begin(float* part, int row, bool goes_on)
    {
        begin_sums(weight2, part + row * (TILES1 * 16), TILES1 * 16, goes_on);
        begin_sums(weight3, part + WEIGHT3_AT + row * (OUTPUT_TILES * 16), OUTPUT_TILES * 16, goes_on);
        begin_row_sums(bias2, part + BIAS2_AT + row, goes_on);
    }
    __device__ __forceinline__ void write(float* part, int row)
    {
        write_sums(weight2, part + row * (TILES1 * 16), TILES1 * 16);
        write_sums(weight3, part + WEIGHT3_AT + row * (OUTPUT_TILES * 16), OUTPUT_TILES * 16);
        write_row_sums(bias2, part + BIAS2_AT + row);
    }
};

// 128 columns of deltas 2 by hidden 1, and of hidden 2 by deltas of the outputs.
//   piece          of these columns
//   ones           a matrix of them, as `describe` has it
//   part           where the sums go
__device__ __forceinline__ void products_of_deltas2(
    char* shared, int piece, int share, int num_tiles, bool goes_on, unsigned long long ones,
    const unsigned char* records, float* part)
{
    const int group = threadIdx.x >> 7;
    const int row = piece * 128 + group * 64;
    const Supply<STAGES2, STAGE_BYTES2, 4> supply = {
        shared + HEAD_BYTES, (unsigned long long*)shared, records,
        {{HIDDEN2_AT / 16 + piece * 8, 8},
         {DELTA2_AT / 16 + piece * 8, 8},
         {HIDDEN1_AT / 16, TILES1},
         {DELTA_OUT_AT / 16, OUTPUT_TILES}},
        share, SHARES2, num_tiles};
    supply.start();
    SumsOfDeltas2 sums;
    sums.begin(part, row, goes_on);
    go_through(supply, [&](const char* stage) {
        const unsigned long long hidden2 = describe(stage + group * 4 * TILE_BYTES, 128, ACROSS);
        const unsigned long long delta2 = moved(hidden2, 8 * TILE_BYTES);
        const unsigned long long hidden1 = describe(stage + 16 * TILE_BYTES, 128, ACROSS);
        const unsigned long long delta_out = moved(hidden1, TILES1 * TILE_BYTES);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            add_product_of_rows<0, TILES1 * 2>(sums.weight2, moved(delta2, k * 256), moved(hidden1, k * 256), ACROSS);
            add_product_of_rows<0, 1>(sums.bias2, moved(delta2, k * 256), ones, ACROSS);
            add_product_of_rows<0, OUTPUT_TILES * 2>(
                sums.weight3, moved(hidden2, k * 256), moved(delta_out, k * 256), ACROSS);
        }
    });
    sums.write(part, row);
}

#include "products_made.cuh"

// All of deltas 1 by all features; and the sums of the outputs' deltas.
__device__ __forceinline__ void products_of_deltas1(
    char* shared, int share, int num_tiles, bool goes_on, unsigned long long ones, const unsigned char* records,
    float* part)
{
    constexpr int HALVES = TILES1 / 8;       // of 128 columns, which two warpgroups multiply
    constexpr int HALF = 4 * TILE_BYTES;     // what one of them multiplies as A
    const int group = threadIdx.x >> 7;
    // The deltas of the outputs stand first: they are multiplied as if they were 128 columns.
    const Supply<STAGES1, STAGE_BYTES1, 3> supply = {
        shared + HEAD_BYTES, (unsigned long long*)shared, records,
        {{DELTA_OUT_AT / 16, OUTPUT_TILES}, {0, FEATURE_TILES}, {DELTA1_AT / 16, TILES1}}, share, SHARES1, num_tiles};
    supply.start();
    float sum[HALVES][FEATURE_TILES * 2][4], bias[1][4];
    const auto out = [&](int i) { return part + WEIGHT1_AT + (i * 128 + group * 64) * (FEATURE_TILES * 16); };
#pragma unroll
    for (int i = 0; i < HALVES; ++i) begin_sums(sum[i], out(i), FEATURE_TILES * 16, goes_on);
    begin_row_sums(bias, part + BIAS3_AT + group * 64, goes_on);
    go_through(supply, [&](const char* stage) {
        const unsigned long long delta_out = describe(stage + group * HALF, 128, ACROSS);
        const unsigned long long features = describe(stage + OUTPUT_TILES * TILE_BYTES, 128, ACROSS);
        const unsigned long long delta1 = moved(features, FEATURE_TILES * TILE_BYTES + group * HALF);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
#pragma unroll
            for (int half = 0; half < HALVES; ++half) {
                add_product_of_rows<0, FEATURE_TILES * 2>(
                    sum[half], moved(delta1, k * 256 + half * 2 * HALF), moved(features, k * 256), ACROSS);
            }
            add_product_of_rows<0, 1>(bias, moved(delta_out, k * 256), ones, ACROSS);
        }
    });
#pragma unroll
    for (int i = 0; i < HALVES; ++i) write_sums(sum[i], out(i), FEATURE_TILES * 16);
    write_row_sums(bias, part + BIAS3_AT + group * 64);
}

//   shared             shared memory of the block
//   block              which of PIECES2 SHARES2 + SHARES1 that work for this network
//   num_tiles          of records
//   goes_on            whether this adds to the parts that an earlier launch wrote
//   weights, biases    as in fused_act.cuh                                          read
//   records            bytes of [tile of 64 samples, RECORD / 8, 64, 8] elements    read
//   parts              [SHARES2, PART]  floats; layer 1 and the outputs' biases in the first SHARES1 alone: in the
//                      others they must be 0                                        written
__device__ __forceinline__ void products(
    char* shared, int block, int num_tiles, bool goes_on, const unsigned char* weights, const float* biases,
    const unsigned char* records, float* parts)
{
    if (threadIdx.x < 64) ((unsigned*)(shared + ARRIVAL_BYTES))[threadIdx.x] = 0x3f803f80u;  // ones
    if (threadIdx.x < STAGES1 || threadIdx.x < STAGES2) {
        prepare_arrival((unsigned long long*)shared + threadIdx.x);
    }
    show_to_products();
    __syncthreads();
    const unsigned long long ones = describe(shared + ARRIVAL_BYTES, 128, 128);
    const int of_layer1 = block - PIECES2 * SHARES2;
    if (of_layer1 < 0) {
        const int share = block / PIECES2;  // blocks of one follow each other: what two of them read is still in L2
        float* part = parts + (long long)share * PART;
        if constexpr (MAKES) {
            products_of_made_deltas2(
                shared, block % PIECES2, share, num_tiles, goes_on, ones, records, (const Element*)weights, biases, part);
        } else {
            products_of_deltas2(shared, block % PIECES2, share, num_tiles, goes_on, ones, records, part);
        }
    } else {
        products_of_deltas1(
            shared, of_layer1, num_tiles, goes_on, ones, records, parts + (long long)of_layer1 * PART);
    }
}
