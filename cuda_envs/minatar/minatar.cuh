// What the MinAtar games share: actions that stick, boards of bits, and the picture that the agent sees.
//
// A game plays one env by one thread, sets the bits of its picture, and calls write_picture(), for which all threads
// of a warp must come: its lanes write the rows of all its envs side by side.
#pragma once
#include "warpdrive.cuh"
#include "random.cuh"

enum Action { NOTHING, LEFT, UP, RIGHT, DOWN, FIRE };

constexpr int SIDE = 10;  // cells
constexpr int LAST = SIDE - 1;
constexpr int NUM_CELLS = SIDE * SIDE;
constexpr int PICTURE_BYTES = NUM_CELLS * NUM_CHANNELS;
// A bit a byte. Odd, so that the same word of neighbouring envs lies in different banks.
constexpr int PICTURE_WORDS = (PICTURE_BYTES + 31) / 32 | 1;

// Whether the lanes of a warp, an env each, write together.
#ifndef MINATAR_WRITES_TOGETHER
#ifdef WARPDRIVE_CPU  // where lanes take turns, and a row is near at hand
#define MINATAR_WRITES_TOGETHER false
#else
#define MINATAR_WRITES_TOGETHER true
#endif
#endif
constexpr bool WRITES_TOGETHER = MINATAR_WRITES_TOGETHER && THREADS_PER_ENV == 1 && ENVS_PER_BLOCK % 32 == 0;

// Bytes of a store: as many as divide a picture, so that every picture begins where one may.
constexpr int STORE_BYTES = NUM_CHANNELS % 4 == 0 ? 16 : NUM_CHANNELS % 2 == 0 ? 8 : 4;
constexpr int NUM_STORES = PICTURE_BYTES / STORE_BYTES;

// What is done: what the agent wants, or, now and then, what was done before.
//   action       [env, agent]  number in ACTIONS                   read
//   last_action  [env]         what was done, an Action            read, written
__device__ __forceinline__ int played_action(int env, const int* action, signed char* last_action, Random& random)
{
    int played = ACTIONS[action[env]];
    if (STICKY_ACTION_PROB > 0.0f && random.uniform() < STICKY_ACTION_PROB) played = last_action[env];
    last_action[env] = played;
    return played;
}

// Writes how a step ended.
//   time_step              [env]         steps since the episode began   read, written
//   reward                 [env, agent]                                  written
//   terminated, truncated  [env]         the game is over; time is up    written
__device__ __forceinline__ void end_step(
    int env, int paid, bool is_over, int* time_step, float* reward, bool* terminated, bool* truncated)
{
    const int time = time_step[env] + 1;
    time_step[env] = time;
    reward[env] = paid;
    terminated[env] = is_over;
    truncated[env] = !is_over && time >= EPISODE_LENGTH;
}

// A place on the way of what moves along its row.
__device__ __forceinline__ int beside(int column, bool goes_right)
{
    return goes_right ? column + 1 : column - 1;
}

__device__ __forceinline__ bool is_inside(int column)
{
    return column >= 0 && column <= LAST;
}

// Cells that are taken: bit 10 * row + column, of rows 0 to 4 and of rows 5 to 9. Kept as two long long.
struct Board {
    unsigned long long upper, lower;

    __device__ __forceinline__ bool has(int row, int column) const
    {
        return (row < 5 ? upper >> (SIDE * row + column) : lower >> (SIDE * (row - 5) + column)) & 1;
    }

    __device__ __forceinline__ void set(int row, int column)
    {
        if (row < 5) {
            upper |= 1ull << (SIDE * row + column);
        } else {
            lower |= 1ull << (SIDE * (row - 5) + column);
        }
    }

    __device__ __forceinline__ void clear(int row, int column)
    {
        if (row < 5) {
            upper &= ~(1ull << (SIDE * row + column));
        } else {
            lower &= ~(1ull << (SIDE * (row - 5) + column));
        }
    }

    __device__ __forceinline__ bool is_empty() const
    {
        return (upper | lower) == 0;
    }

    __device__ __forceinline__ int count() const
    {
        return __popcll(upper) + __popcll(lower);
    }
};

constexpr int HALF_BITS = 5 * SIDE;
constexpr unsigned long long HALF = (1ull << HALF_BITS) - 1;
constexpr unsigned long long TOP_ROW = (1ull << SIDE) - 1;     // of a half
constexpr unsigned long long FIRST_COLUMN = 0x10040100401ull;  // of a half

__device__ __forceinline__ Board operator|(Board a, Board b)
{
    return {a.upper | b.upper, a.lower | b.lower};
}

__device__ __forceinline__ Board operator&(Board a, Board b)
{
    return {a.upper & b.upper, a.lower & b.lower};
}

// Those of a that are not in b.
__device__ __forceinline__ Board operator-(Board a, Board b)
{
    return {a.upper & ~b.upper, a.lower & ~b.lower};
}

// All cells a row further down; the last row comes in at the top.
__device__ __forceinline__ Board rolled_down(Board board)
{
    constexpr int last_row = HALF_BITS - SIDE;
    return {(board.upper << SIDE & HALF) | board.lower >> last_row,
            (board.lower << SIDE & HALF) | board.upper >> last_row};
}

// All cells a row further up; the first row is lost.
__device__ __forceinline__ Board moved_up(Board board)
{
    constexpr int last_row = HALF_BITS - SIDE;
    return {board.upper >> SIDE | (board.lower & TOP_ROW) << last_row, board.lower >> SIDE};
}

// All cells a column further to the side; what leaves the board is lost.
__device__ __forceinline__ Board moved_aside(Board board, bool goes_right)
{
    if (goes_right) {
        constexpr unsigned long long stay = HALF & ~(FIRST_COLUMN << LAST);
        return {(board.upper & stay) << 1, (board.lower & stay) << 1};
    }
    return {(board.upper & ~FIRST_COLUMN) >> 1, (board.lower & ~FIRST_COLUMN) >> 1};
}

__device__ __forceinline__ Board load_board(const long long* boards, int i)
{
    const ulonglong2 halves = reinterpret_cast<const ulonglong2*>(boards)[i];
    return {halves.x, halves.y};
}

__device__ __forceinline__ void store_board(Board board, long long* boards, int i)
{
    reinterpret_cast<ulonglong2*>(boards)[i] = make_ulonglong2(board.upper, board.lower);
}

// The bits of the pictures of the block's envs, in the order of their bytes.
__device__ __forceinline__ unsigned* pictures_of_block()
{
    __shared__ unsigned pictures[ENVS_PER_BLOCK * PICTURE_WORDS];
    return pictures;
}

// What the agent of this env sees, all dark at first.
struct Picture {
    unsigned* words;

    __device__ __forceinline__ Picture() : words(pictures_of_block() + env_slot() * PICTURE_WORDS)
    {
        for (int i = 0; i < PICTURE_WORDS; ++i) words[i] = 0;
    }

    __device__ __forceinline__ void set(int row, int column, int channel)
    {
        const int bit = (row * SIDE + column) * NUM_CHANNELS + channel;
        words[bit >> 5] |= 1u << (bit & 31);
    }

    // Lights the cells of a board.
    //   channels  the channels, a bit each
    __device__ __forceinline__ void set(Board board, unsigned channels)
    {
        set_half(board.upper, 0, channels);
        set_half(board.lower, HALF_BITS, channels);
    }

    // Five cells at a time, as far as any of them is taken.
    __device__ __forceinline__ void set_half(unsigned long long half, int first_cell, unsigned channels)
    {
        while (half != 0) {
            const int cell = (__ffsll(half) - 1) / 5 * 5;
            set_bits((first_cell + cell) * NUM_CHANNELS, spread(half >> cell & 31) * channels);
            half &= ~(31ull << cell);
        }
    }

    // Bit i of five goes to bit i * NUM_CHANNELS.
    __device__ __forceinline__ static unsigned long long spread(unsigned long long bits)
    {
        constexpr int n = NUM_CHANNELS - 1;
        return (bits & 1) | (bits & 2) << n | (bits & 4) << 2 * n | (bits & 8) << 3 * n | (bits & 16) << 4 * n;
    }

    __device__ __forceinline__ void set_bits(int first, unsigned long long bits)
    {
        const int word = first >> 5, shift = first & 31;
        const unsigned long long low = bits << shift;
        words[word] |= (unsigned)low;
        words[word + 1] |= (unsigned)(low >> 32);  // there is one more: PICTURE_WORDS
        if (5 * NUM_CHANNELS + 31 > 64 && shift != 0 && bits >> (64 - shift) != 0) {
            words[word + 2] |= (unsigned)(bits >> (64 - shift));
        }
    }
};

// Four bytes, each 0 or 1, of the lowest four bits.
__device__ __forceinline__ unsigned bytes_of(unsigned bits)
{
    return (bits & 15) * 0x00204081u & 0x01010101u;
}

// Writes STORE_BYTES bytes of a picture.
//   words  the picture's bits
//   store  which of its stores
//   row    where the picture goes
__device__ __forceinline__ void write_store(const unsigned* words, int store, unsigned char* row)
{
    const int first = store * STORE_BYTES;
    const unsigned bits = words[first >> 5] >> (first & 31);
    if (STORE_BYTES == 16) {
        reinterpret_cast<uint4*>(row)[store] =
            make_uint4(bytes_of(bits), bytes_of(bits >> 4), bytes_of(bits >> 8), bytes_of(bits >> 12));
    } else if (STORE_BYTES == 8) {
        reinterpret_cast<uint2*>(row)[store] = make_uint2(bytes_of(bits), bytes_of(bits >> 4));
    } else {
        reinterpret_cast<unsigned*>(row)[store] = bytes_of(bits);
    }
}

// Writes the picture of one env, as a reset does, to which few of a warp's envs come.
//   observation  [env, agent, row, column, channel]  written
__device__ __forceinline__ void write_picture_alone(int env, const Picture& picture, bool* observation)
{
    unsigned char* const row = reinterpret_cast<unsigned char*>(observation) + (long long)env * PICTURE_BYTES;
    for (int store = 0; store < NUM_STORES; ++store) write_store(picture.words, store, row);
}

// Writes the picture of one env, as a step does, to which all of a warp's envs come.
__device__ __forceinline__ void write_picture(int env, const Picture& picture, bool* observation)
{
    if (!WRITES_TOGETHER) {
        write_picture_alone(env, picture, observation);
        return;
    }
    const int lane = env_slot() & 31, first_env = env - lane;
    const int num_lanes = NUM_ENVS - first_env < 32 ? NUM_ENVS - first_env : 32;  // the others have returned
    const unsigned lanes = num_lanes == 32 ? 0xffffffffu : (1u << num_lanes) - 1u;
    const unsigned* const words = picture.words - lane * PICTURE_WORDS;
    unsigned char* const rows = reinterpret_cast<unsigned char*>(observation) + (long long)first_env * PICTURE_BYTES;
    __syncwarp(lanes);  // all pictures are set
    for (int i = lane; i < num_lanes * NUM_STORES; i += num_lanes) {
        const int which = i / NUM_STORES;
        write_store(words + which * PICTURE_WORDS, i - which * NUM_STORES, rows + which * PICTURE_BYTES);
    }
    __syncwarp(lanes);  // a restart reads and writes rows that other lanes wrote
}
