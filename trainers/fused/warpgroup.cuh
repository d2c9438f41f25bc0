// Products of bfloat16 matrices by a warpgroup, four warps that begin at a multiple of four:
// 64 rows of A times up to 128 columns of B, added to float.
// Only sm_90a has them: included elsewhere, this file holds nothing.
//
// Warp w of a warpgroup holds rows 16 w ..+15 of the sums, and of A if that is in registers, as `multiply` in
// tensor_core.cuh has them: sum[i] are the 16 x 8 of columns 8 i ..+7.
// B, and A otherwise, lie in shared memory in blocks of 8 x 8 elements without gaps, 128 bytes each.
#pragma once
#include "bulk.cuh"
#include "tensor_core.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A matrix in shared memory, as products are told of it.
//   along   bytes from a block to the next one along what is summed over
//   across  bytes from a block to the next one along the rows of A, or the columns of B
//   IN_CLUSTER  whether the block is one of several in a cluster: its addresses have its number above their 18 bits
template <bool IN_CLUSTER = false>
__device__ __forceinline__ unsigned long long describe(const void* shared, int along, int across)
{
    unsigned address = (unsigned)__cvta_generic_to_shared(shared);
    if (IN_CLUSTER) address &= 0x3ffff;
    return (unsigned long long)(address >> 4) | (unsigned long long)(along >> 4) << 16 |
           (unsigned long long)(across >> 4) << 32;
}
// The same matrix, so many bytes further on.
__device__ __forceinline__ unsigned long long moved(unsigned long long matrix, int bytes)
{
    return matrix + (bytes >> 4);
}

// Ordinary stores to shared memory before it, of this thread, are there for products and bulk copies after a barrier.
__device__ __forceinline__ void show_to_products()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Before the first product after others wrote to the registers that products read or add to.
__device__ __forceinline__ void begin_products()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// All products since the last call are one batch.
__device__ __forceinline__ void end_products()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until no more than the last PENDING batches are under way.
template <int PENDING>
__device__ __forceinline__ void wait_for_products()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
// Keeps the compiler from reading sums before the wait that precedes this call, or changing them after it.
template <int BLOCKS>
__device__ __forceinline__ void settle(float (&sum)[BLOCKS][4])
{
#pragma unroll
    for (int i = 0; i < BLOCKS; ++i) {
#pragma unroll
        for (int k = 0; k < 4; ++k) asm volatile("" : "+f"(sum[i][k])::"memory");
    }
}

// Makes the compiler have these tiles of A ready by now, before the next `begin_products`; and where others take their
// place in a loop, once more after the wait: it would give both the same registers, which products may still read.
template <int TILES>
__device__ __forceinline__ void settle_input(const unsigned (&tiles)[TILES][4])
{
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
#pragma unroll
        for (int k = 0; k < 4; ++k) asm volatile("" ::"r"(tiles[i][k]) : "memory");
    }
}

#define SUM_8(i) "+f"(sum[i][0]), "+f"(sum[i][1]), "+f"(sum[i][2]), "+f"(sum[i][3])
#define SUM_16(i) SUM_8(i), SUM_8(i + 1)
#define SUM_32(i) SUM_16(i), SUM_16(i + 2)
#define SUM_64(i) SUM_32(i), SUM_32(i + 4)
#define SUM_128(i) SUM_64(i), SUM_64(i + 8)
#define NAMES_8 "%0, %1, %2, %3"
#define NAMES_16 NAMES_8 ", %4, %5, %6, %7"
#define NAMES_32 NAMES_16 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define NAMES_64                                                                                                       \
    NAMES_32 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_128                                                                                                      \
    NAMES_64 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, "  \
             "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define PRODUCT(COLUMNS) "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32.bf16.bf16 {" NAMES_##COLUMNS "}, "

// The widest single product of no more than so many columns.
__device__ constexpr int widest_product(int columns)
{
    return columns >= 128 ? 128 : columns >= 64 ? 64 : columns >= 32 ? 32 : columns >= 16 ? 16 : 8;
}

// sum[FIRST ..] += A B of 8 COUNT columns and 16 that are summed over; A in registers.
//   SETS    = instead of +=
//   IS_ROWS a row of a block of B is what is summed over, else a column of it
//   b, across  the first of B's columns, and as `describe` has it
template <bool SETS, bool IS_ROWS, int FIRST, int COUNT, int BLOCKS>
__device__ __forceinline__ void add_product(
    float (&sum)[BLOCKS][4], const unsigned (&a)[4], unsigned long long b, int across)
{
    constexpr int COLUMNS = widest_product(8 * COUNT);
#define FROM_REGISTERS(COLUMNS, a0, a1, a2, a3, b0, adds, transposes)                                                  \
    asm volatile(PRODUCT(COLUMNS) "{%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b0 ", %" #adds ", 1, 1, %" #transposes \
                                  ";"                                                                                  \
                 : SUM_##COLUMNS(FIRST)                                                                                \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(SETS ? 0 : 1), "n"(IS_ROWS ? 1 : 0))
    if constexpr (COLUMNS == 128) FROM_REGISTERS(128, 64, 65, 66, 67, 68, 69, 70);
    if constexpr (COLUMNS == 64) FROM_REGISTERS(64, 32, 33, 34, 35, 36, 37, 38);
    if constexpr (COLUMNS == 32) FROM_REGISTERS(32, 16, 17, 18, 19, 20, 21, 22);
    if constexpr (COLUMNS == 16) FROM_REGISTERS(16, 8, 9, 10, 11, 12, 13, 14);
    if constexpr (COLUMNS == 8) FROM_REGISTERS(8, 4, 5, 6, 7, 8, 9, 10);
#undef FROM_REGISTERS
    constexpr int DONE = COLUMNS / 8;
    if constexpr (DONE < COUNT) {
        add_product<SETS, IS_ROWS, FIRST + DONE, COUNT - DONE>(sum, a, moved(b, DONE * across), across);
    }
}

// The same of two matrices in shared memory; IS_ROWS of either.
template <bool SETS, bool IS_ROWS, int FIRST, int COUNT, int BLOCKS>
__device__ __forceinline__ void add_product_in_shared(
    float (&sum)[BLOCKS][4], unsigned long long a, unsigned long long b, int across)
{
    constexpr int COLUMNS = widest_product(8 * COUNT);
#define FROM_SHARED(COLUMNS, a0, b0, adds, turns)                                                                      \
    asm volatile(PRODUCT(COLUMNS) "%" #a0 ", %" #b0 ", %" #adds ", 1, 1, %" #turns ", %" #turns ";"                    \
                 : SUM_##COLUMNS(FIRST)                                                                                \
                 : "l"(a), "l"(b), "n"(SETS ? 0 : 1), "n"(IS_ROWS ? 1 : 0))
    if constexpr (COLUMNS == 128) FROM_SHARED(128, 64, 65, 66, 67);
    if constexpr (COLUMNS == 64) FROM_SHARED(64, 32, 33, 34, 35);
    if constexpr (COLUMNS == 32) FROM_SHARED(32, 16, 17, 18, 19);
    if constexpr (COLUMNS == 16) FROM_SHARED(16, 8, 9, 10, 11);
    if constexpr (COLUMNS == 8) FROM_SHARED(8, 4, 5, 6, 7);
#undef FROM_SHARED
    constexpr int DONE = COLUMNS / 8;
    if constexpr (DONE < COUNT) {
        add_product_in_shared<SETS, IS_ROWS, FIRST + DONE, COUNT - DONE>(sum, a, moved(b, DONE * across), across);
    }
}
template <int FIRST, int COUNT, int BLOCKS>
__device__ __forceinline__ void add_product_of_rows(
    float (&sum)[BLOCKS][4], unsigned long long a, unsigned long long b, int across)
{
    add_product_in_shared<false, true, FIRST, COUNT>(sum, a, b, across);
}

// Deltas, two at once, times the slope of tanh where it gave this.
__device__ __forceinline__ unsigned times_slope_of_tanh(unsigned pair, unsigned gave)
{
    unsigned product;
    asm("{\n"
        ".reg .b32 minus, slope;\n"
        "neg.bf16x2 minus, %2;\n"
        "fma.rn.bf16x2 slope, minus, %2, %3;\n"
        "mul.rn.bf16x2 %0, %1, slope;\n"
        "}\n"
        : "=r"(product)
        : "r"(pair), "r"(gave), "r"(0x3f803f80u));
    return product;
}

// Four 8 x 8 matrices to shared memory; `row` as `load_matrices` has it.
__device__ __forceinline__ void store_matrices(const unsigned (&pairs)[4], unsigned short* row)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     (unsigned)__cvta_generic_to_shared(row)),
                 "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
                 : "memory");
}

#endif
