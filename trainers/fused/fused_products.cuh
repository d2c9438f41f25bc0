// The weights' gradient of a network of WARPGROUPS, out of the records that fused_learn.cuh wrote.
// Each record is read once from device memory, by blocks that run side by side.
//
// A block keeps one piece of the gradient in its registers while it goes through its share of the samples, 64 at a
// time. A piece is one of
//   128 columns of deltas 2 by all of hidden 1, and the same columns of hidden 2 by all deltas of the outputs
//   all of deltas 1 by all features; one piece of a network
// Hidden 1 and deltas 2 are no part of a record: a block makes its own out of the features, and out of hidden 2 and the
// deltas of the outputs, while products of the 64 samples before are under way. That costs less than to write and read
// them. Column sums, the biases' gradient, are products with ones, as is the column of ones among the features.
//
// Constants, besides those of layers/mlp.cuh, and of fused_learn.cuh those of records:
//   PIECES2                  pieces of the first kind
//   SHARES2, SHARES1         of the samples, for blocks of either kind: the second has less to do
//   BIAS2_AT, WEIGHT1_AT, WEIGHT3_AT, BIAS3_AT, PART
//                            where the products begin in a part of the gradient, and its size
//   TILE_BYTES               of 16 columns of 64 samples
//   HEAD_BYTES, MADE_BYTES   of shared memory before anything else; and of layer 1's weights and two times hidden 1
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
static_assert(MADE_BYTES == 2 * SIZE1 + 2 * GIVEN_BYTES, "what blocks make has no room");
static_assert(STAGE_BYTES2 >= (8 + FEATURE_TILES + OUTPUT_TILES) * TILE_BYTES, "a stage has no room for a piece");
static_assert(STAGE_BYTES1 >= (TILES1 + FEATURE_TILES + OUTPUT_TILES) * TILE_BYTES, "a stage has no room for a piece");
static_assert(HEAD_BYTES >= 256 + 8 * (STAGES1 > STAGES2 ? STAGES1 : STAGES2), "arrivals have no room");
static_assert(WARPS == 8, "two warpgroups have the columns of a piece between them");

// The column that stands at a place of a record's part, which place_of_column<COUNT> says the other way.
template <int COUNT>
__device__ constexpr int column_at(int place)
{
    constexpr int A_LANE = 4 * COUNT;
    const int within = place % (16 * COUNT);
    return place - within + within % A_LANE / 2 * 8 + within / A_LANE * 2 + within % 2;
}
static_assert(place_of_column<2>(column_at<2>(45)) == 45 && place_of_column<1>(column_at<1>(27)) == 27, "not inverse");

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
    // The first stages.
    __device__ __forceinline__ void start() const
    {
        for (int i = 0; i < STAGES && i < count(); ++i) fill(i);
    }
};

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

// c = start + a b, where `start` is of two columns, whatever the row.
__device__ __forceinline__ void multiply_first(float (&c)[4], const Pair (&a)[4], Pair b_low, Pair b_high, FloatPair start)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %11, %10, %11};"
        : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b_low), "r"(b_high), "f"(start.low), "f"(start.high));
}

// Layer 1's weights in shared memory, rows and columns as records have them: [row / 8][column / 8][8][8].
__device__ __forceinline__ void place_first_layer(Element* shared, const Element* weights)
{
    constexpr int BLOCKS = 2 * FEATURE_TILES;
#pragma unroll 16
    for (int i = threadIdx.x; i < SIZE1; i += 32 * WARPS) {
        const int block = i / 64;
        const int row = column_at<2>(block / BLOCKS * 8 + i % 64 / 8);
        const int column = column_at<AT_ONCE0>(block % BLOCKS * 8 + i % 8);
        shared[i] = weights[(row / 8 * BLOCKS + column / 8) * 64 + row % 8 * 8 + column % 8];
    }
}

// Hidden 1, as fused_learn.cuh made it. A warp makes an eighth of its columns, of all 64 samples.
struct FirstLayer {
    static constexpr int PAIRS = TILES1 / 8;                 // of 8 columns: a warp's
    static constexpr bool KEEPS = FEATURE_TILES <= 2;        // its weights in registers
    static constexpr int KEPT = KEEPS ? FEATURE_TILES : 1;
    const Element* weights;  // in shared memory
    Pair kept[KEPT][PAIRS][4];
    FloatPair bias[2 * PAIRS];

    __device__ __forceinline__ FirstLayer(const Element* weights, const float* biases) : weights(weights)
    {
        const int first = (threadIdx.x >> 5) * PAIRS * 16 + 2 * (lane_index() & 3);
#pragma unroll
        for (int i = 0; i < 2 * PAIRS; ++i) {
            bias[i] = {biases[column_at<2>(first + 8 * i)], biases[column_at<2>(first + 8 * i + 1)]};
        }
        if constexpr (KEEPS) {
#pragma unroll
            for (int k = 0; k < FEATURE_TILES; ++k) {
#pragma unroll
                for (int i = 0; i < PAIRS; ++i) load(kept[k][i], k, i);
            }
        }
    }
    __device__ __forceinline__ void load(Pair (&b)[4], int k, int i) const
    {
        load_weights<false, true>(b, weights, 2 * ((threadIdx.x >> 5) * PAIRS + i), 2 * k, 2 * FEATURE_TILES);
    }

    // What goes into the activation, of 32 samples from `row` on.
    //   features  [column / 8][64][8]
    __device__ __forceinline__ void sum_up(
        float (&sum)[2][2 * PAIRS][4], const Element* features, int row) const
    {
        const int lane = lane_index();
#pragma unroll
        for (int k = 0; k < FEATURE_TILES; ++k) {
            Pair a[2][4];
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                load_matrices<false>(a[r], features + (2 * k + (lane >> 4)) * 512 + (row + 16 * r + (lane & 15)) * 8);
            }
#pragma unroll
            for (int i = 0; i < PAIRS; ++i) {
                Pair b[4];
                if constexpr (KEEPS) {
                    for (int j = 0; j < 4; ++j) b[j] = kept[k][i][j];
                } else {
                    load(b, k, i);
                }
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    if (k == 0) {
                        multiply_first(sum[r][2 * i], a[r], b[0], b[1], bias[2 * i]);
                        multiply_first(sum[r][2 * i + 1], a[r], b[2], b[3], bias[2 * i + 1]);
                    } else {
                        multiply(sum[r][2 * i], a[r], b[0], b[1]);
                        multiply(sum[r][2 * i + 1], a[r], b[2], b[3]);
                    }
                }
            }
        }
    }
    // Their hidden 1.
    //   hidden  [column / 8][64][8]
    __device__ __forceinline__ void activate_all(const float (&sum)[2][2 * PAIRS][4], Element* hidden, int row) const
    {
        const int lane = lane_index();
        const int first = (threadIdx.x >> 5) * PAIRS * 2;  // of 8 columns
#pragma unroll
        for (int i = 0; i < 2 * PAIRS; ++i) {
            const float(&of)[4] = sum[i & 1][i / 2 * 2];
            const float(&next)[4] = sum[i & 1][i / 2 * 2 + 1];
            const Pair tile[4] = {
                packed(activate(of[0]), activate(of[1])), packed(activate(of[2]), activate(of[3])),
                packed(activate(next[0]), activate(next[1])), packed(activate(next[2]), activate(next[3]))};
            const int block = first + i / 2 * 2 + (lane >> 4);
            store_matrices(tile, hidden + block * 512 + (row + 16 * (i & 1) + (lane & 15)) * 8);
        }
    }
};

// Deltas 2, as fused_learn.cuh made them. A warp makes 16 columns, which are rows of A, of all 64 samples.
struct SecondDeltas {
    Pair weights[OUTPUT_TILES][4];  // of the outputs' layer
    int first;                      // of 8 columns among those of the piece

    //   column  the first, among those of hidden 2
    __device__ __forceinline__ SecondDeltas(const Element* of_outputs, int column, int first) : first(first)
    {
        const int g = lane_index() >> 2;
        const int t = lane_index() & 3;
#pragma unroll
        for (int i = 0; i < 4 * OUTPUT_TILES; ++i) {
            const int given = column_at<2>(column + g + 8 * (i & 1));
            const int output = column_at<1>(i / 4 * 16 + (i & 2) * 4 + 2 * t);  // and the next
            const Element* low = of_outputs + (output / 8 * (2 * TILES2) + given / 8) * 64 + output % 8 * 8 + given % 8;
            join(weights[i / 4][i % 4], low[0], low[8]);
        }
    }

    // What goes through the slopes, of 16 samples from `row` on.
    //   delta_out  of the outputs  [column / 8][64][8]
    __device__ __forceinline__ void sum_up(float (&sum)[2][4], const Element* delta_out, int row) const
    {
        const int lane = lane_index();
#pragma unroll
        for (int i = 0; i < OUTPUT_TILES; ++i) {
            Pair b[4];
            load_matrices<false>(b, delta_out + (2 * i + (lane >> 3 & 1)) * 512 + row_of(lane, row) * 8);
            if (i == 0) {
                multiply_first(sum[0], weights[i], b[0], b[1], FloatPair{0.0f, 0.0f});
                multiply_first(sum[1], weights[i], b[2], b[3], FloatPair{0.0f, 0.0f});
            } else {
                multiply(sum[0], weights[i], b[0], b[1]);
                multiply(sum[1], weights[i], b[2], b[3]);
            }
        }
    }
    // Their deltas, a tile of A.
    //   given  hidden 2, the columns of the piece  [column / 8][64][8]
    __device__ __forceinline__ void through_slopes(
        Pair (&delta)[4], const float (&sum)[2][4], const Element* given, int row) const
    {
        const int lane = lane_index();
        Pair was[4];
        load_matrices<true>(was, given + (first + (lane >> 3 & 1)) * 512 + row_of(lane, row) * 8);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float* two = &sum[i / 2][i % 2 * 2];
            delta[i] = delta_of(two[0], two[1], was[i]);
        }
    }
    static __device__ __forceinline__ int row_of(int lane, int row) { return row + (lane >> 4) * 8 + (lane & 7); }
};

// 128 columns of deltas 2 by hidden 1, and of hidden 2 by deltas of the outputs.
//   piece          of these columns
//   ones           a matrix of them, as `describe` has it
//   part           where the sums go
__device__ __forceinline__ void products_of_deltas2(
    char* shared, int piece, int share, int num_tiles, bool goes_on, unsigned long long ones,
    const unsigned char* records, const Element* weights, const float* biases, float* part)
{
    const int group = threadIdx.x >> 7;
    const int row = piece * 128 + group * 64;
    Element* weight1 = (Element*)(shared + HEAD_BYTES);
    char* hidden1 = (char*)(weight1 + SIZE1);  // two times
    const Supply<STAGES2, STAGE_BYTES2, 3> supply = {
        shared + HEAD_BYTES + MADE_BYTES, (unsigned long long*)(shared + 256), records,
        {{HIDDEN2_AT / 16 + piece * 8, 8}, {0, FEATURE_TILES}, {DELTA_OUT_AT / 16, OUTPUT_TILES}},
        share, SHARES2, num_tiles};
    constexpr int FEATURES = 8 * TILE_BYTES;
    constexpr int DELTAS_OUT = FEATURES + FEATURE_TILES * TILE_BYTES;
    if (threadIdx.x == 0) supply.start();
    place_first_layer(weight1, weights);
    __syncthreads();
    const FirstLayer layer1(weight1, biases);
    const int warp = threadIdx.x >> 5;
    const SecondDeltas deltas(weights + SIZE1 + SIZE2, piece * 128 + warp * 16, warp * 2);

    float sum[TILES1 * 2][4], sum3[OUTPUT_TILES * 2][4], bias[1][4];
    begin_sums(sum, part + row * (TILES1 * 16), TILES1 * 16, goes_on);
    begin_sums(sum3, part + WEIGHT3_AT + row * (OUTPUT_TILES * 16), OUTPUT_TILES * 16, goes_on);
    begin_row_sums(bias, part + BIAS2_AT + row, goes_on);
    const int count = supply.count();
    // A half of 64 samples is made in two steps. Products of the half before are issued between them: the first step's
    // own products would wait for those.
    float sum1[2][2 * FirstLayer::PAIRS][4], sum2[2][2][4];
    const auto sum_up = [&](int round, int half) {
        const char* stage = supply.stage(round);
        layer1.sum_up(sum1, (const Element*)(stage + FEATURES), 32 * half);
#pragma unroll
        for (int k = 0; k < 2; ++k) deltas.sum_up(sum2[k], (const Element*)(stage + DELTAS_OUT), 32 * half + 16 * k);
    };
    const auto finish = [&](Pair(&delta)[4][4], int round, int half) {
        layer1.activate_all(sum1, (Element*)(hidden1 + round % 2 * GIVEN_BYTES), 32 * half);
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            const Element* given = (const Element*)supply.stage(round);
            deltas.through_slopes(delta[2 * half + k], sum2[k], given, 32 * half + 16 * k);
        }
    };
    Pair delta2[4][4], next[4][4];
    if (count > 0) {
        supply.wait(0);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            sum_up(0, half);
            finish(next, 0, half);
        }
    }
    for (int i = 0; i < count; ++i) {
#pragma unroll
        for (int k = 0; k < 16; ++k) delta2[k / 4][k % 4] = next[k / 4][k % 4];
        show_to_products();
        __syncthreads();
        if (threadIdx.x == 0 && i > 0 && i - 1 + STAGES2 < count) supply.fill(i - 1 + STAGES2);
        __syncwarp();
        const char* stage = supply.stage(i);
        const unsigned long long given1 = describe(hidden1 + i % 2 * GIVEN_BYTES, 128, ACROSS);
        const unsigned long long given2 = describe(stage + group * 4 * TILE_BYTES, 128, ACROSS);
        const unsigned long long delta_out = describe(stage + DELTAS_OUT, 128, ACROSS);
        settle_input(delta2);
        const bool is_more = i + 1 < count;
        if (is_more) supply.wait(i + 1);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (is_more) sum_up(i + 1, half);
            begin_products();
#pragma unroll
            for (int k = 2 * half; k < 2 * half + 2; ++k) {
                add_product<false, true, 0, TILES1 * 2>(sum, delta2[k], moved(given1, k * 256), ACROSS);
                add_product<false, true, 0, 1>(bias, delta2[k], ones, ACROSS);
                add_product_of_rows<0, OUTPUT_TILES * 2>(
                    sum3, moved(given2, k * 256), moved(delta_out, k * 256), ACROSS);
            }
            end_products();
            if (is_more) finish(next, i + 1, half);
        }
        wait_for_products<0>();
        settle_input(delta2);  // until now products read these registers
    }
    write_sums(sum, part + row * (TILES1 * 16), TILES1 * 16);
    write_sums(sum3, part + WEIGHT3_AT + row * (OUTPUT_TILES * 16), OUTPUT_TILES * 16);
    write_row_sums(bias, part + BIAS2_AT + row);
}

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
        shared + HEAD_BYTES, (unsigned long long*)(shared + 256), records,
        {{DELTA_OUT_AT / 16, OUTPUT_TILES}, {0, FEATURE_TILES}, {DELTA1_AT / 16, TILES1}}, share, SHARES1, num_tiles};
    if (threadIdx.x == 0) supply.start();
    float sum[HALVES][FEATURE_TILES * 2][4], bias[1][4];
    const auto out = [&](int i) { return part + WEIGHT1_AT + (i * 128 + group * 64) * (FEATURE_TILES * 16); };
#pragma unroll
    for (int i = 0; i < HALVES; ++i) begin_sums(sum[i], out(i), FEATURE_TILES * 16, goes_on);
    begin_row_sums(bias, part + BIAS3_AT + group * 64, goes_on);
    const int count = supply.count();
    for (int i = 0; i < count; ++i) {
        supply.wait(i);
        const char* stage = supply.stage(i);
        const unsigned long long delta_out = describe(stage + group * HALF, 128, ACROSS);
        const unsigned long long features = describe(stage + OUTPUT_TILES * TILE_BYTES, 128, ACROSS);
        const unsigned long long delta1 = moved(features, FEATURE_TILES * TILE_BYTES + group * HALF);
        begin_products();
#pragma unroll
        for (int k = 0; k < 4; ++k) {
#pragma unroll
            for (int half = 0; half < HALVES; ++half) {
                add_product_of_rows<0, FEATURE_TILES * 2>(
                    sum[half], moved(delta1, k * 256 + half * 2 * HALF), moved(features, k * 256), ACROSS);
            }
            add_product_of_rows<0, 1>(bias, moved(delta_out, k * 256), ones, ACROSS);
        }
        end_products();
        wait_for_products<0>();
        __syncthreads();
        if (threadIdx.x == 0 && i + STAGES1 < count) supply.fill(i + STAGES1);
        __syncwarp();
    }
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
//   parts              [SHARES2, PART]  floats; layer 1 in the first SHARES1        written
__device__ __forceinline__ void products(
    char* shared, int block, int num_tiles, bool goes_on, const unsigned char* weights, const float* biases,
    const unsigned char* records, float* parts)
{
    ((unsigned*)shared)[threadIdx.x & 63] = 0x3f803f80u;  // ones
    if (threadIdx.x < STAGES1 || threadIdx.x < STAGES2) {
        prepare_arrival((unsigned long long*)(shared + 256) + threadIdx.x);
    }
    show_to_products();
    __syncthreads();
    const unsigned long long ones = describe(shared, 128, 128);
    const int of_layer1 = block - PIECES2 * SHARES2;
    if (of_layer1 < 0) {
        const int share = block / PIECES2;  // blocks of one follow each other: what two of them read is still in L2
        products_of_deltas2(
            shared, block % PIECES2, share, num_tiles, goes_on, ones, records, (const Element*)weights, biases,
            parts + (long long)share * PART);
    } else {
        products_of_deltas1(
            shared, of_layer1, num_tiles, goes_on, ones, records, parts + (long long)of_layer1 * PART);
    }
}
