// The kernel ac_gradient of ac_gradient.cu by whole warpgroups, of rows that were kept IN_BLOCKS (ac_rows.cuh): 64 come
// at once. Elsewhere than on an sm_90a warps multiply alone.
//
// Constants:
//   FULL_PRECISION  of elements
//   THREADS         256: two warpgroups, each with half of a tile's outputs
//   PARTS           of the rows, each of them a block's for every tile of a gradient; those of a tile are a cluster
//   SHARED_BYTES    of a block
#include "ac_task.cuh"
#include "cluster.cuh"
#include "over_block.cuh"
#include "warps_or_groups.cuh"

constexpr int PANEL = 64;                            // columns that lie together
constexpr int OUTS = 2 * PANEL, INS = PANEL;         // parameters of a tile
constexpr int BLOCK = 64;                            // elements of a block of 8 x 8
constexpr int ALONG = BLOCK * (int)sizeof(Element);  // bytes
constexpr int STAGE = 64;                            // rows
constexpr int STAGES = 4;
constexpr int PITCH = INS + 4;
constexpr int OWN = OUTS / PARTS;  // outputs of a tile that a block adds up

static_assert(THREADS == 2 * 128, "warpgroups have half a tile each");
static_assert(PARTS <= 8 && OUTS % (4 * PARTS) == 0, "a portable cluster has 8 blocks at most");

struct alignas(128) Shared {
    union {
        struct {
            Element delta[STAGE * OUTS], given[STAGE * INS];
        } stage[STAGES];
        float sums[OUTS * PITCH];  // of a tile, once all stages were read
    };
    float of_bias[OUTS], of_warp[THREADS / 32];
    unsigned long long arrivals[STAGES];
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "the block has less shared memory");

// Elements come to shared memory by a bulk copy; elsewhere than on an sm_90a by all threads, at once.
__device__ __forceinline__ void bring(Element* place, const Element* from, int count, unsigned long long* arrival)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    if (threadIdx.x == 0) start_bulk_copy(place, from, count * (int)sizeof(Element), arrival);
#else
    for (int i = threadIdx.x; i < count; i += THREADS) place[i] = from[i];
#endif
}

// A tile of A out of a panel of rows, transposed: 16 columns, of which `first` is the first block, and 16 rows.
//   down  elements from a block to that of the next rows
__device__ __forceinline__ void load_columns_of_warp(Pair (&a)[4], const Element* first, int down)
{
    const int lane = lane_index();
    if constexpr (HAS_TENSOR_CORES && !FULL_PRECISION) {
        const int matrix = lane >> 3;
        load_matrices<true>(a, first + (matrix >> 1) * down + (matrix & 1) * BLOCK + (lane & 7) * 8);
        return;
    }
    for (int matrix = 0; matrix < 4; ++matrix) {
        const Element* two = first + (matrix >> 1) * down + (matrix & 1) * BLOCK + 2 * (lane & 3) * 8 + (lane >> 2);
        join(a[matrix], two[0], two[8]);
    }
}

// Four neighbours at the same place in all blocks of the cluster, added up in their order.
struct alignas(16) Four {
    float of[4];
};
__device__ __forceinline__ Four add_up(const float* place)
{
    Four sum = {};
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        Four found;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(found.of[0]), "=f"(found.of[1]), "=f"(found.of[2]), "=f"(found.of[3])
                     : "r"(place_in_block(place, part)));
#else
        found = *(const Four*)place;
#endif
#pragma unroll
        for (int i = 0; i < 4; ++i) sum.of[i] += found.of[i];
    }
    return sum;
}

//   tasks     [tile]                                                           read
//   num_rows  of all arrays, a multiple of 64; 16 divides their widths
//   gradient  as torch has parameters, layer by layer                          written
//   squares   [tile, PARTS]  sums of squares                                   written
//   halted    [1]  the guard's: whether anything was found before              read
//   first_name  [1]  of what is not finite, the smallest number                read, written
extern "C" __global__ void __launch_bounds__(THREADS, 2) ac_gradient(
    const long long* tasks, int num_rows, float* gradient, float* squares, const float* halted, long long* first_name)
{
    extern __shared__ char memory[];
    Shared& shared = *(Shared*)memory;
    const int part = blockIdx.x % PARTS;
    const Task task = ((const Task*)tasks)[blockIdx.x / PARTS];
    const int all_stages = num_rows / STAGE;
    const int first = all_stages * part / PARTS;
    const int num_stages = all_stages * (part + 1) / PARTS - first;
    const int num_out = min(OUTS, (int)(task.out - task.first_out)), num_in = min(INS, (int)(task.in - task.first_in));
    const int out_columns = min(OUTS, (int)(task.out_width - task.first_out));  // that are there: rows may have more than
    const int in_columns = min(INS, (int)(task.in_width - task.first_in));      // the layer, as a policy's have actions
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    for (int i = 0; i < STAGES && threadIdx.x == 0; ++i) prepare_arrival(shared.arrivals + i);
#endif
    __syncthreads();
    const int of_delta = STAGE * out_columns, of_given = STAGE * in_columns;  // elements of a stage
    const Element* delta = (const Element*)task.delta + (first * task.out_width + task.first_out) * STAGE;
    const Element* given = (const Element*)task.given + (first * task.in_width + task.first_in) * STAGE;
    const auto start = [&](int number) {
        if (number >= num_stages) return;
        auto& stage = shared.stage[number % STAGES];
        unsigned long long* arrival = shared.arrivals + number % STAGES;
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
        if (threadIdx.x == 0) expect_bytes(arrival, (of_delta + of_given) * (int)sizeof(Element));
#endif
        bring(stage.delta, delta + number * task.out_width * STAGE, of_delta, arrival);
        bring(stage.given, given + number * task.in_width * STAGE, of_given, arrival);
    };
    for (int i = 0; i < STAGES - 1; ++i) start(i);

    const int panel = threadIdx.x / 128 * PANEL;            // the warpgroup's outputs
    const int out = panel + threadIdx.x / 32 % 4 * 16;      // the warp's
    const int down_out = min(PANEL, out_columns - panel) / 8 * BLOCK;  // from a block to that of the next rows
    const int down_in = in_columns / 8 * BLOCK;
    const bool has_bias = task.first_in == 0;
    float sum[INS / 8][4] = {};
    float of_bias[2] = {};
    for (int number = 0; number < num_stages; ++number) {
        auto& stage = shared.stage[number % STAGES];
        __syncthreads();  // the stage before was read; elsewhere than on an sm_90a, this one is there
        start(number + STAGES - 1);
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
        wait_for_bytes(shared.arrivals + number % STAGES, number / STAGES);
#endif
        if (panel >= num_out) continue;
        Pair a[STAGE / 16][4] = {};
#pragma unroll
        for (int k = 0; k < STAGE / 16; ++k) {
            if (out >= out_columns) break;
            const Element* place = stage.delta + panel * STAGE + (out - panel) / 8 * BLOCK;
            load_columns_of_warp(a[k], place + 2 * k * down_out, down_out);
        }
        settle(sum);
        settle_input(a);
        begin_products();
#pragma unroll
        for (int k = 0; k < STAGE / 16; ++k) {
            add_tile<true, true>(sum, a[k], stage.given + 2 * k * down_in, down_in * (int)sizeof(Element), ALONG);
        }
        end_products();
#pragma unroll
        for (int i = 0; i < STAGE / 16 * 4 && has_bias; ++i) {
            const FloatPair two = unpack(a[i / 4][i % 4]);
            of_bias[i % 2] += two.low + two.high;
        }
        wait_for_products<0>();
        settle(sum);
        settle_input(a);
    }

    __syncthreads();
    const int g = lane_index() / 4, t = lane_index() % 4;
    if (panel < num_out) {
#pragma unroll
        for (int i = 0; i < INS / 8; ++i) {
            float* upper = shared.sums + (out + g) * PITCH + 8 * i + 2 * t;
            *(FloatPair*)upper = {sum[i][0], sum[i][1]};
            *(FloatPair*)(upper + 8 * PITCH) = {sum[i][2], sum[i][3]};
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float all = over_warp(of_bias[i], 4);
            if (t == 0) shared.of_bias[out + g + 8 * i] = all;
        }
    }
    meet_cluster<PARTS>();

    const bool is_told = halted[0] == 0.0f;
    float square = 0.0f;
    const auto write = [&](long long place, float value, long long name) {
        gradient[place] = value;
        square += value * value;
        if (!isfinite(value) && is_told) atomicMin(first_name, name);
    };
    for (int i = threadIdx.x; i < OWN * INS / 4; i += THREADS) {
        const int row = part * OWN + i / (INS / 4), column = i % (INS / 4) * 4;
        if (row >= num_out || column >= num_in) continue;
        const Four found = add_up(shared.sums + row * PITCH + column);
        const long long place = task.weights + (task.first_out + row) * task.in + task.first_in + column;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            if (column + k < num_in) write(place + k, found.of[k], task.name);
        }
    }
    for (int i = threadIdx.x; i < OWN / 4 && has_bias; i += THREADS) {
        const int row = part * OWN + 4 * i;
        if (row >= num_out) break;
        const Four found = add_up(shared.of_bias + row);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            if (row + k < num_out) write(task.biases + task.first_out + row + k, found.of[k], task.name + 1);
        }
    }
    square = over_block(square, shared.of_warp);
    if (threadIdx.x == 0) squares[blockIdx.x] = square;
    leave_cluster<PARTS>();
}
