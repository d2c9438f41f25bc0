// A sum tree of integers: who is drawn how often, exactly.
//
// A leaf is a priority in units of 2^-20, 31 bits of it; a node is the sum of 16 children, 64 bits of it. Sums of
// integers do not depend on order, so new leaves are one atomic addition to each ancestor, in any order, with the same
// bits every time, and nothing drifts. Only a priority's way into its leaf rounds (leaf_of).
//
// N leaves lie in `leaf`; in `node` lie the levels above one after the other, from the lowest to the root. Each level
// has zeros up to a multiple of 16, so that what stands under a node is one line of memory.
#pragma once

#include "powers.cuh"

constexpr int CHILDREN_BITS = 4;
constexpr int CHILDREN = 1 << CHILDREN_BITS;
constexpr unsigned LARGEST_LEAF = 0x7fffffffu;
constexpr float UNITS = 1048576.0f;  // a priority of 1
constexpr int MOST_LEVELS = 9;       // of 2^31 leaves
constexpr int TOP_NODES = 256;       // levels of at most so many nodes are summed up within a block first

// Nodes of a level; level 0 are the leaves.
__device__ constexpr int nodes_of(long long num_leaves, int level)
{
    return (int)((num_leaves + (1ll << CHILDREN_BITS * level) - 1) >> CHILDREN_BITS * level);
}

// Levels, leaves and root included; at least 2.
__device__ constexpr int levels_of(long long num_leaves)
{
    int levels = 2;
    while (nodes_of(num_leaves, levels - 1) > 1) ++levels;
    return levels;
}

// The lowest level above the leaves with at most TOP_NODES nodes.
__device__ constexpr int top_of(long long num_leaves)
{
    int level = 1;
    while (nodes_of(num_leaves, level) > TOP_NODES) ++level;
    return level;
}

// Where a level starts in `node`.
__device__ constexpr int start_of(long long num_leaves, int level)
{
    int start = 0;
#pragma unroll
    for (int below = 1; below < MOST_LEVELS; ++below) {  // a compiler then knows it wherever it knows the level
        if (below < level) start += (nodes_of(num_leaves, below) + CHILDREN - 1) & ~(CHILDREN - 1);
    }
    return start;
}

template <int N>
struct SumTree {
    unsigned* leaf;
    unsigned long long* node;
    const unsigned long long* top;  // where the levels from TOP on are read, if none changes: there, or a copy

    static constexpr int LEVELS = levels_of(N);
    static constexpr int TOP = top_of(N);
    static constexpr int TOP_START = start_of(N, TOP);
    static constexpr int TOP_PAIRS = (start_of(N, LEVELS) - TOP_START) / 2;

    __device__ __forceinline__ SumTree(int* leaves, long long* nodes)
        : leaf((unsigned*)leaves), node((unsigned long long*)nodes), top(node + TOP_START)
    {
    }

    __device__ __forceinline__ SumTree(const int* leaves, const long long* nodes)
        : leaf((unsigned*)leaves), node((unsigned long long*)nodes), top(node + TOP_START)
    {
    }

    // Copies the levels from TOP on, by all threads of a block at once: a walk down them then waits for no memory. They
    // may be read after the next __syncthreads.
    //   pairs  [TOP_PAIRS] shared  written
    __device__ __forceinline__ void copy_top(ulonglong2* pairs)
    {
        constexpr int AT_ONCE = 3;  // of a thread, loaded before one is stored: all, of 64 threads and more
        const ulonglong2* const from = (const ulonglong2*)(node + TOP_START);
        ulonglong2 some[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) {
            const int i = threadIdx.x + k * blockDim.x;
            some[k] = from[i < TOP_PAIRS ? i : 0];
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) {
            const int i = threadIdx.x + k * blockDim.x;
            if (i < TOP_PAIRS) pairs[i] = some[k];
        }
        for (int i = threadIdx.x + AT_ONCE * blockDim.x; i < TOP_PAIRS; i += blockDim.x) pairs[i] = from[i];
        top = (const unsigned long long*)pairs;
    }

    __device__ __forceinline__ unsigned long long* level(int number) const { return node + start_of(N, number); }

    __device__ __forceinline__ const unsigned long long* read_level(int number) const
    {
        return number < TOP ? level(number) : top + (start_of(N, number) - TOP_START);
    }

    __device__ __forceinline__ unsigned long long total() const { return read_level(LEVELS - 1)[0]; }

    // The value of a node, be it a leaf.
    __device__ __forceinline__ unsigned long long value(int number, int i) const
    {
        return number == 0 ? leaf[i] : level(number)[i];
    }

    __device__ __forceinline__ unsigned long long sum_of_children(int number, int i) const
    {
        unsigned long long sum = 0;
        for (int child = 0; child < CHILDREN; ++child) sum += value(number - 1, i * CHILDREN + child);
        return sum;
    }
};

// A priority that may be drawn: no NaN, not negative, not infinite.
__device__ __forceinline__ bool is_priority(float priority)
{
    return priority >= 0.0f && priority < INFINITY;
}

// The leaf of (priority + epsilon)^alpha: rounded to the nearest unit, but what is above 0 never to 0. At most 2,048.
__device__ __forceinline__ unsigned leaf_of(float priority, float alpha, float epsilon)
{
    const float units = __fmul_rn(power_exact(__fadd_rn(priority, epsilon), alpha), UNITS);
    if (!(units < (float)LARGEST_LEAF)) return LARGEST_LEAF;
    if (units <= 0.0f) return 0u;
    const unsigned leaf = __float2uint_rn(units);
    return leaf > 0u ? leaf : 1u;
}

// ---- change

// What the threads of a block change, on its way to the root: levels below TOP get each change, those from TOP on one
// addition a block. Right for any number of threads, and for up to 2^15 changes a block.
template <int N>
struct Changes {
    int* low;   // [TOP_NODES] shared: 64-bit atomics on shared memory are loops
    int* high;  // [TOP_NODES] shared

    // All threads of the block call begin and end, and none changes a leaf in between without add.
    __device__ __forceinline__ void begin() const
    {
        for (int i = threadIdx.x; i < TOP_NODES; i += blockDim.x) low[i] = high[i] = 0;
        __syncthreads();
    }

    __device__ __forceinline__ void add(const SumTree<N>& tree, int leaf, long long change) const
    {
        if (change == 0) return;
#pragma unroll
        for (int level = 1; level < SumTree<N>::TOP; ++level) {
            atomicAdd(tree.level(level) + (leaf >> CHILDREN_BITS * level), (unsigned long long)change);
        }
        const int i = leaf >> CHILDREN_BITS * SumTree<N>::TOP;
        atomicAdd(low + i, (int)(change & 0xffff));
        atomicAdd(high + i, (int)(change >> 16));
    }

    __device__ __forceinline__ void end(const SumTree<N>& tree) const
    {
        constexpr int TOP = SumTree<N>::TOP;
        constexpr int LEVELS = SumTree<N>::LEVELS;
        constexpr int NUM_TOP = nodes_of(N, TOP);
        __shared__ long long parts[CHILDREN];
        __syncthreads();
        for (int i = threadIdx.x; i < NUM_TOP; i += blockDim.x) add_node(tree, TOP, i, sum_at(i));
        if (LEVELS == TOP + 1) return;
        constexpr int NUM_PARTS = nodes_of(N, TOP + 1);
        for (int i = threadIdx.x; i < NUM_PARTS; i += blockDim.x) {
            long long sum = 0;
            for (int child = 0; child < CHILDREN; ++child) sum += sum_at(i * CHILDREN + child);
            parts[i] = sum;
            add_node(tree, TOP + 1, i, sum);
        }
        if (LEVELS == TOP + 2) return;
        __syncthreads();
        if (threadIdx.x > 0) return;
        long long sum = 0;
        for (int i = 0; i < NUM_PARTS; ++i) sum += parts[i];
        add_node(tree, TOP + 2, 0, sum);
    }

private:
    __device__ __forceinline__ long long sum_at(int i) const { return (long long)high[i] * 65536 + low[i]; }

    __device__ __forceinline__ static void add_node(const SumTree<N>& tree, int level, int i, long long change)
    {
        if (change != 0) atomicAdd(tree.level(level) + i, (unsigned long long)change);
    }
};

// Takes note of the largest, and says whether a priority may be written.
__device__ __forceinline__ bool accepts(
    float priority, unsigned value, long long i, unsigned seen, int* maximum, long long* refused)
{
    if (!is_priority(priority)) {
        atomicMin(refused, i);
        return false;
    }
    if (value > seen) atomicMax(maximum, (int)value);
    return true;
}

// Gives a leaf a new value, by one thread alone. Between `begin` and `end` of the changes.
//   keeps_zero  whether one of 0 stays so
template <int N>
__device__ __forceinline__ void set_leaf(
    const SumTree<N>& tree, const Changes<N>& changes, int leaf, unsigned value, bool keeps_zero)
{
    const unsigned before = atomicExch(tree.leaf + leaf, value);
    if (keeps_zero && before == 0u) {
        tree.leaf[leaf] = 0u;
        return;
    }
    changes.add(tree, leaf, (long long)value - before);
}

// ---- draw

// Which of four neighbours holds place x of their sum. x becomes the place within it; one of 0 holds none.
__device__ __forceinline__ int pick(unsigned long long a, unsigned long long b, unsigned long long c,
                                    unsigned long long& x)
{
    const unsigned long long ab = a + b;
    const unsigned long long abc = ab + c;
    const bool after_a = x >= a;
    const bool after_b = x >= ab;
    const bool after_c = x >= abc;
    x -= after_c ? abc : after_b ? ab : after_a ? a : 0ull;
    return (int)after_a + (int)after_b + (int)after_c;
}

struct Four {
    unsigned long long a, b, c, d;

    __device__ __forceinline__ unsigned long long sum() const { return (a + b) + (c + d); }

    __device__ __forceinline__ unsigned long long operator[](int i) const
    {
        return i == 0 ? a : i == 1 ? b : i == 2 ? c : d;
    }
};

// Children 4 part .. 4 part + 3 of node i of level + 1.
template <int N>
__device__ __forceinline__ Four four_of(const SumTree<N>& tree, int level, int i, int part)
{
    if (level == 0) {
        const uint4 found = ((const uint4*)(tree.leaf + (long long)i * CHILDREN))[part];
        return {found.x, found.y, found.z, found.w};
    }
    const ulonglong2* place = (const ulonglong2*)(tree.read_level(level) + (long long)i * CHILDREN) + 2 * part;
    const ulonglong2 first = place[0];
    const ulonglong2 second = place[1];
    return {first.x, first.y, second.x, second.y};
}

struct Drawn {
    int leaf;
    unsigned units;  // its priority
};

// The leaf that holds place x of all, x < total. One thread walks down: to four children, then to one.
template <int N>
__device__ __forceinline__ Drawn find_leaf(const SumTree<N>& tree, unsigned long long x)
{
    Drawn drawn = {0, 0u};
#pragma unroll
    for (int level = SumTree<N>::LEVELS - 2; level >= 0; --level) {
        Four four[4];
#pragma unroll
        for (int part = 0; part < 4; ++part) four[part] = four_of(tree, level, drawn.leaf, part);
        const int part = pick(four[0].sum(), four[1].sum(), four[2].sum(), x);
        const Four chosen = part == 0 ? four[0] : part == 1 ? four[1] : part == 2 ? four[2] : four[3];
        const int child = pick(chosen.a, chosen.b, chosen.c, x);
        drawn.leaf = drawn.leaf * CHILDREN + 4 * part + child;
        drawn.units = (unsigned)chosen[child];
    }
    return drawn;
}

// The same by four neighbouring lanes, four children each: shorter ways to memory for batches too small to fill a GPU.
// All lanes of the warp call it.
template <int N>
__device__ __forceinline__ Drawn find_leaf_by_four(const SumTree<N>& tree, unsigned long long x)
{
    constexpr unsigned ALL = 0xffffffffu;
    const int lane = threadIdx.x & 31;
    const int part = lane & 3;
    Drawn drawn = {0, 0u};
#pragma unroll
    for (int level = SumTree<N>::LEVELS - 2; level >= 0; --level) {
        const Four four = four_of(tree, level, drawn.leaf, part);
        const unsigned long long sum = four.sum();
        unsigned long long up_to = sum;
        const unsigned long long neighbour = __shfl_up_sync(ALL, up_to, 1, 4);
        if (part >= 1) up_to += neighbour;
        const unsigned long long pair = __shfl_up_sync(ALL, up_to, 2, 4);
        if (part >= 2) up_to += pair;
        const int owner = __popc(__ballot_sync(ALL, x >= up_to) >> (lane & ~3) & 15u) & 3;
        unsigned long long rest = x - (up_to - sum);  // right in the lane that holds x alone
        const int child = pick(four.a, four.b, four.c, rest);
        drawn.leaf = drawn.leaf * CHILDREN + __shfl_sync(ALL, 4 * part + child, owner, 4);
        drawn.units = __shfl_sync(ALL, (unsigned)four[child], owner, 4);
        x = __shfl_sync(ALL, rest, owner, 4);
    }
    return drawn;
}

// Leaves before one, summed: with leaves of 0 and 1, how many are there before it.
template <int N>
__device__ __forceinline__ unsigned long long sum_before(const SumTree<N>& tree, int leaf)
{
    unsigned long long sum = 0;
    for (int level = 0; level < SumTree<N>::LEVELS - 1; ++level) {
        const int i = leaf >> CHILDREN_BITS * level;
        for (int sibling = i & ~(CHILDREN - 1); sibling < i; ++sibling) sum += tree.value(level, sibling);
    }
    return sum;
}

// ---- weigh

// Whether this is the last block to come here: it alone then sees what all of them wrote. All threads call it.
//   ticket  [1]  0 between launches  read, written
__device__ __forceinline__ bool is_last_block(int* ticket)
{
    __shared__ bool is_last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) is_last = atomicAdd(ticket, 1) == (int)gridDim.x - 1;
    __syncthreads();
    if (is_last) {
        __threadfence();
        if (threadIdx.x == 0) ticket[0] = 0;
    }
    return is_last;
}

// What makes up for how often an item is drawn: (count * p / total)^-beta, of `count` items of priority `total` in all.
__device__ __forceinline__ float importance(
    unsigned units, unsigned long long total, unsigned long long count, float beta)
{
    if (units == 0u) return 0.0f;
    const float relative = __fdiv_rn(__fmul_rn((float)units, (float)count), (float)total);
    return exp2_exact(__fmul_rn(-beta, log2_exact(relative)));
}

// What a batch was drawn by.
struct Weighing {
    unsigned long long total;  // of all priorities
    unsigned long long count;  // of items that may be drawn
    float beta;                // how much of the uneven chances the weights make up for

    __device__ __forceinline__ float weight(unsigned units) const { return importance(units, total, count, beta); }
};
