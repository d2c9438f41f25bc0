// What follows the deltas of an update of a policy and its critics, or of a Q-network: gradients, Adam's step, targets,
// and the networks as products read them.
//
// Constants, besides those of ac_networks.cuh:
//   PARTS     of the rows, each of them a block's for every tile of a gradient
//   MAX_NORM  to which a gradient is shortened; 0: to none
//   TAU       how far target critics step
#include "ac_networks.cuh"

constexpr long long NOTHING_FOUND = 1ll << 62;  // guard.py has the same
constexpr int SIDE = 64;                        // parameters of a tile, both ways
constexpr int STAGE = 64;                       // rows in shared memory at once
constexpr int STAGE_PITCH = SIDE + 8;
constexpr int ACROSS = WARPS / (SIDE / 16);     // warps that share 16 outputs
constexpr int COLUMN_TILES = SIDE / 16 / ACROSS;

static_assert(WARPS % (SIDE / 16) == 0 && SIDE / 16 % ACROSS == 0, "warps share a tile");

// ---- gradients

// A tile of SIDE by SIDE parameters of a layer.
struct Task {
    long long delta, given;              // where rows of elements are
    long long out, in;                   // of the layer
    long long out_width, in_width;       // of the rows
    long long first_out, first_in;       // of the tile
    long long weights, biases;           // where their gradients begin
    long long name;                      // the number of the weight among all that learn; the bias's is the next
};

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

// ---- steps

// What all blocks find of the gradient's length and of the guard's flags.
struct Verdict {
    float length, shortened, num_steps;
    bool is_halted;

    __device__ __forceinline__ Verdict() : length(0.0f), shortened(1.0f), num_steps(1.0f), is_halted(true) {}
    __device__ __forceinline__ Verdict(
        const float* squares, int num_tiles, bool is_bad_besides, float steps, float* halted, float* run_halted,
        long long* first_name, long long default_name, float* of_warp)
    {
        float sum = 0.0f;
        for (int i = threadIdx.x; i < num_tiles; i += THREADS) sum += squares[i];
        const bool was_halted = halted[0] != 0.0f;  // it only rises, and then all blocks find what it rose for
        length = sqrtf(over_block(sum, of_warp));
        const bool is_bad = is_bad_besides || !isfinite(length);
        is_halted = was_halted || is_bad;
        num_steps = steps + (is_halted ? 0.0f : 1.0f);
        shortened = MAX_NORM > 0.0f ? fminf(1.0f, MAX_NORM / (length + 1e-6f)) : 1.0f;
        if (is_bad && !was_halted && blockIdx.x == 0 && threadIdx.x == 0) {
            if (first_name[0] == NOTHING_FOUND) first_name[0] = default_name;  // too long, though no part is
            halted[0] = run_halted[0] = 1.0f;
        }
    }
};

struct Adam {
    float step_size, correction;

    __device__ __forceinline__ Adam(float rate, float num_steps)
    {
        step_size = rate / -expm1f(num_steps * -0.105360516f);  // 1 - 0.9^steps, see adam_step
        correction = 1.0f / sqrtf(-expm1f(num_steps * -0.0010005003f));
    }
    __device__ __forceinline__ void step(float& parameter, float& mean, float& mean_square, float slope) const
    {
        mean += 0.1f * (slope - mean);
        mean_square = 0.999f * mean_square + 0.001f * slope * slope;
        parameter -= step_size * step_of(mean, mean_square, correction);
    }
};

// What a parameter's step reads, asked for before the verdict is waited for.
struct Numbers {
    float *parameter, value, mean, mean_square, slope, target;
};

// Steps of all parameters of some networks, and of what follows them.
//   STEPS    whether Adam makes one; else only what follows does
//   find     says the Verdict, which is returned
template <bool CRITIC, bool STEPS, typename Find>
__device__ __forceinline__ Verdict step_all(
    Find find, float rate, int num_networks, const Tensors<CRITIC>& tensors, const float* gradient, float* average,
    float* square, Element* elements, float* biases, float* target, Element* target_elements, float* target_biases,
    bool follows)
{
    using N = Net<CRITIC>;
    constexpr int EACH = N::PARAMETERS > 0 ? N::PARAMETERS : 1;
    const int count = num_networks * N::PARAMETERS;
    const auto read = [&](int i) {
        Numbers found = {};
        if (i >= count) return found;
        found.parameter = &tensors(i / EACH, i % EACH);
        if (STEPS) {
            found.mean = average[i];
            found.mean_square = square[i];
            found.slope = gradient[i];
        }
        if (follows) found.target = target[i];
        found.value = *found.parameter;
        return found;
    };
    Numbers held = read(global_thread());
    const Verdict verdict = find();
    const Adam adam(rate, verdict.num_steps);
    for (int i = global_thread(); i < count; i += num_global_threads()) {
        const int network = i / EACH;
        const int number = i - network * EACH;
        if (STEPS && !verdict.is_halted) {
            adam.step(held.value, held.mean, held.mean_square, held.slope * verdict.shortened);
            average[i] = held.mean;
            square[i] = held.mean_square;
            *held.parameter = held.value;
            put<CRITIC, true>(
                elements + network * 2 * N::ELEMENTS, biases + network * N::BIASES, number, held.value);
        }
        if (follows) {
            const float way = held.value - held.target;
            const float there = TAU < 0.5f ? held.target + TAU * way : held.value - way * (1.0f - TAU);
            target[i] = there;
            put<CRITIC, false>(
                target_elements + network * N::ELEMENTS, target_biases + network * N::BIASES, number, there);
        }
        held = read(i + num_global_threads());
    }
    return verdict;
}

// Adam's step of all critics, and of what follows them.
//   addresses    [NUM_CRITICS, 2 LAYERS]  of their parameters: these are                        read, written
//   gradient, squares, num_tiles  of ac_gradient                                                read
//   average, square, target  [NUM_CRITICS, PARAMETERS]                                          read, written
//   steps        [2]  of ac_judge                                                               read
//   adam_steps   [num_tensors]                                                                  written
//   lr           [1]                                                                            read
//   halted, run_halted, first_name  [1]  of the guard                                           read, written
//   default_name  of the first parameter
//   elements, biases  of all networks                                                           written
//   sums         [num_blocks, NUM_SUMS]  of ac_judge                                            read
//   figures      [4]  critic_loss, q_mean, td_error, critic_grad_norm                           written
//   follows      whether targets make their step
extern "C" __global__ void __launch_bounds__(THREADS) ac_step_critics(
    const long long* addresses, const float* gradient, const float* squares, int num_tiles, float* average,
    float* square, float* target, const float* steps, float* adam_steps, int num_tensors, const float* lr,
    float* halted, float* run_halted, long long* first_name, long long default_name, unsigned char* elements,
    float* biases, const float* sums, int num_blocks, float* figures, bool follows)
{
    __shared__ float of_warp[WARPS];
    const auto find = [&]() {
        return Verdict(squares, num_tiles, false, steps[0], halted, run_halted, first_name, default_name, of_warp);
    };
    const Verdict verdict = step_all<true, true>(
        find, lr[0], NUM_CRITICS, Tensors<true>{addresses}, gradient, average, square,
        (Element*)elements + critic_elements(0), biases + critic_biases(0), target,
        (Element*)elements + target_elements(0), biases + critic_biases(NUM_CRITICS), follows);
    if (blockIdx.x > 0) return;
    for (int i = threadIdx.x; i < num_tensors; i += THREADS) adam_steps[i] = verdict.num_steps;
    if (threadIdx.x < 3) {
        float sum = 0.0f;
        for (int block = 0; block < num_blocks; ++block) sum += sums[block * NUM_SUMS + threadIdx.x];
        figures[threadIdx.x] = sum;
    }
    if (threadIdx.x == 0) figures[3] = verdict.length;
}

// Adam's step of the policy, and of the temperature.
//   as above; besides
//   log_alpha    [1]                                                                            read, written
//   alpha_average, alpha_square, alpha_steps  [1]  Adam's of it                                 read, written
//   learns_alpha, target_entropy
//   alpha_name   its number among all that learn
//   figures      [4]  actor_loss, entropy, grad_norm, alpha                                     written
extern "C" __global__ void __launch_bounds__(THREADS) ac_step_actor(
    const long long* addresses, const float* gradient, const float* squares, int num_tiles, float* average,
    float* square, const float* steps, float* adam_steps, int num_tensors, const float* lr, float* halted,
    float* run_halted, long long* first_name, long long default_name, unsigned char* elements, float* biases,
    const float* sums, int num_blocks, float* log_alpha, float* alpha_average, float* alpha_square,
    float* alpha_steps, bool learns_alpha, float target_entropy, long long alpha_name, float* figures)
{
    __shared__ float of_warp[WARPS];
    float loss = 0.0f, entropy = 0.0f, slope = 0.0f;
    const auto find = [&]() {
        float whole = 0.0f;
        for (int block = threadIdx.x; block < num_blocks; block += THREADS) {
            loss += sums[block * NUM_SUMS];
            entropy += sums[block * NUM_SUMS + 1];
            whole = fmaxf(whole, sums[block * NUM_SUMS + 2]);
        }
        loss = over_block(loss, of_warp);
        entropy = over_block(entropy, of_warp);
        slope = entropy - (over_block(whole, of_warp) > 0.0f ? target_entropy : 0.0f);
        const bool is_bad = learns_alpha && !isfinite(slope);  // all blocks know, and none makes a step
        const long long name = is_bad ? alpha_name : default_name;
        return Verdict(squares, num_tiles, is_bad, steps[1], halted, run_halted, first_name, name, of_warp);
    };
    const Verdict verdict = step_all<false, true>(
        find, lr[0], 1, Tensors<false>{addresses}, gradient, average, square, (Element*)elements, biases, nullptr,
        nullptr, nullptr, false);
    if (blockIdx.x > 0) return;
    for (int i = threadIdx.x; i < num_tensors; i += THREADS) adam_steps[i] = verdict.num_steps;
    if (threadIdx.x > 0) return;
    figures[0] = loss;
    figures[1] = entropy;
    figures[2] = verdict.length;
    figures[3] = SAMPLES ? expf(log_alpha[0]) : 0.0f;
    if (!learns_alpha || verdict.is_halted) return;
    const float shortened = MAX_NORM > 0.0f ? fminf(1.0f, MAX_NORM / (fabsf(slope) + 1e-6f)) : 1.0f;
    alpha_steps[0] += 1.0f;
    Adam(lr[0], alpha_steps[0]).step(log_alpha[0], alpha_average[0], alpha_square[0], slope * shortened);
}

// ---- between updates

// Target critics step towards the critics; and the target policy towards the policy, if there is one.
//   addresses, target, elements, biases  of critics, as above
//   actor_addresses, actor_target        the same of the policy
extern "C" __global__ void __launch_bounds__(THREADS) ac_follow(
    const long long* addresses, float* target, const long long* actor_addresses, float* actor_target,
    unsigned char* elements, float* biases)
{
    Element* networks = (Element*)elements;
    const auto nothing = []() { return Verdict(); };
    step_all<true, false>(
        nothing, 0.0f, NUM_CRITICS, Tensors<true>{addresses}, nullptr, nullptr, nullptr, nullptr, nullptr, target,
        networks + target_elements(0), biases + critic_biases(NUM_CRITICS), true);
    if (SAMPLES) return;
    step_all<false, false>(
        nothing, 0.0f, 1, Tensors<false>{actor_addresses}, nullptr, nullptr, nullptr, nullptr, nullptr, actor_target,
        networks + TARGET_POLICY_ELEMENTS, biases + TARGET_POLICY_BIASES, true);
}

// All networks as products read them, after somebody else changed them. What is beyond their layers is 0 before.
//   as ac_follow
extern "C" __global__ void __launch_bounds__(THREADS) ac_pack(
    const long long* addresses, const float* target, const long long* actor_addresses, const float* actor_target,
    unsigned char* elements, float* biases)
{
    const Tensors<false> actor = {actor_addresses};
    const Tensors<true> critics = {addresses};
    Element* networks = (Element*)elements;
    for (int i = global_thread(); i < Actor::PARAMETERS; i += num_global_threads()) {
        put<false, true>(networks, biases, i, actor(0, i));
        if (SAMPLES) continue;
        put<false, false>(networks + TARGET_POLICY_ELEMENTS, biases + TARGET_POLICY_BIASES, i, actor_target[i]);
    }
    for (int i = global_thread(); i < NUM_CRITICS * Critic::PARAMETERS; i += num_global_threads()) {
        const int critic = i / Critic::PARAMETERS;
        const int number = i % Critic::PARAMETERS;
        put<true, true>(
            networks + critic_elements(critic), biases + critic_biases(critic), number, critics(critic, number));
        put<true, false>(
            networks + target_elements(critic), biases + critic_biases(NUM_CRITICS + critic), number, target[i]);
    }
}
