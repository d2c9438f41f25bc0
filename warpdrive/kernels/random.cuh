// Random numbers as a function of (seed, env, agent, step, draw): the same on every device, for any
// number of envs and threads, and without state to keep.
//
//   Random random(seed, env, agent, env_step[env]);
//   const float x = random.uniform();          // [0, 1)
//   const unsigned cell = random.below(10);    // 0 .. 9
//
// A reset kernel says so, or it would draw the step kernel's numbers again:
//
//   Random random(seed, env, agent, env_step[env], STREAM_RESET);
//
// Source: Philox4x32-10, Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
#pragma once

enum RandomStream : unsigned {
    STREAM_ENV = 0u,      // what an env's kernels draw
    STREAM_ACTION = 1u,   // what the sampler draws
    STREAM_RESET = 2u,    // what reset kernels draw: they share the step's number with the step kernel
    STREAM_REPLAY = 3u,   // what a replay store draws: an item of a batch in place of an env, a table of an agent
    STREAM_UPDATE = 4u,   // what an update draws: an item of a batch in place of an env, a draw of a table of a step
};

struct Random {
    unsigned key_low, key_high;    // from seed, and from the upper half of the step's number
    unsigned env, agent, step;     // env counts over all processes of a run; of step the lower half
    unsigned draw;                 // the next draw's number; its top bits hold the stream

    // seed [3] uint32: its two words, and what env 0 here is called among the envs of all processes.
    // Draws of different streams never meet while each makes fewer than 2^28 draws a step.
    // The counter's four words are taken: every 2^32 steps go by another key, far from those of neighbouring seeds.
    __device__ __forceinline__ Random(
        const unsigned int* seed, unsigned env_, unsigned agent_, long long step_, unsigned stream = STREAM_ENV)
        : key_low(seed[0]),
          key_high(seed[1] + (unsigned)(step_ >> 32) * 0x9E3779B9u),
          env(seed[2] + env_),
          agent(agent_),
          step((unsigned)step_),
          draw(stream << 28)
    {
    }

    // 32 random bits.
    __device__ __forceinline__ unsigned bits()
    {
        unsigned counter0 = env, counter1 = agent, counter2 = step, counter3 = draw++;
        unsigned key0 = key_low, key1 = key_high;
#ifdef CODE_IS_LONG  // a kernel that waits for its own code
#pragma unroll 2
#endif
        for (int round = 0; round < 10; ++round) {
            const unsigned long long product0 = 0xD2511F53ull * counter0;
            const unsigned long long product1 = 0xCD9E8D57ull * counter2;
            counter0 = (unsigned)(product1 >> 32) ^ counter1 ^ key0;
            counter1 = (unsigned)product1;
            counter2 = (unsigned)(product0 >> 32) ^ counter3 ^ key1;
            counter3 = (unsigned)product0;
            key0 += 0x9E3779B9u;
            key1 += 0xBB67AE85u;
        }
        return counter0;
    }

    // Uniform in [0, 1), a multiple of 2^-24.
    __device__ __forceinline__ float uniform()
    {
        return (float)(bits() >> 8) * 5.9604644775390625e-8f;
    }

    __device__ __forceinline__ float uniform(float low, float high)
    {
        return low + (high - low) * uniform();
    }

    // Uniform on 0 .. count - 1; off by less than count / 2^32.
    __device__ __forceinline__ unsigned below(unsigned count)
    {
        return (unsigned)(((unsigned long long)bits() * count) >> 32);
    }

    // Standard normal (Box and Muller).
    __device__ __forceinline__ float normal()
    {
        const float radius = sqrtf(-2.0f * logf(1.0f - uniform()));
        return radius * cosf(6.283185307179586f * uniform());
    }
};
