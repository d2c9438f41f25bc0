// What an update of SAC, TD3 or DDPG makes of a batch's rows, in two launches: `ac_judge` the critics' deltas,
// `ac_improve`, once they made their step, the policy's. What a gradient is made of (ac_gradient.cu) goes to memory.
//
// A block has ROWS rows and all networks go by it, out of the L2 cache, side by side where they need not wait for each
// other. What limits it is their way into registers: blocks of a cluster have the same rows, and share the critics.
//
// Constants, besides those of ac_rows.cuh and ac_numbers.cuh:
//   TARGET_NOISE  deviation of what is added to actions in targets, in parts of the Box, if it does not SAMPLE; or 0
//   NOISE_CLIP    how large that may be
#include "ac_numbers.cuh"
#include "ac_rows.cuh"
#include "random.cuh"

constexpr int SEEN = NUM_FEATURES + NUM_NUMBERS;
constexpr int SEEN_PITCH = pitch_of(SEEN);
constexpr int WIDEST1 = Actor::WIDTH1 > Critic::WIDTH1 ? Actor::WIDTH1 : Critic::WIDTH1;
constexpr int WIDEST2 = Actor::WIDTH2 > Critic::WIDTH2 ? Actor::WIDTH2 : Critic::WIDTH2;
constexpr int PITCH1 = pitch_of(WIDEST1), PITCH2 = pitch_of(WIDEST2);
constexpr int PITCH_OUT = pitch_of(Actor::OUTPUTS);
constexpr int CRITIC_PITCH_OUT = pitch_of(1);
constexpr int OWN_PITCH1 = pitch_of(Critic::WIDTH1), OWN_PITCH2 = pitch_of(Critic::WIDTH2);  // of critics
constexpr int NUM_JUDGES = SAMPLES ? NUM_CRITICS : 1;  // critics by the smallest of which a policy learns
constexpr int OWN_JUDGES = SAMPLES ? OWN_CRITICS : 1;  // of a block
constexpr int AT_ONCE = OWN_CRITICS > 2 ? OWN_CRITICS : 2;  // rows' copies that go through layers: a policy's are two

// A NaN is the smallest, so that it stays.
__device__ __forceinline__ bool is_less(float x, float than)
{
    return x < than || x != x;
}
// Which critic says the least of a row.
template <int NUMBER>
__device__ __forceinline__ int least_of(const float (&q)[NUMBER][ROWS], int row)
{
    int least = 0;
    for (int i = 1; i < NUMBER; ++i) {
        if (is_less(q[i][row], q[least][row])) least = i;
    }
    return least;
}

// What actions differ by from what the policy says, for all rows of the block: as deviates.cu draws them.
//   set  0: after the rows; 1: in them
__device__ __forceinline__ void draw_deviates(
    const unsigned int* seed, const unsigned long long* draws, int set, float* deviates)
{
    if (!SAMPLES && TARGET_NOISE == 0.0f) return;
    for (int i = THREADS - 1 - threadIdx.x; i < ROWS * NUM_NUMBERS; i += THREADS) {  // others bring what is seen
        const int item = first_row() + i / NUM_NUMBERS, number = set * NUM_NUMBERS + i % NUM_NUMBERS;
        deviates[i] = Random(seed, item, number, (long long)(draws[0] >> 32), STREAM_UPDATE).normal();
    }
}

// Deltas take the place of what hidden layers gave, once nobody else reads that here.
struct alignas(16) JudgeShared {
    Element seen[2 * ROWS * SEEN_PITCH];  // of the rows, then what came after them; behind it what is done
    Element hidden1[AT_ONCE * ROWS * PITCH1], hidden2[AT_ONCE * ROWS * PITCH2];
    Element delta[OWN_CRITICS * ROWS * CRITIC_PITCH_OUT];
    float outputs[2 * ROWS * Actor::OUTPUTS], deviates[ROWS * NUM_NUMBERS];
    float value[NUM_CRITICS][ROWS], of_target[NUM_CRITICS][ROWS], target[ROWS];
    float of_warps[3 * WARPS];
    Told of_targets, of_values;
};
struct alignas(16) ImproveShared {
    Element seen[ROWS * SEEN_PITCH];
    Element hidden1[OWN_JUDGES * ROWS * PITCH1], hidden2[OWN_JUDGES * ROWS * PITCH2];
    Element actor_hidden1[ROWS * pitch_of(Actor::WIDTH1)], actor_hidden2[ROWS * pitch_of(Actor::WIDTH2)];
    Element critic_delta[OWN_JUDGES * ROWS * CRITIC_PITCH_OUT], delta[ROWS * PITCH_OUT];
    float q[NUM_JUDGES][ROWS], slope[NUM_JUDGES][ROWS * NUM_NUMBERS], outputs[ROWS * Actor::OUTPUTS];
    float log_prob[ROWS], weight[ROWS], deviates[ROWS * NUM_NUMBERS];
    float of_warps[3 * WARPS];
    Told of_judges, of_slopes;
};
static_assert(sizeof(JudgeShared) <= SHARED_BYTES, "the block has less shared memory");
static_assert(sizeof(ImproveShared) <= SHARED_BYTES, "the block has less shared memory");

// ---- the critics

// Deltas of all critics, by what their target copies say of what the policy would do next.
//   observation, next_observation  [BATCH, NUM_FEATURES]                                   read
//   action       [BATCH, NUM_NUMBERS], in the Box's unit                                   read
//   centre, scale  [NUM_NUMBERS]  of the Box                                               read
//   reward, discount, weight  [BATCH]                                                      read
//   seed, draws  [3], [1]  of the table, as deviates.cu has them                           read
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
//   sums         [blocks / SPLIT, NUM_SUMS]  of losses, Q-values, errors                   written
extern "C" __global__ void __launch_bounds__(THREADS, 1) ac_judge(
    const float* observation, const float* next_observation, const float* action, const float* centre,
    const float* scale, const float* reward, const float* discount, const float* weight, const unsigned int* seed,
    const unsigned long long* draws, const float* log_alpha, const unsigned char* elements, const float* biases,
    const float* critic_steps, const float* actor_steps, float* steps, float* outputs, unsigned char* seen,
    unsigned char* actor_hidden1, unsigned char* actor_hidden2, unsigned char* hidden1, unsigned char* hidden2,
    unsigned char* delta1, unsigned char* delta2, unsigned char* delta_out, float* error, float* sums)
{
    extern __shared__ char memory[];
    JudgeShared& shared = *(JudgeShared*)memory;
    const Element* networks = (const Element*)elements;
    const int own = first_critic();
    const Networks<OWN_CRITICS> targets = {
        networks + target_elements(own), biases + critic_biases(NUM_CRITICS + own), Critic::ELEMENTS, Critic::BIASES};
    const Networks<OWN_CRITICS> critics = {
        networks + critic_elements(own), biases + critic_biases(own), 2 * Critic::ELEMENTS, Critic::BIASES};
    if (threadIdx.x == 0) {
        shared.of_targets.prepare(bytes_told(ROWS));
        shared.of_values.prepare(bytes_told(ROWS));
    }
    arrive_with_nothing<SPLIT>();
    clear(shared.seen, sizeof(shared.seen));
    clear(shared.delta, sizeof(shared.delta));
    const int first = first_row();
    draw_deviates(seed, draws, 0, shared.deviates);
    const float alpha = SAMPLES ? expf(log_alpha[0]) : 0.0f;
    const float number = number_of(weight, shared.of_warps);
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
    if (SAMPLES && is_first()) {
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
                const Drawn drawn(output, i, shared.deviates[row * NUM_NUMBERS + i]);
                part = drawn.part;
                log_prob += drawn.log_prob;
            } else {
                part = tanhf(output[i]);
                if (TARGET_NOISE > 0.0f) {
                    const float noise = TARGET_NOISE * shared.deviates[row * NUM_NUMBERS + i];
                    part = between(part + between(noise, -NOISE_CLIP, NOISE_CLIP), -1.0f, 1.0f);
                }
            }
            narrow(shared.seen[(ROWS + row) * SEEN_PITCH + NUM_FEATURES + i], part);
            narrow(shared.seen[row * SEEN_PITCH + NUM_FEATURES + i], (action[place] - centre[i]) / scale[i]);
        }
        shared.target[row] = SAMPLES ? -alpha * log_prob : 0.0f;
        for (int i = 0; i < Actor::OUTPUTS && SAMPLES && is_first(); ++i) {
            outputs[(first + row) * Actor::OUTPUTS + i] = shared.outputs[row * Actor::OUTPUTS + i];
        }
    }
    __syncthreads();
    if (is_first()) keep(shared.seen, SEEN, seen);

    // The smallest of the target critics.
    forward<true, ROW_TILES>(
        shared.seen + ROWS * SEEN_PITCH, SEEN_PITCH, targets, shared.hidden1, shared.hidden2,
        [&](int critic, int row, int column, float low, float) {
            if (column == 0) shared.of_target[own + critic][row] = low;
        });
    wait_for_cluster<SPLIT>();  // all are there, and expect what they will be told
    shared.of_targets.share(shared.of_target);
    for (int row = threadIdx.x; row < ROWS; row += THREADS) {
        if (first + row >= BATCH) break;
        const float least = shared.of_target[least_of(shared.of_target, row)][row];
        shared.target[row] = reward[first + row] + discount[first + row] * (least + shared.target[row]);
    }
    __syncthreads();

    forward<true, ROW_TILES>(
        shared.seen, SEEN_PITCH, critics, shared.hidden1, shared.hidden2,
        [&](int critic, int row, int column, float low, float) {
            if (column == 0) shared.value[own + critic][row] = low;
        });
    shared.of_values.share(shared.value);
    for (int critic = 0; critic < OWN_CRITICS; ++critic) {
        const long long before = (own + critic) * num_rows();
        keep(shared.hidden1 + critic * ROWS * OWN_PITCH1, Critic::WIDTH1, hidden1 + bytes_of(before, Critic::WIDTH1));
        keep(shared.hidden2 + critic * ROWS * OWN_PITCH2, Critic::WIDTH2, hidden2 + bytes_of(before, Critic::WIDTH2));
    }
    float loss = 0.0f, q_sum = 0.0f, error_sum = 0.0f;
    for (int row = threadIdx.x; row < ROWS; row += THREADS) {
        if (first + row >= BATCH) break;
        const float weighs = weight[first + row];
        float of_row = 0.0f;
        for (int critic = 0; critic < NUM_CRITICS && weighs != 0.0f; ++critic) {  // else its deltas stay 0
            const float distance = shared.value[critic][row] - shared.target[row];
            loss += distance * distance * weighs;
            q_sum += shared.value[critic][row] / NUM_CRITICS;
            of_row += fabsf(distance);
            if (critic < own || critic >= own + OWN_CRITICS) continue;
            narrow(shared.delta[((critic - own) * ROWS + row) * CRITIC_PITCH_OUT], 2.0f * distance * weighs / number);
        }
        if (is_first()) error[first + row] = of_row / NUM_CRITICS;
        error_sum += of_row / NUM_CRITICS;
    }
    __syncthreads();
    backward<true, ROW_TILES>(shared.delta, critics, shared.hidden1, shared.hidden2);
    for (int critic = 0; critic < OWN_CRITICS; ++critic) {
        const long long before = (own + critic) * num_rows();
        keep(shared.hidden1 + critic * ROWS * OWN_PITCH1, Critic::WIDTH1, delta1 + bytes_of(before, Critic::WIDTH1));
        keep(shared.hidden2 + critic * ROWS * OWN_PITCH2, Critic::WIDTH2, delta2 + bytes_of(before, Critic::WIDTH2));
        keep(shared.delta + critic * ROWS * CRITIC_PITCH_OUT, 1, delta_out + bytes_of(before, 1));
    }
    float found[3] = {loss, q_sum, error_sum};
    over_block(found, shared.of_warps);
    if (threadIdx.x > 0 || !is_first()) return;
    for (int i = 0; i < 3; ++i) sums[first / ROWS * NUM_SUMS + i] = found[i] / number;
}

// ---- the policy

// Its deltas: up what the smallest critic gives what it would do, and `alpha` times its entropy; or, if it does not
// SAMPLE, what the first gives.
//   observation, weight, seed, draws, log_alpha, elements, biases  as above                read
//   outputs, actor_hidden1, actor_hidden2  as above, if it SAMPLES                         read
//                else the last two                                                         written
//   delta1, delta2  [rows, width] elements                                                 written
//   delta_out    [rows, 2 NUM_NUMBERS] elements                                            written
//   sums         [blocks / SPLIT, NUM_SUMS]  of losses, entropies, and 1 if any row counts  written
extern "C" __global__ void __launch_bounds__(THREADS, 1) ac_improve(
    const float* observation, const float* weight, const unsigned int* seed, const unsigned long long* draws,
    const float* log_alpha, const unsigned char* elements, const float* biases, const float* outputs,
    unsigned char* actor_hidden1, unsigned char* actor_hidden2, unsigned char* delta1, unsigned char* delta2,
    unsigned char* delta_out, float* sums)
{
    extern __shared__ char memory[];
    ImproveShared& shared = *(ImproveShared*)memory;
    const Element* networks = (const Element*)elements;
    if (NUM_JUDGES == 1 && !is_first()) return;
    const int own = first_critic();
    const Networks<OWN_JUDGES> judges = {
        networks + critic_elements(own), biases + critic_biases(own), 2 * Critic::ELEMENTS, Critic::BIASES};
    const Networks<1> policy = {networks, biases, 0, 0};
    if (threadIdx.x == 0 && NUM_JUDGES > 1) {
        shared.of_judges.prepare(bytes_told(ROWS));
        shared.of_slopes.prepare(bytes_told(ROWS * NUM_NUMBERS));
    }
    if (NUM_JUDGES > 1) arrive_with_nothing<SPLIT>();
    if (SAMPLES && is_first()) {
        start_fetch(actor_hidden1, Actor::WIDTH1, shared.actor_hidden1);
        start_fetch(actor_hidden2, Actor::WIDTH2, shared.actor_hidden2);
    }
    clear(shared.seen, sizeof(shared.seen));
    clear(shared.critic_delta, sizeof(shared.critic_delta));
    clear(shared.delta, sizeof(shared.delta));
    for (int row = threadIdx.x; row < ROWS; row += THREADS) shared.log_prob[row] = shared.weight[row] = 0.0f;
    const int first = first_row();
    if (SAMPLES) draw_deviates(seed, draws, 1, shared.deviates);
    const float alpha = SAMPLES ? expf(log_alpha[0]) : 0.0f;
    const float number = number_of(weight, shared.of_warps);
    for (int i = threadIdx.x; i < ROWS * NUM_FEATURES; i += THREADS) {
        const int row = i / NUM_FEATURES;
        if (first + row >= BATCH) break;
        narrow(shared.seen[row * SEEN_PITCH + i % NUM_FEATURES],
               observation[(first + row) * NUM_FEATURES + i % NUM_FEATURES]);
    }
    __syncthreads();
    if (!SAMPLES) {
        forward_policy<ROW_TILES>(
            shared.seen, SEEN_PITCH, networks, biases, shared.actor_hidden1, shared.actor_hidden2, shared.outputs);
        keep(shared.actor_hidden1, Actor::WIDTH1, actor_hidden1);
        keep(shared.actor_hidden2, Actor::WIDTH2, actor_hidden2);
    }
    for (int row = threadIdx.x; row < ROWS; row += THREADS) {
        if (first + row >= BATCH) break;
        shared.weight[row] = weight[first + row] > 0.0f ? 1.0f / number : 0.0f;
        for (int i = 0; i < NUM_NUMBERS; ++i) {
            float part;
            if (SAMPLES) {
                const float deviate = shared.deviates[row * NUM_NUMBERS + i];
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
    forward<true, ROW_TILES>(
        shared.seen, SEEN_PITCH, judges, shared.hidden1, shared.hidden2,
        [&](int judge, int row, int column, float low, float) {
            if (column == 0) shared.q[own + judge][row] = low;
        });
    if (NUM_JUDGES > 1) {
        wait_for_cluster<SPLIT>();  // as above
        shared.of_judges.share(shared.q);
    }
    // How what the smallest of them says depends on the action.
    for (int row = threadIdx.x; row < ROWS; row += THREADS) {
        const int least = least_of(shared.q, row) - own;
        if (least >= 0 && least < OWN_JUDGES) {
            narrow(shared.critic_delta[(least * ROWS + row) * CRITIC_PITCH_OUT], 1.0f);
        }
    }
    __syncthreads();
    backward<true, ROW_TILES>(shared.critic_delta, judges, shared.hidden1, shared.hidden2);
    constexpr Layer seen_by = layer_of<true>(0);
    const Networks<OWN_JUDGES> back = {judges.elements + Critic::ELEMENTS, nullptr, judges.elements_apart, 0};
    multiply_rows<ROW_TILES, padded(seen_by.out) / 16>(
        shared.hidden1, ROWS * OWN_PITCH1, OWN_PITCH1, back, NUM_FEATURES / 16, padded(SEEN) / 16,
        [&](int judge, int row, int column, const float(&sum)[2][4]) {
            for_each_pair(sum, [&](int r, int c, float low, float high) {
                const int i = column + c - NUM_FEATURES;
                float* slope = shared.slope[own + judge] + (row + r) * NUM_NUMBERS + i;
                if (i >= 0 && i < NUM_NUMBERS) slope[0] = low;
                if (i + 1 >= 0 && i + 1 < NUM_NUMBERS) slope[1] = high;
            });
        });
    __syncthreads();
    if (NUM_JUDGES > 1) shared.of_slopes.share(shared.slope);
    if (!is_first()) return;

    // The policy's own deltas.
    float loss = 0.0f, entropy = 0.0f, whole = 0.0f;
    for (int row = threadIdx.x; row < ROWS; row += THREADS) {
        Element* delta = shared.delta + row * PITCH_OUT;
        if (first + row >= BATCH) continue;
        const float weighs = shared.weight[row];
        loss -= weighs * (shared.q[least_of(shared.q, row)][row] - alpha * shared.log_prob[row]);
        entropy -= weighs * shared.log_prob[row];
        whole = fmaxf(whole, weighs);
        for (int i = 0; i < NUM_NUMBERS && weighs > 0.0f; ++i) {
            float slope = 0.0f;
            for (int judge = 0; judge < NUM_JUDGES; ++judge) slope += shared.slope[judge][row * NUM_NUMBERS + i];
            if (!SAMPLES) {
                const float part = tanhf(shared.outputs[row * Actor::OUTPUTS + i]);
                narrow(delta[i], -weighs * slope * (1.0f - part * part));
                continue;
            }
            const float deviate = shared.deviates[row * NUM_NUMBERS + i];
            const Drawn drawn(outputs + (first + row) * Actor::OUTPUTS, i, deviate);
            const float part = drawn.part;
            const float up = slope * (1.0f - part * part) - 2.0f * alpha * part;
            narrow(delta[i], -weighs * up);
            narrow(delta[NUM_NUMBERS + i], drawn.is_clamped ? 0.0f : -weighs * (up * drawn.deviation + alpha));
        }
    }
    float found[3] = {loss, entropy, whole};
    over_block(found, shared.of_warps);
    if (threadIdx.x == 0) {
        float* of_block = sums + first / ROWS * NUM_SUMS;
        of_block[0] = found[0];
        of_block[1] = found[1];
        of_block[2] = found[2] > 0.0f ? 1.0f : 0.0f;
    }
    wait_for_copies();
    __syncthreads();
    backward<false, ROW_TILES>(shared.delta, policy, shared.actor_hidden1, shared.actor_hidden2);
    keep(shared.actor_hidden1, Actor::WIDTH1, delta1);
    keep(shared.actor_hidden2, Actor::WIDTH2, delta2);
    keep(shared.delta, Actor::OUTPUTS, delta_out);
}
