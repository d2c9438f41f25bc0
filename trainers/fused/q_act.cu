// Steps of agents that take the action of the largest Q-value, or with probability epsilon any; and of their envs between
// them, where a launch makes both.
//
// A block has ROWS of them. What limits it is a launch, and the network's way into shared memory.
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
#include "random.cuh"
#include "q_layers.cuh"

#ifndef STEP_ENVS  // with_envs.py writes what it is, and the parameters of it
#define STEP_ENVS(t)
#endif

constexpr int Q_PITCH = padded(NUM_ACTIONS) + 1;
constexpr int PITCH0 = pitch_of(NUM_FEATURES), PITCH1 = pitch_of(WIDTH1), PITCH2 = pitch_of(WIDTH2);

struct alignas(16) Shared {
    Element weight[WEIGHTS];
    Element features[ROWS * PITCH0], hidden1[ROWS * PITCH1], hidden2[ROWS * PITCH2];
    float bias[BIASES];
    float q[ROWS * Q_PITCH];
    float epsilon[ROWS], drawn[ROWS];  // of 0 to 1
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "the block has less shared memory");

template <int LAYER>
__device__ __forceinline__ void hidden_layer(Shared& shared, const Element* rows, Element* out)
{
    constexpr int PITCH = pitch_of(out_of(LAYER));
    for_each_tile<LAYER>(rows, shared.weight, shared.bias, [&](int row, int column, const float(&sum)[2][4]) {
        for_each_pair(sum, [&](int r, int c, float low, float high) {
            *(Pair*)(out + (row + r) * PITCH + column + c) = packed(activate(low), activate(high));
        });
    });
    __syncthreads();
}

// The actions of a step; see q_act.
__device__ __forceinline__ void act(
    Shared& shared, const float* observation, const unsigned int* seed, const long long* env_step,
    const float* epsilon, const float* exponents, int* action, float* q_value)
{
    const int num_rows = NUM_ENVS * GROUP_SIZE;
    const int first = blockIdx.x * BLOCK_ROWS;
#pragma unroll 1
    for (int i = threadIdx.x; i < BLOCK_ROWS * NUM_FEATURES; i += THREADS) {
        const int row = i / NUM_FEATURES;
        if (first + row >= num_rows) break;
        const int env = (first + row) / GROUP_SIZE;
        const long long seen = (long long)env * SEEN_COLUMNS + FIRST_SEEN + (first + row) % GROUP_SIZE;
        narrow(shared.features[row * PITCH0 + i % NUM_FEATURES], observation[seen * NUM_FEATURES + i % NUM_FEATURES]);
    }
    __syncthreads();
    hidden_layer<0>(shared, shared.features, shared.hidden1);
    const int next_row = threadIdx.x - (THREADS - ROWS);  // while a layer has no work for the last warps
    if (!GREEDY && next_row >= 0 && next_row < BLOCK_ROWS && first + next_row < num_rows) {
        const int env = (first + next_row) / GROUP_SIZE;
        const int agent = (first + next_row) % GROUP_SIZE;
        shared.epsilon[next_row] = HAS_EXPONENTS ? powf(epsilon[0], exponents[env]) : epsilon[0];
        shared.drawn[next_row] = Random(seed, env, FIRST_AGENT + agent, env_step[env], STREAM_ACTION).uniform();
    }
    if constexpr (LAYERS > 2) hidden_layer<1>(shared, shared.hidden1, shared.hidden2);
    for_each_tile<LAYERS - 1>(
        LAYERS > 2 ? shared.hidden2 : shared.hidden1, shared.weight, shared.bias,
        [&](int row, int column, const float(&sum)[2][4]) {
            for_each_pair(sum, [&](int r, int c, float low, float high) {
                shared.q[(row + r) * Q_PITCH + column + c] = low;
                shared.q[(row + r) * Q_PITCH + column + c + 1] = high;
            });
        });
    __syncthreads();
    for (int row = threadIdx.x; row < BLOCK_ROWS && first + row < num_rows; row += THREADS) {
        const float* q = shared.q + row * Q_PITCH;
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

//   weight0, bias0, weight1, bias1, weight2, bias2  the network's, layer by layer          read
//   observation       [step, env, column, feature]                                         read
//   seed, env_step    name the draws                                                       read
//   epsilon           [1]                                                                  read
//   exponents         [env]  what epsilon is raised to there                               read
//   action            [step, env, column]                                                  written
//   q_value           [step, env, agent of the group]  the largest                         written
//   num_steps         of the launch; what STEP_ENVS needs comes after it
extern "C" __global__ void __launch_bounds__(THREADS) q_act(
    const float* weight0, const float* bias0, const float* weight1, const float* bias1, const float* weight2,
    const float* bias2, const float* observation, const unsigned int* seed, const long long* env_step,
    const float* epsilon, const float* exponents, int* action, float* q_value, int num_steps)
{
    extern __shared__ char memory[];
    Shared& shared = *(Shared*)memory;
#pragma unroll 4
    for (int i = threadIdx.x; i < (int)(sizeof(Shared) / 16); i += THREADS) ((Bytes16*)memory)[i] = {};
    __syncthreads();
    put_layer<0>(shared.weight, shared.bias, weight0, bias0);
    put_layer<1>(shared.weight, shared.bias, weight1, bias1);
    if constexpr (LAYERS > 2) put_layer<2>(shared.weight, shared.bias, weight2, bias2);
#pragma unroll 1
    for (int t = 0; t < num_steps; ++t) {
        const long long step = (long long)t * NUM_ENVS;
        act(shared, observation + step * SEEN_COLUMNS * NUM_FEATURES, seed, env_step, epsilon, exponents,
            action + step * NUM_COLUMNS, q_value + step * GROUP_SIZE);
        STEP_ENVS(t)
    }
}
