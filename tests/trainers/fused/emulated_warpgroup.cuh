// What warpgroup.cuh and bulk.cuh do, by each thread of a block on a CPU for itself, as far as fused_products.cuh needs it
// where it takes all it multiplies from records. A product is made when it is asked for, a copy when it is started: thread
// 0, which starts copies, runs before the others between two barriers.
//   EMULATED_BYTES  of shared memory that a block asks for
#pragma once
#include <cstring>

#include "tensor_core.cuh"

static thread_local char* emulated_shared;  // of the block, which begins with its first arrival

inline unsigned long long describe(const void* shared, int along, int across)
{
    return (unsigned long long)((const char*)shared - emulated_shared) >> 4 | (unsigned long long)along >> 4 << 16 |
           (unsigned long long)across >> 4 << 32;
}
inline unsigned long long moved(unsigned long long matrix, int bytes)
{
    return matrix + (bytes >> 4);
}
// Row k of what is summed over, and a row of A or a column of B, of blocks [..][8][8].
inline float emulated_element(unsigned long long matrix, int k, int column)
{
    const long long place = (matrix & 0xffff) << 4, along = (matrix >> 16 & 0xffff) << 4, across = matrix >> 32 << 4;
    unsigned short found;
    std::memcpy(&found, emulated_shared + place + k / 8 * along + column / 8 * across + k % 8 * 16 + column % 8 * 2, 2);
    return unpack((unsigned)found).low;
}
// Eight columns at once, of which the next are `across` bytes further on.
template <int FIRST, int COUNT, int BLOCKS>
inline void add_product_of_rows(float (&sum)[BLOCKS][4], unsigned long long a, unsigned long long b, int across)
{
    const int row = (threadIdx.x >> 5) % 4 * 16 + (lane_index() >> 2);
    for (int i = 0; i < 4 * COUNT; ++i) {
        const unsigned long long eight = moved(b, i / 4 * across);
        float& of = sum[FIRST + i / 4][i % 4];
        for (int k = 0; k < 16; ++k) {
            const float left = emulated_element(a, k, row + i % 4 / 2 * 8);
            of += left * emulated_element(eight, k, 2 * (lane_index() & 3) + i % 2);
        }
    }
}
template <bool SETS, bool IS_ROWS, int FIRST, int COUNT, int BLOCKS>
void add_product(float (&sum)[BLOCKS][4], const unsigned (&a)[4], unsigned long long b, int across);
template <bool SETS, bool IS_ROWS, int FIRST, int COUNT, int BLOCKS>
void add_product_in_shared(float (&sum)[BLOCKS][4], unsigned long long a, unsigned long long b, int across);

inline void show_to_products() {}
inline void begin_products() {}
inline void end_products() {}
template <int PENDING>
inline void wait_for_products()
{
}
template <int BLOCKS>
inline void settle(float (&)[BLOCKS][4])
{
}
template <int TILES>
inline void settle_input(const unsigned (&)[TILES][4])
{
}
inline unsigned times_slope_of_tanh(unsigned pair, unsigned)
{
    return pair;
}
inline void store_matrices(const unsigned (&)[4], unsigned short*) {}

// An arrival counts: bytes that are expected in the lower half, times that they were in the upper.
inline void prepare_arrival(unsigned long long* arrival)
{
    if (threadIdx.x == 0) emulated_shared = (char*)arrival;
    *arrival = 0;
}
inline void expect_bytes(unsigned long long* arrival, int num_bytes)
{
    if (*arrival & 0xffffffff) __builtin_trap();  // what was asked for before has not come
    *arrival += (1ull << 32) + num_bytes;
}
inline void start_bulk_copy(void* shared, const void* global, int num_bytes, unsigned long long* arrival)
{
    if ((char*)shared + num_bytes > emulated_shared + EMULATED_BYTES) __builtin_trap();
    std::memcpy(shared, global, num_bytes);
    *arrival -= num_bytes;
}
inline void wait_for_bytes(unsigned long long* arrival, int round)
{
    if ((*arrival & 0xffffffff) != 0 || (int)(*arrival >> 32) != round + 1) __builtin_trap();
}
