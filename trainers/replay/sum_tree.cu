// Who is drawn: the leaves of a table as steps are added, draws by them, and new priorities.
//
// Constants of drawable.cuh, and:
//   NORMALISED  whether weights are divided by the largest of their batch
//   HAS_OWN     whether the items come with priorities of their own
//   HAS_USES    whether an item's draws are counted
//
// What several kernels take:
//   leaves   [NUM_LEAVES, and up to a multiple of 16]  priorities in units of 2^-20
//   nodes    [...]                                     their sums, see sum_tree.cuh
//   range    [2]   first anchor in the tree, and the one after the last
//   maximum  [1]   the largest leaf there ever was: what a new item gets
//   halted   [1]   not 0: nothing is learned any more, and no priority is written
//   refused  [2]   the first item of a batch, and the first leaf with a priority of its own, whose priority was NaN or
//                  negative: it was not written
//   ticket   [1]   blocks that are done; 0 between launches
//   num_items      of the batch
#include "warpdrive.cuh"
#include "selectors.cuh"

// ---- as steps are added

constexpr int CHUNK_NODES = CHILDREN * CHILDREN;       // nodes of level 1 that a block changes at once
constexpr int CHUNK_LEAVES = CHUNK_NODES * CHILDREN;

// Brings the tree to what may be drawn now: what has come in gets the largest priority so far, or its own; what has
// left gets 0. Blocks go through the pieces of the ring that change, chunk by chunk.
//   head    [1]  steps so far                                             read
//   oldest  [1]  nothing from before this step may be drawn               read
//   own     [NUM_LEAVES]  if it HAS_OWN: priorities of the items          read
//   uses    [NUM_LEAVES]  if it HAS_USES: how often each was drawn        written
extern "C" __global__ void __launch_bounds__(256) follow_window(
    const long long* head, const long long* oldest, const float* own, const int* maximum, int* leaves, long long* nodes,
    int* uses, long long* range, long long* refused, int* ticket, float alpha, float epsilon)
{
    __shared__ int low[CHILDREN];  // a change to a node of level 2, by its lower 16 bits and the rest, as in Changes
    __shared__ int high[CHILDREN];
    const Tree tree(leaves, nodes);
    const Anchors before = {range[0], range[1]};
    const Anchors now = anchors_of(head[0], oldest[0]);
    const unsigned newcomer = (unsigned)maximum[0];
    const long long from[2] = {before.end > now.first ? before.end : now.first, before.first};
    const long long to[2] = {now.end, before.end < now.first ? before.end : now.first};
    // Whether an item comes in where one leaves in this very launch: then that counts.
    const bool some_are_replaced = to[0] > from[0] && to[1] > from[1] && to[0] - 1 - from[1] >= NUM_ANCHORS;
    // Each of the two, [in, out], is one piece of the ring, or two.
    int first[4], last[4], num_chunks[4], all_chunks = 0;
#pragma unroll
    for (int piece = 0; piece < 4; ++piece) {
        const int side = piece / 2;
        const long long count = to[side] > from[side] ? (to[side] - from[side]) * NUM_ROWS : 0;
        const int start = leaf_of_anchor(from[side]);
        const long long beyond = start + count - NUM_LEAVES;
        first[piece] = piece % 2 ? 0 : start;
        last[piece] = piece % 2 ? (int)(beyond > 0 ? beyond : 0) : (int)(beyond > 0 ? NUM_LEAVES : start + count);
        const int begin = first[piece] / CHUNK_LEAVES;
        num_chunks[piece] = last[piece] > first[piece] ? (last[piece] - 1) / CHUNK_LEAVES - begin + 1 : 0;
        all_chunks += num_chunks[piece];
    }
    for (int n = threadIdx.x; n < CHILDREN; n += blockDim.x) low[n] = high[n] = 0;
    __syncthreads();  // all have read the range: the last block may write it, whatever the others still do
    const bool is_last = threadIdx.x == 0 && atomicAdd(ticket, 1) == (int)gridDim.x - 1;
    for (int i = blockIdx.x; i < all_chunks; i += gridDim.x) {
        int chunk = i;
        int piece_first = first[0];
        int piece_last = last[0];
        bool enters = true;
        bool is_found = chunk < num_chunks[0];
#pragma unroll
        for (int piece = 1; piece < 4; ++piece) {  // each known when compiled: the pieces then stay in registers
            if (is_found) continue;
            chunk -= num_chunks[piece - 1];
            piece_first = first[piece];
            piece_last = last[piece];
            enters = piece < 2;
            is_found = chunk < num_chunks[piece];
        }
        chunk += piece_first / CHUNK_LEAVES;
        for (int n = threadIdx.x; n < CHUNK_NODES; n += blockDim.x) {
            const int begin = chunk * CHUNK_LEAVES + n * CHILDREN;
            const int from_leaf = begin > piece_first ? begin : piece_first;
            const int to_leaf = begin + CHILDREN < piece_last ? begin + CHILDREN : piece_last;
            if (from_leaf >= to_leaf) continue;
            // All are read before one is written: no read waits for another.
            uint4* const line = (uint4*)(tree.leaf + begin);
            uint4 parts[CHILDREN / 4];
#pragma unroll
            for (int part = 0; part < CHILDREN / 4; ++part) parts[part] = line[part];
            unsigned* const values = (unsigned*)parts;
            long long change = 0;
#pragma unroll
            for (int child = 0; child < CHILDREN; ++child) {
                const int leaf = begin + child;
                if (leaf < from_leaf || leaf >= to_leaf) continue;
                unsigned value = 0u;
                if (enters) {
                    value = newcomer;
                    if (HAS_USES) uses[leaf] = 0;
                    if (HAS_OWN) {
                        if (is_priority(own[leaf])) value = leaf_of(own[leaf], alpha, epsilon);
                        else atomicMin(refused + 1, (long long)leaf);
                    }
                } else if (some_are_replaced) {
                    long long ahead = (leaf / NUM_ROWS - from[0]) % NUM_ANCHORS;
                    if (ahead < 0) ahead += NUM_ANCHORS;
                    if (from[0] + ahead < to[0]) continue;
                }
                change += (long long)value - values[child];
                values[child] = value;
                if (to_leaf - from_leaf < CHILDREN || some_are_replaced) tree.leaf[leaf] = value;
            }
            // Else another block may be changing its part of the line.
            if (to_leaf - from_leaf == CHILDREN && !some_are_replaced) {
#pragma unroll
                for (int part = 0; part < CHILDREN / 4; ++part) line[part] = parts[part];
            }
            if (change == 0) continue;
            atomicAdd(tree.level(1) + begin / CHILDREN, (unsigned long long)change);
            atomicAdd(low + n / CHILDREN, (int)(change & 0xffff));
            atomicAdd(high + n / CHILDREN, (int)(change >> 16));
        }
        __syncthreads();
        for (int n = threadIdx.x; n < CHILDREN && Tree::LEVELS > 2; n += blockDim.x) {
            const long long sum = (long long)high[n] * 65536 + low[n];
            if (sum != 0) atomicAdd(tree.level(2) + chunk * CHILDREN + n, (unsigned long long)sum);
        }
        if (threadIdx.x == blockDim.x - 1) {
            long long sum = 0;
#pragma unroll
            for (int n = 0; n < CHILDREN; ++n) sum += (long long)high[n] * 65536 + low[n];
            for (int level = 3; level < Tree::LEVELS && sum != 0; ++level) {
                atomicAdd(tree.level(level) + (chunk >> CHILDREN_BITS * (level - 3)), (unsigned long long)sum);
            }
        }
        if (i + gridDim.x < all_chunks) {  // another piece of work
            __syncthreads();
            for (int n = threadIdx.x; n < CHILDREN; n += blockDim.x) low[n] = high[n] = 0;
            __syncthreads();
        }
    }
    if (is_last) {
        ticket[0] = 0;
        range[0] = now.first;
        range[1] = now.end;
    }
}

// The sums of one level from those below it, after leaves were written as a whole.
extern "C" __global__ void rebuild(const int* leaves, long long* nodes, int level)
{
    const Tree tree(leaves, nodes);
    for (long long i = global_thread(); i < nodes_of(NUM_LEAVES, level); i += num_global_threads()) {
        tree.level(level)[i] = tree.sum_of_children(level, (int)i);
    }
}

// ---- draw

// Draws items by their priorities.
//   width        2^64 / num_items: item i is drawn from the i-th of as many equal parts of all priorities, and indices
//                ascend; 0: from all of them
//   seed         [3]  the store's                                                    read
//   draws        [1]  batches drawn so far, in the upper half                        read, written
//   beta         [1]  how much of the uneven chances the weights make up for         read
//   words        [1 + blocks]  where blocks meet                                     read, written
//   index        [num_items]  the leaves; 0 if there is nothing to draw                  written
//   weight       [num_items]  (count p / total)^-beta, or that over the largest of the batch; or 0       written
template <int LANES>
__device__ __forceinline__ void draw_batch(
    const int* leaves, const long long* nodes, const long long* range, const unsigned* seed, u64* draws,
    const float* beta, u64* words, long long* index, float* weight, unsigned long long width, int num_items)
{
    __shared__ int lowest[3];
    __shared__ ulonglong2 top[Tree::TOP_PAIRS];
    Tree tree(leaves, nodes);
    const u64 draw = draws[0] >> 32;
    Weighing weighing = {0, (u64)((range[1] - range[0]) * NUM_ROWS), beta[0]};
    Meeting meeting(words, lowest);
    tree.copy_top(top);  // while what is read above is on its way
    if (threadIdx.x == 0) lowest[0] = lowest[1] = lowest[2] = (int)LARGEST_LEAF;
    __syncthreads();
    weighing.total = tree.total();
    const long long units = (long long)num_items * LANES, step = num_global_threads();
    for (long long first = global_thread() - threadIdx.x; first < units; first += step) {
        const long long unit = first + threadIdx.x;
        const unsigned i = unit < units ? (unsigned)(unit / LANES) : num_items - 1u;  // all lanes of a warp walk
        const Drawn drawn = draw_by_priority<LANES>(tree, weighing, point_of(seed, i, draw, width), lowest);
        if (NORMALISED && first + step >= units) {
            meeting.tell();
            meeting.hear(weighing);
        }
        if (unit >= units || unit % LANES != 0) continue;
        index[i] = drawn.leaf;
        weight[i] = meeting.share(weighing.weight(drawn.units));
    }
    if (NORMALISED) end_meeting<LANES>(meeting, tree, weighing, index, weight, num_items);
    count_draw(draws);
}

extern "C" __global__ void __launch_bounds__(512) draw_leaves(
    const int* leaves, const long long* nodes, const long long* range, const unsigned int* seed,
    unsigned long long* draws, const float* beta, unsigned long long* words, long long* index, float* weight,
    unsigned long long width, int num_items)
{
    draw_batch<1>(leaves, nodes, range, seed, draws, beta, words, index, weight, width, num_items);
}

extern "C" __global__ void __launch_bounds__(512) draw_leaves_by_four(
    const int* leaves, const long long* nodes, const long long* range, const unsigned int* seed,
    unsigned long long* draws, const float* beta, unsigned long long* words, long long* index, float* weight,
    unsigned long long width, int num_items)
{
    draw_batch<4>(leaves, nodes, range, seed, draws, beta, words, index, weight, width, num_items);
}

// Notes the smallest leaf of an item that may be drawn.
//   share  [2]  of weigh_batch, LARGEST_LEAF before                                                      written
extern "C" __global__ void __launch_bounds__(256) note_smallest(const int* leaves, long long* share)
{
    __shared__ int lowest;
    if (threadIdx.x == 0) lowest = (int)LARGEST_LEAF;
    __syncthreads();
    unsigned found = LARGEST_LEAF;
    const uint4* const lines = (const uint4*)leaves;  // what fills the last one up is 0
    for (long long i = global_thread(); i < (NUM_LEAVES + 3) / 4; i += num_global_threads()) {
        const uint4 line = lines[i];
        const unsigned values[4] = {line.x, line.y, line.z, line.w};
#pragma unroll
        for (int n = 0; n < 4; ++n) found = values[n] != 0u && values[n] < found ? values[n] : found;
    }
    atomicMin(&lowest, (int)found);
    __syncthreads();
    if (threadIdx.x == 0) atomicMin(share + 1, (long long)lowest);
}

// Gives the batch of one of several ranks its weights: those of one tree over all, times how much more of all priorities
// the rank has than an even share; see one_tree.py. One that is alone has an even share.
//   range      [2]        first anchor in the tree, and the one after the last; every rank has as many   read
//   shares     [rank, 2]  a rank's priorities, and the smallest of its batch, or of all                  read
//   share      [2]        this rank's own, which tells the next draw                                     written
//   weight     [num_items]                                                                               read, written
//   is_weighed whether weights make up for priorities; else they only get the factor
extern "C" __global__ void __launch_bounds__(256) weigh_batch(
    const long long* index, const int* leaves, const long long* range, const float* beta, const long long* shares,
    long long* share, float* weight, int rank, int num_ranks, int is_weighed, int num_items)
{
    u64 total = 0;
    long long lowest = LARGEST_LEAF;
    for (int i = 0; i < num_ranks; ++i) {
        total += (u64)shares[2 * i];
        if (shares[2 * i + 1] < lowest) lowest = shares[2 * i + 1];
    }
    const Weighing weighing = {total, (u64)((range[1] - range[0]) * NUM_ROWS) * num_ranks, beta[0]};
    const float largest = is_weighed && NORMALISED && total > 0 ? weighing.weight((unsigned)lowest) : 1.0f;
    const float own = __fmul_rn((float)(u64)shares[2 * rank], (float)num_ranks);
    const float factor = total > 0 ? __fdiv_rn(own, (float)total) : 0.0f;
    for (long long i = global_thread(); i < num_items; i += num_global_threads()) {
        const float alone = is_weighed ? __fdiv_rn(weighing.weight((unsigned)leaves[index[i]]), largest) : weight[i];
        weight[i] = __fmul_rn(alone, factor);
    }
    if (global_thread() == 0) share[1] = LARGEST_LEAF;
}

// Counts what was drawn, and takes out of the tree what was drawn as often as it may be; of a batch that draws an item
// more often than that, the rows beyond get weight 0. Rows of an item are neighbours.
//   uses   [NUM_LEAVES]  read, written
//   limit  draws of an item at most
extern "C" __global__ void __launch_bounds__(256) count_uses(
    const long long* index, int* leaves, long long* nodes, int* uses, float* weight, int limit,
    int num_items)
{
    __shared__ int low[TOP_NODES];
    __shared__ int high[TOP_NODES];
    const Tree tree(leaves, nodes);
    const Changes<NUM_LEAVES> changes = {low, high};
    changes.begin();
    for (long long i = global_thread(); i < num_items; i += num_global_threads()) {
        const long long leaf = index[i];
        if (i >= limit && index[i - limit] == leaf) weight[i] = 0.0f;  // whatever it was drawn before
        if (i > 0 && index[i - 1] == leaf) continue;
        int used = uses[leaf];
        const int before = used;
        for (long long row = i; row < i + limit && row < num_items && index[row] == leaf; ++row) {
            if (weight[row] == 0.0f) continue;
            if (used < limit) ++used;
            else weight[row] = 0.0f;
        }
        if (used == before) continue;
        uses[leaf] = used;
        if (used == limit) changes.add(tree, (int)leaf, -(long long)atomicExch(tree.leaf + leaf, 0u));
    }
    changes.end(tree);
}

// ---- new priorities

// What a batch gives item i, if it has one. All of it is read at once, and by whoever can before the block waits for
// its threads: no read then waits for another. An index of no leaf comes with a priority that is refused.
struct Given {
    float priority = 0.0f;
    int leaf = -1;
    int next = -1;  // leaf of the item that follows

    __device__ __forceinline__ Given(const long long* index, const float* priorities, long long i, int num_items)
    {
        if (i >= num_items) return;
        priority = priorities[i];
        leaf = leaf_at(index[i]);
        if (i + 1 < num_items) next = leaf_at(index[i + 1]);
        if (leaf < 0) priority = -1.0f;
    }

private:
    static __device__ __forceinline__ int leaf_at(long long index)
    {
        return index >= 0 && index < NUM_LEAVES ? (int)index : -1;
    }
};

// New priorities of items whose indices ascend, as they were drawn: of equal ones the last counts.
//   index      [num_items]  leaves                                                 read
//   priority   [num_items]  before (priority + epsilon)^alpha                      read
//   keeps_zero whether a leaf of 0 stays so: its item has left, or was drawn as often as it may be
extern "C" __global__ void __launch_bounds__(256) set_sorted(
    const long long* index, const float* priority, int* leaves, long long* nodes, int* maximum, long long* refused,
    const float* halted, float alpha, float epsilon, int keeps_zero, int num_items)
{
    __shared__ int low[TOP_NODES];
    __shared__ int high[TOP_NODES];
    const Tree tree(leaves, nodes);
    const Changes<NUM_LEAVES> changes = {low, high};
    const float is_halted = halted[0];
    const unsigned seen = (unsigned)__ldcg(maximum);
    Given given(index, priority, global_thread(), num_items);
    changes.begin();
    if (is_halted != 0.0f) return;
    for (long long i = global_thread(); i < num_items;) {
        const unsigned value = leaf_of(given.priority, alpha, epsilon);
        if (accepts(given.priority, value, i, seen, maximum, refused) && given.next != given.leaf) {
            set_leaf(tree, changes, given.leaf, value, keeps_zero);
        }
        i += num_global_threads();
        given = Given(index, priority, i, num_items);
    }
    changes.end(tree);
}

// New priorities in any order, of equal indices the last counts. The leaf is its own lock: every item marks it with its
// place; who still saw a priority takes that away, and whose mark is left at the end writes the new one.
constexpr unsigned MARK = 0x80000000u;

__device__ __forceinline__ void mark_leaf(
    const Tree& tree, const Changes<NUM_LEAVES>& changes, int leaf, long long i, int keeps_zero)
{
    unsigned* place = tree.leaf + leaf;
    if (keeps_zero && atomicAdd(place, 0u) == 0u) return;
    const unsigned before = atomicMax(place, MARK | (unsigned)i);
    if (!(before & MARK)) changes.add(tree, leaf, -(long long)before);
}

__device__ __forceinline__ void settle_leaf(
    const Tree& tree, const Changes<NUM_LEAVES>& changes, int leaf, long long i, unsigned value)
{
    const unsigned mark = MARK | (unsigned)i;
    if (atomicCAS(tree.leaf + leaf, mark, value) == mark) changes.add(tree, leaf, value);
}

// By one block, of at most 2^14 items.
extern "C" __global__ void __launch_bounds__(1024) set_any(
    const long long* index, const float* priority, int* leaves, long long* nodes, int* maximum, long long* refused,
    const float* halted, float alpha, float epsilon, int keeps_zero, int num_items)
{
    __shared__ int low[TOP_NODES];
    __shared__ int high[TOP_NODES];
    const Tree tree(leaves, nodes);
    const Changes<NUM_LEAVES> changes = {low, high};
    const float is_halted = halted[0];
    const unsigned seen = (unsigned)__ldcg(maximum);
    Given given(index, priority, threadIdx.x, num_items);
    changes.begin();
    if (is_halted != 0.0f) return;
    for (long long i = threadIdx.x; i < num_items;) {
        const unsigned value = leaf_of(given.priority, alpha, epsilon);
        if (accepts(given.priority, value, i, seen, maximum, refused)) {
            mark_leaf(tree, changes, given.leaf, i, keeps_zero);
        }
        i += blockDim.x;
        given = Given(index, priority, i, num_items);
    }
    __syncthreads();
    for (long long i = threadIdx.x; i < num_items; i += blockDim.x) {
        given = Given(index, priority, i, num_items);
        if (given.leaf >= 0) settle_leaf(tree, changes, given.leaf, i, leaf_of(given.priority, alpha, epsilon));
    }
    changes.end(tree);
}

// The same by two launches, of more items.
extern "C" __global__ void __launch_bounds__(256) mark_any(
    const long long* index, const float* priority, int* leaves, long long* nodes, int* maximum, long long* refused,
    const float* halted, float alpha, float epsilon, int keeps_zero, int num_items)
{
    __shared__ int low[TOP_NODES];
    __shared__ int high[TOP_NODES];
    const Tree tree(leaves, nodes);
    const Changes<NUM_LEAVES> changes = {low, high};
    const float is_halted = halted[0];
    const unsigned seen = (unsigned)__ldcg(maximum);
    Given given(index, priority, global_thread(), num_items);
    changes.begin();
    if (is_halted != 0.0f) return;
    for (long long i = global_thread(); i < num_items;) {
        const unsigned value = leaf_of(given.priority, alpha, epsilon);
        if (accepts(given.priority, value, i, seen, maximum, refused)) {
            mark_leaf(tree, changes, given.leaf, i, keeps_zero);
        }
        i += num_global_threads();
        given = Given(index, priority, i, num_items);
    }
    changes.end(tree);
}

extern "C" __global__ void __launch_bounds__(256) settle_any(
    const long long* index, const float* priority, int* leaves, long long* nodes, const float* halted, float alpha,
    float epsilon, int num_items)
{
    __shared__ int low[TOP_NODES];
    __shared__ int high[TOP_NODES];
    const Tree tree(leaves, nodes);
    const Changes<NUM_LEAVES> changes = {low, high};
    const float is_halted = halted[0];
    Given given(index, priority, global_thread(), num_items);
    changes.begin();
    if (is_halted != 0.0f) return;
    for (long long i = global_thread(); i < num_items;) {
        if (given.leaf >= 0) settle_leaf(tree, changes, given.leaf, i, leaf_of(given.priority, alpha, epsilon));
        i += num_global_threads();
        given = Given(index, priority, i, num_items);
    }
    changes.end(tree);
}
