// From images to outputs, in one launch: see layers/convolution.cuh, which lists the constants. A block has some images,
// 16 of which share the places of the convolution among WARPS warps; then their sums of the dense layer are added up. A
// cluster of blocks shares the places further; its first block adds up, and does the rest.
#include "bulk.cuh"
#include "cluster.cuh"
#include "layers/convolution.cuh"

constexpr int FORWARD_THREADS = ROW_TILES * THREADS;
constexpr int SUM_PITCH = DENSE + 4;  // floats from a row of sums to the next
constexpr int SUMS = WARPS * 16 * SUM_PITCH;  // of 16 images

// A warp's tile of the dense layer to memory, from a row on of which `left` are rows.
__device__ __forceinline__ void write_tile(Pair* out, const Pair (&tile)[4], long long first, long long left)
{
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int row = (lane_index() >> 2) + i % 2 * 8;
        const int column = 16 * warp_of_tile() + i / 2 * 8 + 2 * (lane_index() & 3);
        if (row < left) out[((first + row) * DENSE + column) / 2] = tile[i];
    }
}

// The dense layer's LayerNorm: its sums to what is activated. All threads of the block call it.
//   whole            of a warp's tile, as pairs of A stand   read, written
//   biases           [BIAS_ROWS][DENSE]                      read
//   of_rows          [2][WARPS][16] in shared memory
//   standard, scale  as conv_forward has them                written, if they are kept
__device__ __forceinline__ void normalise(
    float (&whole)[4][2], const float* biases, float* of_rows, Pair* standard, float* scale, long long first,
    long long left)
{
    const int warp = warp_of_tile();
    const auto column_of = [&](int i) { return 16 * warp + i / 2 * 8 + 2 * (lane_index() & 3); };
    float sum[2] = {};
    float squares[2] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i % 2] += whole[i][0] + whole[i][1];
    over_dense(sum, of_rows);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        float& one = whole[i / 2][i % 2];
        one = column_of(i / 2) + i % 2 < DENSE_COLUMNS ? one - sum[i / 2 % 2] / DENSE_COLUMNS : 0.0f;
        squares[i / 2 % 2] += one * one;
    }
    over_dense(squares, of_rows + WARPS * 16);
    if (warp >= DENSE_TILES) return;
    const float* gain = biases + DENSE;
    float by[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        by[half] = rsqrtf(squares[half] / DENSE_COLUMNS + NORM_EPS);
        const int row = (lane_index() >> 2) + 8 * half;
        if (standard && column_of(0) == 0 && row < left) scale[first + row] = by[half];
    }
    Pair kept[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        kept[i] = packed(whole[i][0] * by[i % 2], whole[i][1] * by[i % 2]);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const int column = column_of(i) + j;
            whole[i][j] = gain[column] * (whole[i][j] * by[i % 2]) + gain[DENSE + column];
        }
    }
    if (standard) write_tile(standard, kept, first, left);
}

// The first block of a cluster expects sums of the others, [CLUSTER - 1][16][SUM_PITCH], and waits for them.
__device__ __forceinline__ void expect_parts(unsigned long long* arrival)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    prepare_arrival(arrival);
    expect_bytes(arrival, (CLUSTER - 1) * 16 * DENSE * 4);
#endif
}
__device__ __forceinline__ void wait_for_parts(unsigned long long* arrival)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    wait_for_bytes<true>(arrival, 0);
#endif
}
// A warp's tile of sums, as pairs of A stand, to one of them.
__device__ __forceinline__ void send_tile(float* part, const float (&tile)[4][2], const unsigned long long* arrival)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    const unsigned counts = place_in_block(arrival, 0);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const unsigned there = place_in_block(part + i % 2 * 8 * SUM_PITCH + i / 2 * 8, 0);
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(there),
                     "f"(tile[i][0]), "f"(tile[i][1]), "r"(counts)
                     : "memory");
    }
#endif
}

// What a block has in shared memory. Sums take the place of the weights; the first block of a cluster has those of the
// others besides.
struct Forward {
    static constexpr int TILES = STAGES * WARPS * TILE * (int)sizeof(Element);
    static constexpr int OF_SUMS = ROW_TILES * SUMS * 4;
    static constexpr int FIRST = TILES > OF_SUMS ? TILES : OF_SUMS;
    static constexpr int HIDDEN = FIRST + ROW_TILES * 16 * ROW_PITCH * (int)sizeof(Element);
    static constexpr int BITS = HIDDEN + 16 * ROW_TILES * IMAGE_WORDS * 4;
    static constexpr int OUTPUT_WEIGHTS = BITS + ROW_TILES * 2 * WARPS * 16 * 4;
    static constexpr int BIASES = OUTPUT_WEIGHTS + OUTPUTS * DENSE * (int)sizeof(Element);
    static constexpr int PARTS = BIASES + BIAS_ROWS * DENSE * 4;
    static constexpr int ARRIVAL = PARTS + (CLUSTER - 1) * 16 * SUM_PITCH * 4;
    static constexpr int BYTES = ARRIVAL + 16;
};
static_assert(FORWARD_BYTES >= Forward::BYTES, "conv_forward has too little shared memory");
static_assert(CLUSTER == 1 || ROW_TILES == 1, "a cluster's blocks have one tile of rows");

// What a network is given and gives: addresses. What no backward pass will read has none.
struct Network {
    const bool* seen;          // [step, env, agent, row, column, channel]
    const Element* weight;     // see layers/convolution.cuh
    const float* biases;       // [BIAS_ROWS, 16], [BIAS_ROWS, DENSE], those of the outputs
    Element* hidden;           // [row, DENSE]: the dense layer
    Element* standard;         // likewise, its sums at mean 0 and deviation 1, if it NORMS
    float* scale;              // [row]  by which they were made so
    int* kept;                 // [row, IMAGE_WORDS]  the bits
    float* outputs;            // [row, OUTPUTS]  without biases
};

// A place's weights of the dense layer in shared memory, two tiles of B after another: what load_weights does, with one
// address for all.
struct WeightsOfLane {
    const Element* weights;
    unsigned address;

    __device__ __forceinline__ explicit WeightsOfLane(const Element* weights) : weights(weights), address(0)
    {
#if HAS_TENSOR_CORES
        const int matrix = lane_index() >> 3;
        address = (unsigned)__cvta_generic_to_shared(weights + matrix * 64 + (lane_index() & 7) * 8);
#endif
    }
    __device__ __forceinline__ void load(Pair (&pairs)[4], int n) const
    {
        if constexpr (HAS_TENSOR_CORES && !FULL_PRECISION) {
            load_matrices<false>(pairs, address + n * 512);
        } else {
            load_weights<false, true>(pairs, weights, 2 * n, 0, 2);
        }
    }
};

// Starts to copy the dense layer's weights of WARPS places, or of those that there are; the block does.
__device__ __forceinline__ void start_places(Element* tiles, const Element* weights, int place)
{
    constexpr int PIECES = TILE * (int)sizeof(Element) / 16;
    constexpr int OF_THREAD = (WARPS * PIECES + FORWARD_THREADS - 1) / FORWARD_THREADS;
    constexpr bool IS_EVEN = PLACES % (CLUSTER * WARPS) == 0 && WARPS * PIECES % FORWARD_THREADS == 0;
    const int most = (PLACES - place < WARPS ? PLACES - place : WARPS) * PIECES;
    Bytes16* to = (Bytes16*)tiles + threadIdx.x;
    const Bytes16* from = (const Bytes16*)(weights + DENSE_AT + (long long)place * TILE) + threadIdx.x;
#pragma unroll
    for (int i = 0; i < OF_THREAD * FORWARD_THREADS; i += FORWARD_THREADS) {
        if (IS_EVEN || i + (int)threadIdx.x < most) start_copy(to + i, from + i);
    }
}

// Starts to copy `bytes` to shared memory; the block does.
__device__ __forceinline__ void start_bytes(char* shared, const void* from, int bytes)
{
    for (int i = 16 * threadIdx.x; i < bytes; i += 16 * FORWARD_THREADS) {
        start_copy((Bytes16*)(shared + i), (const Bytes16*)((const char*)from + i));
    }
}

// Images to outputs, of several networks; each has as many blocks.
//   networks   [network, 8]  see Network                                    read; what they give is written
//   order      [num_rows..] images, if it HAS_ORDER                         read
//   first_row, num_rows  which rows of `order`, or of all
//   num_blocks of a network, or clusters
extern "C" __global__ void __launch_bounds__(FORWARD_THREADS) conv_forward(
    const long long* networks, const int* order, long long first_row, long long num_rows, int num_blocks)
{
    extern __shared__ char shared[];
    constexpr int STEP = CLUSTER * WARPS;
    constexpr int STEPS = (PLACES + STEP - 1) / STEP;
    const int rank = blockIdx.x % CLUSTER;
    const int block = blockIdx.x / CLUSTER;
    unsigned long long* arrival = (unsigned long long*)(shared + Forward::ARRIVAL);
    if (CLUSTER > 1 && rank == 0 && threadIdx.x == 0) expect_parts(arrival);
    arrive_with_nothing<CLUSTER>();  // none is written to before it is there
    const Network one = ((const Network*)networks)[block / num_blocks];
    const Element* weight = one.weight;
    const int warp = warp_of_tile();
    const int tile = threadIdx.x / THREADS;  // of rows
    const int g = lane_index() >> 2;
    const int t = lane_index() & 3;
    const auto weights_of = [&](int step) { return (Element*)shared + step % STAGES * (WARPS * TILE); };
    float* sums = (float*)shared + tile * SUMS;                                       // [WARPS][16][SUM_PITCH]
    Element* rows = (Element*)(shared + Forward::FIRST) + tile * (16 * ROW_PITCH);    // of the dense layer
    unsigned* bits = (unsigned*)(shared + Forward::HIDDEN);                           // [16 ROW_TILES][IMAGE_WORDS]
    float* of_rows = (float*)(shared + Forward::BITS) + tile * (2 * WARPS * 16);
    const Element* output_weights = (const Element*)(shared + Forward::OUTPUT_WEIGHTS);
    const float* biases = (const float*)(shared + Forward::BIASES);                   // of the dense layer
    float* parts = (float*)(shared + Forward::PARTS);                                 // [CLUSTER - 1][16][SUM_PITCH]
    const long long first_of_block = (long long)(block % num_blocks) * (16 * ROW_TILES);
    const long long first = first_of_block + 16 * tile;
    const long long left = num_rows - first;
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) {
        if (i < STEPS) start_places(weights_of(i), weight, i * STEP + rank * WARPS);
        close_copies();
    }
    int* kept = rank == 0 ? one.kept : nullptr;
    load_images<16 * ROW_TILES, FORWARD_THREADS>(bits, one.seen, order, kept, first_row, first_of_block, num_rows);
    start_bytes(shared + Forward::OUTPUT_WEIGHTS, weight + OUTPUTS_AT, OUTPUTS * DENSE * (int)sizeof(Element));
    start_bytes(shared + Forward::BIASES, one.biases + DENSE_BIASES_AT, BIAS_ROWS * DENSE * 4);
    const Filters filters = load_filters(weight, one.biases);

    float sum[2 * DENSE_TILES][4] = {};
    for (int step = 0; step < STEPS; ++step) {
        wait_for_groups<STAGES - 2>();
        __syncthreads();
        const int next = step + STAGES - 1;
        if (next < STEPS) start_places(weights_of(next), weight, next * STEP + rank * WARPS);
        close_copies();
        const int place = step * STEP + rank * WARPS + warp;
        if (place >= PLACES) continue;
        const Patch mine = patch_at(bits + (16 * tile + lane_index() % 16) * IMAGE_WORDS, place);
        Pair found[4];
        Standard unread;
        convolve(found, unread, patch_of_lane(mine, g), patch_of_lane(mine, g + 8), filters);
        const WeightsOfLane of_place(weights_of(step) + warp * TILE);
#pragma unroll
        for (int n = 0; n < DENSE_TILES; ++n) {
            Pair b[4];
            of_place.load(b, n);
            multiply(sum[2 * n], found, b[0], b[1]);
            multiply(sum[2 * n + 1], found, b[2], b[3]);
        }
    }

    wait_for_copies();
    __syncthreads();  // what stands in the sums' place is read
    float* own = sums + (warp * 16 + g) * SUM_PITCH + 2 * t;
#pragma unroll
    for (int n = 0; n < 2 * DENSE_TILES; ++n) {
        *(FloatPair*)(own + 8 * n) = {sum[n][0], sum[n][1]};
        *(FloatPair*)(own + 8 * SUM_PITCH + 8 * n) = {sum[n][2], sum[n][3]};
    }
    __syncthreads();
    float whole[4][2] = {};
    const auto add = [&](const float* part, int i) {
        const int column = 16 * warp + i / 2 * 8 + 2 * t;
        const FloatPair two = *(const FloatPair*)(part + (g + i % 2 * 8) * SUM_PITCH + column);
        whole[i][0] += two.low;
        whole[i][1] += two.high;
    };
    if (warp < DENSE_TILES) {  // adds up a tile, always in the same order
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (rank == 0) {
                const float* bias = biases + 16 * warp + i / 2 * 8 + 2 * t;
                whole[i][0] = bias[0];
                whole[i][1] = bias[1];
            }
            for (int w = 0; w < WARPS; ++w) add(sums + w * 16 * SUM_PITCH, i);
        }
    }
    if constexpr (CLUSTER > 1) {
        wait_for_cluster<CLUSTER>();
        float* part = parts + (rank - 1) * 16 * SUM_PITCH;
        if (rank > 0 && warp < DENSE_TILES) send_tile(part + g * SUM_PITCH + 16 * warp + 2 * t, whole, arrival);
        if (rank > 0) return;
        wait_for_parts(arrival);
        for (int i = 0; i < 4 && warp < DENSE_TILES; ++i) {
            for (int other = 0; other < CLUSTER - 1; ++other) add(parts + other * 16 * SUM_PITCH, i);
        }
    }
    if constexpr (NORMS) normalise(whole, biases, of_rows, (Pair*)one.standard, one.scale, first, left);
    if (warp < DENSE_TILES) {
        Pair made[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) made[i] = packed(activate(whole[i][0]), activate(whole[i][1]));
        if (one.hidden) write_tile((Pair*)one.hidden, made, first, left);
        store_rows<ROW_PITCH>(rows + 16 * warp, made);
    }
    __syncthreads();
    for (int o = warp; o < OUTPUT_TILES; o += WARPS) {
        float out[2][4] = {};
#pragma unroll
        for (int k = 0; k < DENSE_TILES; ++k) {
            Pair a[4], b[4];
            load_rows<ROW_PITCH>(a, rows + 16 * k);
            load_weights<false, true>(b, output_weights, 2 * o, 2 * k, 2 * DENSE_TILES);
            multiply(out[0], a, b[0], b[1]);
            multiply(out[1], a, b[2], b[3]);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int row = g + i % 2 * 8;
            const float* two = &out[i / 2][2 * (i % 2)];
            if (row >= left) continue;
            *(FloatPair*)(one.outputs + (first + row) * OUTPUTS + 16 * o + i / 2 * 8 + 2 * t) = {two[0], two[1]};
        }
    }
}
