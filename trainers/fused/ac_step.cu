// What follows the gradients of an update of a policy and its critics, or of a Q-network: Adam's step, targets, and the
// networks as products read them.
//
// Constants, besides those of ac_networks.cuh:
//   MAX_NORM  to which a gradient is shortened; 0: to none
//   TAU       how far target critics step
#include "ac_networks.cuh"

constexpr long long NOTHING_FOUND = 1ll << 62;  // guard.py has the same

// What all blocks find of the gradient's length and of the guard's flags.
struct Verdict {
    float length, shortened, num_steps;
    bool is_halted;

    __device__ __forceinline__ Verdict() : length(0.0f), shortened(1.0f), num_steps(1.0f), is_halted(true) {}
    __device__ __forceinline__ Verdict(
        float square, bool is_bad_besides, float steps, float* halted, float* run_halted, long long* first_name,
        long long default_name)
    {
        const bool was_halted = halted[0] != 0.0f;  // it only rises, and then all blocks find what it rose for
        length = sqrtf(square);
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

// This thread's part of a sum over all tiles' squares.
__device__ __forceinline__ float sum_of_thread(const float* squares, int num_tiles)
{
    float sum = 0.0f;
    for (int i = threadIdx.x; i < num_tiles; i += THREADS) sum += squares[i];
    return sum;
}

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
        const float square = over_block(sum_of_thread(squares, num_tiles), of_warp);
        return Verdict(square, false, steps[0], halted, run_halted, first_name, default_name);
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
    __shared__ float of_warps[4 * WARPS];
    float found[4] = {};  // loss, entropy, how many blocks have a row that counts, and the gradient's square
    float slope = 0.0f;
    const auto find = [&]() {
        found[3] = sum_of_thread(squares, num_tiles);
        for (int block = threadIdx.x; block < num_blocks; block += THREADS) {
            for (int i = 0; i < 3; ++i) found[i] += sums[block * NUM_SUMS + i];
        }
        over_block(found, of_warps);
        slope = found[1] - (found[2] > 0.0f ? target_entropy : 0.0f);
        const bool is_bad = learns_alpha && !isfinite(slope);  // all blocks know, and none makes a step
        const long long name = is_bad ? alpha_name : default_name;
        return Verdict(found[3], is_bad, steps[1], halted, run_halted, first_name, name);
    };
    const Verdict verdict = step_all<false, true>(
        find, lr[0], 1, Tensors<false>{addresses}, gradient, average, square, (Element*)elements, biases, nullptr,
        nullptr, nullptr, false);
    if (blockIdx.x > 0) return;
    for (int i = threadIdx.x; i < num_tensors; i += THREADS) adam_steps[i] = verdict.num_steps;
    if (threadIdx.x > 0) return;
    figures[0] = found[0];
    figures[1] = found[1];
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
