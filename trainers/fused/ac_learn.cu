// What an update of SAC, TD3 or DDPG makes of a batch's rows, in two launches: `ac_judge` the critics' deltas,
// `ac_improve`, once they made their step, the policy's. What a gradient is made of (ac_step.cu) goes to memory.
//
// A block has ROWS rows and all networks go by it, out of the L2 cache. What limits it is their way into registers.
//
// Constants, besides those of ac_rows.cuh and ac_numbers.cuh:
//   TARGET_NOISE  deviation of what is added to actions in targets, in parts of the Box, if it does not SAMPLE; or 0
//   NOISE_CLIP    how large that may be
#include "ac_numbers.cuh"
#include "ac_rows.cuh"

constexpr int SEEN = NUM_FEATURES + NUM_NUMBERS;
constexpr int SEEN_PITCH = pitch_of(SEEN);
constexpr int WIDEST1 = Actor::WIDTH1 > Critic::WIDTH1 ? Actor::WIDTH1 : Critic::WIDTH1;
constexpr int WIDEST2 = Actor::WIDTH2 > Critic::WIDTH2 ? Actor::WIDTH2 : Critic::WIDTH2;
constexpr int PITCH1 = pitch_of(WIDEST1), PITCH2 = pitch_of(WIDEST2);
constexpr int PITCH_OUT = pitch_of(Actor::OUTPUTS);
constexpr int CRITIC_PITCH_OUT = pitch_of(1);
constexpr int NUM_JUDGES = SAMPLES ? NUM_CRITICS : 1;  // critics by the smallest of which a policy learns

// A NaN is the smallest, so that it stays.
__device__ __forceinline__ bool is_less(float x, float than)
{
    return x < than || x != x;
}

struct alignas(16) Deltas {
    Element of_layer1[ROWS * PITCH1], of_layer2[ROWS * PITCH2], of_outputs[ROWS * PITCH_OUT];
};

struct alignas(16) JudgeShared {
    Element seen[2 * ROWS * SEEN_PITCH];  // of the rows, then what came after them; behind it what is done
    Element hidden1[2 * ROWS * PITCH1], hidden2[2 * ROWS * PITCH2];
    Deltas delta;
    float outputs[2 * ROWS * Actor::OUTPUTS];
    float value[ROWS], target[ROWS], loss[ROWS], q_sum[ROWS], error[ROWS];
    float of_warp[WARPS];
};
struct alignas(16) ImproveShared {
    Element seen[ROWS * SEEN_PITCH];
    Element hidden1[NUM_CRITICS][ROWS * PITCH1], hidden2[NUM_CRITICS][ROWS * PITCH2];
    Deltas delta;
    float q[NUM_CRITICS][ROWS], slope[ROWS * NUM_NUMBERS], outputs[ROWS * Actor::OUTPUTS];
    float log_prob[ROWS], weight[ROWS];
    float of_warp[WARPS];

    __device__ __forceinline__ int least_of(int row) const
    {
        int least = 0;
        for (int i = 1; i < NUM_JUDGES; ++i) {
            if (is_less(q[i][row], q[least][row])) least = i;
        }
        return least;
    }
};
static_assert(sizeof(JudgeShared) <= SHARED_BYTES, "the block has less shared memory");
static_assert(sizeof(ImproveShared) <= SHARED_BYTES, "the block has less shared memory");

// ---- the critics

// Deltas of all critics, by what their target copies say of what the policy would do next.
//   observation, next_observation  [BATCH, NUM_FEATURES]                                   read
//   action       [BATCH, NUM_NUMBERS], in the Box's unit                                   read
//   centre, scale  [NUM_NUMBERS]  of the Box                                               read
//   reward, discount, weight  [BATCH]                                                      read
//   deviates     [2, BATCH, NUM_NUMBERS]  for what comes after the rows, and, if it SAMPLES, for the rows   read
//   log_alpha    [1]  if it SAMPLES                                                        read
//   elements, biases  of all networks                                                      read
//   critic_steps, actor_steps  [1 or more]  Adam's                                         read
//   steps        [2]  both                                                                 written
//   outputs      [BATCH, 2 NUM_NUMBERS]  of the policy for the rows, if it SAMPLES         written
//   seen         [rows, SEEN] elements  with what was done                                 written
//   actor_hidden1, actor_hidden2  [rows, width] elements, likewise                         written
//   hidden1, hidden2, delta1, delta2  [NUM_CRITICS, rows, width] elements                  written
//   delta_out    [NUM_CRITICS, rows, 1] elements                                           written
//   error        [BATCH]  mean distance of Q-values from their targets; 0 where the row does not count   written
//   sums         [blocks, NUM_SUMS]  of losses, Q-values, errors                           written
extern "C" __global__ void __launch_bounds__(THREADS, 1) ac_judge(
    const float* observation, const float* next_observation, const float* action, const float* centre,
    const float* scale, const float* reward, const float* discount, const float* weight, const float* deviates,
    const float* log_alpha, const unsigned char* elements, const float* biases, const float* critic_steps,
    const float* actor_steps, float* steps, float* outputs, unsigned char* seen, unsigned char* actor_hidden1,
    unsigned char* actor_hidden2, unsigned char* hidden1, unsigned char* hidden2, unsigned char* delta1,
    unsigned char* delta2, unsigned char* delta_out, float* error, float* sums)
{
    extern __shared__ char memory[];
    JudgeShared& shared = *(JudgeShared*)memory;
    clear(memory, sizeof(JudgeShared));
    const Element* networks = (const Element*)elements;
    const int first = blockIdx.x * ROWS;
    const long long num_rows = (long long)gridDim.x * ROWS;
    const float alpha = SAMPLES ? expf(log_alpha[0]) : 0.0f;
    const float number = number_of(weight, shared.of_warp);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        steps[0] = critic_steps[0];
        steps[1] = actor_steps[0];
    }
    for (int i = threadIdx.x; i < ROWS * NUM_FEATURES; i += THREADS) {
        const int row = i / NUM_FEATURES;
        const int column = i % NUM_FEATURES;
        if (first + row >= BATCH) break;
        const int place = (first + row) * NUM_FEATURES + column;
        narrow(shared.seen[row * SEEN_PITCH + column], observation[place]);
        narrow(shared.seen[(ROWS + row) * SEEN_PITCH + column], next_observation[place]);
    }
    __syncthreads();

    // What is done after the rows; and in them, where the same policy says it.
    constexpr int START = SAMPLES ? 0 : ROWS;
    forward_policy<SAMPLES ? 2 * ROW_TILES : ROW_TILES>(
        shared.seen + START * SEEN_PITCH, SEEN_PITCH, networks + (SAMPLES ? 0 : TARGET_POLICY_ELEMENTS),
        biases + (SAMPLES ? 0 : TARGET_POLICY_BIASES), shared.hidden1, shared.hidden2,
        shared.outputs + START * Actor::OUTPUTS);
    if (SAMPLES) {
        keep(shared.hidden1, Actor::WIDTH1, actor_hidden1);
        keep(shared.hidden2, Actor::WIDTH2, actor_hidden2);
    }
    for (int row = threadIdx.x; row < ROWS; row += THREADS) {
        if (first + row >= BATCH) break;
        float log_prob = 0.0f;
        for (int i = 0; i < NUM_NUMBERS; ++i) {
            const int place = (first + row) * NUM_NUMBERS + i;
            const float* output = shared.outputs + (ROWS + row) * Actor::OUTPUTS;
            float part;
            if (SAMPLES) {
                const Drawn drawn(output, i, deviates[place]);
                part = drawn.part;
                log_prob += drawn.log_prob;
            } else {
                part = tanhf(output[i]);
                if (TARGET_NOISE > 0.0f) {
                    part = between(part + between(TARGET_NOISE * deviates[place], -NOISE_CLIP, NOISE_CLIP), -1.0f, 1.0f);
                }
            }
            narrow(shared.seen[(ROWS + row) * SEEN_PITCH + NUM_FEATURES + i], part);
            narrow(shared.seen[row * SEEN_PITCH + NUM_FEATURES + i], (action[place] - centre[i]) / scale[i]);
        }
        shared.target[row] = SAMPLES ? -alpha * log_prob : 0.0f;
        for (int i = 0; i < Actor::OUTPUTS && SAMPLES; ++i) {
            outputs[(first + row) * Actor::OUTPUTS + i] = shared.outputs[row * Actor::OUTPUTS + i];
        }
    }
    __syncthreads();
    keep(shared.seen, SEEN, seen);

    // The smallest of the target critics.
    for (int critic = 0; critic < NUM_CRITICS; ++critic) {
        forward<true, ROW_TILES>(
            shared.seen + ROWS * SEEN_PITCH, SEEN_PITCH, networks + target_elements(critic),
            biases + critic_biases(NUM_CRITICS + critic), shared.hidden1, shared.hidden2,
            [&](int row, int column, float low, float) {
                if (column > 0) return;
                if (critic == 0 || is_less(low, shared.value[row])) shared.value[row] = low;
            });
    }
    for (int row = threadIdx.x; row < ROWS; row += THREADS) {
        if (first + row >= BATCH) break;
        shared.target[row] = reward[first + row] + discount[first + row] * (shared.value[row] + shared.target[row]);
    }

    for (int critic = 0; critic < NUM_CRITICS; ++critic) {
        __syncthreads();
        const Element* own = networks + critic_elements(critic);
        forward<true, ROW_TILES>(
            shared.seen, SEEN_PITCH, own, biases + critic_biases(critic), shared.hidden1, shared.hidden2,
            [&](int row, int column, float low, float) {
                if (column == 0) shared.value[row] = low;
            });
        for (int row = threadIdx.x; row < ROWS; row += THREADS) {
            const float weighs = first + row < BATCH ? weight[first + row] : 0.0f;
            if (weighs == 0.0f) continue;  // its delta stays 0
            const float distance = shared.value[row] - shared.target[row];
            shared.loss[row] += distance * distance * weighs;
            shared.q_sum[row] += shared.value[row];
            shared.error[row] += fabsf(distance);
            narrow(shared.delta.of_outputs[row * CRITIC_PITCH_OUT], 2.0f * distance * weighs / number);
        }
        __syncthreads();
        backward<true, ROW_TILES>(
            shared.delta.of_outputs, own, shared.hidden1, shared.hidden2, shared.delta.of_layer1,
            shared.delta.of_layer2);
        const long long before = critic * num_rows;
        keep(shared.hidden1, Critic::WIDTH1, hidden1 + bytes_of(before, Critic::WIDTH1));
        keep(shared.hidden2, Critic::WIDTH2, hidden2 + bytes_of(before, Critic::WIDTH2));
        keep(shared.delta.of_layer1, Critic::WIDTH1, delta1 + bytes_of(before, Critic::WIDTH1));
        keep(shared.delta.of_layer2, Critic::WIDTH2, delta2 + bytes_of(before, Critic::WIDTH2));
        keep(shared.delta.of_outputs, 1, delta_out + bytes_of(before, 1));
    }
    float loss = 0.0f, q_sum = 0.0f, error_sum = 0.0f;
    for (int row = threadIdx.x; row < ROWS; row += THREADS) {
        if (first + row >= BATCH) break;
        loss += shared.loss[row];
        q_sum += shared.q_sum[row] / NUM_CRITICS;
        error[first + row] = shared.error[row] / NUM_CRITICS;
        error_sum += shared.error[row] / NUM_CRITICS;
    }
    loss = over_block(loss, shared.of_warp);
    q_sum = over_block(q_sum, shared.of_warp);
    error_sum = over_block(error_sum, shared.of_warp);
    if (threadIdx.x > 0) return;
    float* of_block = sums + blockIdx.x * NUM_SUMS;
    of_block[0] = loss / number;
    of_block[1] = q_sum / number;
    of_block[2] = error_sum / number;
}

// ---- the policy

// Its deltas: up what the smallest critic gives what it would do, and `alpha` times its entropy; or, if it does not
// SAMPLE, what the first gives.
//   observation, weight, deviates, log_alpha, elements, biases  as above                   read
//   outputs, actor_hidden1, actor_hidden2  as above, if it SAMPLES                         read
//                else the last two                                                         written
//   delta1, delta2  [rows, width] elements                                                 written
//   delta_out    [rows, 2 NUM_NUMBERS] elements                                            written
//   sums         [blocks, NUM_SUMS]  of losses, entropies, and 1 if any row counts          written
extern "C" __global__ void __launch_bounds__(THREADS, 1) ac_improve(
    const float* observation, const float* weight, const float* deviates, const float* log_alpha,
    const unsigned char* elements, const float* biases, const float* outputs, unsigned char* actor_hidden1,
    unsigned char* actor_hidden2, unsigned char* delta1, unsigned char* delta2, unsigned char* delta_out,
    float* sums)
{
    extern __shared__ char memory[];
    ImproveShared& shared = *(ImproveShared*)memory;
    clear(memory, sizeof(ImproveShared));
    const Element* networks = (const Element*)elements;
    const int first = blockIdx.x * ROWS;
    const float alpha = SAMPLES ? expf(log_alpha[0]) : 0.0f;
    const float number = number_of(weight, shared.of_warp);
    for (int i = threadIdx.x; i < ROWS * NUM_FEATURES; i += THREADS) {
        const int row = i / NUM_FEATURES;
        if (first + row >= BATCH) break;
        narrow(shared.seen[row * SEEN_PITCH + i % NUM_FEATURES],
               observation[(first + row) * NUM_FEATURES + i % NUM_FEATURES]);
    }
    __syncthreads();
    if (!SAMPLES) {
        forward_policy<ROW_TILES>(
            shared.seen, SEEN_PITCH, networks, biases, shared.hidden1[0], shared.hidden2[0], shared.outputs);
        keep(shared.hidden1[0], Actor::WIDTH1, actor_hidden1);
        keep(shared.hidden2[0], Actor::WIDTH2, actor_hidden2);
    }
    for (int row = threadIdx.x; row < ROWS; row += THREADS) {
        if (first + row >= BATCH) break;
        shared.weight[row] = weight[first + row] > 0.0f ? 1.0f / number : 0.0f;
        for (int i = 0; i < NUM_NUMBERS; ++i) {
            float part;
            if (SAMPLES) {
                const float deviate = deviates[(BATCH + first + row) * NUM_NUMBERS + i];
                const Drawn drawn(outputs + (first + row) * Actor::OUTPUTS, i, deviate);
                part = drawn.part;
                shared.log_prob[row] += drawn.log_prob;
            } else {
                part = tanhf(shared.outputs[row * Actor::OUTPUTS + i]);
            }
            narrow(shared.seen[row * SEEN_PITCH + NUM_FEATURES + i], part);
        }
    }
    __syncthreads();
    for (int critic = 0; critic < NUM_JUDGES; ++critic) {
        forward<true, ROW_TILES>(
            shared.seen, SEEN_PITCH, networks + critic_elements(critic), biases + critic_biases(critic),
            shared.hidden1[critic], shared.hidden2[critic], [&](int row, int column, float low, float) {
                if (column == 0) shared.q[critic][row] = low;
            });
    }
    // How what the smallest of them says depends on the action.
    for (int critic = 0; critic < NUM_JUDGES; ++critic) {
        const Element* own = networks + critic_elements(critic);
        for (int row = threadIdx.x; row < ROWS; row += THREADS) {
            narrow(shared.delta.of_outputs[row * CRITIC_PITCH_OUT], critic == shared.least_of(row) ? 1.0f : 0.0f);
        }
        __syncthreads();
        backward<true, ROW_TILES>(
            shared.delta.of_outputs, own, shared.hidden1[critic], shared.hidden2[critic], shared.delta.of_layer1,
            shared.delta.of_layer2);
        constexpr Layer seen_by = layer_of<true>(0);
        multiply_rows<ROW_TILES, padded(seen_by.out) / 16>(
            shared.delta.of_layer1, pitch_of(seen_by.out), own + Critic::ELEMENTS, nullptr, NUM_FEATURES / 16,
            padded(SEEN) / 16, [&](int row, int column, const float(&sum)[2][4]) {
                for_each_pair(sum, [&](int r, int c, float low, float high) {
                    const int i = column + c - NUM_FEATURES;
                    float* slope = shared.slope + (row + r) * NUM_NUMBERS + i;
                    if (i >= 0 && i < NUM_NUMBERS) slope[0] += low;
                    if (i + 1 >= 0 && i + 1 < NUM_NUMBERS) slope[1] += high;
                });
            });
    }

    // The policy's own deltas; those of the critics' outputs are done with.
    float loss = 0.0f, entropy = 0.0f, whole = 0.0f;
    for (int row = threadIdx.x; row < ROWS; row += THREADS) {
        Element* delta = shared.delta.of_outputs + row * PITCH_OUT;
        for (int i = 0; i < PITCH_OUT; ++i) narrow(delta[i], 0.0f);
        if (first + row >= BATCH) continue;
        const float weighs = shared.weight[row];
        loss -= weighs * (shared.q[shared.least_of(row)][row] - alpha * shared.log_prob[row]);
        entropy -= weighs * shared.log_prob[row];
        whole = fmaxf(whole, weighs);
        for (int i = 0; i < NUM_NUMBERS && weighs > 0.0f; ++i) {
            const float slope = shared.slope[row * NUM_NUMBERS + i];
            if (!SAMPLES) {
                const float part = tanhf(shared.outputs[row * Actor::OUTPUTS + i]);
                narrow(delta[i], -weighs * slope * (1.0f - part * part));
                continue;
            }
            const float deviate = deviates[(BATCH + first + row) * NUM_NUMBERS + i];
            const Drawn drawn(outputs + (first + row) * Actor::OUTPUTS, i, deviate);
            const float part = drawn.part;
            const float up = slope * (1.0f - part * part) - 2.0f * alpha * part;
            narrow(delta[i], -weighs * up);
            narrow(delta[NUM_NUMBERS + i], drawn.is_clamped ? 0.0f : -weighs * (up * drawn.deviation + alpha));
        }
    }
    loss = over_block(loss, shared.of_warp);
    entropy = over_block(entropy, shared.of_warp);
    whole = over_block(whole, shared.of_warp) > 0.0f ? 1.0f : 0.0f;
    if (threadIdx.x == 0) {
        float* of_block = sums + blockIdx.x * NUM_SUMS;
        of_block[0] = loss;
        of_block[1] = entropy;
        of_block[2] = whole;
    }
    fetch(actor_hidden1, Actor::WIDTH1, shared.hidden1[0]);
    fetch(actor_hidden2, Actor::WIDTH2, shared.hidden2[0]);
    __syncthreads();
    backward<false, ROW_TILES>(
        shared.delta.of_outputs, networks, shared.hidden1[0], shared.hidden2[0], shared.delta.of_layer1,
        shared.delta.of_layer2);
    keep(shared.delta.of_layer1, Actor::WIDTH1, delta1);
    keep(shared.delta.of_layer2, Actor::WIDTH2, delta2);
    keep(shared.delta.of_outputs, Actor::OUTPUTS, delta_out);
}
