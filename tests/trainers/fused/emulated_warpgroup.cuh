// What warpgroup.cuh and bulk.cuh do, by each thread of a block on a CPU for itself, as far as fused_products.cuh needs it
// where it takes all it multiplies from records. A product is made when it is asked for, a copy when it is started: thread
// 0, which starts copies, runs before the others between two barriers.
#pragma once
#include <cstring>

#include "tensor_core.cuh"

static thread_local char* emulated_shared;  // of the block: its first arrival stands 256 bytes further on

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
template <int FIRST, int COUNT, int BLOCKS>
inline void add_product_of_rows(float (&sum)[BLOCKS][4], unsigned long long a, unsigned long long b, int)
{
    const int row = (threadIdx.x >> 5) % 4 * 16 + (lane_index() >> 2);
    for (int i = 0; i < 4 * COUNT; ++i) {
        const int column = i / 4 * 8 + 2 * (lane_index() & 3) + i % 2;
        float& of = sum[FIRST + i / 4][i % 4];
        for (int k = 0; k < 16; ++k) of += emulated_element(a, k, row + i % 4 / 2 * 8) * emulated_element(b, k, column);
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

inline void prepare_arrival(unsigned long long* arrival)
{
    if (threadIdx.x == 0) emulated_shared = (char*)arrival - 256;
}
inline void expect_bytes(unsigned long long*, int) {}
inline void start_bulk_copy(void* shared, const void* global, int num_bytes, unsigned long long*)
{
    std::memcpy(shared, global, num_bytes);
}
inline void wait_for_bytes(unsigned long long*, int) {}
