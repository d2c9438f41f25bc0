// What a block that learns alone keeps on the chip, and which of it is whose; see q_alone.cu.
//
// Constants, besides those of q_rows.cuh, q_block.cuh and gather.cuh:
//   BATCH         transitions of an update
//   DOUBLE        whether the network chooses the action that the target network judges
//   HUBER_DELTA   0: squared errors
//   TAU           how far the target network steps
#pragma once
#include "q_block.cuh"
#include "q_rows.cuh"

constexpr int SLOTS0 = Division<0>::SLOTS, SLOTS1 = Division<1>::SLOTS, SLOTS2 = Division<LAYERS - 1>::SLOTS;
constexpr int SLOTS = SLOTS0 + SLOTS1 + (LAYERS > 2 ? SLOTS2 : 0);  // quads of parameters of a thread
constexpr int AT_ONCE = 5;  // of those, which it loads before it stores one, else each load waits for a store

// How far the run is. It is shared, as no thread has registers left for it, and what a compiler spills comes back from
// beyond the multiprocessor's cache. The first thread moves it on, but for what is said of others.
struct Progress {
    long long begin, steps_before;  // steps in the store before this launch; and schedule[1]
    long long num_made;             // updates
    u64 num_draws;
    long long made_then;            // before the updates after the next step; of the thread that plans these
    int step, slot;                 // of the rollout, and the store's
    int num_left, due_then;         // updates after this step, and after the next; the latter likewise
    int drawn_for;                  // the step after which what was drawn last is learned from; -1: nothing was drawn
    bool is_last;                   // whether the update under way is the last after this step; of who tells its rates
    bool is_halted;
    int has_lost;                   // whether a step that was kept lost its future by the last one; of who keeps an env
    float rate, num_adam_steps, length;
    unsigned seed[3], env_seed[3];
};

struct alignas(16) Shared {
    static constexpr int Q_PITCH = NUM_ACTIONS | 1;
    Element weight[2][WEIGHTS];           // of the network, and of the target network
    Rest rest[FULL_PRECISION ? 1 : SLOTS][THREADS];
    Element features[2 * ROWS * PITCH0];  // of the rows, then of what came after them
    Element hidden1[ROWS * PITCH1];       // then their deltas
    Element hidden2[ROWS * PITCH2];
    Element delta_out[ROWS * PITCH_OUT];
    float bias[2][BIASES], of_bias[BIASES], bias_mean[BIASES], bias_square[BIASES];
    float q[(DOUBLE ? 2 : 1) * ROWS * Q_PITCH];
    float q_of_target[ROWS * Q_PITCH];
    float reward[ROWS], discount[ROWS], item_weight[ROWS], of_batch[NUM_FIGURES][ROWS];
    int action[ROWS];
    Next next[ROWS];
    Rates rates;
    Progress progress;
    float squares[WARPS];
};
// What agents see next lies at the end, where the block plays.
#ifdef STEP_ENVS
constexpr int SEEN_BYTES = PLAYED_ROWS * PITCH0 * (int)sizeof(Element);
#else
constexpr int SEEN_BYTES = 0;
#endif
// Gradients wait for their length: those of a thread's first slots in what is left of shared memory, the others in
// registers.
constexpr int LEFT = (SHARED_BYTES - SEEN_BYTES - (int)sizeof(Shared)) / (THREADS * (int)sizeof(Quad));
constexpr int STORED = LEFT < 0 ? 0 : LEFT < SLOTS ? LEFT : SLOTS;

static_assert(sizeof(Shared) + SEEN_BYTES <= SHARED_BYTES, "the block has less shared memory");
static_assert(BATCH <= ROWS && NUM_ACTIONS <= 16, "a block has a batch, a tile the actions");

// The last layer, of all rows.
template <typename Shared, typename Take>
__device__ __forceinline__ void last_of_rows(const Shared& shared, int network, float* q, Take take)
{
    constexpr int LAYER = LAYERS - 1, PITCH = pitch_of(in_of(LAYER));
    const Element* given = LAYERS > 2 ? shared.hidden2 : shared.hidden1;
#pragma unroll 1
    for (int row = threadIdx.x / 32 * 16; row < ROWS; row += WARPS * 16) {
        float sum[2][4];
        multiply_rows<LAYER>(sum, given + row * PITCH, shared.weight[network] + weights_at(LAYER),
                             shared.bias[network] + biases_at(LAYER), 0);
        for_each_pair(sum, [&](int r, int c, float low, float high) {
            float* place = q + (row + r) * Shared::Q_PITCH + c;
            if (c < NUM_ACTIONS) place[0] = low;
            if (c + 1 < NUM_ACTIONS) place[1] = high;
        });
        take(row);
    }
}

// The hidden layers, of all rows, before a barrier.
__device__ __forceinline__ void hidden_layers(Shared& shared, int network, const Element* features)
{
    hidden_of_rows<0>(features, shared.weight[network], shared.bias[network], shared.hidden1);
    __syncthreads();
    if constexpr (LAYERS > 2) {
        hidden_of_rows<1>(shared.hidden1, shared.weight[network], shared.bias[network], shared.hidden2);
        __syncthreads();
    }
}

// Adam's memory of what one thread steps.
struct Mine {
    Quad mean[SLOTS], square[SLOTS];
};

// Calls take(slot, owned) for each slot of a thread. The last layer's come first, as their gradients do.
template <typename Take>
__device__ __forceinline__ void for_each_slot(Take take)
{
    if constexpr (LAYERS > 2) {
#pragma unroll
        for (int i = 0; i < SLOTS2; ++i) take(i, Division<LAYERS - 1>::owned(i));
    }
    constexpr int FIRST1 = LAYERS > 2 ? SLOTS2 : 0;
#pragma unroll
    for (int i = 0; i < SLOTS1; ++i) take(FIRST1 + i, Division<1>::owned(i));
#pragma unroll
    for (int i = 0; i < SLOTS0; ++i) take(FIRST1 + SLOTS1 + i, Division<0>::owned(i));
}

// The same for AT_ONCE of them from one on; `take` is told the how many-th of these a slot is, too, if there is a quad.
template <typename Take>
__device__ __forceinline__ void for_some_slots(int first, Take take)
{
    for_each_slot([&](int slot, const Owned& owned) {
        if (slot >= first && slot < first + AT_ONCE && owned.is_there) take(slot, slot - first, owned);
    });
}

// Where a layer's gradient waits, from a thread's FIRST slot on; the sum of its squares.
//   stored  [STORED, THREADS]  written
template <int FIRST, int COUNT>
__device__ __forceinline__ float keep(const Quad (&of_layer)[COUNT], Quad (&gradient)[SLOTS], Quad* stored)
{
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const Quad& one = of_layer[i];
        squares += one.of[0] * one.of[0] + one.of[1] * one.of[1] + one.of[2] * one.of[2] + one.of[3] * one.of[3];
        if (FIRST + i < STORED) {
            stored[(FIRST + i) * THREADS + threadIdx.x] = one;
        } else {
            gradient[FIRST + i] = one;
        }
    }
    return squares;
}

// The same of one slot, where it is not known in advance which.
__device__ __forceinline__ Owned owned_of(int slot)
{
    constexpr int FIRST1 = LAYERS > 2 ? SLOTS2 : 0;
    if (slot < FIRST1) return Division<LAYERS - 1>::owned(slot);
    return slot < FIRST1 + SLOTS1 ? Division<1>::owned(slot - FIRST1) : Division<0>::owned(slot - FIRST1 - SLOTS1);
}

__device__ __forceinline__ float followed_by(float target, float parameter)
{
    if (TAU >= 1.0f) return parameter;
    const float way = parameter - target;
    return TAU < 0.5f ? target + TAU * way : parameter - way * (1.0f - TAU);
}
