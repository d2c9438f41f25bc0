// Actions of a step: of the largest Q-value, or with probability epsilon any.
//
// Constants, besides those of q_layers.cuh:
//   BLOCK_ROWS                 rows of a block that are agents; of whole envs, where it steps them
//   GROUP_SIZE                 agents of the group
//   FIRST_AGENT                of the env's agents, the group's first
//   SEEN_COLUMNS, FIRST_SEEN   columns of the array they observe in, and the first that is theirs
//   NUM_COLUMNS, FIRST_COLUMN  of the one they act in
//   GREEDY                     whether they never take any other
//   HAS_EXPONENTS              whether each env has an epsilon of its own
//   NEVER                      a probability that is none
#pragma once
#include "q_layers.cuh"
#include "random.cuh"

constexpr int CHOICE_PITCH = padded(NUM_ACTIONS) + 1;

// Where COUNT rows lie in shared memory while they are acted for.
template <int COUNT>
struct Choice {
    const Element* weight;  // of the network
    const float* bias;
    Element *features, *hidden1, *hidden2;  // [COUNT, pitch]
    float* q;                               // [COUNT, CHOICE_PITCH]
    float *epsilon, *drawn;                 // [COUNT], of 0 to 1
};

template <int LAYER, int COUNT>
__device__ __forceinline__ void hidden_choice(const Choice<COUNT>& shared, const Element* rows, Element* out)
{
    constexpr int PITCH = pitch_of(out_of(LAYER));
    for_each_tile<LAYER, COUNT>(rows, shared.weight, shared.bias, [&](int row, int column, const float(&sum)[2][4]) {
        for_each_pair(sum, [&](int r, int c, float low, float high) {
            *(Pair*)(out + (row + r) * PITCH + column + c) = packed(activate(low), activate(high));
        });
    });
    __syncthreads();
}

// What is seen in a step, as `act` takes it, after a barrier; see q_act.
template <int COUNT>
__device__ __forceinline__ void see(const Choice<COUNT>& shared, const float* observation)
{
    const int num_rows = NUM_ENVS * GROUP_SIZE;
    const int first = BLOCK_OF_ENVS * BLOCK_ROWS;
#pragma unroll 1
    for (int i = threadIdx.x; i < BLOCK_ROWS * padded(NUM_FEATURES); i += THREADS) {
        const int row = i / padded(NUM_FEATURES), column = i % padded(NUM_FEATURES);
        if (first + row >= num_rows) break;
        const int env = (first + row) / GROUP_SIZE;
        const long long seen = (long long)env * SEEN_COLUMNS + FIRST_SEEN + (first + row) % GROUP_SIZE;
        const float feature = column < NUM_FEATURES ? observation[seen * NUM_FEATURES + column] : 0.0f;
        narrow(shared.features[row * pitch_of(NUM_FEATURES) + column], feature);
    }
}

// The actions of a step; see q_act.
template <int COUNT>
__device__ __forceinline__ void act(
    const Choice<COUNT>& shared, const unsigned int* seed, const long long* env_step, const float* epsilon,
    const float* exponents, int* action, float* q_value)
{
    const int num_rows = NUM_ENVS * GROUP_SIZE;
    const int first = BLOCK_OF_ENVS * BLOCK_ROWS;
    hidden_choice<0>(shared, shared.features, shared.hidden1);
    const int next_row = threadIdx.x - (THREADS - COUNT);  // while a layer has no work for the last warps
    if (!GREEDY && next_row >= 0 && next_row < BLOCK_ROWS && first + next_row < num_rows) {
        const int env = (first + next_row) / GROUP_SIZE;
        const int agent = (first + next_row) % GROUP_SIZE;
        shared.epsilon[next_row] = HAS_EXPONENTS ? powf(epsilon[0], exponents[env]) : epsilon[0];
        shared.drawn[next_row] = Random(seed, env, FIRST_AGENT + agent, env_step[env], STREAM_ACTION).uniform();
    }
    if constexpr (LAYERS > 2) hidden_choice<1>(shared, shared.hidden1, shared.hidden2);
    for_each_tile<LAYERS - 1, COUNT>(
        LAYERS > 2 ? shared.hidden2 : shared.hidden1, shared.weight, shared.bias,
        [&](int row, int column, const float(&sum)[2][4]) {
            for_each_pair(sum, [&](int r, int c, float low, float high) {
                shared.q[(row + r) * CHOICE_PITCH + column + c] = low;
                shared.q[(row + r) * CHOICE_PITCH + column + c + 1] = high;
            });
        });
    __syncthreads();
#pragma unroll 1
    for (int row = threadIdx.x; row < BLOCK_ROWS && first + row < num_rows; row += THREADS) {
        const float* q = shared.q + row * CHOICE_PITCH;
        const int env = (first + row) / GROUP_SIZE;
        const int agent = (first + row) % GROUP_SIZE;
        int best = 0;
        for (int i = 1; i < NUM_ACTIONS; ++i) {
            if (q[i] > q[best]) best = i;
        }
        int chosen = best;
        if (!GREEDY) {
            // As sampler.cu draws by these logarithms: with weights, of which the largest is 1.
            const float shared_by_all = shared.epsilon[row] / NUM_ACTIONS;
            const float of_best = shared_by_all + (1.0f - shared.epsilon[row]);
            const float of_other = fmaxf(shared_by_all, NEVER) / of_best;
            const float target = shared.drawn[row] * (1.0f + (NUM_ACTIONS - 1) * of_other);
            float passed = 0.0f;
            for (int i = 0; i < NUM_ACTIONS; ++i) {
                chosen = i;
                passed += i == best ? 1.0f : of_other;
                if (target < passed) break;
            }
        }
        action[(long long)env * NUM_COLUMNS + FIRST_COLUMN + agent] = chosen;
        q_value[first + row] = q[best];
    }
}
