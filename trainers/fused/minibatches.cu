// Which samples a minibatch holds, and what their advantages are normalised by.
//
// Constants:
//   NUM_SAMPLES                           of the rollout
//   NUM_EPOCHS                            times that all of them are learned from
//   NUM_MINIBATCHES                       of all epochs together
//   MINIBATCH                             samples of each; the last of an epoch may have fewer
//   ORDER_BITS                            2^ORDER_BITS is at least the number of what stays together
//   NUM_SUMS, SUM_THREADS                 blocks a minibatch that sum up advantages; threads of each
//   HAS_ORDER, HAS_ACTIVE                 whether there are such arrays
//   GROUP_SIZE, FIRST_AGENT, ALL_AGENTS   agents of the group, and which they are of the env's
//   SEQUENCE                              steps that stay together, of all agents of an env; 0: every sample is alone
//   STEP_ROWS                             agents of the group in all envs
//   CHUNK                                 samples that go through a recurrent network at once
//   NUM_COLUMNS, FIRST_COLUMN             of the array of actions, and the group's first
//   NUM_HEADS, SAMPLE_BYTES               as sample_row.cuh has them
#include "warpdrive.cuh"
#include "sample_row.cuh"

constexpr int UNIT = SEQUENCE > 0 ? SEQUENCE * GROUP_SIZE : 1;  // samples that stay together
constexpr int NUM_UNITS = NUM_SAMPLES / UNIT;
constexpr int AHEAD = 4;  // samples that are loaded before the first of them is looked at

static_assert(1ll << ORDER_BITS >= NUM_UNITS, "samples have no place in the order");
static_assert(NUM_SAMPLES % UNIT == 0 && MINIBATCH % UNIT == 0 && CHUNK % UNIT == 0, "sequences are cut");

__device__ __forceinline__ unsigned mix(unsigned x)
{
    x = (x ^ (x >> 16)) * 0x85ebca6bu;
    x = (x ^ (x >> 13)) * 0xc2b2ae35u;
    return x ^ (x >> 16);
}

// What stands at a place of an epoch's order, of NUM_UNITS numbers.
// A Feistel network of 6 rounds, whose right half may have a bit more than the left, permutes 0 .. 2^ORDER_BITS - 1, and
// is applied again where it leads out of 0 .. NUM_UNITS - 1 (Black and Rogaway 2002, "Ciphers with arbitrary finite
// domains").
__device__ __forceinline__ unsigned permuted(const long long* key, unsigned epoch, unsigned number)
{
    constexpr int LEFT_BITS = ORDER_BITS / 2;
    constexpr int RIGHT_BITS = ORDER_BITS - LEFT_BITS;
    unsigned round_key[4];
    for (int k = 0; k < 4; ++k) round_key[k] = mix((unsigned)(key[k / 2] >> (k % 2 * 32)) + epoch * 0xb5297a4du);
    do {
        unsigned left = number >> RIGHT_BITS;
        unsigned right = number & ((1u << RIGHT_BITS) - 1u);
#pragma unroll
        for (unsigned round = 0; round < 6; round += 2) {
            left ^= mix(right ^ (round_key[round % 4] + round * 0x9e3779b9u)) & ((1u << LEFT_BITS) - 1u);
            right ^= mix(left ^ (round_key[round % 4 + 1] + (round + 1) * 0x9e3779b9u)) & ((1u << RIGHT_BITS) - 1u);
        }
        number = (left << RIGHT_BITS) | right;
    } while (number >= NUM_UNITS);
    return number;
}

// Every epoch's samples in an order of its own.
//   key    [2]  drawn anew for every update        read
//   order  [NUM_EPOCHS, NUM_SAMPLES]               written
extern "C" __global__ void shuffle_samples(const long long* key, int* order)
{
    for (long long i = global_thread(); i < (long long)NUM_EPOCHS * NUM_SAMPLES; i += num_global_threads()) {
        order[i] = (int)permuted(key, (unsigned)(i / NUM_SAMPLES), (unsigned)(i % NUM_SAMPLES));
    }
}

// Every epoch's sequences in an order of its own; of each CHUNK of a minibatch, step by step: [SEQUENCE, sequence].
//   key                    [2]  drawn anew for every update                                read
//   terminated, truncated  [step, env]                                                     read
//   active, survived       [step, env, agent of all]  in the game before the step, and
//                          after it, if it HAS_ACTIVE                                      read
//   order                  [NUM_EPOCHS, NUM_SAMPLES]                                       written
//   starts                 likewise: whether nothing is remembered of the step before      written
extern "C" __global__ void shuffle_sequences(
    const long long* key, const bool* terminated, const bool* truncated, const bool* active, const bool* survived,
    int* order, bool* starts)
{
    if (SEQUENCE == 0) return;
    constexpr int LENGTH = SEQUENCE > 0 ? SEQUENCE : 1;
    for (long long i = global_thread(); i < (long long)NUM_EPOCHS * NUM_SAMPLES; i += num_global_threads()) {
        const int place = (int)(i % NUM_SAMPLES);
        const int first = place / MINIBATCH * MINIBATCH;
        const int chunk = first + (place - first) / CHUNK * CHUNK;
        const int rows = min(min(CHUNK, first + MINIBATCH - chunk), NUM_SAMPLES - chunk) / LENGTH;  // sequences of it
        const int t = (place - chunk) / rows;
        const int row = (place - chunk) % rows;
        const unsigned unit = permuted(key, (unsigned)(i / NUM_SAMPLES), chunk / UNIT + row / GROUP_SIZE);
        const int num_envs = STEP_ROWS / GROUP_SIZE;
        const int env = unit % num_envs;
        const int step = unit / num_envs * LENGTH + t;
        const int agent = row % GROUP_SIZE;
        order[i] = step * STEP_ROWS + env * GROUP_SIZE + agent;
        bool forgets = false;
        if (t > 0) {
            const long long before = (long long)(step - 1) * num_envs + env;
            forgets = terminated[before] || truncated[before];
            if (HAS_ACTIVE) {
                const long long mine = before * ALL_AGENTS + FIRST_AGENT + agent;
                forgets = forgets || !active[mine] || !survived[mine];
            }
        }
        starts[i] = forgets;
    }
}

// Sums over each minibatch, in NUM_SUMS parts of it: how many count, of their advantages, and of the squares.
//   advantage  [step, env, agent of the group]              read
//   order      [NUM_EPOCHS, NUM_SAMPLES], if it HAS_ORDER   read
//   active     [step, env, agent of all], if it HAS_ACTIVE  read
//   sums       [NUM_MINIBATCHES, NUM_SUMS, 3]               written
extern "C" __global__ void __launch_bounds__(SUM_THREADS) advantage_sums(
    const float* advantage, const int* order, const bool* active, double* sums)
{
    __shared__ double part[SUM_THREADS][3];
    constexpr int AN_EPOCH = NUM_MINIBATCHES / NUM_EPOCHS;
    const int minibatch = blockIdx.x / NUM_SUMS;
    const long long first = (long long)(minibatch % AN_EPOCH) * MINIBATCH;
    const long long last = first + MINIBATCH < NUM_SAMPLES ? first + MINIBATCH : NUM_SAMPLES;
    const int* order_of_epoch = order + (long long)(minibatch / AN_EPOCH) * NUM_SAMPLES;
    double number = 0.0;
    double sum = 0.0;
    double squares = 0.0;
    const long long stride = (long long)NUM_SUMS * SUM_THREADS;
    const long long mine = first + (blockIdx.x % NUM_SUMS) * SUM_THREADS + threadIdx.x;
    for (long long i = mine; i < last; i += AHEAD * stride) {
        float found[AHEAD];
        bool counts[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; ++k) {
            const bool is_there = i + k * stride < last;
            const long long at = is_there ? i + k * stride : i;
            const int index = HAS_ORDER ? order_of_epoch[at] : (int)at;
            counts[k] = is_there && (!HAS_ACTIVE || active[place_among_all(index)]);
            found[k] = advantage[index];
        }
#pragma unroll
        for (int k = 0; k < AHEAD; ++k) {
            if (!counts[k]) continue;
            const double one = found[k];
            number += 1.0;
            sum += one;
            squares += one * one;
        }
    }
    part[threadIdx.x][0] = number;
    part[threadIdx.x][1] = sum;
    part[threadIdx.x][2] = squares;
    for (int width = SUM_THREADS / 2; width > 0; width /= 2) {
        __syncthreads();
        if (threadIdx.x < width) {
            for (int k = 0; k < 3; ++k) part[threadIdx.x][k] += part[threadIdx.x + width][k];
        }
    }
    if (threadIdx.x == 0) {
        for (int k = 0; k < 3; ++k) sums[(long long)blockIdx.x * 3 + k] = part[0][k];
    }
}

// Brings together what each sample has besides its features.
//   log_prob, value, advantage, target  [step, env, agent of the group]               read
//   action                              [step, env, column, head]                     read
//   active                              [step, env, agent of all], if it HAS_ACTIVE   read
//   samples                             bytes of [sample] rows                        written
extern "C" __global__ void bring_samples_together(
    const float* log_prob, const float* value, const float* advantage, const float* target, const int* action,
    const bool* active, unsigned char* samples)
{
    for (long long i = global_thread(); i < NUM_SAMPLES; i += num_global_threads()) {
        SampleRow row = {log_prob[i], value[i], advantage[i], target[i], 1};
        if (HAS_ACTIVE) row.counts = active[place_among_all((int)i)];
        const int* taken = action + place_of_action((int)i);
        for (int head = 0; head < NUM_HEADS; ++head) row.action[head] = taken[head];
        ((SampleRow*)samples)[i] = row;
    }
}
