// Which samples a minibatch holds, and what their advantages are normalised by.
//
// Constants:
//   NUM_SAMPLES                           of the rollout
//   NUM_EPOCHS                            times that all of them are learned from
//   NUM_MINIBATCHES                       of all epochs together
//   MINIBATCH                             samples of each; the last of an epoch may have fewer
//   HALF_BITS                             4^HALF_BITS is at least NUM_SAMPLES
//   NUM_SUMS, SUM_THREADS                 blocks a minibatch that sum up advantages; threads of each
//   HAS_ORDER, HAS_ACTIVE                 whether there are such arrays
//   GROUP_SIZE, FIRST_AGENT, ALL_AGENTS   agents of the group, and which they are of the env's
#include "warpdrive.cuh"

static_assert(1ll << 2 * HALF_BITS >= NUM_SAMPLES, "samples have no place in the order");

__device__ __forceinline__ unsigned mix(unsigned x)
{
    x = (x ^ (x >> 16)) * 0x85ebca6bu;
    x = (x ^ (x >> 13)) * 0xc2b2ae35u;
    return x ^ (x >> 16);
}

// Every epoch's samples in an order of its own.
// A Feistel network of 6 rounds permutes 0 .. 4^HALF_BITS - 1, and is applied again where it leads out of
// 0 .. NUM_SAMPLES - 1 (Black and Rogaway 2002, "Ciphers with arbitrary finite domains").
//   key    [2]  drawn anew for every update        read
//   order  [NUM_EPOCHS, NUM_SAMPLES]               written
extern "C" __global__ void shuffle_samples(const long long* key, int* order)
{
    constexpr unsigned MASK = (1u << HALF_BITS) - 1u;
    for (long long i = global_thread(); i < (long long)NUM_EPOCHS * NUM_SAMPLES; i += num_global_threads()) {
        const unsigned epoch = (unsigned)(i / NUM_SAMPLES);
        unsigned number = (unsigned)(i % NUM_SAMPLES);
        unsigned round_key[4];
        for (int k = 0; k < 4; ++k) round_key[k] = mix((unsigned)(key[k / 2] >> (k % 2 * 32)) + epoch * 0xb5297a4du);
        do {
            unsigned left = number >> HALF_BITS;
            unsigned right = number & MASK;
#pragma unroll
            for (unsigned round = 0; round < 6; ++round) {
                const unsigned next = left ^ (mix(right ^ (round_key[round % 4] + round * 0x9e3779b9u)) & MASK);
                left = right;
                right = next;
            }
            number = (left << HALF_BITS) | right;
        } while (number >= NUM_SAMPLES);
        order[i] = (int)number;
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
    for (long long i = first + (blockIdx.x % NUM_SUMS) * SUM_THREADS + threadIdx.x; i < last; i += stride) {
        const int index = HAS_ORDER ? order_of_epoch[i] : (int)i;
        if (HAS_ACTIVE) {
            const int env_step = index / GROUP_SIZE;
            if (!active[(long long)env_step * ALL_AGENTS + FIRST_AGENT + index % GROUP_SIZE]) continue;
        }
        const double one = advantage[index];
        number += 1.0;
        sum += one;
        squares += one * one;
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
