// Takes a window of NUM_STEPS steps of all envs into the rings, in one launch: some blocks look at how the steps ended,
// put records together, and keep what truncated episodes saw last; the others copy long fields. Of a small grid each
// block does both.
//
// Constants:
//   NUM_STEPS        of a window
//   NUM_SLOTS        of a ring
//   NUM_SIDES        truncations of an env whose last observations are kept
//   MAX_TRUNCATIONS  of an env in a window, whose last observations it has
//   ENVS_OF_BLOCK    that a block looks at together, at most one a thread
//   STEPS_AT_ONCE    whose records a block puts together at once
//   THREADS          of a block
//   RECORD           bytes of a record of short fields, see records.py
//   BY_ENV           whether records are [env, slot], else [slot, env]
//   HAS_HOLES        whether something fills records up
//   CODE_OFFSET      of the code that says how a step ended, in its record
#pragma once
#include "async_copy.cuh"
#include "warpdrive.cuh"

static_assert(NUM_STEPS <= NUM_SLOTS, "a window is longer than the ring");
static_assert(STEPS_AT_ONCE <= 32, "a word has a bit for each step");

// Blocks that share a piece of work.
struct Crew {
    int me, count;  // below 0 or not below the count: this block is not one of them

    __device__ __forceinline__ bool has_me() const { return me >= 0 && me < count; }
    __device__ __forceinline__ long long thread() const { return (long long)me * blockDim.x + threadIdx.x; }
    __device__ __forceinline__ long long num_threads() const { return (long long)count * blockDim.x; }
};

struct Crews {
    Crew of_steps, of_rows;

    __device__ __forceinline__ Crews()
    {
        const int block = (int)blockIdx.x, all = (int)gridDim.x;
        const int wanted = (NUM_ENVS + ENVS_OF_BLOCK - 1) / ENVS_OF_BLOCK;
        const bool are_apart = all >= 2 * wanted;  // those of steps first: they take longest
        of_steps = {block, are_apart ? wanted : all};
        of_rows = are_apart ? Crew{block - wanted, all - wanted} : Crew{block, all};
    }
};

// Brings the head up to this window's end once all blocks have read it. All threads call it, after they have.
//   head  [2]  steps so far, twice; the second also counts the blocks that have read the first  read, written
__device__ __forceinline__ void move_head(long long begin, long long* head)
{
    __syncthreads();
    if (threadIdx.x > 0) return;
    const unsigned long long seen = atomicAdd((unsigned long long*)head + 1, 1ull);
    if (seen - (unsigned long long)begin == gridDim.x - 1u) head[0] = head[1] = begin + NUM_STEPS;
}

// Envs that a block looks at together.
struct Envs {
    long long first;
    int count;

    __device__ __forceinline__ explicit Envs(long long number)
        : first(number * ENVS_OF_BLOCK),
          count(NUM_ENVS - first < ENVS_OF_BLOCK ? (int)(NUM_ENVS - first) : ENVS_OF_BLOCK)
    {
    }
};

__device__ __forceinline__ int slot_of(int base, int t)
{
    return base + t < NUM_SLOTS ? base + t : base + t - NUM_SLOTS;
}

// As large a word as a piece of so many bytes is a multiple of.
template <int BYTES, int SIZE = BYTES % 16 == 0 ? 16 : BYTES % 8 == 0 ? 8 : BYTES % 4 == 0 ? 4 : BYTES % 2 == 0 ? 2 : 1>
struct PieceOf;
template <int BYTES> struct PieceOf<BYTES, 16> { typedef uint4 Word; };
template <int BYTES> struct PieceOf<BYTES, 8> { typedef uint2 Word; };
template <int BYTES> struct PieceOf<BYTES, 4> { typedef unsigned int Word; };
template <int BYTES> struct PieceOf<BYTES, 2> { typedef unsigned short Word; };
template <int BYTES> struct PieceOf<BYTES, 1> { typedef unsigned char Word; };

// What is not soon read again makes no room by what is.
template <typename Word>
__device__ __forceinline__ void store_once(Word* place, const Word& word)
{
#ifndef WARPDRIVE_CPU
    if constexpr (sizeof(Word) == 16) {
        __stcs((uint4*)place, *(const uint4*)&word);
        return;
    }
#endif
    *place = word;
}

__device__ __forceinline__ long long record_at(long long slot, long long env)
{
    return (BY_ENV ? env * NUM_SLOTS + slot : slot * NUM_ENVS + env) * RECORD;
}

// Records that are put together, in shared memory: those of some steps, while the next ones come.
struct Staged {
    static constexpr int BYTES = (STEPS_AT_ONCE * RECORD + 15) / 16 * 16 + 16;  // of an env: others, other banks
    alignas(16) unsigned char rows[2][ENVS_OF_BLOCK][BYTES];
    unsigned terminated[ENVS_OF_BLOCK], truncated[ENVS_OF_BLOCK];  // a bit a step
    // Truncations of the window so far, and those without a future; what num_truncated will be, and who has the row
    // that is next: its step, and 1.
    int num_seen[ENVS_OF_BLOCK], num_dropped[ENVS_OF_BLOCK];
    long long num_rows[ENVS_OF_BLOCK], owner[ENVS_OF_BLOCK];

    __device__ __forceinline__ unsigned char* record(int t0, int t, int env)
    {
        return rows[t0 / STEPS_AT_ONCE % 2][env] + t * RECORD;
    }

    // What fills records up is zeros.
    __device__ __forceinline__ void clear()
    {
        const uint4 zero = {};
        for (int i = threadIdx.x; HAS_HOLES && i < (int)sizeof(rows) / 16; i += THREADS) ((uint4*)rows)[i] = zero;
        for (int e = threadIdx.x; e < ENVS_OF_BLOCK; e += THREADS) terminated[e] = truncated[e] = 0u;
        __syncthreads();
    }
};

// Walks over the steps that a block puts together at once: calls with which of its own they are, step, env, and number.
template <int PER_ENV>
struct Share {
    static constexpr int ROW = ENVS_OF_BLOCK * PER_ENV;
    static constexpr int COUNT = (STEPS_AT_ONCE * ROW + THREADS - 1) / THREADS;

    template <typename Call>
    __device__ __forceinline__ static void for_each(const Envs& envs, int t0, const Call& call)
    {
#pragma unroll
        for (int k = 0; k < COUNT; ++k) {
            const int i = threadIdx.x + k * THREADS, t = i / ROW, e = i % ROW / PER_ENV;
            if (t < STEPS_AT_ONCE && t0 + t < NUM_STEPS && e < envs.count) call(k, t, e, i % PER_ENV);
        }
    }
};

// How steps ended, and which row of the sides takes what a truncated episode saw last. Of an env one thread gives rows.
//   terminated, truncated  [step, env]                                                              read
//   begin          steps before this window
//   ring           records, of which codes of earlier steps may be                                  written
//   side_step      [side, env]  the step whose last observations the row holds, and 1; 0: none yet  read, written
//   num_truncated  [env]        rows given so far                                                   read, written
//   num_dropped    [env]        truncations that had no room, or whose row was needed again         read, written
//   side_of        [truncation, env]  row for the window's k-th truncation of an env, or -1         written
template <typename Done>
struct Ends {
    const bool *terminated, *truncated;
    const long long begin;
    unsigned char* ring;
    long long *side_step, *num_truncated, *num_dropped;
    int* side_of;
    unsigned char mine[Share<1>::COUNT];  // of the steps that come: bit 0: terminated, bit 1: truncated

    __device__ __forceinline__ void start(const Envs& envs, Staged& staged) const
    {
        const int e = threadIdx.x;
        if (e >= envs.count) return;
        staged.num_seen[e] = staged.num_dropped[e] = 0;
        staged.num_rows[e] = num_truncated[envs.first + e];
        staged.owner[e] = side_step[place_of(envs, staged)];
        for (int i = 0; i < MAX_TRUNCATIONS; ++i) side_of[(long long)i * NUM_ENVS + envs.first + e] = -1;
    }

    // Of steps t0 on.
    __device__ __forceinline__ void load(const Envs& envs, int t0)
    {
        Share<1>::for_each(envs, t0, [&](int k, int t, int e, int) {
            const long long from = (long long)(t0 + t) * NUM_ENVS + envs.first + e;
            mine[k] = (unsigned char)(terminated[from] | truncated[from] << 1);
        });
    }

    // Their codes, as if no truncation had a row; and which were truncated.
    __device__ __forceinline__ void put(const Envs& envs, int t0, Staged& staged) const
    {
        Share<1>::for_each(envs, t0, [&](int k, int t, int e, int) {
            code_in(staged.record(t0, t, e)) = (Done)(mine[k] != 0);
            if (mine[k] & 1u) atomicOr(&staged.terminated[e], 1u << t);
            if (mine[k] & 2u) atomicOr(&staged.truncated[e], 1u << t);
        });
    }

    // Gives rows, truncation by truncation. Between barriers.
    __device__ __forceinline__ void give_rows(const Envs& envs, int t0, Staged& staged) const
    {
        const int e = threadIdx.x;
        if (e >= envs.count || staged.truncated[e] == 0u) {
            if (e < envs.count) staged.terminated[e] = 0u;
            return;
        }
        int& k = staged.num_seen[e];
        for (unsigned left = staged.truncated[e]; left != 0u; left &= left - 1u, ++k) {
            const int t = __ffs(left) - 1;
            if (staged.terminated[e] >> t & 1u) continue;
            if (k < MAX_TRUNCATIONS) code_in(staged.record(t0, t, e)) = (Done)(2 + give_row(envs, t0, t0 + t, staged));
            else ++staged.num_dropped[e];
        }
        staged.terminated[e] = staged.truncated[e] = 0u;
    }

    __device__ __forceinline__ void finish(const Envs& envs, const Staged& staged) const
    {
        const int e = threadIdx.x;
        if (e >= envs.count || staged.num_seen[e] == 0) return;
        num_truncated[envs.first + e] = staged.num_rows[e];
        if (staged.num_dropped[e]) num_dropped[envs.first + e] += staged.num_dropped[e];
    }

private:
    __device__ __forceinline__ static Done& code_in(unsigned char* record) { return *(Done*)(record + CODE_OFFSET); }

    // In the sides, of the row that is next.
    __device__ __forceinline__ static long long place_of(const Envs& envs, const Staged& staged)
    {
        return staged.num_rows[threadIdx.x] % NUM_SIDES * NUM_ENVS + envs.first + threadIdx.x;
    }

    __device__ __forceinline__ int give_row(const Envs& envs, int t0, int t, Staged& staged) const
    {
        const int e = threadIdx.x, k = staged.num_seen[e];
        const long long place = place_of(envs, staged), owner = staged.owner[e] - 1;
        const int row = (int)(staged.num_rows[e]++ % NUM_SIDES);
        const long long oldest = begin + NUM_STEPS - NUM_SLOTS;  // that the ring holds after this window
        if (owner >= 0 && owner >= oldest) {  // its step is still there, and loses its future
            code_in(owner >= begin + t0 ? staged.record(t0, (int)(owner - begin - t0), e)
                                        : ring + record_at(owner % NUM_SLOTS, envs.first + e)) = (Done)1;
            for (int i = 0; i < k; ++i) {
                int* of_earlier = side_of + (long long)i * NUM_ENVS + envs.first + e;
                if (*of_earlier == row) *of_earlier = -1;
            }
            ++staged.num_dropped[e];
        }
        side_step[place] = begin + t + 1;
        side_of[(long long)k * NUM_ENVS + envs.first + e] = row;
        if (k + 1 < MAX_TRUNCATIONS) staged.owner[e] = side_step[place_of(envs, staged)];
        return row;
    }
};

// A field's values of steps t0 on, WORDS words an env, set on their way into records.
//   window  [step, env], strided, in words  read
template <int OFFSET, typename Word, int WORDS, long long ENV_STRIDE, long long STEP_STRIDE>
__device__ __forceinline__ void stage_field(const Envs& envs, int t0, const unsigned char* window, Staged& staged)
{
    const Word* from = (const Word*)window + t0 * STEP_STRIDE + envs.first * ENV_STRIDE;
    Share<WORDS>::for_each(envs, t0, [&](int, int t, int e, int w) {
        start_copy((Word*)(staged.record(t0, t, e) + OFFSET) + w, from + t * STEP_STRIDE + e * ENV_STRIDE + w);
    });
}

// The records of steps t0 on, as a whole.
__device__ __forceinline__ void add_records(const Envs& envs, int base, int t0, Staged& staged, unsigned char* ring)
{
    typedef PieceOf<RECORD>::Word Word;
    constexpr int PIECES = RECORD / sizeof(Word), RUN = (BY_ENV ? STEPS_AT_ONCE : ENVS_OF_BLOCK) * PIECES;
#pragma unroll 4
    for (int i = threadIdx.x; i < STEPS_AT_ONCE * ENVS_OF_BLOCK * PIECES; i += THREADS) {
        const int run = i / RUN, within = i % RUN / PIECES, piece = i % PIECES;
        const int t = BY_ENV ? within : run, e = BY_ENV ? run : within;
        if (t0 + t >= NUM_STEPS || e >= envs.count) continue;
        Word* to = (Word*)(ring + record_at(slot_of(base, t0 + t), envs.first + e)) + piece;
        store_once(to, ((const Word*)staged.record(t0, t, e))[piece]);
    }
}

// The records of all steps of some envs. `load` sets the fields of steps t0 on on their way: those of the next ones come
// while these are looked at and written.
template <typename Done, typename Load>
__device__ __forceinline__ void add_envs(
    const Envs& envs, Ends<Done>& ends, int base, Staged& staged, unsigned char* ring, const Load& load)
{
    ends.start(envs, staged);
    load(0);
    ends.load(envs, 0);
    close_copies();
    for (int t0 = 0; t0 < NUM_STEPS; t0 += STEPS_AT_ONCE) {
        ends.put(envs, t0, staged);
        if (t0 + STEPS_AT_ONCE < NUM_STEPS) {
            load(t0 + STEPS_AT_ONCE);
            ends.load(envs, t0 + STEPS_AT_ONCE);
        }
        close_copies();
        wait_for_groups<1>();
        __syncthreads();
        ends.give_rows(envs, t0, staged);
        __syncthreads();
        add_records(envs, base, t0, staged, ring);
        __syncthreads();
    }
    ends.finish(envs, staged);
}

// What is known of a field after the window's last step: of a record that the next window completes.
//   after  [env], strided, in words          read
//   ring   [slot, env], strided, in words    written
template <typename Word, int WORDS, long long ENV_STRIDE, long long RING_SLOT_STRIDE, long long RING_ENV_STRIDE>
__device__ __forceinline__ void add_after(
    const Envs& envs, int base, const unsigned char* after, unsigned char* ring)
{
    const Word* from = (const Word*)after + envs.first * ENV_STRIDE;
    Word* to = (Word*)ring + slot_of(base, NUM_STEPS) * RING_SLOT_STRIDE + envs.first * RING_ENV_STRIDE;
    for (int i = threadIdx.x; i < envs.count * WORDS; i += THREADS) {
        const int e = i / WORDS, word = i % WORDS;
        to[e * RING_ENV_STRIDE + word] = from[e * ENV_STRIDE + word];
    }
}

// Copies rows of a window, of NUM_RUNS runs of WORDS words each, behind each other into a ring of RING rows.
//   window  strided, in words  read
//   ring    [RING, NUM_RUNS, WORDS]  written
//   first   row of the ring that takes the window's first
template <typename Word, int WORDS, int NUM_RUNS, long long RUN_STRIDE, long long STEP_STRIDE, int RING>
__device__ __forceinline__ void add_rows(
    const Crew& crew, const unsigned char* window, unsigned char* ring, int first, int num_rows)
{
    const Word* from = (const Word*)window;
    Word* to = (Word*)ring;
    constexpr long long ROW = (long long)NUM_RUNS * WORDS;
    // What a later row will overwrite is left out.
    const int begin = num_rows > RING ? num_rows - RING : 0;
#pragma unroll 4
    for (long long i = begin * ROW + crew.thread(); i < num_rows * ROW; i += crew.num_threads()) {
        const int t = (int)(i / ROW);
        const long long within = i - t * ROW;
        const long long run = WORDS == ROW ? 0 : within / WORDS;
        int row = first + t;
        row = row < RING ? row : row - RING;
        const Word* place = from + t * STEP_STRIDE + run * RUN_STRIDE + (within - run * WORDS);
#ifndef WARPDRIVE_CPU
        if constexpr (sizeof(Word) == 16) {  // neither is soon read again
            store_once((uint4*)(to + row * ROW + within), __ldcs((const uint4*)place));
            continue;
        }
#endif
        to[row * ROW + within] = *place;
    }
}

// What truncated episodes saw last, into the rows that add_steps chose, of the envs that a block looks at together.
//   last     [truncation, env, ...], strided, in words  read
//   side     [side, env, WORDS]                         written
//   side_of  [truncation, env]                          read
template <typename Word, int WORDS, long long ENV_STRIDE, long long STEP_STRIDE>
__device__ __forceinline__ void add_sides(
    const Envs& envs, const unsigned char* last, unsigned char* side, const int* side_of)
{
    const Word* from = (const Word*)last;
    Word* to = (Word*)side;
    for (int i = threadIdx.x; i < MAX_TRUNCATIONS * envs.count * WORDS; i += THREADS) {
        const int k = i / (envs.count * WORDS);
        const long long env = envs.first + i / WORDS % envs.count;
        const int word = i % WORDS;
        const int row = side_of[k * (long long)NUM_ENVS + env];
        if (row < 0) continue;
        to[((long long)row * NUM_ENVS + env) * WORDS + word] = from[k * STEP_STRIDE + env * ENV_STRIDE + word];
    }
}
