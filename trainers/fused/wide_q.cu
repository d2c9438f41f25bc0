// What an update of a Q-network makes of a batch's rows, where its weights have no room in a block (see q_learn.cu): what
// its gradient is made of goes to memory, for ac_gradient.cu.
//
// A block has ROWS rows, and both networks go by it, out of the L2 cache.
//
// Constants, besides those of ac_rows.cuh:
//   DOUBLE       whether the network chooses the action that the target network judges
//   HAS_MASK     whether some actions may not be taken
//   HUBER_DELTA  0: squared errors
#include "losses/huber.cuh"
#include "ac_rows.cuh"

constexpr int SEEN_PITCH = pitch_of(NUM_FEATURES);
constexpr int PITCH1 = pitch_of(Critic::WIDTH1), PITCH2 = pitch_of(Critic::WIDTH2);
constexpr int PITCH_OUT = pitch_of(CRITIC_OUTPUTS);

struct alignas(16) Shared {
    Element seen[2 * ROWS * SEEN_PITCH];  // of the rows, then what came after them
    Element hidden1[2 * ROWS * PITCH1], hidden2[2 * ROWS * PITCH2];
    Element delta_out[ROWS * PITCH_OUT];
    float q[2 * ROWS * CRITIC_OUTPUTS], q_of_target[ROWS * CRITIC_OUTPUTS];
    float of_warps[3 * WARPS];
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "the block has less shared memory");

// Q-values of rows: q [row, CRITIC_OUTPUTS].
template <int TILES>
__device__ __forceinline__ void value_rows(
    Shared& shared, const Element* seen, const Element* elements, const float* biases, float* q)
{
    forward<true, TILES>(
        seen, SEEN_PITCH, Networks<1>{elements, biases, 0, 0}, shared.hidden1, shared.hidden2,
        [&](int, int row, int column, float low, float high) {
            float* two = q + row * CRITIC_OUTPUTS + column;
            if (column < CRITIC_OUTPUTS) two[0] = low;
            if (column + 1 < CRITIC_OUTPUTS) two[1] = high;
        });
}

//   observation, next_observation  [BATCH, NUM_FEATURES]                              read
//   action       [BATCH]  what was done                                               read
//   reward, discount, weight  [BATCH]                                                 read
//   next_mask    [BATCH, CRITIC_OUTPUTS]  what may be done after it, if it HAS_MASK   read
//   elements, biases  of the network and the target network                           read
//   adam_steps   [1 or more]                                                          read
//   steps        [2]  the first: the same                                             written
//   seen         [rows, NUM_FEATURES] elements                                        written
//   hidden1, hidden2, delta1, delta2  [rows, width] elements                          written
//   delta_out    [rows, CRITIC_OUTPUTS] elements                                      written
//   error        [BATCH]  distance of the Q-value from its target; 0 where the row does not count   written
//   sums         [blocks, NUM_SUMS]  of losses, Q-values, errors                      written
extern "C" __global__ void __launch_bounds__(THREADS, 1) wide_q_judge(
    const float* observation, const float* next_observation, const long long* action, const float* reward,
    const float* discount, const float* weight, const bool* next_mask, const unsigned char* elements,
    const float* biases, const float* adam_steps, float* steps, unsigned char* seen, unsigned char* hidden1,
    unsigned char* hidden2, unsigned char* delta1, unsigned char* delta2, unsigned char* delta_out,
    float* error, float* sums)
{
    extern __shared__ char memory[];
    Shared& shared = *(Shared*)memory;
    clear(memory, sizeof(Shared));
    const Element* networks = (const Element*)elements;
    const Element* own = networks + critic_elements(0);
    const int first = blockIdx.x * ROWS;
    const float number = number_of(weight, shared.of_warps);
    if (blockIdx.x == 0 && threadIdx.x == 0) steps[0] = adam_steps[0];
    for (int i = threadIdx.x; i < ROWS * NUM_FEATURES; i += THREADS) {
        const int row = i / NUM_FEATURES;
        const int column = i % NUM_FEATURES;
        if (first + row >= BATCH) break;
        const long long place = (long long)(first + row) * NUM_FEATURES + column;
        narrow(shared.seen[row * SEEN_PITCH + column], observation[place]);
        narrow(shared.seen[(ROWS + row) * SEEN_PITCH + column], next_observation[place]);
    }
    __syncthreads();
    value_rows<ROW_TILES>(
        shared, shared.seen + ROWS * SEEN_PITCH, networks + target_elements(0), biases + critic_biases(1),
        shared.q_of_target);
    value_rows<DOUBLE ? 2 * ROW_TILES : ROW_TILES>(shared, shared.seen, own, biases + critic_biases(0), shared.q);

    float loss = 0.0f, q_sum = 0.0f, error_sum = 0.0f;
    for (int row = threadIdx.x; row < ROWS; row += THREADS) {
        if (first + row >= BATCH) break;
        const float weighs = weight[first + row];
        error[first + row] = 0.0f;
        if (weighs == 0.0f) continue;  // its delta stays 0
        const float* after = shared.q_of_target + row * CRITIC_OUTPUTS;
        const float* chosen_by = DOUBLE ? shared.q + (ROWS + row) * CRITIC_OUTPUTS : after;
        const bool* allowed = next_mask + (long long)(first + row) * CRITIC_OUTPUTS;
        int best = -1;
        for (int i = 0; i < CRITIC_OUTPUTS; ++i) {
            if (HAS_MASK && !allowed[i]) continue;
            if (best < 0 || chosen_by[i] > chosen_by[best]) best = i;
        }
        best = max(best, 0);  // the first, if none may be done
        const int taken = (int)action[first + row];
        const float q = shared.q[row * CRITIC_OUTPUTS + taken];
        const float distance = q - (reward[first + row] + discount[first + row] * after[best]);
        const float size = fabsf(distance);
        const HuberLoss huber = huber_loss(distance);
        loss += huber.loss * weighs;
        q_sum += q;
        error_sum += size;
        error[first + row] = size;
        narrow(shared.delta_out[row * PITCH_OUT + taken], huber.slope * weighs / number);
    }
    __syncthreads();
    keep(shared.seen, NUM_FEATURES, seen);
    keep(shared.hidden1, Critic::WIDTH1, hidden1);
    keep(shared.hidden2, Critic::WIDTH2, hidden2);
    keep(shared.delta_out, CRITIC_OUTPUTS, delta_out);
    __syncthreads();
    backward<true, ROW_TILES>(
        shared.delta_out, Networks<1>{own, nullptr, 0, 0}, shared.hidden1, shared.hidden2);
    keep(shared.hidden1, Critic::WIDTH1, delta1);
    keep(shared.hidden2, Critic::WIDTH2, delta2);
    float found[3] = {loss, q_sum, error_sum};
    over_block(found, shared.of_warps);
    for (int i = 0; i < 3 && threadIdx.x == 0; ++i) sums[blockIdx.x * NUM_SUMS + i] = found[i] / number;
}
