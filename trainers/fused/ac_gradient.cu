// Gradients of an update of a policy and its critics, or of a Q-network, by what ac_learn.cu or wide_q.cu kept of the rows.
// ac_gradient_by_groups.cu has the same kernel for warpgroups.
//
// Constants:
//   FULL_PRECISION  of elements
//   THREADS         of a block
//   PARTS           of the rows, each of them a block's for every tile of a gradient
//   SHARED_BYTES    of a block
#include "ac_task.cuh"
#include "over_block.cuh"
#include "pairs.cuh"

constexpr int WARPS = THREADS / 32;
constexpr int SIDE = 64;                        // parameters of a tile, both ways
constexpr int STAGE = 64;                       // rows in shared memory at once
constexpr int STAGE_PITCH = SIDE + 8;
constexpr int ACROSS = WARPS / (SIDE / 16);     // warps that share 16 outputs
constexpr int COLUMN_TILES = SIDE / 16 / ACROSS;

static_assert(WARPS % (SIDE / 16) == 0 && SIDE / 16 % ACROSS == 0, "warps share a tile");

struct Sums {
    float of[COLUMN_TILES][2][4];
    float of_bias[4];
};
constexpr int NUM_OF_THREAD = sizeof(Sums) / 4;

struct alignas(16) Stage {
    Element delta[STAGE * STAGE_PITCH], given[STAGE * STAGE_PITCH];
};
struct alignas(16) GradientShared {
    Stage stage[2];
    float of_warp[WARPS];
    int is_last;
};
static_assert(sizeof(GradientShared) <= SHARED_BYTES, "the block has less shared memory");

// What a thread brings of rows of SIDE columns to shared memory, stage by stage; nothing from beyond the array, which no
// product reads.
class Pieces {
public:
    //   array  [.., width]
    //   row    the first of the first stage
    __device__ __forceinline__ Pieces(const Element* array, int width, int column, int row) : width(width)
    {
        const int at = column + threadIdx.x % OF_ROW * PIECE;
        const int first = threadIdx.x / OF_ROW;
        from = array + (long long)(row + first) * width + at;
        first_row = at < width ? first : STAGE;
        place = first * STAGE_PITCH + at - column;
    }

    //   num_rows  that are there
    __device__ __forceinline__ void start(Element* to, int num_rows)
    {
#pragma unroll
        for (int i = 0; i < STAGE; i += AT_ONCE) {
            if (first_row + i >= num_rows || first_row >= STAGE) break;
            start_copy((Bytes16*)(to + place + i * STAGE_PITCH), (const Bytes16*)(from + i * width));
        }
        from += STAGE * width;
    }

private:
    static constexpr int PIECE = 16 / (int)sizeof(Element), OF_ROW = SIDE / PIECE, AT_ONCE = THREADS / OF_ROW;
    static_assert(STAGE % AT_ONCE == 0, "all threads have as many pieces");
    const Element* from;
    int width, first_row, place;
};

// Gradients of weights and biases: deltas times what their layers were given. A block has a tile and a part of the rows;
// the last that is done with a tile adds up.
//   tasks     [tile]                                                           read
//   num_rows  of all arrays
//   parts     [tile, PARTS, NUM_OF_THREAD, THREADS]  what blocks have summed up   written, read
//   arrivals  [tile]  0 between launches                                       read, written
//   gradient  as torch has parameters, layer by layer                          written
//   squares   [tile]  sums of squares                                          written
//   halted    [1]  the guard's: whether anything was found before              read
//   first_name  [1]  of what is not finite, the smallest number                read, written
extern "C" __global__ void __launch_bounds__(THREADS) ac_gradient(
    const long long* tasks, int num_rows, float* parts, unsigned int* arrivals, float* gradient, float* squares,
    const float* halted, long long* first_name)
{
    extern __shared__ char memory[];
    GradientShared& shared = *(GradientShared*)memory;
    const int tile = blockIdx.x / PARTS;
    const int part = blockIdx.x % PARTS;
    const Task task = ((const Task*)tasks)[tile];
    const int per_part = (num_rows / 16 + PARTS - 1) / PARTS * 16;
    const int first = part * per_part;
    const int last = min(first + per_part, num_rows);
    const int warp = threadIdx.x / 32;
    const int out_tile = warp % (SIDE / 16) * 16;
    const int in_tile = warp / (SIDE / 16) * COLUMN_TILES * 16;
    const int num_out = (int)(task.out - task.first_out), num_in = (int)(task.in - task.first_in);  // from the tile's on
    const int column_tiles = num_out <= out_tile ? 0 : (num_in - in_tile + 15) / 16;  // this warp's, or more
    const bool has_bias = task.first_in == 0 && in_tile == 0;
    const bool is_told = halted[0] == 0.0f;
    const Pair ones = packed(1.0f, 1.0f);
    Pieces delta((const Element*)task.delta, (int)task.out_width, (int)task.first_out, first);
    Pieces given((const Element*)task.given, (int)task.in_width, (int)task.first_in, first);
    const auto start = [&](int row) {
        Stage& stage = shared.stage[(row - first) / STAGE % 2];
        delta.start(stage.delta, last - row);
        given.start(stage.given, last - row);
        close_copies();
    };
    Sums sums = {};
    if (first < last) start(first);
    for (int row = first; row < last; row += STAGE) {
        if (row + STAGE < last) start(row + STAGE);
        else close_copies();
        wait_for_groups<1>();
        __syncthreads();
        const Stage& stage = shared.stage[(row - first) / STAGE % 2];
#pragma unroll
        for (int k = 0; k < STAGE; k += 16) {
            if (row + k >= last || column_tiles <= 0) break;
            Pair a[4];
            load_columns<true, false>(a, stage.delta + k * STAGE_PITCH, STAGE_PITCH, out_tile);
#pragma unroll
            for (int i = 0; i < COLUMN_TILES; ++i) {
                if (i >= column_tiles) break;
                Pair b[4];
                load_columns<false, false>(b, stage.given + k * STAGE_PITCH, STAGE_PITCH, in_tile + 16 * i);
                multiply(sums.of[i][0], a, b[0], b[1]);
                multiply(sums.of[i][1], a, b[2], b[3]);
            }
            if (has_bias) multiply(sums.of_bias, a, ones, ones);
        }
        __syncthreads();
    }
    if (PARTS > 1) {
        float* own = (float*)&sums;
        float* place = parts + ((long long)tile * PARTS * NUM_OF_THREAD) * THREADS + threadIdx.x;
#pragma unroll
        for (int i = 0; i < NUM_OF_THREAD; ++i) place[(part * NUM_OF_THREAD + i) * THREADS] = own[i];
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) shared.is_last = atomicInc(arrivals + tile, PARTS - 1) == PARTS - 1;  // 0 follows
        __syncthreads();
        if (!shared.is_last) return;
        __threadfence();
#pragma unroll
        for (int i = 0; i < NUM_OF_THREAD; ++i) {
            float sum = 0.0f;
            for (int other = 0; other < PARTS; ++other) sum += __ldcg(place + (other * NUM_OF_THREAD + i) * THREADS);
            own[i] = sum;
        }
    }

    float square = 0.0f;
    float* weights = gradient + task.weights + task.first_out * task.in + task.first_in;
    const int pitch = (int)task.in;
    const auto write = [&](int out, int column, float value) {
        if (out >= num_out || column >= num_in) return;
        weights[out * pitch + column] = value;
        square += value * value;
        if (!isfinite(value) && is_told) atomicMin(first_name, task.name);
    };
#pragma unroll
    for (int i = 0; i < COLUMN_TILES; ++i) {
        for_each_pair(sums.of[i], [&](int r, int c, float low, float high) {
            const int column = in_tile + 16 * i + c;
            write(out_tile + r, column, low);
            write(out_tile + r, column + 1, high);
        });
    }
    if (has_bias && (lane_index() & 3) == 0) {
        for (int i = 0; i < 2; ++i) {
            const int out = out_tile + lane_index() / 4 + 8 * i;
            const float value = sums.of_bias[2 * i];
            if (out >= num_out) continue;
            gradient[task.biases + task.first_out + out] = value;
            square += value * value;
            if (!isfinite(value) && is_told) atomicMin(first_name, task.name + 1);
        }
    }
    square = over_block(square, shared.of_warp);
    if (threadIdx.x == 0) squares[tile] = square;
}
