// The gradient of A2C's, PPO's or PQN's loss over a minibatch: forward pass, loss, backward pass, weight gradients.
//
// A warp carries 16 ROW_TILES samples forwards and backwards through the network. What the weights' gradient is
// made of is the record of a sample:
//   [features | hidden 1 | hidden 2 | delta 1 | delta 2 | delta of the outputs]
// A delta is the loss's derivative by what goes into an activation.
//
// If it ACCUMULATES, a block keeps the records of its samples in shared memory, and adds their products to sums in
// registers. Else records go to global memory: a matrix library, or fused_products.cuh, sums their products up.
// Those of WARPGROUPS lie there in blocks of 64 samples, [column / 8][sample][column % 8]; without hidden 1 and delta 2
// where fused_products.cuh MAKES them anew.
// Of a network BY_LAYERS a record is the delta of the outputs alone: its forward and backward passes are not made here.
//
// Constants, besides those of layers/mlp.cuh and of the heads (OF_BOX, for the preprocessor, says which; OF_VALUES that
// outputs are values of actions):
//   ACCUMULATES                   see above
//   HIDDEN1_AT, HIDDEN2_AT, DELTA1_AT, DELTA2_AT, DELTA_OUT_AT
//                                 where each part of the record begins; the features begin it
//   RECORD, PITCH                 elements of a record, and from one to the next
//   MAKES                         see above
//   AT_ONCE0, ONES_AT             tiles of features that stand side by side; where the column of ones stands
//   BLOCKS2_AT, BLOCKS3_AT, BIASES_AT, NUM_BLOCKS
//                                 where blocks of the gradient begin, and how many there are (fused_sums.cuh)
//   NUM_FIGURES                   sums that are made of the loss's parts
//   GROUP_SIZE                    agents of the group
//   FIRST_AGENT, ALL_AGENTS       of the env's agents, the group's first, and how many there are
//   SEEN_COLUMNS, FIRST_SEEN      columns of the array they observe in, and the first that is theirs
//   NUM_COLUMNS, FIRST_COLUMN     of the one they act in
//   IS_PPO                        else A2C
//   MAX_LOG_RATIO                 where A2C's samples end to count, which it weighs by how likely they still are, or 0
//   CLIPS_VALUE                   whether PPO's value may not move far
//   HUBER_DELTA                   from which error on its square grows no more; 0: never
//   HAS_ORDER, HAS_ACTIVE         whether there are such arrays
//   CREDITS_TEAM                  whether the critic, a network of its own, learns from agents out of the game, too
//   NORMALISES_ADVANTAGE, MIN_DEVIATION, NUM_SUMS  as advantage.cuh has them
//   SAMPLE_BYTES                  as sample_row.cuh has them

constexpr bool SWIZZLES = ACCUMULATES && !FULL_PRECISION;
constexpr int ROW_STEP = WARPGROUPS ? 8 : PITCH;  // elements from a sample's record to the next
constexpr int COLUMN_STEP = WARPGROUPS ? 64 : 1;  // and, of a record, from a column to the next, tile by tile
constexpr int LAST_AT = TILES2 > 0 ? HIDDEN2_AT : HIDDEN1_AT;

constexpr bool FETCHES_BEFORE_SUMS = FETCHES_AHEAD && ACCUMULATES;  // the next tile's samples come while sums are made
constexpr int WARP_ROWS = 16 * ROW_TILES;

static_assert(
    !CREDITS_TEAM || NUM_OUTPUTS == 0 || !HAS_VALUE || IS_EITHER, "actor and critic count samples alike");
static_assert(HIDDEN1_AT == (BY_LAYERS ? 0 : FEATURE_TILES * 16), "columns of a record meet");
static_assert(HIDDEN2_AT - HIDDEN1_AT == (MAKES ? 0 : TILES1 * 16), "columns of a record meet");
static_assert(DELTA1_AT - HIDDEN2_AT == TILES2 * 16, "columns of a record meet");
static_assert(DELTA2_AT - DELTA1_AT == TILES1 * 16, "columns of a record meet");
static_assert(DELTA_OUT_AT - DELTA2_AT == (MAKES ? 0 : TILES2 * 16), "columns of a record meet");
static_assert(RECORD - DELTA_OUT_AT == OUTPUT_TILES * 16, "columns of a record meet");
static_assert(PITCH >= RECORD && (ACCUMULATES || PITCH == RECORD), "records meet");
static_assert(!SWIZZLES || PITCH % 64 == 32, "`swizzle` needs an odd multiple of 64 bytes");
static_assert(FEATURE_TILES % AT_ONCE0 == 0, "tiles are left over");
static_assert(ONES_AT == place_of_column<AT_ONCE0>(NUM_FEATURES), "a record has its columns in another order");

// Where in its record this lane has its part of COUNT tiles, 1 or 2.
//   column  where they begin: a multiple of 16 COUNT away from where a part of the record begins
template <int COUNT>
__device__ __forceinline__ int place_of_tiles(int column)
{
    const int of_lane = place_of_lane<8 * COLUMN_STEP, COUNT>(lane_index() & 3);
    if (!SWIZZLES) return column * COLUMN_STEP + of_lane;
    const int odd = column & 16;  // the rest is the same for all lanes
    return column - odd + swizzle<SWIZZLES>(lane_index() >> 2, odd + of_lane);
}

// Writes tiles of all rows of the warp.
//   record  of row g
template <int COUNT>
__device__ __forceinline__ void keep(
    Element* record, int column, const Pair (&tiles)[ROW_TILES][COUNT][4], unsigned zero)
{
    constexpr int TOGETHER = COUNT % 2 == 0 ? 2 : 1;
#pragma unroll
    for (int r = 0; r < ROW_TILES; ++r) {
#pragma unroll
        for (int i = 0; i < COUNT; i += TOGETHER) {
            Element* place = record + r * 16 * ROW_STEP + place_of_tiles<TOGETHER>(column + 16 * i);
            store_tiles(place, place + 8 * ROW_STEP, (const Pair(&)[TOGETHER][4])tiles[r][i], zero);
        }
    }
}

// The delta of a layer from that of the next: delta W of the next, times the slope of what this layer gave.
//   record         of row g; + 8 PITCH: of row g + 8
//   hidden, delta  where this layer's columns, and its deltas, begin in it
//   UNROLL, take   as in hidden_layer
template <int TILES, int NEXT_TILES, bool IN_SHARED, int UNROLL, typename Take>
__device__ __forceinline__ void backward(
    Element* record, int hidden, int delta, const Pair (&next)[ROW_TILES][NEXT_TILES][4], const Element* weights,
    unsigned zero, Take take)
{
    constexpr int AT_ONCE = TILES % 2 == 0 ? 2 : 1;
#pragma unroll UNROLL
    for (int n = 0; n < TILES; n += AT_ONCE) {
        Pair was[ROW_TILES][AT_ONCE][4];
        float sum[ROW_TILES][2 * AT_ONCE][4];
#pragma unroll
        for (int r = 0; r < ROW_TILES; ++r) {
            const Element* place = record + r * 16 * PITCH + place_of_tiles<AT_ONCE>(hidden + 16 * n);
            load_tiles(was[r], place, place + 8 * PITCH);
#pragma unroll
            for (int i = 0; i < 2 * AT_ONCE; ++i) sum[r][i][0] = sum[r][i][1] = sum[r][i][2] = sum[r][i][3] = 0.0f;
        }
#pragma unroll
        for (int k = 0; k < NEXT_TILES; ++k) {
#pragma unroll
            for (int s = 0; s < AT_ONCE; ++s) {
                Pair b[4];
                load_weights<true, IN_SHARED>(b, weights, 2 * k, 2 * (n + s), TILES * 2);
#pragma unroll
                for (int r = 0; r < ROW_TILES; ++r) {
                    multiply(sum[r][2 * s], next[r][k], b[0], b[1]);
                    multiply(sum[r][2 * s + 1], next[r][k], b[2], b[3]);
                }
            }
        }
        Pair tiles[ROW_TILES][AT_ONCE][4];
#pragma unroll
        for (int r = 0; r < ROW_TILES; ++r) {
#pragma unroll
            for (int i = 0; i < 4 * AT_ONCE; ++i) {
                const float* two = &sum[r][i / 2][2 * (i % 2)];
                tiles[r][i / 4][i % 4] = delta_of(two[0], two[1], was[r][i / 4][i % 4]);
            }
        }
        keep(record, delta + 16 * n, tiles, zero);
        take(n, tiles);
    }
}

#if BY_WARPGROUPS
// The same by a warpgroup, which still has in registers what this layer gave; no record is kept here.
template <int TILES, int NEXT_TILES, typename Take>
__device__ __forceinline__ void backward_by_group(
    const Network& network, const Pair (&hidden)[TILES][4], const Pair (&next)[1][NEXT_TILES][4],
    const Element* weights, Take take)
{
    const auto nothing = [](int) {};
    layer_by_group<false, true, NEXT_TILES, TILES>(
        next[0], weights, network, 0, nothing,
        [&](int n, const float(&sum)[NUM_SUMS_AT_ONCE][4]) {
            Pair tiles[1][GROUP_TILES][4];
#pragma unroll
            for (int i = 0; i < 4 * GROUP_TILES; ++i) {
                const float* two = &sum[i / 2][2 * (i % 2)];
                tiles[0][i / 4][i % 4] = delta_of(two[0], two[1], hidden[n + i / 4][i % 4]);
            }
            take(n, tiles);
        });
}
#endif

#if OF_VALUES
#include "losses/q_values.cuh"
#else
#include "losses/policy_gradient.cuh"
#endif
#include "fused_sums.cuh"
#include "sample_row.cuh"

//   shared              shared memory of the block
//   block, num_blocks   which of how many work for this network
//   is_critic           whose it is, if it IS_EITHER
//   seen                what the network sees: [step, env, column, feature], or seen.py's  read
//   order               [num_rows..] the samples of the minibatch, if it HAS_ORDER      read
//   samples             bytes of [sample] rows (sample_row.cuh), if it HAS_ORDER: they
//                       have the next five, and `active`                                read
//   action              [step, env, column, head]  of a Box floats, as they were drawn  read
//   log_prob, value, advantage, target  [step, env, agent of the group]                 read
//   mask                [step, env, agent of the group, output], if it HAS_MASK         read
//   active              [step, env, agent of all], if it HAS_ACTIVE                     read
//   value_moments       [2]  mean and deviation of what the critic says                 read
//   sums                [NUM_SUMS, 3]  of advantage_sums over the minibatch             read
//   coefficients        [3]  of the entropy, of the value loss, and the clip range      read
//   halted              [1]  not 0: nothing more is looked for                          read
//   nothing             [1]  0, which the compiler must not know: see tensor_core.cuh   read
//   first_loss          [1]  the first sample whose loss is a NaN or an infinity        read, written
//   share_of_value      of a sample in the critic's loss, if it CREDITS_TEAM
//   first_row, num_rows which samples of the minibatch
//   weights, biases, mean, variance  as in fused_act.cuh                                read
//   gradient            [block, NUM_BLOCKS, 16, 16]  if it ACCUMULATES                  written
//   records             bytes of [row, RECORD] elements, else; rows up to a multiple of
//                       16 WARPS ROW_TILES                                              written
//   figures             [warp of all blocks, NUM_FIGURES]  sums                         written
__device__ __forceinline__ void learn(
    char* shared, int block, int num_blocks, bool is_critic, Seen seen, const int* order, const unsigned char* samples,
    const int* action, const float* log_prob, const float* value, const float* advantage, const float* target,
    const bool* mask, const bool* active, const float* value_moments, const double* sums, const float* coefficients,
    const float* halted, const unsigned int* nothing, long long* first_loss, float share_of_value, long long first_row,
    int num_rows, const unsigned char* weights, const float* biases, const float* mean, const float* variance,
    float* gradient, unsigned char* records, float* figures)
{
    Network network = place_network(shared, (const Element*)weights, biases);
    Element* records_of_block = (Element*)network.free;
    const int lane = lane_index();
    const int warp = threadIdx.x >> 5;
    const float value_mean = value_moments[0];
    const float value_deviation = value_moments[1];
    const Advantage scale = read_advantage(sums, value_deviation);
    const float entropy_coeff = coefficients[0];
    const float vf_loss_coeff = coefficients[1];
    const float clip = coefficients[2];
    float figure[NUM_FIGURES] = {};
    Sums products = {};

    const int g = lane >> 2;
    const int turn = SHARE == 2 ? lane >> 4 : 0;
    const unsigned zero = nothing[0];
    float* output = network.stage + (lane % WARP_ROWS) * STAGE_PITCH;
    const auto sample_of = [&](int tile) {  // the one that this lane has in a tile; -1 for none
        const long long row = ((long long)tile * WARPS + warp) * WARP_ROWS + lane % WARP_ROWS;
        if (row >= num_rows) return -1;
        return HAS_ORDER ? order[first_row + row] : (int)(first_row + row);
    };
    const auto rows_of = [&](int index) { return find_rows(seen, active, index); };  // the warp's
    const SampleRow* sample_rows = (const SampleRow*)samples;
    const auto read_sample = [&](int index) {  // as memory has it; -1 for none
        Sample sample = {};
        sample.counts = index >= 0;
        if (index < 0) index = 0;
        SampleRow row = {};
        if (HAS_ORDER) {
            row = sample_rows[index];
            sample.action = (const Action*)sample_rows[index].action;
        } else {
            if (HAS_ACTIVE) row.counts = active[place_among_all(index)];
            sample.action = (const Action*)action + place_of_action(index);
            if (HAS_POLICY_HERE) {
                if (IS_PPO || MAX_LOG_RATIO > 0.0f) row.log_prob = log_prob[index];
                row.advantage = advantage[index];
            }
            if (HAS_VALUE_HERE && IS_PPO && CLIPS_VALUE) row.value = value[index];
            if (HAS_VALUE_HERE || OF_VALUES) row.target = target[index];
        }
        // A critic that credits the team learns of who is out of the game, too.
        if (HAS_ACTIVE && !(CREDITS_TEAM && !HAS_POLICY_HERE)) sample.counts = sample.counts && row.counts;
        sample.mask = HAS_MASK ? mask + (long long)index * NUM_OUTPUTS : nullptr;
        if (HAS_POLICY_HERE && TAKES_EARLY) {
            for (int head = 0; head < NUM_HEADS; ++head) sample.taken[head] = sample.action[head];
        }
        sample.old_log_prob = row.log_prob;
        sample.old_value = row.value;
        sample.advantage = row.advantage;
        sample.target = row.target;
        return sample;
    };
    int next_index = sample_of(block);
    auto rows = given_rows(rows_of(next_index));  // of this tile; or overwritten before it is read
    Sample next_sample = {};
    if (FETCHES_BEFORE_SUMS) next_sample = read_sample(next_index);
    wait_for_network();
    for (int tile = block; (long long)tile * WARPS * WARP_ROWS < num_rows; tile += num_blocks) {
        const int first = (tile * WARPS + warp) * WARP_ROWS;
        const int index = next_index;
        next_index = sample_of(tile + num_blocks);

        Sample sample = FETCHES_BEFORE_SUMS ? next_sample : read_sample(index);
        if constexpr (!WARPGROUPS && !FETCHES_BEFORE_SUMS) rows = given_rows(rows_of(index));

        // The record of row g of the first tile. There is room for those of rows that are none.
        Element* record = ACCUMULATES ? records_of_block + (warp * WARP_ROWS + g) * PITCH
                          : WARPGROUPS
                              ? (Element*)records + (long long)(first / 64) * 64 * RECORD + (first % 64 + g) * 8
                              : (Element*)records + (long long)(first + g) * PITCH;
#if BY_LAYERS
        read_outputs(network, first, num_rows);
#else
        const auto keep_features = [&](Pair(&tiles)[ROW_TILES][FEATURE_TILES][4]) {
#pragma unroll
            for (int k = 0; k < FEATURE_TILES; k += AT_ONCE0) {
                Pair some[ROW_TILES][AT_ONCE0][4];
#pragma unroll
                for (int r = 0; r < ROW_TILES; ++r) {
#pragma unroll
                    for (int i = 0; i < 4 * AT_ONCE0; ++i) some[r][i / 4][i % 4] = tiles[r][k + i / 4][i % 4];
                }
                keep(record, 16 * k, some, zero);
            }
        };
        if constexpr (!FEATURES_IN_REGISTERS) {
            for (int k = 0; k < FEATURE_TILES; k += AT_ONCE0) {
                Pair some[ROW_TILES][AT_ONCE0][4];
                for (int r = 0; r < ROW_TILES; ++r) {
                    for (int i = 0; i < AT_ONCE0; ++i) load_features(some[r][i], rows, r, k + i, mean, variance);
                }
                keep(record, 16 * k, some, zero);
            }
        }
#if BY_WARPGROUPS
        Pair hidden1[TILES1][4], hidden2[TILES2][4];
#endif
        forward(
            network, rows, mean, variance, keep_features,
            [&](int n, Pair(&tiles)[ROW_TILES][AT_ONCE1][4]) {
                if (!MAKES) keep(record, HIDDEN1_AT + 16 * n, tiles, zero);
#if BY_WARPGROUPS
                copy_tiles(hidden1, n, tiles[0]);
#endif
            },
            [&](int n, Pair(&tiles)[ROW_TILES][AT_ONCE2][4]) {
                keep(record, HIDDEN2_AT + 16 * n, tiles, zero);
#if BY_WARPGROUPS
                copy_tiles(hidden2, n, tiles[0]);
#endif
            });
#endif

        if (!FETCHES_BEFORE_SUMS && next_index >= 0) {  // what the next tile begins with
            if (!BY_LAYERS) fetch_row_ahead(seen, next_index);
            if (HAS_ORDER) fetch_ahead(sample_rows + next_index);
        }
        sample.share = sample.counts ? (CREDITS_TEAM && !HAS_POLICY_HERE ? share_of_value : scale.share) : 0.0f;
        sample.advantage = (sample.advantage - scale.mean) / scale.deviation;
        sample.target = (sample.target - value_mean) / value_deviation;
        const float loss = differentiate(is_critic, output, sample, turn, entropy_coeff, vf_loss_coeff, clip, figure);
        if (sample.share != 0.0f && !isfinite(loss) && halted[0] == 0.0f) atomicMin(first_loss, (long long)index);
        __syncwarp();
        Pair delta_out[ROW_TILES][OUTPUT_TILES][4];
#pragma unroll
        for (int k = 0; k < OUTPUT_TILES; ++k) {
            Pair one[ROW_TILES][1][4];
#pragma unroll
            for (int r = 0; r < ROW_TILES; ++r) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int of_row = (r * 16 + g + 8 * (i % 2)) * STAGE_PITCH;
                    const float* two = network.stage + of_row + 16 * k + 8 * (i / 2) + 2 * (lane & 3);
                    one[r][0][i] = delta_out[r][k][i] = packed(two[0], two[1]);
                }
            }
            keep(record, DELTA_OUT_AT + 16 * k, one, zero);
        }
#if !BY_LAYERS
        const auto forget = [](int, Pair(&)[ROW_TILES][AT_ONCE1][4]) {};
        if constexpr (TILES2 > 0) {
            Pair delta2[ROW_TILES][KEPT2][4];
            const auto remember = [&](int n, Pair(&tiles)[ROW_TILES][AT_ONCE2][4]) {
#pragma unroll
                for (int r = 0; r < ROW_TILES; ++r) copy_tiles(delta2[r], n, tiles[r]);
            };
#if BY_WARPGROUPS
            backward_by_group<KEPT2, OUTPUT_TILES>(
                network, hidden2, delta_out, network.weight3, [&](int n, Pair(&tiles)[ROW_TILES][AT_ONCE2][4]) {
                    if (!MAKES) keep(record, DELTA2_AT + 16 * n, tiles, zero);
                    remember(n, tiles);
                });
            rows = fetch_features(rows_of(next_index));  // of the next tile
            backward_by_group<TILES1, KEPT2>(
                network, hidden1, delta2, network.weight2, [&](int n, Pair(&tiles)[ROW_TILES][AT_ONCE1][4]) {
                    keep(record, DELTA1_AT + 16 * n, tiles, zero);
                });
#else
            backward<KEPT2, OUTPUT_TILES, SHARED3, KEPT2>(
                record, HIDDEN2_AT, DELTA2_AT, delta_out, network.weight3, zero, remember);
            backward<TILES1, KEPT2, SHARED2, 1>(
                record, HIDDEN1_AT, DELTA1_AT, delta2, network.weight2, zero, forget);
#endif
        } else {
            backward<TILES1, OUTPUT_TILES, SHARED3, 1>(
                record, HIDDEN1_AT, DELTA1_AT, delta_out, network.weight3, zero, forget);
        }
#endif

        if constexpr (FETCHES_BEFORE_SUMS) {
            rows = given_rows(rows_of(next_index));
            next_sample = read_sample(next_index);
        }
        if (ACCUMULATES) {
            __syncthreads();
            add_products(products, records_of_block);
            __syncthreads();
        }
    }

    for (int i = 0; i < NUM_FIGURES; ++i) {
        float whole = turn == 0 ? figure[i] : 0.0f;
        for (int flip = 16; flip > 0; flip /= 2) whole += __shfl_xor_sync(ALL_LANES, whole, flip);
        if (lane == 0) figures[(block * WARPS + warp) * NUM_FIGURES + i] = whole;
    }
    if (ACCUMULATES) write_products(products, network.free, gradient + (long long)block * NUM_BLOCKS * 256);
}
