// The gradient of A2C's or PPO's loss over a minibatch: forward pass, loss, backward pass, weight gradients.
//
// A warp carries 16 samples forwards and backwards through the network. What the weights' gradient is made of, the record of
// a sample, is [features | hidden 1 | hidden 2 | delta 1 | delta 2 | delta of the outputs]; a delta is the loss's derivative
// by what goes into an activation. If it ACCUMULATES, a block keeps its 16 WARPS records in shared memory and adds their
// products to sums in registers; else records go to global memory, and a matrix product sums them up.
//
// Constants: those of fused_mlp.cuh, with ROW_TILES 1; GROUP_SIZE agents of the group, the first being the env's FIRST_AGENT
// of ALL_AGENTS, which are seen in column FIRST_SEEN and on of SEEN_COLUMNS and act in column FIRST_COLUMN and on of
// NUM_COLUMNS; NUM_HEADS heads with HEAD_SIZES actions each; IS_PPO, else A2C; CLIPS_VALUE; HUBER_DELTA, 0 for none;
// NORMALISES_ADVANTAGE; HAS_ORDER, HAS_MASK, HAS_ACTIVE: whether there are such arrays; NUM_SUMS of advantage_sums;
// ONES_AT: where the column of ones stands in a record.
#include "fused_mlp.cuh"
#include "advantage.cuh"

constexpr int HIDDEN1_AT = FEATURE_TILES * 16;
constexpr int HIDDEN2_AT = HIDDEN1_AT + TILES1 * 16;
constexpr int DELTA1_AT = HIDDEN2_AT + TILES2 * 16;
constexpr int DELTA2_AT = DELTA1_AT + TILES1 * 16;
constexpr int DELTA_OUT_AT = DELTA2_AT + TILES2 * 16;
constexpr int RECORD = DELTA_OUT_AT + OUTPUT_TILES * 16;
constexpr int SHARED_PITCH = RECORD + 16 / (int)sizeof(Element);  // rows begin in different banks
constexpr int PITCH = ACCUMULATES ? SHARED_PITCH : RECORD;
constexpr int LAST_AT = TILES2 > 0 ? HIDDEN2_AT : HIDDEN1_AT;

// Blocks of 16 x 16 of the weights' gradient, each the product of 16 columns of deltas and 16 of what they go with.
constexpr int BLOCKS1 = TILES1 * FEATURE_TILES;
constexpr int BLOCKS2 = TILES2 * TILES1;
constexpr int BLOCKS3 = OUTPUT_TILES * LAST_TILES;
constexpr int BLOCKS_OF_BIASES = TILES2 + OUTPUT_TILES;  // those of the first layer come with its weights
constexpr int NUM_BLOCKS = BLOCKS1 + BLOCKS2 + BLOCKS3 + BLOCKS_OF_BIASES;
constexpr int BLOCKS_A_WARP = ACCUMULATES ? (NUM_BLOCKS + WARPS - 1) / WARPS : 1;
constexpr int NUM_FIGURES = 5;
constexpr int KEPT2 = TILES2 > 0 ? TILES2 : 1;  // an array of none is no array

// The columns of the record that block `i` is the product of.
__device__ __forceinline__ void columns_of(int i, int& delta, int& input)
{
    if (i < BLOCKS1) {
        delta = DELTA1_AT + i / FEATURE_TILES * 16;
        input = i % FEATURE_TILES * 16;
        return;
    }
    i -= BLOCKS1;
    if (i < BLOCKS2) {
        delta = DELTA2_AT + i / TILES1 * 16;
        input = HIDDEN1_AT + i % TILES1 * 16;
        return;
    }
    i -= BLOCKS2;
    if (i < BLOCKS3) {
        delta = DELTA_OUT_AT + i / LAST_TILES * 16;
        input = LAST_AT + i % LAST_TILES * 16;
        return;
    }
    delta = DELTA2_AT + (i - BLOCKS3) * 16;  // deltas 2, then those of the outputs
    input = ONES_AT / 16 * 16;
}

__device__ __forceinline__ float slope(float activated)
{
    if (IS_TANH) return 1.0f - activated * activated;
    return activated > 0.0f ? 1.0f : 0.0f;
}

// delta[n] of a layer from that of the next: delta W of the next, times the slope of what this layer gave.
template <int TILES, int NEXT_TILES, bool IN_SHARED>
__device__ __forceinline__ void backward(
    Pair (&delta)[TILES][4], const Pair (&hidden)[TILES][4], const Pair (&next)[NEXT_TILES][4], const Element* weights)
{
    constexpr int AT_ONCE = TILES % 2 == 0 ? 2 : 1;
#pragma unroll
    for (int n = 0; n < TILES; n += AT_ONCE) {
        float sum[2 * AT_ONCE][4];
#pragma unroll
        for (int i = 0; i < 2 * AT_ONCE; ++i) sum[i][0] = sum[i][1] = sum[i][2] = sum[i][3] = 0.0f;
#pragma unroll
        for (int k = 0; k < NEXT_TILES; ++k) {
#pragma unroll
            for (int s = 0; s < AT_ONCE; ++s) {
                Pair b[4];
                load_weights<true, IN_SHARED>(b, weights, 2 * k, 2 * (n + s), TILES * 2);
                multiply(sum[2 * s], next[k], b[0], b[1]);
                multiply(sum[2 * s + 1], next[k], b[2], b[3]);
            }
        }
#pragma unroll
        for (int s = 0; s < AT_ONCE; ++s) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const FloatPair was = unpack(hidden[n + s][i]);
                const float* two = &sum[2 * s + i / 2][2 * (i % 2)];
                delta[n + s][i] = packed(two[0] * slope(was.low), two[1] * slope(was.high));
            }
        }
    }
}

// What a sample brings besides its features.
struct Sample {
    float old_log_prob, old_value, advantage, target;
    float share;  // of the loss: 1 / how many count, or 0
    const int* action;
    const bool* mask;
};

// The loss of one sample and its derivative by each output, which takes the outputs' place.
//   output   [NUM_ALL] in shared memory, then zeros up to the pitch
//   turn     0 or 1: two lanes share a sample, and take every other head
//   figures  added to, by the first of the two: policy loss, value loss, entropy, KL divergence, clipped
// Returns the loss, in both lanes.
__device__ __forceinline__ float differentiate(
    float* output, const Sample& sample, int turn, float entropy_coeff, float vf_loss_coeff, float clip,
    float (&figures)[NUM_FIGURES])
{
    float loss = 0.0f;
    if (NUM_OUTPUTS > 0) {
        float log_prob = 0.0f;
        float entropy = 0.0f;
        int start = 0;
        for (int head = 0; head < NUM_HEADS; ++head) {  // log-probabilities take the logits' place
            const int size = HEAD_SIZES[head];
            if (head % 2 == turn) {
                float* logit = output + start;
                const bool* allowed = HAS_MASK ? sample.mask + start : nullptr;
                float largest = -INFINITY;
                for (int i = 0; i < size; ++i) {
                    if (!HAS_MASK || allowed[i]) largest = fmaxf(largest, logit[i]);
                }
                float sum = 0.0f;
                for (int i = 0; i < size; ++i) {
                    if (!HAS_MASK || allowed[i]) sum += quick_exp(logit[i] - largest);
                }
                const float log_sum = largest + quick_log(sum);
                float head_entropy = 0.0f;
                for (int i = 0; i < size; ++i) {
                    if (HAS_MASK && !allowed[i]) continue;
                    const float log_of_one = logit[i] - log_sum;
                    head_entropy -= quick_exp(log_of_one) * log_of_one;
                    logit[i] = log_of_one;
                }
                const int taken = sample.action[head];
                if (!HAS_MASK || allowed[taken]) log_prob += logit[taken];
                entropy += head_entropy;
            }
            start += size;
        }
        log_prob += __shfl_xor_sync(ALL_LANES, log_prob, 16);
        const float whole_entropy = entropy + __shfl_xor_sync(ALL_LANES, entropy, 16);
        float policy_loss, by_log_prob;
        float kl = 0.0f;
        float is_clipped = 0.0f;
        if (IS_PPO) {
            const float log_ratio = log_prob - sample.old_log_prob;
            const float ratio = quick_exp(log_ratio);
            const float clipped = fminf(fmaxf(ratio, 1.0f - clip), 1.0f + clip);
            const float free_gain = ratio * sample.advantage;
            const float clipped_gain = clipped * sample.advantage;
            policy_loss = -fminf(free_gain, clipped_gain);
            by_log_prob = free_gain <= clipped_gain ? -free_gain : 0.0f;
            kl = ratio - 1.0f - log_ratio;
            is_clipped = fabsf(ratio - 1.0f) > clip ? 1.0f : 0.0f;
        } else {
            policy_loss = -log_prob * sample.advantage;
            by_log_prob = -sample.advantage;
        }
        loss += policy_loss - entropy_coeff * whole_entropy;
        figures[0] += policy_loss * sample.share;
        figures[2] += whole_entropy * sample.share;
        figures[3] += kl * sample.share;
        figures[4] += is_clipped * sample.share;
        start = 0;
        for (int head = 0; head < NUM_HEADS; ++head) {
            const int size = HEAD_SIZES[head];
            if (head % 2 == turn) {
                float* log_probs = output + start;
                const bool* allowed = HAS_MASK ? sample.mask + start : nullptr;
                float head_entropy = 0.0f;
                for (int i = 0; i < size; ++i) {
                    if (!HAS_MASK || allowed[i]) head_entropy -= quick_exp(log_probs[i]) * log_probs[i];
                }
                const int taken = sample.action[head];
                for (int i = 0; i < size; ++i) {
                    float derivative = 0.0f;
                    if (!HAS_MASK || allowed[i]) {
                        const float probability = quick_exp(log_probs[i]);
                        derivative = by_log_prob * ((i == taken ? 1.0f : 0.0f) - probability)
                                     + entropy_coeff * probability * (log_probs[i] + head_entropy);
                    }
                    log_probs[i] = sample.share != 0.0f ? derivative * sample.share : 0.0f;
                }
            }
            start += size;
        }
    }
    if (HAS_VALUE) {
        const float value = output[NUM_OUTPUTS];
        const auto error = [](float found, float target, float& by_found) {
            const float off = found - target;
            if (!IS_PPO) {
                by_found = 2.0f * off;
                return off * off;
            }
            if (HUBER_DELTA > 0.0f && fabsf(off) > HUBER_DELTA) {
                by_found = off > 0.0f ? HUBER_DELTA : -HUBER_DELTA;
                return HUBER_DELTA * (fabsf(off) - 0.5f * HUBER_DELTA);
            }
            by_found = off;
            return 0.5f * off * off;
        };
        float by_value;
        float value_loss = error(value, sample.target, by_value);
        if (IS_PPO && CLIPS_VALUE) {
            const float moved = fminf(fmaxf(value - sample.old_value, -clip), clip);
            float by_clipped;
            const float clipped_loss = error(sample.old_value + moved, sample.target, by_clipped);
            if (clipped_loss > value_loss) {
                value_loss = clipped_loss;
                by_value = fabsf(value - sample.old_value) <= clip ? by_clipped : 0.0f;
            }
        }
        loss += vf_loss_coeff * value_loss;
        figures[1] += value_loss * sample.share;
        __syncwarp();  // both lanes have read the value
        if (turn == 0) output[NUM_OUTPUTS] = sample.share != 0.0f ? vf_loss_coeff * by_value * sample.share : 0.0f;
    }
    if (turn == 0) {
        for (int i = NUM_ALL; i < OUTPUT_TILES * 16; ++i) output[i] = 0.0f;
    }
    return loss;
}

//   observation    [step, env, column, feature]                                                   read
//   order          [num_rows..] the samples of the minibatch, if it HAS_ORDER                     read
//   weights, biases, mean, variance  as in fused_act.cu                                           read
//   action         [step, env, column, head]                                                      read
//   log_prob, value, advantage, target  [step, env, agent of the group]                           read
//   mask           [step, env, agent of the group, output]                                        read
//   active         [step, env, agent of all]                                                      read
//   value_moments  [2]  mean and deviation of what the critic says                                read
//   sums           [NUM_SUMS, 3]  of advantage_sums over the minibatch                            read
//   coefficients   [3]  of the entropy, of the value loss, and the clip range                     read
//   gradient       [block of the grid, NUM_BLOCKS, 16, 16]                                        written if it ACCUMULATES
//   records        bytes of [row, RECORD] elements                                                written otherwise
//   figures        [warp of the grid, NUM_FIGURES] sums                                           written
//   halted         [1]  not 0: nothing more is looked for                                         read
//   first_loss     [1]  the first sample whose loss is a NaN or an infinity                       read, written
//   first_row, num_rows  of the minibatch: which of its samples
extern "C" __global__ void __launch_bounds__(WARPS * 32) learn(
    const float* observation, const int* order, const unsigned char* weights, const float* biases, const float* mean,
    const float* variance, const int* action, const float* log_prob, const float* value, const float* advantage,
    const float* target, const bool* mask, const bool* active, const float* value_moments, const double* sums,
    const float* coefficients, const float* halted, float* gradient, unsigned char* records, float* figures,
    int* first_loss, long long first_row, int num_rows)
{
    extern __shared__ char shared[];
    Network network = place_network(shared, (const Element*)weights, biases);
    Element* records_of_block = (Element*)network.free;
    const int lane = lane_index();
    const int warp = threadIdx.x >> 5;
    const Advantage scale = read_advantage(sums);
    const float value_mean = value_moments[0];
    const float value_deviation = value_moments[1];
    const float entropy_coeff = coefficients[0];
    const float vf_loss_coeff = coefficients[1];
    const float clip = coefficients[2];
    float figure[NUM_FIGURES] = {};
    float sum[BLOCKS_A_WARP][2][4] = {};
    wait_for_copies();
    __syncthreads();

    for (int tile = blockIdx.x; (long long)tile * WARPS * 16 < num_rows; tile += gridDim.x) {
        const int first = (tile * WARPS + warp) * 16;
        const int row = first + (lane & 15);
        const bool is_row = row < num_rows;
        int index = 0;
        if (is_row) index = HAS_ORDER ? order[first_row + row] : (int)(first_row + row);
        const int env_step = index / GROUP_SIZE;  // number of the env's step
        const int agent = index % GROUP_SIZE;

        Sample sample = {};
        sample.share = is_row ? scale.share : 0.0f;
        if (HAS_ACTIVE && is_row && !active[(long long)env_step * ALL_AGENTS + FIRST_AGENT + agent]) sample.share = 0.0f;
        sample.action = action + ((long long)env_step * NUM_COLUMNS + FIRST_COLUMN + agent) * NUM_HEADS;
        sample.mask = HAS_MASK ? mask + (long long)index * NUM_OUTPUTS : nullptr;
        if (NUM_OUTPUTS > 0) {
            sample.old_log_prob = log_prob[index];
            sample.advantage = (advantage[index] - scale.mean) / scale.deviation;
        }
        if (HAS_VALUE) {
            sample.old_value = value[index];
            sample.target = (target[index] - value_mean) / value_deviation;
        }
        const long long seen = (long long)env_step * SEEN_COLUMNS + FIRST_SEEN + agent;
        const float* place = is_row ? observation + seen * NUM_FEATURES : nullptr;
        const int g = lane >> 2;
        Rows rows;
        rows.upper[0] = (const float*)__shfl_sync(ALL_LANES, (unsigned long long)place, g);
        rows.lower[0] = (const float*)__shfl_sync(ALL_LANES, (unsigned long long)place, g + 8);

        Element* record = nullptr;  // of row g
        Element* record_8 = nullptr;
        if (ACCUMULATES) {
            record = records_of_block + (warp * 16 + g) * PITCH;
            record_8 = record + 8 * PITCH;
        } else {
            if (first + g < num_rows) record = (Element*)records + (long long)(first + g) * PITCH;
            if (first + g + 8 < num_rows) record_8 = (Element*)records + (long long)(first + g + 8) * PITCH;
        }
        const auto at = [](Element* start, int column) { return start ? start + column : start; };
        Pair hidden1[TILES1][4];
        Pair hidden2[KEPT2][4];
        if (!FEATURES_IN_REGISTERS) {
            for (int k = 0; k < FEATURE_TILES; k += 2) {
                Pair two[2][4] = {};
                load_features(two[0], rows, 0, k, mean, variance);
                if (k + 1 < FEATURE_TILES) {
                    load_features(two[1], rows, 0, k + 1, mean, variance);
                    store_tiles<2>(at(record, 16 * k), at(record_8, 16 * k), two);
                } else {
                    const Pair one[1][4] = {{two[0][0], two[0][1], two[0][2], two[0][3]}};
                    store_tiles<1>(at(record, 16 * k), at(record_8, 16 * k), one);
                }
            }
        }
        forward<KEPT2>(
            network, rows, mean, variance,
            [&](Pair(&tiles)[1][FEATURE_TILES][4]) { store_tiles<FEATURE_TILES>(record, record_8, tiles[0]); },
            [&](int n, Pair(&tiles)[1][4]) {
#pragma unroll
                for (int i = 0; i < 4; ++i) hidden1[n][i] = tiles[0][i];
            },
            [&](int n, Pair(&tiles)[1][4]) {
#pragma unroll
                for (int i = 0; i < 4; ++i) hidden2[n][i] = tiles[0][i];
            });
        store_tiles<TILES1>(at(record, HIDDEN1_AT), at(record_8, HIDDEN1_AT), hidden1);
        if constexpr (TILES2 > 0) store_tiles<KEPT2>(at(record, HIDDEN2_AT), at(record_8, HIDDEN2_AT), hidden2);

        float* output = network.stage + (lane & 15) * STAGE_PITCH;
        const float loss =
            differentiate(output, sample, lane >> 4, entropy_coeff, vf_loss_coeff, clip, figure);
        if (sample.share != 0.0f && !isfinite(loss) && halted[0] == 0.0f) atomicMin(first_loss, index);
        __syncwarp();
        Pair delta_out[OUTPUT_TILES][4];
#pragma unroll
        for (int k = 0; k < OUTPUT_TILES; ++k) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float* two = network.stage + (g + 8 * (i % 2)) * STAGE_PITCH + 16 * k + 8 * (i / 2) + 2 * (lane & 3);
                delta_out[k][i] = packed(two[0], two[1]);
            }
        }
        store_tiles<OUTPUT_TILES>(at(record, DELTA_OUT_AT), at(record_8, DELTA_OUT_AT), delta_out);
        if constexpr (TILES2 > 0) {
            Pair delta2[KEPT2][4];
            backward<KEPT2, OUTPUT_TILES, SHARED3>(delta2, hidden2, delta_out, network.weight3);
            store_tiles<KEPT2>(at(record, DELTA2_AT), at(record_8, DELTA2_AT), delta2);
            Pair delta1[TILES1][4];
            backward<TILES1, KEPT2, SHARED2>(delta1, hidden1, delta2, network.weight2);
            store_tiles<TILES1>(at(record, DELTA1_AT), at(record_8, DELTA1_AT), delta1);
        } else {
            Pair delta1[TILES1][4];
            backward<TILES1, OUTPUT_TILES, SHARED3>(delta1, hidden1, delta_out, network.weight3);
            store_tiles<TILES1>(at(record, DELTA1_AT), at(record_8, DELTA1_AT), delta1);
        }

        if (ACCUMULATES) {
            __syncthreads();
#pragma unroll
            for (int i = 0; i < BLOCKS_A_WARP; ++i) {
                const int number = warp + i * WARPS;
                if (number < NUM_BLOCKS) {
                    int delta, input;
                    columns_of(number, delta, input);
#pragma unroll
                    for (int k = 0; k < WARPS; ++k) {
                        Pair a[4], b[4];
                        load_columns<true>(a, records_of_block + k * 16 * PITCH, PITCH, delta);
                        load_columns<false>(b, records_of_block + k * 16 * PITCH, PITCH, input);
                        multiply(sum[i][0], a, b[0], b[1]);
                        multiply(sum[i][1], a, b[2], b[3]);
                    }
                }
            }
            __syncthreads();
        }
    }

    if (ACCUMULATES) {
        for (int i = 0; i < BLOCKS_A_WARP; ++i) {
            const int number = warp + i * WARPS;
            if (number >= NUM_BLOCKS) break;
            float* out = gradient + ((long long)blockIdx.x * NUM_BLOCKS + number) * 256;
            const int place = (lane >> 2) * 16 + 2 * (lane & 3);
            for (int half = 0; half < 2; ++half) {
                *(FloatPair*)(out + place + 8 * half) = {sum[i][half][0], sum[i][half][1]};
                *(FloatPair*)(out + place + 128 + 8 * half) = {sum[i][half][2], sum[i][half][3]};
            }
        }
    }
    for (int i = 0; i < NUM_FIGURES; ++i) {
        float whole = lane < 16 ? figure[i] : 0.0f;
        for (int flip = 8; flip > 0; flip /= 2) whole += __shfl_xor_sync(ALL_LANES, whole, flip);
        if (lane == 0) figures[(blockIdx.x * WARPS + warp) * NUM_FIGURES + i] = whole;
    }
}
