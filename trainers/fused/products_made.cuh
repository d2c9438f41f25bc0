// What a block of fused_products.cuh makes itself, where it MAKES hidden 1 and deltas 2, while products of what it made
// before are under way; a part of that file, which lists the constants.

// The column that stands at a place of a record's part, which place_of_column<COUNT> says the other way.
template <int COUNT>
__device__ constexpr int column_at(int place)
{
    constexpr int A_LANE = 4 * COUNT;
    const int within = place % (16 * COUNT);
    return place - within + within % A_LANE / 2 * 8 + within / A_LANE * 2 + within % 2;
}
static_assert(place_of_column<2>(column_at<2>(45)) == 45 && place_of_column<1>(column_at<1>(27)) == 27, "not inverse");

// c = start + a b, where `start` is of two columns, whatever the row.
__device__ __forceinline__ void multiply_first(
    float (&c)[4], const Pair (&a)[4], Pair b_low, Pair b_high, FloatPair start)
{
#if HAS_TENSOR_CORES
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %11, %10, %11};"
        : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b_low), "r"(b_high), "f"(start.low), "f"(start.high));
#else
    for (int i = 0; i < 4; ++i) c[i] = i % 2 ? start.high : start.low;
    multiply(c, a, b_low, b_high);
#endif
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

// What products_of_deltas2 sums up, of deltas 2 and hidden 1 that are made here.
__device__ __forceinline__ void products_of_made_deltas2(
    char* shared, int piece, int share, int num_tiles, bool goes_on, unsigned long long ones,
    const unsigned char* records, const Element* weights, const float* biases, float* part)
{
    const int group = threadIdx.x >> 7;
    const int row = piece * 128 + group * 64;
    Element* weight1 = (Element*)(shared + HEAD_BYTES);
    char* hidden1 = (char*)(weight1 + SIZE1);  // two times
    const Supply<STAGES2, STAGE_BYTES2, 3> supply = {
        shared + HEAD_BYTES + MADE_BYTES, (unsigned long long*)shared, records,
        {{HIDDEN2_AT / 16 + piece * 8, 8}, {0, FEATURE_TILES}, {DELTA_OUT_AT / 16, OUTPUT_TILES}},
        share, SHARES2, num_tiles};
    constexpr int FEATURES = 8 * TILE_BYTES;
    constexpr int DELTAS_OUT = FEATURES + FEATURE_TILES * TILE_BYTES;
    supply.start();
    place_first_layer(weight1, weights);
    __syncthreads();
    const FirstLayer layer1(weight1, biases);
    const int warp = threadIdx.x >> 5;
    const SecondDeltas deltas(weights + SIZE1 + SIZE2, piece * 128 + warp * 16, warp * 2);

    SumsOfDeltas2 sums;
    sums.begin(part, row, goes_on);
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
                add_product<false, true, 0, TILES1 * 2>(sums.weight2, delta2[k], moved(given1, k * 256), ACROSS);
                add_product<false, true, 0, 1>(sums.bias2, delta2[k], ones, ACROSS);
                add_product_of_rows<0, OUTPUT_TILES * 2>(
                    sums.weight3, moved(given2, k * 256), moved(delta_out, k * 256), ACROSS);
            }
            end_products();
            if (is_more) finish(next, i + 1, half);
        }
        wait_for_products<0>();
        settle_input(delta2);  // until now products read these registers
    }
    sums.write(part, row);
}
