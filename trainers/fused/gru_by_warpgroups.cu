// The kernels gru_forward and gru_backward of gru.cu for so many sequences that whole warpgroups have 64 each.
//
// A warp walks through the steps of 16 sequences alone: it has all their units, so that states and deltas go from what a
// product gave to what the next one takes within its registers, and nobody waits for anybody. Weights are in shared
// memory. What a lane has of 32 units of a row are 8 neighbours, 16 bytes, as those of a record do lie; weights stand in
// shared memory in the order of what lanes hold.
//
// Constants, besides those of by_warpgroups.cuh:
//   UNITS    of the cell; its input has as many columns
//   WALKERS  warps of a block
#include "layers/gru_of_warp.cuh"

// Every step of some sequences, as in gru.cu.
//   weights, input_weights   as gru_pack.cu has them, forwards                                   read
//   bias_input, bias_hidden  [3 UNITS]  of gates n, r, z; and r, z, n                            read
//   memory   [sequence of the rollout, step_rows, memory_size]  before its first step            read
//   order    [step, row]  numbers of the samples among [step of the rollout, step_rows]          read
//   starts   [step, row]  whether nothing is remembered in this step                             read
//   input    [step, row, UNITS]                                                                  read
//   gates    [step, row, 4 UNITS]  n, r, z, q                                                    written
//   hidden   [step + 1, row, UNITS]  before each step, and after the last                        written
//   num_rows, num_steps
//   step_rows                agents of the group in all envs
//   memory_size, cell_start  units of all cells of the policy, and the first that is this one's
extern "C" __global__ void __launch_bounds__(WALK_THREADS, 1) gru_forward(
    const unsigned char* weights, const float* bias_input, const float* bias_hidden, const float* memory,
    const int* order, const bool* starts, const unsigned char* input, const unsigned char* input_weights,
    unsigned char* gates, unsigned char* hidden, int num_rows, int num_steps, int step_rows, int memory_size,
    int cell_start)
{
    extern __shared__ char shared[];
    Element* of_state = (Element*)shared;      // gates q, r, z
    Element* of_input = of_state + WEIGHTS;    // gates r, z, n
    Eight* inputs = (Eight*)(of_input + WEIGHTS) + threadIdx.x;  // [2 CHUNKS][thread]
    float* biases = (float*)((Eight*)(of_input + WEIGHTS) + 2 * CHUNKS * WALK_THREADS);  // [q, r, z, n][UNITS]
    spread_forwards(of_state, weights, 2);
    spread_forwards(of_input, input_weights, 0);
    for (int i = threadIdx.x; i < UNITS; i += WALK_THREADS) {
        biases[logical(i)] = bias_hidden[2 * UNITS + i];
        biases[UNITS + logical(i)] = bias_input[UNITS + i] + bias_hidden[i];
        biases[2 * UNITS + logical(i)] = bias_input[2 * UNITS + i] + bias_hidden[UNITS + i];
        biases[3 * UNITS + logical(i)] = bias_input[i];
    }
    show_to_products();
    __syncthreads();
    const Factor<OF_UNITS> by_state(of_state), by_input(of_input);
    Element* all_gates = (Element*)gates;
    Element* all_hidden = (Element*)hidden;
    const int t = lane_index() & 3;
    const Element* all_inputs = (const Element*)input + 8 * t;
    for (int number = first_group(); number * 64 < num_rows; number += num_groups()) {
        const Sequences rows(number, num_rows);
        const auto fetch_inputs = [&](int step) {
#pragma unroll
            for (int i = 0; i < 2 * CHUNKS; ++i) {
                const Element* from = all_inputs + rows.place(min(step, num_steps - 1), i % 2) * UNITS + i / 2 * 32;
                start_eight(inputs + i * WALK_THREADS, from);
            }
            close_copies();
        };
        const auto is_start = [&](int step, int half) {
            return step < num_steps ? rows.starts(starts, step, half) : 0u;
        };
        fetch_inputs(0);
        float state[CHUNKS][4][4];  // 32 units: of 4 blocks of columns, what a product gives of them
        Pair tiles[TILES][4];       // the same as the next product takes it
        const auto round_states = [&] {
#pragma unroll
            for (int i = 0; i < 4 * TILES; ++i) {
                const float* two = &state[i / 8][i / 4 % 2 * 2 + i % 4 / 2][i % 2 * 2];
                tiles[i / 4][i % 4] = packed(two[0], two[1]);
            }
        };
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int index = order[rows.has[half] ? rows.first + 8 * half : num_rows - 1];
            const long long from = (long long)(index / step_rows / num_steps) * step_rows + index % step_rows;
            const bool begins = is_start(0, half) > 0;
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c) {
                const float* place = memory + from * memory_size + cell_start + 32 * c + 8 * t;
#pragma unroll
                for (int i = 0; i < 8; ++i) state[c][i / 2][2 * half + i % 2] = begins ? 0.0f : place[i];
            }
        }
        round_states();
#pragma unroll
        for (int i = 0; i < 2 * CHUNKS; ++i) {
            const int c = i / 2, half = i % 2;
            const Eight before = {
                {tiles[2 * c][half], tiles[2 * c][2 + half], tiles[2 * c + 1][half], tiles[2 * c + 1][2 + half]}};
            if (rows.has[half]) eight_at(all_hidden + rows.place(0, half) * UNITS + 32 * c + 8 * t) = before;
        }
        unsigned next[2] = {is_start(1, 0), is_start(1, 1)};
#pragma unroll 1
        for (int step = 0; step < num_steps; ++step) {
            Pair given[TILES][4];
            wait_for_groups<0>();
#pragma unroll
            for (int i = 0; i < 2 * CHUNKS; ++i) {
                const Eight found = inputs[i * WALK_THREADS];
#pragma unroll
                for (int k = 0; k < 4; ++k) given[i / 2 * 2 + k / 2][k % 2 * 2 + i % 2] = found.pair[k];
            }
            settle_input(given);
            fetch_inputs(step + 1);
            const bool forgets[2] = {next[0] > 0, next[1] > 0};
            next[0] = is_start(step + 2, 0);
            next[1] = is_start(step + 2, 1);
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c) {
                float sum[BLOCKS][4];  // gates q, r, z, n of 32 units
#pragma unroll
                for (int i = 0; i < BLOCKS; ++i) {
                    const FloatPair two = *(const FloatPair*)(biases + i / 4 * UNITS + 32 * c + i % 4 * 8 + 2 * t);
                    sum[i][0] = sum[i][2] = two.low;
                    sum[i][1] = sum[i][3] = two.high;
                }
                settle(sum);
                begin_products();
#pragma unroll
                for (int k = 0; k < TILES; ++k) {
                    const int at = c * 12 * OF_UNITS + 2 * k * ALONG;
                    by_state.add<false, 0, 4>(sum, tiles[k], at);
                    by_state.add<false, 4, 4>(sum, tiles[k], at + 4 * OF_UNITS);
                    by_state.add<false, 8, 4>(sum, tiles[k], at + 8 * OF_UNITS);
                }
#pragma unroll
                for (int k = 0; k < TILES; ++k) {
                    const int at = c * 12 * OF_UNITS + 2 * k * ALONG;
                    by_input.add<false, 4, 4>(sum, given[k], at);
                    by_input.add<false, 8, 4>(sum, given[k], at + 4 * OF_UNITS);
                    by_input.add<false, 12, 4>(sum, given[k], at + 8 * OF_UNITS);
                }
                end_products();
                wait_for_products<0>();
                settle(sum);
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    Eight n, r, z, q, after;
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        float found[2][5];
#pragma unroll
                        for (int j = 0; j < 2; ++j) {
                            const int at = 2 * half + j;
                            const float of_q = sum[i][at], of_r = sigmoid(sum[4 + i][at]), of_z = sigmoid(sum[8 + i][at]);
                            const float of_n = quick_tanh(sum[12 + i][at] + of_r * of_q);
                            const float is = of_n + of_z * (state[c][i][at] - of_n);
                            state[c][i][at] = forgets[half] ? 0.0f : is;
                            found[j][0] = of_n, found[j][1] = of_r, found[j][2] = of_z, found[j][3] = of_q;
                            found[j][4] = is;
                        }
                        n.pair[i] = packed(found[0][0], found[1][0]);
                        r.pair[i] = packed(found[0][1], found[1][1]);
                        z.pair[i] = packed(found[0][2], found[1][2]);
                        q.pair[i] = packed(found[0][3], found[1][3]);
                        after.pair[i] = packed(found[0][4], found[1][4]);
                    }
                    if (!rows.has[half]) continue;
                    const long long place = rows.place(step, half);
                    Element* to = all_gates + place * (4 * UNITS) + 32 * c + 8 * t;
                    eight_at(to) = n;
                    eight_at(to + UNITS) = r;
                    eight_at(to + 2 * UNITS) = z;
                    eight_at(to + 3 * UNITS) = q;
                    eight_at(all_hidden + (place + num_rows) * UNITS + 32 * c + 8 * t) = after;
                }
            }
            round_states();
        }
        wait_for_groups<0>();
    }
}

// The way back, as in gru.cu, but for what goes to the input: see gru_by_input.cu.
//   weights   as gru_pack.cu has them, backwards                                                 read
//   starts    as above                                                                           read
//   delta     [step, row, UNITS]  the loss's derivatives by the states after each step, but for
//             what comes by later steps                                                          read
//   gates     [step, row, 4 UNITS]  as above; then the loss's derivatives by what goes into
//             n, r, z, and by q                                                                  read, written
//   hidden    [step + 1, row, UNITS]  as above; then 0 where a step remembered nothing           read, written
//   bias_gradient  [block, 5 UNITS]  the first four: sums of those derivatives                   written
//   num_rows, num_steps
extern "C" __global__ void __launch_bounds__(WALK_THREADS, 1) gru_backward(
    const unsigned char* weights, const bool* starts, const unsigned char* delta, unsigned char* gates,
    unsigned char* hidden, float* bias_gradient, int num_rows, int num_steps)
{
    constexpr int PIECES = 12;  // of a chunk: n, r, z, q, the state before, the loss's derivatives by that after
    extern __shared__ char shared[];
    Element* of_state = (Element*)shared;
    Eight* stage = (Eight*)(of_state + WEIGHTS) + threadIdx.x;  // [2][PIECES][thread]
    spread_backwards(of_state, weights, WALK_THREADS);
    show_to_products();
    __syncthreads();
    Element* all_gates = (Element*)gates;
    Element* all_hidden = (Element*)hidden;
    const Factor<OF_GATES> by_gates(of_state);
    const int t = lane_index() & 3;
    float by_bias[4][4] = {};  // sums of the deltas of n, r, z, q by units: a row of 8 of them for each 8 units
    for (int number = first_group(); number * 64 < num_rows; number += num_groups()) {
        const Sequences rows(number, num_rows);
        const auto fetch = [&](int step, int c) {
            Eight* to = stage + c % 2 * (PIECES * WALK_THREADS);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const long long place = rows.place(max(step, 0), half);
                const int unit = 32 * c + 8 * t;
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    start_eight(to + (2 * i + half) * WALK_THREADS, all_gates + place * (4 * UNITS) + i * UNITS + unit);
                }
                start_eight(to + (8 + half) * WALK_THREADS, all_hidden + place * UNITS + unit);
                start_eight(to + (10 + half) * WALK_THREADS, (const Element*)delta + place * UNITS + unit);
            }
            close_copies();
        };
        const float is_there[2] = {rows.has[0] ? 1.0f : 0.0f, rows.has[1] ? 1.0f : 0.0f};
        fetch(num_steps - 1, 0);
        fetch(num_steps - 1, 1);
        float carried[CHUNKS][4][4] = {};
        unsigned next[2] = {rows.starts(starts, num_steps - 1, 0), rows.starts(starts, num_steps - 1, 1)};
#pragma unroll 1
        for (int step = num_steps - 1; step >= 0; --step) {
            const float keeps[2] = {next[0] > 0 ? 0.0f : 1.0f, next[1] > 0 ? 0.0f : 1.0f};
            next[0] = rows.starts(starts, max(step - 1, 0), 0);
            next[1] = rows.starts(starts, max(step - 1, 0), 1);
            float sum[BLOCKS][4];
            Pair tiles[2][8][4];  // of n, r, z, q
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c) {
                wait_for_groups<1>();
                wait_for_products<1>();
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const auto piece = [&](int i) { return stage[(c % 2 * PIECES + 2 * i + half) * WALK_THREADS]; };
                    const Eight n = piece(0), r = piece(1), z = piece(2), q = piece(3), before = piece(4), own = piece(5);
                    const long long place = rows.place(step, half);
                    Eight by[4];
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        const FloatPair two_n = unpack(n.pair[i]), two_r = unpack(r.pair[i]), two_z = unpack(z.pair[i]);
                        const FloatPair two_q = unpack(q.pair[i]), two_before = unpack(before.pair[i]);
                        const FloatPair two_own = unpack(own.pair[i]);
                        float found[2][4];
#pragma unroll
                        for (int j = 0; j < 2; ++j) {
                            const auto one = [&](const FloatPair& two) { return j == 0 ? two.low : two.high; };
                            float& later = carried[c][i][2 * half + j];
                            const float of_n = one(two_n), of_r = one(two_r), of_z = one(two_z), of_q = one(two_q);
                            const float by_state = fmaf(one(two_own), is_there[half], later);
                            const float rest = 1.0f - of_z;
                            found[j][0] = by_state * rest * fmaf(-of_n, of_n, 1.0f);
                            found[j][1] = found[j][0] * of_q * fmaf(-of_r, of_r, of_r);
                            found[j][2] = by_state * fmaf(one(two_before), keeps[half], -of_n) * (of_z * rest);
                            found[j][3] = found[j][0] * of_r;
                            later = by_state * (of_z * keeps[half]);
                        }
#pragma unroll
                        for (int part = 0; part < 4; ++part) {
                            by[part].pair[i] = packed(found[0][part], found[1][part]);
                            tiles[c % 2][2 * part + i / 2][i % 2 * 2 + half] = by[part].pair[i];
                        }
                    }
                    if (!rows.has[half]) continue;
#pragma unroll
                    for (int part = 0; part < 4; ++part) {
                        eight_at(all_gates + place * (4 * UNITS) + part * UNITS + 32 * c + 8 * t) = by[part];
                    }
                    if (keeps[half] == 0.0f) eight_at(all_hidden + place * UNITS + 32 * c + 8 * t) = Eight{};
                }
                // Before this chunk's products, behind which they would wait.
#pragma unroll
                for (int i = 0; i < 8; ++i) add_columns(by_bias[i / 2], tiles[c % 2][i], 4 * c + i % 2 * 2);
                settle_input(tiles[c % 2]);
                fetch(c + 2 < CHUNKS ? step : step - 1, (c + 2) % CHUNKS);
                begin_products();
#pragma unroll
                for (int k = 0; k < 6; ++k) {
                    const int at = (k / 2 * UNITS / 8 + 4 * c + k % 2 * 2) * ALONG;
                    if (c + k == 0) {
                        by_gates.add<true, 0, BLOCKS>(sum, tiles[c % 2][2 + k], at);
                    } else {
                        by_gates.add<false, 0, BLOCKS>(sum, tiles[c % 2][2 + k], at);
                    }
                }
                end_products();
            }
            wait_for_products<0>();
            settle(sum);
#pragma unroll
            for (int i = 0; i < 4 * BLOCKS; ++i) {
                float& later = carried[i / 16][i / 4 % 4][i % 4];
                later = fmaf(sum[i / 4][i % 4], keeps[i / 2 % 2], later);
            }
        }
        wait_for_groups<0>();
    }
    __syncthreads();
    float* of_warp = (float*)shared;  // [warp][4 UNITS]
    const int unit = lane_index() / 16 * 32 + 8 * t + lane_index() / 4 % 4 * 2;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        const int at = unit + i % 4 / 2 * (UNITS / 2) + i % 2;
        of_warp[(threadIdx.x / 32 * 4 + i / 4) * UNITS + at] = by_bias[i / 4][i % 4];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 4 * UNITS; i += WALK_THREADS) {
        float all = 0.0f;
        for (int warp = 0; warp < WALKERS; ++warp) all += of_warp[warp * 4 * UNITS + i];
        bias_gradient[blockIdx.x * (5 * UNITS) + i] = all;
    }
}
