// One step of agents that act in a Box: they draw from a squashed normal distribution, if it SAMPLES; else noise is added
// to what they would do.
//
// A block has ROWS of them, and the policy's weights go by it out of the L2 cache.
//
// Constants, besides those of ac_networks.cuh and ac_numbers.cuh:
//   ROWS                       of a block
//   GROUP_SIZE                 agents of the group
//   FIRST_AGENT                of the env's agents, the group's first
//   SEEN_COLUMNS, FIRST_SEEN   columns of the array they observe in, and the first that is theirs
//   NUM_COLUMNS, FIRST_COLUMN  of the one they act in
//   CENTRE, SCALE, LOW, HIGH   of the Box
//   GREEDY                     whether they take the middle of what they would draw
#include "ac_networks.cuh"
#include "ac_numbers.cuh"
#include "random.cuh"

constexpr int SEEN_PITCH = pitch_of(NUM_FEATURES);

struct alignas(16) Shared {
    Element seen[ROWS * SEEN_PITCH];
    Element hidden1[ROWS * pitch_of(Actor::WIDTH1)], hidden2[ROWS * pitch_of(Actor::WIDTH2)];
    float outputs[ROWS * Actor::OUTPUTS];
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "the block has less shared memory");

// The policy as products read it. What is beyond its layers is 0 before.
//   addresses         of its weights and biases, layer by layer        read
//   elements, biases                                                   written
extern "C" __global__ void __launch_bounds__(THREADS) ac_pack_policy(
    const long long* addresses, unsigned char* elements, float* biases)
{
    const Tensors<false> policy = {addresses};
    for (int i = global_thread(); i < Actor::PARAMETERS; i += num_global_threads()) {
        put<false, false>((Element*)elements, biases, i, policy(0, i));
    }
}

//   elements, biases  of the policy                                                          read
//   observation       [env, column, feature]                                                 read
//   seed, env_step    name the draws                                                         read
//   action            [env, column, number]                                                  written
//   log_std           [number]  of the noise, in parts of the Box, if it does not SAMPLE     read
//   drawn             [env, agent of the group, number]  in parts and not clipped, likewise  written
//   log_prob          [env, agent of the group]  in the Box's unit, nats, if it SAMPLES      written
extern "C" __global__ void __launch_bounds__(THREADS, 1) ac_act(
    const unsigned char* elements, const float* biases, const float* observation, const unsigned int* seed,
    const long long* env_step, const float* log_std, float* action, float* drawn, float* log_prob)
{
    extern __shared__ char memory[];
    Shared& shared = *(Shared*)memory;
    clear(memory, sizeof(Shared));
    const int num_rows = NUM_ENVS * GROUP_SIZE;
    const int first = blockIdx.x * ROWS;
    for (int i = threadIdx.x; i < ROWS * NUM_FEATURES; i += THREADS) {
        const int row = i / NUM_FEATURES;
        if (first + row >= num_rows) break;
        const int env = (first + row) / GROUP_SIZE;
        const long long seen = (long long)env * SEEN_COLUMNS + FIRST_SEEN + (first + row) % GROUP_SIZE;
        narrow(shared.seen[row * SEEN_PITCH + i % NUM_FEATURES], observation[seen * NUM_FEATURES + i % NUM_FEATURES]);
    }
    __syncthreads();
    forward_policy<ROWS / 16>(
        shared.seen, SEEN_PITCH, (const Element*)elements, biases, shared.hidden1, shared.hidden2, shared.outputs);
    for (int row = threadIdx.x; row < ROWS && first + row < num_rows; row += THREADS) {
        const int env = (first + row) / GROUP_SIZE;
        const int agent = (first + row) % GROUP_SIZE;
        const long long column = (long long)env * NUM_COLUMNS + FIRST_COLUMN + agent;
        Random random(seed, env, FIRST_AGENT + agent, env_step[env], STREAM_ACTION);
        float whole = 0.0f;
        for (int i = 0; i < NUM_NUMBERS; ++i) {
            const float* output = shared.outputs + row * Actor::OUTPUTS;
            const float deviate = GREEDY ? 0.0f : random.normal();
            float part;
            if (SAMPLES) {
                const Drawn number(output, i, deviate);
                part = number.part;
                whole += number.log_prob - logf(SCALE[i]);
            } else {
                part = tanhf(output[i]) + expf(log_std[i]) * deviate;
                drawn[(first + row) * NUM_NUMBERS + i] = part;
            }
            action[column * NUM_NUMBERS + i] = fminf(fmaxf(CENTRE[i] + SCALE[i] * part, LOW[i]), HIGH[i]);
        }
        if (SAMPLES) log_prob[first + row] = whole;
    }
}
