// A convolution of 3 x 3 over images of bits, a layer over all that it found, and the outputs: forwards, and back to
// the gradients of their weights. What the convolution finds never leaves the warp that computes it.
//
// A warp has 16 images at one place of the convolution: its 16 filters there are a tile, the sums of which, packed, are
// 16 of the dense layer's inputs. Bits of an image are copied to shared memory once; where a patch of them is a factor,
// a lane makes numbers of two at a time.
//
// Constants:
//   FULL_PRECISION               of the elements
//   HEIGHT, WIDTH, CHANNELS      of an image, whose numbers are false and true
//   KERNEL_TILES                 16 numbers each: of a patch
//   PATCH_BLOCKS                 8 numbers each: of a patch and a one behind it
//   DENSE_TILES, OUTPUT_TILES    16 columns each: of the dense layer, of the outputs
//   DENSE_COLUMNS                of the dense layer, that are no padding
//   IS_TANH                      the activation: tanh, or else the positive part
//   NORMS, NORM_EPS              whether a LayerNorm stands before each activation, of the convolution over the filters
//                                of a place; added to the variance
//   ROW_TILES, BACK_TILES        16 images each, which a block of conv_forward has, and one of conv_backward at once
//   WARPS                        of a block
//   STAGES                       places whose weights a warp of conv_forward has, or waits for, at once
//   GROUP_SIZE                   agents of an env that see by this network
//   PITCH, STRIDE, FIRST         bits from an env's to the next one's, from an agent's to the next one's; the group's first
//   HAS_ORDER                    whether images are those of a minibatch, else all in their order
//   KEEPS                        whether a backward pass will read the dense layer
#include "tensor_core.cuh"

constexpr int SIDE = 3;     // of the convolution
constexpr int FILTERS = 16;
constexpr int OUT_WIDTH = WIDTH - SIDE + 1;
constexpr int PLACES = (HEIGHT - SIDE + 1) * OUT_WIDTH;
constexpr int GROUPS = (PLACES + WARPS - 1) / WARPS;  // of places that a block of conv_backward has
constexpr int PATCH = SIDE * SIDE * CHANNELS;
constexpr int PATCH_WORDS = (PATCH + 31) / 32;
constexpr int BITS = HEIGHT * WIDTH * CHANNELS;
constexpr int IMAGE_WORDS = ((BITS + 31) / 32 + 1) | 1;  // one more is read, and an odd number meets in no bank
constexpr int DENSE = 16 * DENSE_TILES;
constexpr int OUTPUTS = 16 * OUTPUT_TILES;
constexpr int TILE = FILTERS * DENSE;  // the dense layer's weights of one place
constexpr int THREADS = 32 * WARPS;
constexpr int ROW_PITCH = DENSE + 8;     // elements from a row of the dense layer in shared memory to the next
constexpr int SCRATCH_PITCH = 16 + 8;    // from a row of a warp's tile
constexpr int SUM_PITCH = DENSE + 4;     // floats from a row of sums
constexpr int PATCH_COLUMNS = 8 * PATCH_BLOCKS;
constexpr int STAGE_TILES = 4;                          // of the dense layer's gradient, that are staged at once
constexpr int PLACE_PITCH = WARPS + 4;                  // floats from a filter's places there to the next one's,
constexpr int STAGE_PITCH = FILTERS * PLACE_PITCH + 1;  // and from a row to the next: no two lanes meet in a bank

static_assert(SIDE * CHANNELS <= 32, "a row of a patch is more than a word");
static_assert(16 * KERNEL_TILES >= PATCH && PATCH_COLUMNS > PATCH, "a patch has no room");
static_assert(16 * KERNEL_TILES <= 32 * PATCH_WORDS && PATCH_COLUMNS <= 32 * PATCH_WORDS, "a patch has too few words");
static_assert(DENSE_TILES <= WARPS, "a warp has one tile of the dense layer");

// Biases of a layer, with a LayerNorm behind them its gains and its shifts.
constexpr int BIAS_ROWS = NORMS ? 3 : 1;
constexpr int DENSE_BIASES_AT = BIAS_ROWS * FILTERS;

// The weights: [filter][16 KERNEL_TILES], [place][dense / 8][filter / 8][8][8], [output / 8][dense / 8][8][8].
constexpr int DENSE_AT = FILTERS * 16 * KERNEL_TILES;
constexpr int OUTPUTS_AT = DENSE_AT + PLACES * TILE;

__device__ __forceinline__ float activate(float x)
{
    return IS_TANH ? quick_tanh(x) : positive_part(x);
}

__device__ __forceinline__ float slope(float activated)
{
    if (IS_TANH) return 1.0f - activated * activated;
    return activated > 0.0f ? 1.0f : 0.0f;
}

// ----------------------------------------------------------------------------------------------- images

// Brings images to shared memory as bits, [ROWS][IMAGE_WORDS], and, if it KEEPS them, to memory; of rows that are none,
// no bit is set.
template <int ROWS>
__device__ __forceinline__ void load_images(
    unsigned* bits, const bool* seen, const int* order, int* kept, long long first_row, long long first,
    long long num_rows)
{
    for (int i = threadIdx.x; i < ROWS * IMAGE_WORDS; i += THREADS) {
        const long long row = first + i / IMAGE_WORDS;
        const int start = i % IMAGE_WORDS * 32;
        unsigned found = 0;
        if (row < num_rows && start < BITS) {
            const int index = HAS_ORDER ? order[first_row + row] : (int)(first_row + row);
            const bool* image = seen + (index / GROUP_SIZE * (long long)PITCH + index % GROUP_SIZE * STRIDE + FIRST);
            if constexpr (BITS % 4 == 0 && PITCH % 4 == 0 && STRIDE % 4 == 0 && FIRST % 4 == 0) {
#pragma unroll
                for (int k = 0; k < 32; k += 4) {
                    if (start + k >= BITS) break;
                    const unsigned four = *(const unsigned*)(image + start + k);  // a byte each, 0 or 1
                    found |= (four * 0x10204080u >> 28) << k;
                }
            } else {
                for (int k = 0; k < 32 && start + k < BITS; ++k) found |= (unsigned)image[start + k] << k;
            }
        }
        bits[i] = found;
        if (KEEPS && row < num_rows) kept[first * IMAGE_WORDS + i] = (int)found;
    }
}

// What a convolution sees at a place: bits in the order row, column, channel, and a one behind them.
struct Patch {
    unsigned word[PATCH_WORDS];
};
__device__ __forceinline__ Patch patch_at(const unsigned* image, int place)
{
    Patch patch = {};
    constexpr int SIZE = SIDE * CHANNELS;
#pragma unroll
    for (int y = 0; y < SIDE; ++y) {
        const int start = ((place / OUT_WIDTH + y) * WIDTH + place % OUT_WIDTH) * CHANNELS;
        const unsigned long long both =
            image[start / 32] | (unsigned long long)image[start / 32 + 1] << 32;
        const unsigned row = (unsigned)(both >> start % 32) & (unsigned)((1ull << SIZE) - 1);
        const int at = y * SIZE;
        patch.word[at / 32] |= row << at % 32;
        if (at % 32 + SIZE > 32) patch.word[at / 32 + 1] |= row >> (32 - at % 32);
    }
    patch.word[PATCH / 32] |= 1u << PATCH % 32;
    return patch;
}
__device__ __forceinline__ Patch patch_of_lane(const Patch& patch, int lane)
{
    Patch other;
#pragma unroll
    for (int i = 0; i < PATCH_WORDS; ++i) other.word[i] = __shfl_sync(ALL_LANES, patch.word[i], lane);
    return other;
}

// The two lowest bits as numbers.
__device__ __forceinline__ void spread(unsigned& pair, unsigned bits)
{
    pair = ((bits & 1u) | (bits << 15 & 0x10000u)) * 0x3f80u;  // a 1 of bfloat16
}
__device__ __forceinline__ void spread(FloatPair& pair, unsigned bits)
{
    pair = {(float)(bits & 1u), (float)(bits >> 1 & 1u)};
}

// ------------------------------------------------------------------------------------------ convolution

// A tile of a LayerNorm: what 16 rows are brought to mean 0 and deviation 1 by, and what they are then. Values stand as
// pairs of a tile of A do: [i] of row g + 8 (i % 2), of the columns 2 t + 8 (i / 2) and the next.
struct Standard {
    float value[4][2];
    float scale[2];
};

// The filters, as the factor B of a convolution, and their biases; [i][j] of column 2 t + 8 i + j.
struct Filters {
    Pair kernel[KERNEL_TILES][4];
    float bias[2][2], gain[2][2], shift[2][2];
};
__device__ __forceinline__ Filters load_filters(const Element* weights, const float* biases)
{
    Filters filters;
    const int g = lane_index() >> 2;
    const int t = lane_index() & 3;
#pragma unroll
    for (int i = 0; i < 4 * KERNEL_TILES; ++i) {
        const int filter = g + i % 4 / 2 * 8;
        filters.kernel[i / 4][i % 4] =
            *(const Pair*)(weights + filter * (16 * KERNEL_TILES) + i / 4 * 16 + i % 2 * 8 + 2 * t);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int column = 2 * t + i / 2 * 8 + i % 2;
        filters.bias[i / 2][i % 2] = biases[column];
        filters.gain[i / 2][i % 2] = NORMS ? biases[FILTERS + column] : 1.0f;
        filters.shift[i / 2][i % 2] = NORMS ? biases[2 * FILTERS + column] : 0.0f;
    }
    return filters;
}

// The sum over 16 columns of a tile's row, whose four lanes have them between them.
__device__ __forceinline__ float over_row(float sum)
{
    sum += __shfl_xor_sync(ALL_LANES, sum, 1);
    return sum + __shfl_xor_sync(ALL_LANES, sum, 2);
}

// 16 images at a place: a tile of A for the dense layer.
//   upper, lower  the patches of the rows g and g + 8
//   standard      if it NORMS
__device__ __forceinline__ void convolve(
    Pair (&found)[4], Standard& standard, const Patch& upper, const Patch& lower, const Filters& filters)
{
    const int t = lane_index() & 3;
    float sum[2][4];
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i / 4][i % 4] = filters.bias[i / 4][i % 2];
#pragma unroll
    for (int k = 0; k < KERNEL_TILES; ++k) {
        Pair a[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int start = 16 * k + i / 2 * 8;
            spread(a[i], (i % 2 ? lower : upper).word[start / 32] >> (start % 32 + 2 * t));
        }
        multiply(sum[0], a, filters.kernel[k][0], filters.kernel[k][1]);
        multiply(sum[1], a, filters.kernel[k][2], filters.kernel[k][3]);
    }
    if constexpr (NORMS) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float(&left)[2] = *(float(*)[2])&sum[0][2 * half];
            float(&right)[2] = *(float(*)[2])&sum[1][2 * half];
            const float mean = over_row(left[0] + left[1] + right[0] + right[1]) / FILTERS;
            float squares = 0.0f;
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                left[j] -= mean;
                right[j] -= mean;
                squares += left[j] * left[j] + right[j] * right[j];
            }
            standard.scale[half] = rsqrtf(over_row(squares) / FILTERS + NORM_EPS);
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            float& value = standard.value[i / 4 * 2 + i % 4 / 2][i % 2];
            value = sum[i / 4][i % 4] * standard.scale[i % 4 / 2];
            sum[i / 4][i % 4] = filters.gain[i / 4][i % 2] * value + filters.shift[i / 4][i % 2];
        }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float* two = &sum[i / 2][2 * (i % 2)];
        found[i] = packed(activate(two[0]), activate(two[1]));
    }
}

// Two sums over the dense layer's columns, of row g and of row g + 8, of whose 16 columns each warp has a part. All
// threads of the block call it.
//   place  [WARPS][16]
__device__ __forceinline__ void over_dense(float (&sum)[2], float* place)
{
    const int g = lane_index() >> 2;
    const int warp = threadIdx.x >> 5;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        sum[half] = over_row(sum[half]);
        if ((lane_index() & 3) == 0) place[warp * 16 + g + 8 * half] = sum[half];
    }
    __syncthreads();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        sum[half] = 0.0f;
        for (int w = 0; w < DENSE_TILES; ++w) sum[half] += place[w * 16 + g + 8 * half];
    }
}

// Starts to copy the dense layer's weights of a place; a warp does.
__device__ __forceinline__ void start_tile(Element* tile, const Element* weights, int place)
{
    constexpr int PIECES = TILE * (int)sizeof(Element) / 16;
    const Bytes16* from = (const Bytes16*)(weights + DENSE_AT + (long long)place * TILE);
    for (int i = lane_index(); i < PIECES; i += 32) start_copy((Bytes16*)tile + i, from + i);
}

// A tile of A out of rows of elements in shared memory.
template <int STEP>
__device__ __forceinline__ void load_rows(Pair (&a)[4], const Element* rows)
{
    if constexpr (HAS_TENSOR_CORES && !FULL_PRECISION) {
        load_matrices<false>(a, rows + lane_index() % 16 * STEP + lane_index() / 16 * 8);
        return;
    }
    const Element* place = rows + (lane_index() >> 2) * STEP + 2 * (lane_index() & 3);
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = *(const Pair*)(place + i % 2 * 8 * STEP + i / 2 * 8);
}
// Such a tile's way back.
template <int STEP>
__device__ __forceinline__ void store_rows(Element* rows, const Pair (&a)[4])
{
    Element* place = rows + (lane_index() >> 2) * STEP + 2 * (lane_index() & 3);
#pragma unroll
    for (int i = 0; i < 4; ++i) *(Pair*)(place + i % 2 * 8 * STEP + i / 2 * 8) = a[i];
}
// The same from memory, where some of the 16 rows may be none: zeros.
__device__ __forceinline__ void read_rows(Pair (&a)[4], const Element* rows, int step, long long left)
{
    const int g = lane_index() >> 2;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int row = g + i % 2 * 8;
        const Element* place = rows + (long long)row * step + 2 * (lane_index() & 3) + i / 2 * 8;
        a[i] = row < left ? *(const Pair*)place : packed(0.0f, 0.0f);
    }
}

// A warp's tile of the dense layer to memory, from a row on of which `left` are rows.
__device__ __forceinline__ void write_tile(Pair* out, const Pair (&tile)[4], long long first, long long left)
{
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int row = (lane_index() >> 2) + i % 2 * 8;
        const int column = 16 * (threadIdx.x >> 5) + i / 2 * 8 + 2 * (lane_index() & 3);
        if (row < left) out[((first + row) * DENSE + column) / 2] = tile[i];
    }
}

// The dense layer's LayerNorm: its sums to what is activated. All threads of the block call it.
//   whole            of a warp's tile, as pairs of A stand   read, written
//   of_rows          [2][WARPS][16] in shared memory
//   standard, scale  as conv_forward has them                written, if it KEEPS
__device__ __forceinline__ void normalise(
    float (&whole)[4][2], const float* biases, float* of_rows, Pair* standard, float* scale, long long first,
    long long left)
{
    const int warp = threadIdx.x >> 5;
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
    const float* gain = biases + DENSE_BIASES_AT + DENSE;
    float by[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        by[half] = rsqrtf(squares[half] / DENSE_COLUMNS + NORM_EPS);
        const int row = (lane_index() >> 2) + 8 * half;
        if (KEEPS && column_of(0) == 0 && row < left) scale[first + row] = by[half];
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
    if (KEEPS) write_tile(standard, kept, first, left);
}

// What a block of conv_forward has in shared memory. Sums take the place of the weights.
struct Forward {
    static constexpr int TILES = WARPS * STAGES * TILE * (int)sizeof(Element);
    static constexpr int SUMS = WARPS * 16 * SUM_PITCH * 4;
    static constexpr int FIRST = TILES > SUMS ? TILES : SUMS;
    static constexpr int HIDDEN = FIRST + 16 * ROW_PITCH * (int)sizeof(Element);
    static constexpr int BITS = HIDDEN + 16 * ROW_TILES * IMAGE_WORDS * 4;
    static constexpr int BYTES = BITS + 2 * WARPS * 16 * 4;
};
static_assert(FORWARD_BYTES >= Forward::BYTES, "conv_forward has too little shared memory");

// Images to outputs.
//   seen       [step, env, agent, row, column, channel]                     read
//   order      [num_rows..] images, if it HAS_ORDER                         read
//   weights    bytes of elements, see above                                 read
//   biases     [BIAS_ROWS, 16], [BIAS_ROWS, DENSE], those of the outputs    read
//   hidden     bytes of [row, DENSE] elements: the dense layer, if it KEEPS written
//   standard   likewise, its sums at mean 0 and deviation 1, if it NORMS    written
//   scale      [row]  by which they were made so                            written
//   kept       [row, IMAGE_WORDS]  the bits, if it KEEPS                    written
//   outputs    [row, OUTPUTS]  without biases                               written
//   first_row, num_rows  which rows of `order`, or of all
extern "C" __global__ void __launch_bounds__(THREADS) conv_forward(
    const bool* seen, const int* order, const unsigned char* weights, const float* biases, unsigned char* hidden,
    unsigned char* standard, float* scale, int* kept, float* outputs, long long first_row, long long num_rows)
{
    extern __shared__ char shared[];
    const Element* weight = (const Element*)weights;
    const int warp = threadIdx.x >> 5;
    const int g = lane_index() >> 2;
    const int t = lane_index() & 3;
    Element* tiles = (Element*)shared + warp * STAGES * TILE;  // of this warp, which take turns
    float* sums = (float*)shared;                              // [WARPS][16][SUM_PITCH]
    Element* rows = (Element*)(shared + Forward::FIRST);       // [16][ROW_PITCH] of the dense layer
    unsigned* bits = (unsigned*)(shared + Forward::HIDDEN);
    float* of_rows = (float*)(shared + Forward::BITS);  // [2][WARPS][16]
    const long long first = (long long)blockIdx.x * (16 * ROW_TILES);
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) {
        if (warp + i * WARPS < PLACES) start_tile(tiles + i * TILE, weight, warp + i * WARPS);
        close_copies();
    }
    load_images<16 * ROW_TILES>(bits, seen, order, kept, first_row, first, num_rows);
    const Filters filters = load_filters(weight, biases);
    __syncthreads();

    float sum[ROW_TILES][2 * DENSE_TILES][4] = {};
    int turn = 0;
    for (int place = warp; place < PLACES; place += WARPS) {
        wait_for_groups<STAGES - 2>();
        __syncwarp();
        const int next = place + (STAGES - 1) * WARPS;
        if (next < PLACES) start_tile(tiles + (turn + STAGES - 1) % STAGES * TILE, weight, next);
        close_copies();
        const Patch mine = patch_at(bits + lane_index() % (16 * ROW_TILES) * IMAGE_WORDS, place);
        Pair found[ROW_TILES][4];
#pragma unroll
        for (int r = 0; r < ROW_TILES; ++r) {
            const Patch upper = patch_of_lane(mine, 16 * r + g);
            const Patch lower = patch_of_lane(mine, 16 * r + g + 8);
            Standard unread;
            convolve(found[r], unread, upper, lower, filters);
        }
#pragma unroll
        for (int n = 0; n < DENSE_TILES; ++n) {
            Pair b[4];
            load_weights<false, true>(b, tiles + turn * TILE, 2 * n, 0, 2);
#pragma unroll
            for (int r = 0; r < ROW_TILES; ++r) {
                multiply(sum[r][2 * n], found[r], b[0], b[1]);
                multiply(sum[r][2 * n + 1], found[r], b[2], b[3]);
            }
        }
        turn = (turn + 1) % STAGES;
    }

#pragma unroll
    for (int r = 0; r < ROW_TILES; ++r) {
        const long long left = num_rows - first - 16 * r;
        __syncthreads();  // what stands in the sums' place is read
        float* own = sums + (warp * 16 + g) * SUM_PITCH + 2 * t;
#pragma unroll
        for (int n = 0; n < 2 * DENSE_TILES; ++n) {
            *(FloatPair*)(own + 8 * n) = {sum[r][n][0], sum[r][n][1]};
            *(FloatPair*)(own + 8 * SUM_PITCH + 8 * n) = {sum[r][n][2], sum[r][n][3]};
        }
        __syncthreads();
        float whole[4][2] = {};
        if (warp < DENSE_TILES) {  // adds up a tile, always in the same order
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int column = 16 * warp + i / 2 * 8 + 2 * t;
                const FloatPair bias = *(const FloatPair*)(biases + DENSE_BIASES_AT + column);
                whole[i][0] = bias.low;
                whole[i][1] = bias.high;
                for (int w = 0; w < WARPS; ++w) {
                    const FloatPair part = *(const FloatPair*)(sums + (w * 16 + g + i % 2 * 8) * SUM_PITCH + column);
                    whole[i][0] += part.low;
                    whole[i][1] += part.high;
                }
            }
        }
        if constexpr (NORMS) normalise(whole, biases, of_rows, (Pair*)standard, scale, first + 16 * r, left);
        if (warp < DENSE_TILES) {
            Pair made[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) made[i] = packed(activate(whole[i][0]), activate(whole[i][1]));
            if (KEEPS) write_tile((Pair*)hidden, made, first + 16 * r, left);
            store_rows<ROW_PITCH>(rows + 16 * warp, made);
        }
        __syncthreads();
        for (int o = warp; o < OUTPUT_TILES; o += WARPS) {
            float out[2][4] = {};
#pragma unroll
            for (int k = 0; k < DENSE_TILES; ++k) {
                Pair a[4], b[4];
                load_rows<ROW_PITCH>(a, rows + 16 * k);
                load_weights<false, false>(b, weight + OUTPUTS_AT, 2 * o, 2 * k, 2 * DENSE_TILES);
                multiply(out[0], a, b[0], b[1]);
                multiply(out[1], a, b[2], b[3]);
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int row = g + i % 2 * 8;
                const float* two = &out[i / 2][2 * (i % 2)];
                if (row >= left) continue;
                *(FloatPair*)(outputs + (first + 16 * r + row) * OUTPUTS + 16 * o + i / 2 * 8 + 2 * t) = {two[0], two[1]};
            }
        }
    }
}

// --------------------------------------------------------------------------------------------- backward

// Derivatives by what two products side by side gave, to those by what went into their activation, as pairs of A stand.
__device__ __forceinline__ void slant(float (&slanted)[4][2], const float (&sum)[2][4], const Pair (&gave)[4])
{
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const FloatPair activated = unpack(gave[i]);
        slanted[i][0] = sum[i / 2][2 * (i % 2)] * slope(activated.low);
        slanted[i][1] = sum[i / 2][2 * (i % 2) + 1] * slope(activated.high);
    }
}

// Through a LayerNorm: first the derivatives by its gains and shifts, and by its standard sums, with what a row needs
// of them; and once that is summed up over the row, the derivatives by what went into it.
//   derivative       by what is activated; then by the standard sums; at last by what went in  read, written
//   by_gain, by_shift  added to, if it `adds`
//   whole, along     of row g and of row g + 8: sums of derivatives, and of these times the standard sums
//   num_columns      of a row
__device__ __forceinline__ void begin_normed(
    float (&derivative)[4][2], const Standard& standard, const float (&gain)[2][2], float (&by_gain)[2][2],
    float (&by_shift)[2][2], float (&whole)[2], float (&along)[2], bool adds)
{
    whole[0] = whole[1] = along[0] = along[1] = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int of_row = i / 2 % 2;
        float& one = derivative[i / 2][i % 2];
        const float value = standard.value[i / 2][i % 2];
        if (adds) {
            by_gain[i / 4][i % 2] += one * value;
            by_shift[i / 4][i % 2] += one;
        }
        one *= gain[i / 4][i % 2];
        whole[of_row] += one;
        along[of_row] += one * value;
    }
}
__device__ __forceinline__ void end_normed(
    float (&derivative)[4][2], const Standard& standard, const float (&whole)[2], const float (&along)[2],
    int num_columns)
{
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int of_row = i / 2 % 2;
        float& one = derivative[i / 2][i % 2];
        one = (one - (whole[of_row] + standard.value[i / 2][i % 2] * along[of_row]) / num_columns) * standard.scale[of_row];
    }
}

// What a block of conv_backward writes of the filters, and of the outputs.
constexpr int OF_FILTERS = FILTERS * PATCH_COLUMNS + (NORMS ? 2 * FILTERS : 0);
constexpr int OF_OUTPUTS = OUTPUTS * DENSE + DENSE + OUTPUTS + (NORMS ? 2 * DENSE : 0);

// What it has in shared memory. Its sums are staged in the place of the weights.
struct Backward {
    static constexpr int TILES = WARPS * TILE * (int)sizeof(Element);
    static constexpr int SUMS = WARPS * OF_FILTERS * 4;
    static constexpr int STAGE = STAGE_TILES * 16 * STAGE_PITCH * 4;
    static constexpr int LARGER = TILES > SUMS ? TILES : SUMS;
    static constexpr int FIRST = (LARGER > STAGE ? LARGER : STAGE);
    static constexpr int DELTA = FIRST + BACK_TILES * 16 * ROW_PITCH * (int)sizeof(Element);
    static constexpr int SCRATCH = DELTA + WARPS * 2 * 16 * SCRATCH_PITCH * (int)sizeof(Element);
    static constexpr int BITS = SCRATCH + BACK_TILES * 16 * IMAGE_WORDS * 4;
    static constexpr int BYTES = BITS + 2 * WARPS * 16 * 4;
};
static_assert(BACKWARD_BYTES >= Backward::BYTES, "conv_backward has too little shared memory");

// Adds up what a lane has of the columns 2 t and 2 t + 1, over the eight lanes of each t; all of them get it.
__device__ __forceinline__ void over_rows(float (&two)[2])
{
#pragma unroll
    for (int flip = 4; flip <= 16; flip *= 2) {
        two[0] += __shfl_xor_sync(ALL_LANES, two[0], flip);
        two[1] += __shfl_xor_sync(ALL_LANES, two[1], flip);
    }
}

// Of gains and shifts of two columns, to [2, step] floats.
__device__ __forceinline__ void write_norm(float* place, int step, float (&gain)[2], float (&shift)[2])
{
    over_rows(gain);
    over_rows(shift);
    if (lane_index() >= 4) return;
    *(FloatPair*)place = {gain[0], gain[1]};
    *(FloatPair*)(place + step) = {shift[0], shift[1]};
}

// Sums of 16 x 8 to [16, pitch] floats.
__device__ __forceinline__ void write_sums(float* out, int pitch, const float (&sum)[4])
{
    float* place = out + (lane_index() >> 2) * pitch + 2 * (lane_index() & 3);
    *(FloatPair*)place = {sum[0], sum[1]};
    *(FloatPair*)(place + 8 * pitch) = {sum[2], sum[3]};
}

// The gradient of all weights, out of the deltas of the outputs. Blocks share the images among `num_splits`, and of
// each share the places, WARPS a block; the last block of a share has the outputs.
//   weights, biases, num_rows  as conv_forward has them                                     read
//   hidden, standard, scale, kept  as conv_forward left them                                read
//   delta      bytes of [row, OUTPUTS] elements: the loss's derivative by the outputs       read
//   of_dense   [split, DENSE, 16, place]                                                    written
//   of_filters [split, block of places, OF_FILTERS]  [16, PATCH_COLUMNS], whose column
//              after a patch has biases; gains and shifts if it NORMS                       written
//   of_outputs [split, OF_OUTPUTS]  weights, biases of the dense layer, biases; then the
//              dense layer's gains and shifts, if it NORMS                                  written
extern "C" __global__ void __launch_bounds__(THREADS) conv_backward(
    const unsigned char* weights, const float* biases, const unsigned char* hidden, const unsigned char* standard,
    const float* scale, const int* kept, const unsigned char* delta, float* of_dense, float* of_filters,
    float* of_outputs, long long num_rows, int num_splits)
{
    extern __shared__ char shared[];
    const Element* weight = (const Element*)weights;
    const int warp = threadIdx.x >> 5;
    const int g = lane_index() >> 2;
    const int t = lane_index() & 3;
    const int split = blockIdx.x / (GROUPS + 1);
    const int group = blockIdx.x % (GROUPS + 1);
    const bool has_outputs = group == GROUPS;
    const int place = group * WARPS + warp;
    const bool has_place = !has_outputs && place < PLACES;
    Element* tile = (Element*)shared + warp * TILE;
    Element* deltas = (Element*)(shared + Backward::FIRST);  // [16 BACK_TILES][ROW_PITCH] of the dense layer
    Element* scratch = (Element*)(shared + Backward::DELTA) + warp * (2 * 16 * SCRATCH_PITCH);
    Element* scratch2 = scratch + 16 * SCRATCH_PITCH;
    unsigned* bits = (unsigned*)(shared + Backward::SCRATCH);
    float* of_rows = (float*)(shared + Backward::BITS);  // [2][WARPS][16]
    if (has_place) start_tile(tile, weight, place);
    const Filters filters = load_filters(weight, biases);
    wait_for_copies();

    float by_dense[DENSE_TILES][2][4] = {};        // of the block with the outputs: by its tile of their weights
    float by_filters[PATCH_BLOCKS][4] = {};
    float by_outputs[OUTPUT_TILES][2][4] = {};
    float by_bias[2][2] = {};                      // of the dense layer's tile
    float by_output_bias[OUTPUT_TILES][2][2] = {};
    float by_gain[2][2] = {};                      // of a LayerNorm: the filters', or of the block with the outputs
    float by_shift[2][2] = {};                     // its tile's of the dense layer
    constexpr int AT_ONCE = 16 * BACK_TILES;
    for (long long start = (long long)AT_ONCE * split; start < num_rows; start += (long long)AT_ONCE * num_splits) {
        for (int i = threadIdx.x; i < AT_ONCE * IMAGE_WORDS && !has_outputs; i += THREADS) {
            bits[i] = start + i / IMAGE_WORDS < num_rows ? (unsigned)kept[start * IMAGE_WORDS + i] : 0u;
        }
#pragma unroll
        for (int r = 0; r < BACK_TILES; ++r) {
            const long long first = start + 16 * r;
            const long long left = num_rows - first;
            if (left <= 0) break;
            float slanted[4][2] = {};
            if (warp < DENSE_TILES) {  // a tile of the dense layer's deltas
                float sum[2][4] = {};
                Pair gave[4];
                read_rows(gave, (const Element*)hidden + first * DENSE + 16 * warp, DENSE, left);
#pragma unroll
                for (int o = 0; o < OUTPUT_TILES; ++o) {
                    Pair a[4], b[4];
                    read_rows(a, (const Element*)delta + first * OUTPUTS + 16 * o, OUTPUTS, left);
                    load_weights<true, false>(b, weight + OUTPUTS_AT, 2 * o, 2 * warp, 2 * DENSE_TILES);
                    multiply(sum[0], a, b[0], b[1]);
                    multiply(sum[1], a, b[2], b[3]);
                    if (has_outputs) {
#pragma unroll
                        for (int i = 0; i < 4; ++i) {
                            const FloatPair two = unpack(a[i]);
                            by_output_bias[o][i / 2][0] += two.low;
                            by_output_bias[o][i / 2][1] += two.high;
                        }
                        store_rows<SCRATCH_PITCH>(scratch, a);
                        store_rows<SCRATCH_PITCH>(scratch2, gave);
                        __syncwarp();
                        load_columns<true, false>(a, scratch, SCRATCH_PITCH, 0);
                        load_columns<false, false>(b, scratch2, SCRATCH_PITCH, 0);
                        multiply(by_outputs[o][0], a, b[0], b[1]);
                        multiply(by_outputs[o][1], a, b[2], b[3]);
                        __syncwarp();
                    }
                }
                slant(slanted, sum, gave);
            }
            if constexpr (NORMS) {
                Standard kept = {};
                float gain[2][2] = {};
                if (warp < DENSE_TILES) {
                    Pair tile_of_standard[4];
                    read_rows(tile_of_standard, (const Element*)standard + first * DENSE + 16 * warp, DENSE, left);
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        const FloatPair two = unpack(tile_of_standard[i]);
                        kept.value[i][0] = two.low;
                        kept.value[i][1] = two.high;
                        gain[i / 2][i % 2] = biases[DENSE_BIASES_AT + DENSE + 16 * warp + i / 2 * 8 + 2 * t + i % 2];
                    }
#pragma unroll
                    for (int half = 0; half < 2; ++half) kept.scale[half] = g + 8 * half < left ? scale[first + g + 8 * half] : 0.0f;
                }
                float whole[2], along[2];
                begin_normed(slanted, kept, gain, by_gain, by_shift, whole, along, has_outputs);
                over_dense(whole, of_rows);
                over_dense(along, of_rows + WARPS * 16);
                end_normed(slanted, kept, whole, along, DENSE_COLUMNS);
#pragma unroll
                for (int i = 0; i < 8; ++i) {  // padding has no delta
                    if (16 * warp + i / 4 * 8 + 2 * t + i % 2 >= DENSE_COLUMNS) slanted[i / 2][i % 2] = 0.0f;
                }
            }
            if (warp < DENSE_TILES) {
                Pair made[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    made[i] = packed(slanted[i][0], slanted[i][1]);
                    if (has_outputs) {
                        by_bias[i / 2][0] += slanted[i][0];
                        by_bias[i / 2][1] += slanted[i][1];
                    }
                }
                store_rows<ROW_PITCH>(deltas + 16 * r * ROW_PITCH + 16 * warp, made);
            }
        }
        __syncthreads();
        for (int r = 0; r < BACK_TILES && has_place && start + 16 * r < num_rows; ++r) {
            const Element* delta_rows = deltas + 16 * r * ROW_PITCH;
            const Patch mine = patch_at(bits + (16 * r + lane_index() % 16) * IMAGE_WORDS, place);
            Pair found[4];
            Standard kept;
            convolve(found, kept, patch_of_lane(mine, g), patch_of_lane(mine, g + 8), filters);
            store_rows<SCRATCH_PITCH>(scratch, found);
            float sum[2][4] = {};
#pragma unroll
            for (int k = 0; k < DENSE_TILES; ++k) {
                Pair a[4], b[4];
                load_rows<ROW_PITCH>(a, delta_rows + 16 * k);
                load_weights<true, true>(b, tile, 2 * k, 0, 2);
                multiply(sum[0], a, b[0], b[1]);
                multiply(sum[1], a, b[2], b[3]);
            }
            float by_found[4][2];
            slant(by_found, sum, found);
            if constexpr (NORMS) {
                float whole[2], along[2];
                begin_normed(by_found, kept, filters.gain, by_gain, by_shift, whole, along, true);
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    whole[half] = over_row(whole[half]);
                    along[half] = over_row(along[half]);
                }
                end_normed(by_found, kept, whole, along, FILTERS);
            }
            Pair made[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) made[i] = packed(by_found[i][0], by_found[i][1]);
            store_rows<SCRATCH_PITCH>(scratch2, made);
            __syncwarp();
            Pair b[4];
            load_columns<false, false>(b, scratch, SCRATCH_PITCH, 0);
#pragma unroll
            for (int m = 0; m < DENSE_TILES; ++m) {
                Pair a[4];
                load_columns<true, false>(a, delta_rows, ROW_PITCH, 16 * m);
                multiply(by_dense[m][0], a, b[0], b[1]);
                multiply(by_dense[m][1], a, b[2], b[3]);
            }
            Pair a[4];
            load_columns<true, false>(a, scratch2, SCRATCH_PITCH, 0);
            Patch of_row[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) of_row[i] = patch_of_lane(mine, 2 * t + i % 2 + i / 2 * 8);
#pragma unroll
            for (int n = 0; n < PATCH_BLOCKS; ++n) {
                unsigned bit[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) bit[i] = of_row[i].word[8 * n / 32] >> (8 * n % 32 + g) & 1u;
                Pair low, high;
                spread(low, bit[0] | bit[1] << 1);
                spread(high, bit[2] | bit[3] << 1);
                multiply(by_filters[n], a, low, high);
            }
            __syncwarp();  // before the next tile takes its place
        }
        __syncthreads();  // before the next images come
    }

    if (has_outputs) {
        if (warp >= DENSE_TILES) return;
        float* out = of_outputs + (long long)split * OF_OUTPUTS;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
            for (int o = 0; o < OUTPUT_TILES; ++o) {
                write_sums(out + 16 * o * DENSE + 16 * warp + 8 * i, DENSE, by_outputs[o][i]);
                over_rows(by_output_bias[o][i]);
                float* place = out + OUTPUTS * DENSE + DENSE + 16 * o + 8 * i + 2 * t;
                if (warp == 0 && g == 0) *(FloatPair*)place = {by_output_bias[o][i][0], by_output_bias[o][i][1]};
            }
            over_rows(by_bias[i]);
            const int column = 16 * warp + 8 * i + 2 * t;
            if (g == 0) *(FloatPair*)(out + OUTPUTS * DENSE + column) = {by_bias[i][0], by_bias[i][1]};
            if (NORMS) write_norm(out + OUTPUTS * DENSE + DENSE + OUTPUTS + column, DENSE, by_gain[i], by_shift[i]);
        }
        return;
    }
    // Neighbouring places, which are of other warps, lie side by side in memory.
    float* stage = (float*)shared;  // [16 STAGE_TILES][STAGE_PITCH]
#pragma unroll
    for (int from = 0; from < DENSE_TILES; from += STAGE_TILES) {
#pragma unroll
        for (int i = 0; i < 8 * STAGE_TILES; ++i) {
            const int row = i / 8 * 16 + i % 4 / 2 * 8 + g;
            const int filter = i % 8 / 4 * 8 + 2 * t + i % 2;
            if (from + i / 8 >= DENSE_TILES) break;
            stage[row * STAGE_PITCH + filter * PLACE_PITCH + warp] = by_dense[from + i / 8][i % 8 / 4][i % 4];
        }
        __syncthreads();
        for (int i = threadIdx.x; i < STAGE_TILES * 16 * FILTERS * WARPS; i += THREADS) {
            const int row = i / (FILTERS * WARPS);
            const int filter = i / WARPS % FILTERS;
            const int other = group * WARPS + i % WARPS;
            if (16 * from + row >= DENSE || other >= PLACES) continue;
            float* out = of_dense + (long long)split * DENSE * FILTERS * PLACES;
            out[((16 * from + row) * FILTERS + filter) * PLACES + other] =
                stage[row * STAGE_PITCH + filter * PLACE_PITCH + i % WARPS];
        }
        __syncthreads();
    }
    float* sums = (float*)shared;  // [WARPS][OF_FILTERS]
#pragma unroll
    for (int n = 0; n < PATCH_BLOCKS; ++n) {
        write_sums(sums + warp * OF_FILTERS + 8 * n, PATCH_COLUMNS, by_filters[n]);
    }
    for (int i = 0; NORMS && i < 2; ++i) {
        float* place = sums + warp * OF_FILTERS + FILTERS * PATCH_COLUMNS + 8 * i + 2 * t;
        write_norm(place, FILTERS, by_gain[i], by_shift[i]);
    }
    __syncthreads();
    float* out = of_filters + (long long)(split * GROUPS + group) * OF_FILTERS;
    for (int i = threadIdx.x; i < OF_FILTERS; i += THREADS) {
        float whole = 0.0f;
        for (int w = 0; w < WARPS; ++w) whole += sums[w * OF_FILTERS + i];
        out[i] = whole;
    }
}
