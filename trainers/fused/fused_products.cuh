// The weights' gradient of a network of WARPGROUPS, out of the records that fused_learn.cuh wrote.
// Each record is read once from device memory, by blocks that run side by side.
//
// A block keeps one piece of the gradient in its registers while it goes through its share of the samples, 64 at a
// time. A piece is one of
//   128 columns of deltas 2 by all of hidden 1
//   128 columns of deltas 1 by all features, and 128 of hidden 2 by all deltas of the outputs
// Column sums, the biases' gradient, are products with ones, as is the column of ones among the features.
//
// Constants, besides those of layers/mlp.cuh, and of fused_learn.cuh those of records:
//   PIECES2, PIECES          pieces of the first kind, and all
//   BIAS2_AT, WEIGHT1_AT, WEIGHT3_AT, BIAS3_AT, PART
//                            where the products begin in a part of the gradient, and its size
//   TILE_BYTES               of 16 columns of 64 samples
//   STAGES, STAGE_BYTES      of shared memory, each of which holds what a piece needs of 64 samples
//   HEAD_BYTES               of shared memory before them

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
static_assert(8 * (PIECES - PIECES2) >= TILES1, "layer 1 has rows of no piece");
static_assert(8 * (PIECES - PIECES2) >= TILES2, "the outputs have rows of no piece");

constexpr int RECORD_TILES = RECORD / 16;
constexpr int HALF_BYTES = 64 * 64 * 2;  // what a warpgroup multiplies as A: 64 columns of 64 samples
constexpr int ACROSS = 1024;              // bytes of shared memory from 8 columns of 64 samples to the next 8
static_assert(TILE_BYTES == 16 * 64 * 2, "a tile is 16 columns of 64 samples");
static_assert(STAGE_BYTES >= (8 + TILES1) * TILE_BYTES, "a stage has no room for a piece of layer 2");
static_assert(STAGE_BYTES >= (16 + FEATURE_TILES + OUTPUT_TILES) * TILE_BYTES, "a stage has no room for other pieces");
static_assert(HEAD_BYTES >= 256 + 8 * STAGES, "ones and arrivals have no room before the stages");

// A stage's slabs of shared memory: how the bulk copies fill it, and what is multiplied.
struct Slab {
    int first_tile, num_tiles;  // of a record
};

// Copies slabs of the records of 64 samples side by side; one thread does.
template <int COUNT>
__device__ __forceinline__ void fill(
    char* stage, const unsigned char* records, const Slab (&slabs)[COUNT], unsigned long long* arrival)
{
    int num_bytes = 0;
    for (int i = 0; i < COUNT; ++i) num_bytes += slabs[i].num_tiles * TILE_BYTES;
    expect_bytes(arrival, num_bytes);
    for (int i = 0; i < COUNT; ++i) {
        const int size = slabs[i].num_tiles * TILE_BYTES;
        if (size > 0) start_bulk_copy(stage, records + slabs[i].first_tile * TILE_BYTES, size, arrival);
        stage += size;
    }
}

// Goes through tiles `first`, `first + step` .. of `num_tiles`: copies the slabs of each, and calls add(stage), which
// issues products. Tiles are counted from the end, as the last that were written are still in L2.
template <int COUNT, typename Add>
__device__ __forceinline__ void go_through(
    char* shared, const unsigned char* records, const Slab (&slabs)[COUNT], int first, int step, int num_tiles, Add add)
{
    unsigned long long* arrivals = (unsigned long long*)(shared + 256);
    char* stages = shared + HEAD_BYTES;
    const auto fill_stage = [&](int round) {
        const long long tile = num_tiles - 1 - (first + (long long)round * step);
        const int number = round % STAGES;
        fill(stages + number * STAGE_BYTES, records + tile * (RECORD_TILES * TILE_BYTES), slabs, arrivals + number);
    };
    const int count = first < num_tiles ? (num_tiles - first + step - 1) / step : 0;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES && i < count; ++i) fill_stage(i);
    }
    for (int i = 0; i < count; ++i) {
        wait_for_bytes(arrivals + i % STAGES, i / STAGES);
        begin_products();
        add(stages + i % STAGES * STAGE_BYTES);
        end_products();
        wait_for_products<0>();
        __syncthreads();
        if (threadIdx.x == 0 && i + STAGES < count) fill_stage(i + STAGES);
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

//   shared             shared memory of the block
//   block, num_blocks  which of how many work for this network
//   num_tiles          of records
//   goes_on            whether this adds to the parts that an earlier launch wrote
//   records            bytes of [tile of 64 samples, RECORD / 8, 64, 8] elements    read
//   parts              [num_blocks / PIECES, PART]  floats                          written
__device__ __forceinline__ void products(
    char* shared, int block, int num_blocks, int num_tiles, bool goes_on, const unsigned char* records, float* parts)
{
    const int piece = block % PIECES;  // blocks of one share follow each other: what two of them read is still in L2
    const int first = block / PIECES;
    const int step = num_blocks / PIECES;
    const int group = threadIdx.x >> 7;
    float* part = parts + (long long)first * PART;
    ((unsigned*)shared)[threadIdx.x & 63] = 0x3f803f80u;  // ones
    if (threadIdx.x < STAGES) prepare_arrival((unsigned long long*)(shared + 256) + threadIdx.x);
    show_to_products();
    __syncthreads();
    const unsigned long long ones = describe(shared, 128, 128);
    float bias[1][4];
    if (piece < PIECES2) {
        const int row = piece * 128 + group * 64;
        float sum[TILES1 * 2][4];
        begin_sums(sum, part + row * (TILES1 * 16), TILES1 * 16, goes_on);
        begin_row_sums(bias, part + BIAS2_AT + row, goes_on);
        const Slab slabs[] = {{DELTA2_AT / 16 + piece * 8, 8}, {HIDDEN1_AT / 16, TILES1}};
        go_through(shared, records, slabs, first, step, num_tiles, [&](const char* stage) {
            const unsigned long long delta2 = describe(stage + group * HALF_BYTES, 128, ACROSS);
            const unsigned long long hidden1 = describe(stage + 8 * TILE_BYTES, 128, ACROSS);
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                add_product_of_rows<0, TILES1 * 2>(sum, moved(delta2, k * 256), moved(hidden1, k * 256), ACROSS);
                add_product_of_rows<0, 1>(bias, moved(delta2, k * 256), ones, ACROSS);
            }
        });
        write_sums(sum, part + row * (TILES1 * 16), TILES1 * 16);
        write_row_sums(bias, part + BIAS2_AT + row);
    } else {
        const int number = piece - PIECES2;
        const bool has1 = number < TILES1 / 8;
        const bool has3 = number < TILES2 / 8;
        const int row = number * 128 + group * 64;
        float sum1[FEATURE_TILES * 2][4], sum3[OUTPUT_TILES * 2][4];
        float* out1 = part + WEIGHT1_AT + row * (FEATURE_TILES * 16);
        float* out3 = part + WEIGHT3_AT + row * (OUTPUT_TILES * 16);
        float* out_bias = part + BIAS3_AT + group * 64;
        begin_sums(sum1, out1, FEATURE_TILES * 16, goes_on && has1);
        begin_sums(sum3, out3, OUTPUT_TILES * 16, goes_on && has3);
        begin_row_sums(bias, out_bias, goes_on && number == 0);
        // The deltas of the outputs stand first: they are multiplied as if they were 128 columns.
        const Slab slabs[] = {
            {DELTA_OUT_AT / 16, OUTPUT_TILES},
            {0, FEATURE_TILES},
            {DELTA1_AT / 16 + (has1 ? number * 8 : 0), 8},
            {HIDDEN2_AT / 16 + (has3 ? number * 8 : 0), 8}};
        go_through(shared, records, slabs, first, step, num_tiles, [&](const char* stage) {
            constexpr int FEATURES = OUTPUT_TILES * TILE_BYTES;
            constexpr int DELTAS = FEATURES + FEATURE_TILES * TILE_BYTES;
            const unsigned long long delta_out = describe(stage, 128, ACROSS);
            const unsigned long long delta_out_rows = describe(stage + group * HALF_BYTES, 128, ACROSS);
            const unsigned long long features = describe(stage + FEATURES, 128, ACROSS);
            const unsigned long long delta1 = describe(stage + DELTAS + group * HALF_BYTES, 128, ACROSS);
            const unsigned long long hidden2 = moved(delta1, 8 * TILE_BYTES);
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                add_product_of_rows<0, FEATURE_TILES * 2>(
                    sum1, moved(delta1, k * 256), moved(features, k * 256), ACROSS);
                add_product_of_rows<0, OUTPUT_TILES * 2>(
                    sum3, moved(hidden2, k * 256), moved(delta_out, k * 256), ACROSS);
                add_product_of_rows<0, 1>(bias, moved(delta_out_rows, k * 256), ones, ACROSS);
            }
        });
        if (has1) write_sums(sum1, out1, FEATURE_TILES * 16);
        if (has3) write_sums(sum3, out3, OUTPUT_TILES * 16);
        if (number == 0) write_row_sums(bias, out_bias);
    }
}
