// Takes a window of NUM_STEPS steps of all envs into the rings, in one launch: some blocks look at how the steps ended,
// put records together, and keep what truncated episodes saw last; the others copy long fields. Of a small grid each
// block does both.
//
// Constants:
//   NUM_STEPS        of a window
//   NUM_SLOTS        of a ring
//   NUM_SIDES        truncations of an env whose last observations are kept
//   MAX_TRUNCATIONS  of an env in a window, whose last observations it has
//   WORDS_OF_TILE    of a long field that a block copies at once
//   WORDS_AT_ONCE    of them by a thread
//   ENVS_OF_BLOCK    that a block looks at together, at most one a thread
//   STEPS_AT_ONCE    whose records a thread puts together at once
//   RECORD           bytes of a record of short fields, see records.py
//   BY_ENV           whether records are [env, slot], else [slot, env]
//   CODE_OFFSET      of the code that says how a step ended, in its record
#pragma once
#include "warpdrive.cuh"

static_assert(NUM_STEPS <= NUM_SLOTS, "a window is longer than the ring");

// Blocks that share a piece of work.
struct Crew {
    int me, count;  // below 0 or not below the count: this block is not one of them

    __device__ __forceinline__ bool has_me() const { return me >= 0 && me < count; }
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

__device__ __forceinline__ long long record_at(long long slot, long long env)
{
    return (BY_ENV ? env * NUM_SLOTS + slot : slot * NUM_ENVS + env) * RECORD;
}

// The short fields of a step of an env, on their way into the ring.
struct Record {
    typedef PieceOf<RECORD>::Word Piece;
    static constexpr int PIECES = RECORD / sizeof(Piece);
    Piece pieces[PIECES];

    template <typename Word, int OFFSET>
    __device__ __forceinline__ Word* at()
    {
        return (Word*)((unsigned char*)pieces + OFFSET);
    }
};

// Stores what the threads of a warp put together of steps t0 on. Where an env's records lie step after step, lanes turn
// them around in the warp's memory, so that neighbours store what lies side by side. All threads of the block call it.
__device__ __forceinline__ void store_records(
    const Record (&records)[STEPS_AT_ONCE], int base, int t0, const Envs& envs, unsigned char* ring)
{
    constexpr int PIECES = Record::PIECES, RUN = STEPS_AT_ONCE * PIECES;
    const auto store = [&](int e, int piece, const Record::Piece& given) {
        const int t = t0 + piece / PIECES;
        if (e >= envs.count || t >= NUM_STEPS) return;
        ((Record::Piece*)(ring + record_at(slot_of(base, t), envs.first + e)))[piece % PIECES] = given;
    };
#ifndef WARPDRIVE_CPU
    if constexpr (BY_ENV) {
        __shared__ Record::Piece turned[(ENVS_OF_BLOCK + 31) / 32][32][RUN + 1];  // others, other banks
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        if (warp * 32 >= ENVS_OF_BLOCK) return;
#pragma unroll
        for (int piece = 0; piece < RUN; ++piece) turned[warp][lane][piece] = records[piece / PIECES].pieces[piece % PIECES];
        __syncwarp();
#pragma unroll
        for (int i = 0; i < RUN; ++i) {
            const int e = (i * 32 + lane) / RUN, piece = (i * 32 + lane) % RUN;
            store(warp * 32 + e, piece, turned[warp][e][piece]);
        }
        __syncwarp();  // what a thread writes to its env's records later comes later
        return;
    }
#endif
#pragma unroll
    for (int piece = 0; piece < RUN; ++piece) store(threadIdx.x, piece, records[piece / PIECES].pieces[piece % PIECES]);
}

// How the steps of an env ended, and which row of the sides takes what a truncated episode saw last: of the thread's
// env.
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
    const long long env;
    const bool has_env;
    long long num_rows, place, owner;  // of the row that the next truncation gets; the step that has it
    int k, dropped;                    // truncations of the window so far; those without a future
    bool knows_next;                   // row

    __device__ __forceinline__ Ends(
        const Envs& envs, const bool* terminated_, const bool* truncated_, long long begin_, unsigned char* ring_,
        long long* side_step_, long long* num_truncated_, long long* num_dropped_, int* side_of_)
        : terminated(terminated_),
          truncated(truncated_),
          begin(begin_),
          ring(ring_),
          side_step(side_step_),
          num_truncated(num_truncated_),
          num_dropped(num_dropped_),
          side_of(side_of_),
          env(envs.first + threadIdx.x),
          has_env((int)threadIdx.x < envs.count),
          k(0),
          dropped(0),
          knows_next(false)
    {
        if (!has_env) return;
        num_rows = num_truncated[env];
        for (int i = 0; i < MAX_TRUNCATIONS; ++i) side_of[(long long)i * NUM_ENVS + env] = -1;
    }

    // How a step ended: bit 0: terminated, bit 1: truncated.
    __device__ __forceinline__ int load(int t) const
    {
        const long long from = (long long)t * NUM_ENVS + env;
        return terminated[from] | truncated[from] << 1;
    }

    // Some steps, by how they ended, are next: whose rows are far apart is asked for, for all threads at once.
    __device__ __forceinline__ void prepare(const int (&how)[STEPS_AT_ONCE])
    {
        bool is_needed = false;
#pragma unroll
        for (int i = 0; i < STEPS_AT_ONCE; ++i) is_needed |= how[i] == 2;
        if (is_needed && !knows_next && k < MAX_TRUNCATIONS) find_next();
    }

    // The code of step t0 + i, by how it ended. Of one step after the other; `records` are those from t0 on.
    __device__ __forceinline__ Done code_of(Record (&records)[STEPS_AT_ONCE], int t0, int i, int end)
    {
        int code = end != 0;
        if (end == 2) code = k < MAX_TRUNCATIONS ? 2 + give_row(records, t0, t0 + i) : drop();
        k += end >> 1;
        return (Done)code;
    }

    __device__ __forceinline__ void finish() const
    {
        if (!has_env || k == 0) return;
        num_truncated[env] = num_rows;
        if (dropped) num_dropped[env] += dropped;
    }

private:
    __device__ __forceinline__ void find_next()
    {
        place = num_rows % NUM_SIDES * NUM_ENVS + env;
        owner = side_step[place] - 1;
        knows_next = true;
    }

    __device__ __forceinline__ int drop()
    {
        ++dropped;
        return 1;
    }

    __device__ __forceinline__ int give_row(Record (&records)[STEPS_AT_ONCE], int t0, int t)
    {
        const int row = (int)(num_rows++ % NUM_SIDES);
        const long long oldest = begin + NUM_STEPS - NUM_SLOTS;  // that the ring holds after this window
        if (owner >= 0 && owner >= oldest) {  // its step is still there, and loses its future
            if (owner < begin + t0) *(Done*)(ring + record_at(owner % NUM_SLOTS, env) + CODE_OFFSET) = (Done)1;
#pragma unroll
            for (int i = 0; i < STEPS_AT_ONCE; ++i) {
                if (owner == begin + t0 + i) *records[i].template at<Done, CODE_OFFSET>() = (Done)1;
            }
            for (int i = 0; i < k; ++i) {
                int* of_earlier = side_of + (long long)i * NUM_ENVS + env;
                if (*of_earlier == row) *of_earlier = -1;
            }
            ++dropped;
        }
        side_step[place] = begin + t + 1;
        side_of[(long long)k * NUM_ENVS + env] = row;
        if (k + 1 < MAX_TRUNCATIONS) find_next();
        return row;
    }
};

// A field's values of steps t0 on, WORDS words an env, into their records.
//   window  [step, env], strided, in words  read
template <int OFFSET, typename Word, int WORDS, long long ENV_STRIDE, long long STEP_STRIDE>
__device__ __forceinline__ void load_field(
    Record (&records)[STEPS_AT_ONCE], int t0, long long env, const unsigned char* window)
{
    const Word* from = (const Word*)window + t0 * STEP_STRIDE + env * ENV_STRIDE;
#pragma unroll
    for (int i = 0; i < STEPS_AT_ONCE; ++i) {
#pragma unroll
        for (int w = 0; w < WORDS; ++w) {
            if (NUM_STEPS % STEPS_AT_ONCE == 0 || t0 + i < NUM_STEPS) {
                records[i].at<Word, OFFSET>()[w] = from[i * STEP_STRIDE + w];
            }
        }
    }
}

// The records of all steps of some envs. `load` brings the fields of steps t0 on: all are on their way before one is
// needed.
template <typename Done, typename Load>
__device__ __forceinline__ void add_records(
    Ends<Done>& ends, const Envs& envs, int base, unsigned char* ring, const Load& load)
{
    for (int t0 = 0; t0 < NUM_STEPS; t0 += STEPS_AT_ONCE) {
        Record records[STEPS_AT_ONCE] = {};
        if (ends.has_env) {
            load(records, t0);
            int how[STEPS_AT_ONCE];
#pragma unroll
            for (int i = 0; i < STEPS_AT_ONCE; ++i) how[i] = t0 + i < NUM_STEPS ? ends.load(t0 + i) : 0;
            ends.prepare(how);
#pragma unroll
            for (int i = 0; i < STEPS_AT_ONCE; ++i) {
                *records[i].template at<Done, CODE_OFFSET>() = ends.code_of(records, t0, i, how[i]);
            }
        }
        store_records(records, base, t0, envs, ring);
    }
    ends.finish();
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
    for (int i = threadIdx.x; i < envs.count * WORDS; i += blockDim.x) {
        const int e = i / WORDS, word = i % WORDS;
        to[e * RING_ENV_STRIDE + word] = from[e * ENV_STRIDE + word];
    }
}

// Copies a tile of WORDS_OF_TILE words of a window's rows, of NUM_RUNS runs of WORDS words each, behind each other into a
// field's own ring of RING rows. All that a thread copies is on its way before it stores the first.
//   tile    of the words from row `begin` on
//   window  strided, in words  read
//   ring    [RING, NUM_RUNS, WORDS]  written
//   first   row of the ring that takes the window's first
//   begin   of the window's rows, that is copied: a later one takes the place of those before
template <typename Word, int WORDS, int NUM_RUNS, long long RUN_STRIDE, long long STEP_STRIDE, int RING>
__device__ __forceinline__ void add_tile(
    int tile, const unsigned char* window, unsigned char* ring, int first, int begin, int num_rows)
{
    constexpr long long ROW = (long long)NUM_RUNS * WORDS;
    const long long first_word = begin * ROW + (long long)tile * WORDS_OF_TILE + threadIdx.x;
    constexpr int APART = WORDS_OF_TILE / WORDS_AT_ONCE;
    Word words[WORDS_AT_ONCE];
#pragma unroll
    for (int k = 0; k < WORDS_AT_ONCE; ++k) {
        const long long i = first_word + k * APART, t = i / ROW, within = i - t * ROW;
        const long long run = WORDS == ROW ? 0 : within / WORDS;
        if (t < num_rows) words[k] = ((const Word*)window)[t * STEP_STRIDE + run * RUN_STRIDE + (within - run * WORDS)];
    }
#pragma unroll
    for (int k = 0; k < WORDS_AT_ONCE; ++k) {
        const long long i = first_word + k * APART, t = i / ROW, within = i - t * ROW, row = first + t;
        if (t < num_rows) ((Word*)ring)[(row < RING ? row : row - RING) * ROW + within] = words[k];
    }
}

// What truncated episodes saw last, into the rows that `Ends` chose, of the envs that a block looks at together: as many
// threads as a row has words, up to all of them, look at a truncation together, and pass over it where there was none.
//   last     [truncation, env, ...], strided, in words  read
//   side     [side, env, WORDS]                         written
//   side_of  [truncation, env]                          read
template <typename Word, int WORDS, long long ENV_STRIDE, long long STEP_STRIDE>
__device__ __forceinline__ void add_sides(
    const Envs& envs, const unsigned char* last, unsigned char* side, const int* side_of)
{
    const Word* from = (const Word*)last;
    Word* to = (Word*)side;
    int lanes = 1;
    while (2 * lanes <= WORDS && 2 * lanes <= (int)blockDim.x) lanes *= 2;
    for (int i = threadIdx.x / lanes; i < MAX_TRUNCATIONS * envs.count; i += blockDim.x / lanes) {
        const int k = i / envs.count;
        const long long env = envs.first + i % envs.count;
        const int row = side_of[k * (long long)NUM_ENVS + env];
        if (row < 0) continue;
        for (int word = threadIdx.x % lanes; word < WORDS; word += lanes) {
            to[((long long)row * NUM_ENVS + env) * WORDS + word] = from[k * STEP_STRIDE + env * ENV_STRIDE + word];
        }
    }
}
