// Steps of agents that take the action of the largest Q-value, or with probability epsilon any; and of their envs between
// them, where a launch makes both.
//
// A block has ROWS of them. What limits it is a launch, and the network's way into shared memory.
//
// Constants: those of q_choice.cuh; ROWS of a block.
#include "q_choice.cuh"

#ifndef STEP_ENVS  // with_envs.py writes what it is, and the parameters of it
#define STEP_ENVS(t)
#endif

struct alignas(16) Shared {
    Element weight[WEIGHTS];
    Element features[ROWS * pitch_of(NUM_FEATURES)], hidden1[ROWS * pitch_of(WIDTH1)], hidden2[ROWS * pitch_of(WIDTH2)];
    float bias[BIASES];
    float q[ROWS * CHOICE_PITCH];
    float epsilon[ROWS], drawn[ROWS];
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "the block has less shared memory");

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
    const Choice<ROWS> choice = {shared.weight, shared.bias, shared.features, shared.hidden1,
                                 shared.hidden2, shared.q, shared.epsilon, shared.drawn};
#pragma unroll 1
    for (int t = 0; t < num_steps; ++t) {
        const long long step = (long long)t * NUM_ENVS;
        see(choice, observation + step * SEEN_COLUMNS * NUM_FEATURES);
        __syncthreads();
        act(choice, seed, env_step, epsilon, exponents, action + step * NUM_COLUMNS, q_value + step * GROUP_SIZE);
        STEP_ENVS(t)
    }
}
