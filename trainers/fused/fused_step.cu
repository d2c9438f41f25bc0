// From the parts of a gradient to new parameters: the sum, its length, and a step of Adam.
//
// Sizes are arguments, so that all policies share these kernels. Constants:
//   STEP_THREADS     of a block
//   NUM_FIGURES      in a row of what the learn kernel wrote
//   FULL_PRECISION   of the networks
#include "over_block.cuh"

constexpr long long NOTHING_FOUND = 1ll << 62;  // guard.py has the same

// Adds the parts up, always in the same order; the first block those of the figures. Tables begin with the first
// parameters, which have about as many parts as most do, then come the others, which have other numbers of them; both in
// the order in which gradients lie in the parts, so that neighbours are read together.
//   parts               [.., gradient]  of all networks, one after the other              read
//   place               [parameter]  where the first part of its gradient is              read
//   stride              [parameter]  from one part to the next                            read
//   num_parts           [parameter]                                                       read
//   name                [parameter]  the tensor that it belongs to                        read
//   number              [parameter]  its own, among the policy's                          read
//   halted, first_loss  [1]  not 0, not NOTHING_FOUND: nothing more is looked for         read
//   figures             [num_figure_rows, NUM_FIGURES]  of this minibatch                 read
//   gradient            [parameter]  in the policy's order                                written
//   squares             [block but the first]  sums of the squares                        written
//   told                [NUM_FIGURES + 2]  the first: sums of the figures, if there are   written
//   first_name          [1]  the first tensor whose gradient has a NaN or an infinity     read, written
//   num_parameters, num_first, num_first_blocks  of the policy; of the first of them      read
//   first_slices, other_slices  threads that add up one parameter's parts, as powers of 2  read
extern "C" __global__ void __launch_bounds__(STEP_THREADS) add_up_gradient(
    const float* parts, const long long* place, const int* stride, const int* num_parts, const int* name,
    const int* number, const float* halted, const long long* first_loss, const float* figures, float* gradient, float* squares,
    float* told, long long* first_name, int num_parameters, int num_first, int num_first_blocks,
    int first_slices, int other_slices, int num_figure_rows)
{
    __shared__ float sum_of[STEP_THREADS];  // [slice][parameter of this block]
    __shared__ float of_warps[NUM_FIGURES * STEP_THREADS / 32];
    if (blockIdx.x == 0) {
        if (num_figure_rows == 0) return;
        float figure[NUM_FIGURES] = {};
        for (int k = threadIdx.x; k < num_figure_rows; k += STEP_THREADS) {
#pragma unroll
            for (int i = 0; i < NUM_FIGURES; ++i) figure[i] += figures[k * NUM_FIGURES + i];
        }
        over_block(figure, of_warps);
#pragma unroll
        for (int i = 0; i < NUM_FIGURES; ++i) {
            if (threadIdx.x == 0) told[i] = figure[i];
        }
        return;
    }
    const int block = blockIdx.x - 1;
    const bool is_first = block < num_first_blocks;
    const int slices = 1 << (is_first ? first_slices : other_slices);
    const int in_block = STEP_THREADS >> (is_first ? first_slices : other_slices);
    const int mine = threadIdx.x & (in_block - 1);
    const int slice = threadIdx.x * slices / STEP_THREADS;
    const int i = mine + (is_first ? block * in_block : num_first + (block - num_first_blocks) * in_block);
    const int end = is_first ? num_first : num_parameters;
    int own = 0;
    if (i < end) {
        if (slice == 0) own = number[i];
        const int step = stride[i];
        const int count = num_parts[i];
        const float* part = parts + place[i] + (long long)slice * step;
        const int next = slices * step;
        float sum[2] = {};
        int k = slice;
        do {  // whatever `count` is, so that it is not waited for before the others are asked for
            float eight[8];
#pragma unroll
            for (int j = 0; j < 8; ++j, k += slices, part += next) eight[j] = k < count ? *part : 0.0f;
#pragma unroll
            for (int j = 0; j < 8; ++j) sum[j % 2] += eight[j];
        } while (k < count);
        sum_of[threadIdx.x] = sum[0] + sum[1];
    }
    __syncthreads();
    float whole = 0.0f;
    if (slice == 0 && i < end) {
        for (int k = 0; k < slices; ++k) whole += sum_of[k * in_block + mine];
        gradient[own] = whole;
        if (!isfinite(whole)) {
            const bool is_told = halted[0] == 0.0f && first_loss[0] == NOTHING_FOUND;  // else those are
            if (is_told) atomicMin(first_name, (long long)name[i]);
        }
    }
    const float square = over_block(whole * whole, of_warps);
    if (threadIdx.x == 0) squares[block] = square;
}

// A target's parameter, a step nearer to the one that it follows; rounded as torch does.
__device__ __forceinline__ float nearer(float target, float parameter, float tau)
{
    const float behind = parameter - target;
    return tau < 0.5f ? target + tau * behind : parameter - (1.0f - tau) * behind;
}

// A parameter where the kernels read it: among the elements, or, at -1 - its place, the biases.
__device__ __forceinline__ void put(unsigned char* elements, float* biases, int place, float parameter)
{
    if (place >= 0) {
        narrow(((Element*)elements)[place], parameter);
    } else {
        biases[-1 - place] = parameter;
    }
}

// One step of Adam (Kingma and Ba 2015, arXiv:1412.6980) along the gradient, shortened to max_norm.
// None if the run is halted, this iteration stopped, or the policy too far from the one that played.
//   gradient                 [parameter]                                                  read
//   squares                  [group]  of the blocks that added up                         read
//   told                     [NUM_FIGURES + 2]  of this minibatch, the fourth being the
//                            KL divergence; then the gradient's length before it is
//                            shortened, and 0 if an earlier step found target_kl
//                            passed, else 1                                               read, written
//   first_loss, first_name   [1]  not NOTHING_FOUND: what halts the run; a norm that is no
//                            number, of parts that are, is named after the first tensor   read, written
//   halted, stopped          [1]  not 0: no step; raised here                             read, written
//   run_halted               [1]  raised with `halted`: what other policies halt by, once
//                            this update is over                                          written
//   step_before, step_after  [1], [num_counts]  steps so far, in memory apart            read; written
//   lr, critic_lr            [1]  of the parameters, and of those of the critic           read
//   is_critic                [parameter]                                                  read
//   order                    [parameter]  in which threads take them, if it is_ordered    read
//   weight_place             [parameter]  of its element in `elements`; or -1 - its place
//                            in `biases`                                                  read
//   parameter, average, square  [parameter]                                               read, written
//   elements, biases         the networks' as their kernels read them; bytes, floats      written
//   target, target_elements, target_biases  of a network that follows this one, if one does; it
//                            does so without a step, too                                  read, written
//   num_parameters, num_groups  of the policy; of squares                                 read
//   max_norm                 to which gradients are shortened; 0: to none                 read
//   target_kl                divergence from which no step is made; 0: none               read
//   follows, tau             whether a network does, and how far it steps                 read
extern "C" __global__ void __launch_bounds__(STEP_THREADS) adam_step(
    const float* gradient, const float* squares, float* told, const long long* first_loss, long long* first_name,
    float* halted, float* run_halted, float* stopped, float* step_before, float* step_after, const float* lr, const float* critic_lr,
    const bool* is_critic, const int* order, const int* weight_place, float* parameter, float* average, float* square,
    unsigned char* elements, float* biases, float* target, unsigned char* target_elements, float* target_biases,
    int num_parameters, int num_counts, int num_groups, float max_norm, float target_kl, bool is_ordered, bool follows,
    float tau)
{
    __shared__ float of_warp[STEP_THREADS / 32];
    const int thread = blockIdx.x * STEP_THREADS + threadIdx.x;
    const bool is_one = thread < num_parameters;
    const int i = is_one && is_ordered ? order[thread] : thread;
    float now = is_one ? parameter[i] : 0.0f;  // all that it needs is on its way before it waits
    const float slope_of_sum = is_one ? gradient[i] : 0.0f;
    const float old_mean = is_one ? average[i] : 0.0f;
    const float old_square = is_one ? square[i] : 0.0f;
    const int place = is_one ? weight_place[i] : 0;
    const float old_target = is_one && follows ? target[i] : 0.0f;
    const bool of_critic = is_one && is_critic[i];
    const float of_actor = lr[0], of_critics = critic_lr[0];
    const float divergence = told[3];
    const float was_halted = halted[0];
    const float was_stopped = stopped[0];
    const float steps = step_before[0];
    const long long found[2] = {first_loss[0], first_name[0]};
    float sum = 0.0f;
    for (int first = threadIdx.x; first < num_groups; first += 8 * STEP_THREADS) {
        float eight[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const int k = first + j * STEP_THREADS;
            eight[j] = k < num_groups ? squares[k] : 0.0f;
        }
#pragma unroll
        for (int j = 0; j < 8; ++j) sum += eight[j];
    }
    const bool is_found = found[0] != NOTHING_FOUND || found[1] != NOTHING_FOUND;
    const float length = sqrtf(over_block(sum, of_warp));
    // Flags only rise, and what raises them is there before the launch: every block decides alike, whoever is first.
    const bool is_bad = is_found || !isfinite(length);
    const bool is_far = target_kl > 0.0f && divergence > target_kl;
    const bool skips = is_bad || is_far || was_halted != 0.0f || was_stopped != 0.0f;
    const float step = steps + (skips ? 0.0f : 1.0f);
    if (thread == 0) {
        told[NUM_FIGURES] = length;
        told[NUM_FIGURES + 1] = was_stopped != 0.0f ? 0.0f : 1.0f;
        for (int k = 0; k < num_counts; ++k) step_after[k] = step;
        if (was_halted == 0.0f && !is_found && is_bad) first_name[0] = 0;  // too long, though no part is
        if (is_bad) halted[0] = run_halted[0] = 1.0f;
        if (is_far) stopped[0] = 1.0f;
    }
    if (!is_one) return;
    if (!skips) {
        const float shortened = max_norm > 0.0f ? fminf(1.0f, max_norm / (length + 1e-6f)) : 1.0f;
        const float slope = slope_of_sum * shortened;
        const float correction1 = -expm1f(step * -0.105360516f);  // 1 - 0.9^step, whose difference loses digits
        const float correction2 = -expm1f(step * -0.0010005003f);  // 1 - 0.999^step
        const float mean = old_mean + 0.1f * (slope - old_mean);
        const float mean_square = 0.999f * old_square + 0.001f * slope * slope;
        average[i] = mean;
        square[i] = mean_square;
        const float size = (of_critic ? of_critics : of_actor) / correction1;
        now -= size * mean / (sqrtf(mean_square) / sqrtf(correction2) + 1e-5f);
        parameter[i] = now;
        put(elements, biases, place, now);
    }
    if (!follows) return;
    const float nearer_by = nearer(old_target, now, tau);
    target[i] = nearer_by;
    put(target_elements, target_biases, place, nearer_by);
}

// The parameters as the kernels read them, after somebody else changed them; as adam_step has them.
//   weight_place, parameter, num_parameters  read
//   elements, biases                         written
extern "C" __global__ void pack_parameters(
    const int* weight_place, const float* parameter, unsigned char* elements, float* biases, int num_parameters)
{
    for (long long i = global_thread(); i < num_parameters; i += num_global_threads()) {
        put(elements, biases, weight_place[i], parameter[i]);
    }
}

// A target network makes a step towards the one that it follows, and goes to where its kernels read it.
//   weight_place, parameter  of the network                                     read
//   target           [parameter]  of the target network                         read, written
//   elements, biases of the target network                                      written
//   tau              how far it steps: 1 copies                                 read
//   num_parameters   of each                                                    read
extern "C" __global__ void follow_parameters(
    const int* weight_place, const float* parameter, float* target, unsigned char* elements, float* biases, float tau,
    int num_parameters)
{
    for (long long i = global_thread(); i < num_parameters; i += num_global_threads()) {
        const float now = target[i] = nearer(target[i], parameter[i], tau);
        put(elements, biases, weight_place[i], now);
    }
}
