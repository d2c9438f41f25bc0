// Which anchors are in a table's tree, and which of them a selector draws.
//
// An anchor is a step that an item begins at; anchors are numbered from the store's beginning, step / PERIOD. They lie
// in a ring of NUM_ANCHORS, with a leaf for each of NUM_ROWS rows: leaf = anchor % NUM_ANCHORS * NUM_ROWS + row.
#pragma once

#include "drawable.cuh"
#include "sum_tree.cuh"
#include "warpdrive.cuh"

constexpr int NUM_ANCHORS = NUM_SLOTS / PERIOD;
constexpr int NUM_LEAVES = NUM_ANCHORS * NUM_ROWS;

static_assert(NUM_SLOTS % PERIOD == 0, "anchors do not come round with the ring");
static_assert((long long)NUM_ANCHORS * NUM_ROWS < (1ll << 31) - CHILDREN, "leaves are numbered by 31 bits");

typedef SumTree<NUM_LEAVES> Tree;

struct Anchors {
    long long first, end;

    __device__ __forceinline__ long long num_items() const { return (end - first) * NUM_ROWS; }
};

// What may be drawn after `head` steps; nothing from before step `oldest`.
__device__ __forceinline__ Anchors anchors_of(long long head, long long oldest)
{
    const Drawable drawable = drawable_of(head);
    const long long first = drawable.first / PERIOD;
    const long long end = first + drawable.count;
    const long long fresh = (oldest + PERIOD - 1) / PERIOD;
    return {fresh > first ? fresh : first, fresh > end ? fresh : end};
}

__device__ __forceinline__ int leaf_of_anchor(long long anchor)
{
    return (int)(anchor % NUM_ANCHORS) * NUM_ROWS;
}

// The leaf of the i-th item, from the oldest on.
__device__ __forceinline__ int leaf_of_item(const Anchors& anchors, long long i)
{
    return leaf_of_anchor(anchors.first + i / NUM_ROWS) + (int)(i % NUM_ROWS);
}

// ---- by a tree

// Draws by priority; a batch's smallest is kept, for `normalise`.
template <int LANES_OF_ITEM>
__device__ __forceinline__ Drawn draw_by_priority(
    const Tree& tree, const Weighing& weighing, u64 point, int* lowest_of_block)
{
    if (weighing.total == 0) return {0, 0u};  // a walk down zeros leads past the last leaf
    const u64 x = __umul64hi(point, weighing.total);
    const Drawn drawn = LANES_OF_ITEM >= 4 ? find_leaf_by_four(tree, x) : find_leaf(tree, x);
    if (threadIdx.x % LANES_OF_ITEM % 4 == 0) atomicMin(lowest_of_block, (int)drawn.units);
    return drawn;
}

// How often a block looks for what others tell before it leaves; on a CPU they may run one after the other.
#ifdef WARPDRIVE_CPU
constexpr int PATIENCE = 1;
#else
constexpr int PATIENCE = 256;
#endif

// Where the blocks of a draw tell each other the lowest priority that each drew, so that each divides its own weights
// by the largest of all: that of the lowest. None waits for good, as they need not run at the same time: one that has
// not heard of all leaves its weights to those that tell after it.
//   words   [1 + blocks]  launches so far; of each block: the launch, whether it LEFT, and its lowest   read, written
//   lowest  [3] shared, at first LARGEST_LEAF: what this block drew, what any did, and 0 if one LEFT    read, written
struct Meeting {
    static constexpr u64 LEFT = 1ull << 31;
    volatile u64* words;
    int* lowest;
    unsigned launch;
    bool has_heard_all = false;
    float largest = 1.0f;  // weight, once it has

    __device__ __forceinline__ Meeting(u64* words_, int* lowest_)
        : words(words_), lowest(lowest_), launch((unsigned)words_[0] + 1u)
    {
    }

    // All threads of the block call it, after their last draw.
    __device__ __forceinline__ void tell() const
    {
        __syncthreads();
        if (threadIdx.x > 0) return;
        words[1 + blockIdx.x] = told();
        __threadfence();  // told before it looks: of two blocks one hears the other
    }

    // All threads call it, after they have told.
    __device__ __forceinline__ void hear(const Weighing& weighing, int patience = PATIENCE)
    {
        bool is_there = true;
        for (int block = threadIdx.x; block < (int)gridDim.x; block += blockDim.x) {
            u64 word = words[1 + block];
            for (int look = 1; look < patience && !is_of_launch(word); ++look) word = words[1 + block];
            is_there &= is_of_launch(word);
            if (is_of_launch(word)) atomicMin(lowest + 1, (int)(word & LARGEST_LEAF));
            if (is_of_launch(word) && (word & LEFT)) atomicMin(lowest + 2, 0);
        }
        has_heard_all = __syncthreads_and(is_there);
        if (has_heard_all && weighing.total > 0) largest = weighing.weight((unsigned)lowest[1]);
    }

    // Of a weight: the whole of it, until all were heard.
    __device__ __forceinline__ float share(float weight) const { return __fdiv_rn(weight, largest); }

    __device__ __forceinline__ void leave() const
    {
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            words[1 + blockIdx.x] = told() | LEFT;
            __threadfence();
        }
        __syncthreads();
    }

    __device__ __forceinline__ bool has_left(long long block) const { return (words[1 + block] & LEFT) != 0; }

private:
    __device__ __forceinline__ u64 told() const { return (u64)launch << 32 | (u64)lowest[0]; }

    __device__ __forceinline__ bool is_of_launch(u64 word) const { return (unsigned)(word >> 32) == launch; }
};

// Divides what weights `share` left whole. All threads of all blocks call it at the end; they drew items as
// `unit / LANES_OF_ITEM`, and heard in the last round.
//   index   [num_items]  read
//   weight  [num_items]  read, written
template <int LANES_OF_ITEM>
__device__ __forceinline__ void end_meeting(Meeting& meeting, const Tree& tree, const Weighing& weighing,
                                            const long long* index, float* weight, int num_items)
{
    const long long num_units = (long long)num_items * LANES_OF_ITEM;
    const long long step = num_global_threads();
    if (meeting.has_heard_all) {
        for (long long unit = global_thread(); unit - threadIdx.x + step < num_units; unit += step) {  // earlier rounds
            if (unit % LANES_OF_ITEM == 0) weight[unit / LANES_OF_ITEM] = meeting.share(weight[unit / LANES_OF_ITEM]);
        }
    } else {
        meeting.leave();
        meeting.hear(weighing, 1);
        if (!meeting.has_heard_all) return;
    }
    if (threadIdx.x == 0) meeting.words[0] = meeting.launch;  // all have read it
    if (meeting.lowest[2] != 0) return;  // none has left
    for (long long i = threadIdx.x; i < num_items; i += blockDim.x) {  // several blocks may do so
        if (!meeting.has_left(i * LANES_OF_ITEM / blockDim.x % gridDim.x)) continue;
        __threadfence();
        weight[i] = meeting.share(weighing.weight(tree.leaf[__ldcg(index + i)]));
    }
}

// What ranks tell each other of a draw. All threads call it, after they have drawn.
//   lowest_of_block  shared: the smallest priority that this block drew
//   share  [2]  all priorities; the smallest that was drawn, LARGEST_LEAF between draws  read, written
__device__ __forceinline__ void note_share(const Tree& tree, const int& lowest_of_block, long long* share)
{
    __syncthreads();
    if (threadIdx.x > 0) return;
    atomicMin(share + 1, (long long)lowest_of_block);
    if (blockIdx.x == 0) share[0] = (long long)tree.total();
}

// The i-th of those that still have a leaf of 1, from the newest or from the oldest on. Beyond the last there is none:
// units are 0.
__device__ __forceinline__ Drawn draw_in_order(
    const Tree& tree, const Anchors& anchors, unsigned long long i, bool newest_first)
{
    const unsigned long long total = tree.total();
    if (total == 0) return {0, 0u};
    const bool is_there = i < total;
    if (!is_there) i = total - 1;
    const unsigned long long before = sum_before(tree, leaf_of_anchor(anchors.first));
    unsigned long long x = before + (newest_first ? total - 1 - i : i);
    if (x >= total) x -= total;
    Drawn drawn = find_leaf(tree, x);
    if (!is_there) drawn.units = 0u;
    return drawn;
}

// ---- each item once a pass

// What a pass is: [PASS_SIZE] int64.
enum Pass { PASS_NUMBER, PASS_DRAWN, PASS_FIRST, PASS_END, PASS_SIZE };

__device__ __forceinline__ unsigned mixed(unsigned x)
{
    x = (x ^ (x >> 16)) * 0x85ebca6bu;
    x = (x ^ (x >> 13)) * 0xc2b2ae35u;
    return x ^ (x >> 16);
}

// What stands at a place of a pass's order of `count` numbers.
// A Feistel network of 6 rounds permutes 0 .. 4^half - 1, and is applied again where it leads out of 0 .. count - 1
// (Black and Rogaway 2002, "Ciphers with arbitrary finite domains").
__device__ __forceinline__ unsigned permuted(const unsigned* seed, long long pass, unsigned number, unsigned count)
{
    const int bits = count > 1u ? 32 - __clz((int)(count - 1u)) : 1;
    const int half = (bits + 1) / 2;
    const unsigned mask = (1u << half) - 1u;
    const unsigned of_pass = mixed((unsigned)pass + TABLE * 0x9e3779b9u) ^ (unsigned)(pass >> 32) * 0xb5297a4du;
    const unsigned key[4] = {mixed(seed[0] + of_pass), mixed(seed[1] ^ of_pass), mixed(~seed[0] + 3u * of_pass),
                             mixed(~seed[1] ^ 5u * of_pass)};
    do {
        unsigned left = number >> half;
        unsigned right = number & mask;
#pragma unroll
        for (unsigned round = 0; round < 6; ++round) {
            const unsigned next = left ^ (mixed(right ^ (key[round % 4] + round * 0x9e3779b9u)) & mask);
            left = right;
            right = next;
        }
        number = left << half | right;
    } while (number >= count);
    return number;
}

// Item i of a batch. A pass is over what may be drawn when it begins: what comes later waits for the next, and what
// has left by its turn is not there: units are 0. A batch may run over into passes that begin with it.
__device__ __forceinline__ Drawn draw_in_pass(
    const long long* pass, const Anchors& now, const unsigned* seed, long long i)
{
    const Anchors begun = {pass[PASS_FIRST], pass[PASS_END]};
    const long long place = pass[PASS_DRAWN] + i;
    if (place < begun.num_items()) {
        const unsigned number = permuted(seed, pass[PASS_NUMBER], (unsigned)place, (unsigned)begun.num_items());
        const long long anchor = begun.first + number / NUM_ROWS;
        if (anchor >= now.first && anchor < now.end) return {leaf_of_item(begun, number), 1u};
        return {now.end > now.first ? leaf_of_anchor(now.first) : 0, 0u};
    }
    const long long count = now.num_items();
    if (count == 0) return {0, 0u};
    const long long later = place - begun.num_items();
    const long long number = pass[PASS_NUMBER] + 1 + later / count;
    return {leaf_of_item(now, permuted(seed, number, (unsigned)(later % count), (unsigned)count)), 1u};
}

// By one thread, after all have drawn.
__device__ __forceinline__ void end_in_pass(long long* pass, const Anchors& now, long long num_drawn)
{
    const long long count = (pass[PASS_END] - pass[PASS_FIRST]) * NUM_ROWS;
    const long long place = pass[PASS_DRAWN] + num_drawn;
    if (place < count || now.num_items() == 0) {
        pass[PASS_DRAWN] = place < count ? place : count;
        return;
    }
    const long long later = place - count;
    pass[PASS_NUMBER] += 1 + later / now.num_items();
    pass[PASS_DRAWN] = later % now.num_items();
    pass[PASS_FIRST] = now.first;
    pass[PASS_END] = now.end;
}
