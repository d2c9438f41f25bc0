// The kernels gru_forward and gru_backward of gru.cu by products of warpgroups, where sequences are too few for
// gru_by_warpgroups.cu: units are rows of a product, and sequences its columns, 16 of a block.
//
// A warp has 16 units of all the block's sequences, and their recurrent weights in registers. In every step warps bring
// states, or deltas, to shared memory, where products read those of all warps: one barrier a step. Rows come and go by
// bulk copies, which four more warps start, and are turned around on their way to and from the registers.
//
// Constants:
//   FULL_PRECISION  of elements: false
//   UNITS           of the cell; its input has as many columns
#include "layers/gru_turned.cuh"

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
extern "C" __global__ void __launch_bounds__(THREADS, 1) gru_forward(
    const unsigned char* weights, const float* bias_input, const float* bias_hidden, const float* memory,
    const int* order, const bool* starts, const unsigned char* input, const unsigned char* input_weights,
    unsigned char* gates, unsigned char* hidden, int num_rows, int num_steps, int step_rows, int memory_size,
    int cell_start)
{
    extern __shared__ char shared[];
    Element* of_input = (Element*)shared;             // gates r, z, n; as A
    Element* states = of_input + WEIGHTS;             // [2], as B
    Element* inputs = states + 2 * OF_UNITS;          // [2], as B
    Element* made = inputs + 2 * OF_UNITS;            // [2]: gates n, r, z, q of each row, then its state
    Element* all_gates = (Element*)gates;
    Element* all_hidden = (Element*)hidden;
    place_input_weights(of_input, input_weights);
    show_to_products();
    if (carrier() >= 0) {
        leave_registers();
        for (int number = blockIdx.x; number * ROWS < num_rows; number += gridDim.x) {
            const Sequences rows(number, num_rows);
            __syncthreads();
            if (carrier() == 0) store_rows(rows, 0, all_hidden, UNITS, made + MADE + 4 * UNITS, MADE_PITCH);
            for (int step = 0; step < num_steps; ++step) {
                wait_for_stored_rows();  // of the step before: the next one is made there
                __syncthreads();
                const Element* from = made + step % 2 * MADE;
                if (carrier() == 0) store_rows(rows, step + 1, all_hidden, UNITS, from + 4 * UNITS, MADE_PITCH);
                if (carrier() == 1) store_rows(rows, step, all_gates, 4 * UNITS, from, MADE_PITCH);
            }
            wait_for_stored_rows();
            __syncthreads();
        }
        return;
    }
    take_registers();
    Pair by_state[3 * TILES][4];  // gates r, z, q of a tile, one after the other
    load_weights_of_warp(by_state, weights);
    const InputWeights by_input(of_input);
    float bias[4][2];  // r, z, q, n of this lane's units
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int unit = unit_of_lane(half);
        bias[0][half] = bias_input[UNITS + unit] + bias_hidden[unit];
        bias[1][half] = bias_input[2 * UNITS + unit] + bias_hidden[UNITS + unit];
        bias[2][half] = bias_hidden[2 * UNITS + unit];
        bias[3][half] = bias_input[unit];
    }
    for (int number = blockIdx.x; number * ROWS < num_rows; number += gridDim.x) {
        const Sequences rows(number, num_rows);
        const auto fetch_inputs = [&](int step) {
            Element* to = inputs + step % 2 * OF_UNITS;
            for (int i = threadIdx.x; i < ROWS * UNITS / 8; i += COMPUTING) {
                const int row = i / (UNITS / 8), piece = i % (UNITS / 8);
                const Element* from = (const Element*)input + rows.place(min(step, num_steps - 1), row) * UNITS;
                start_copy((Bytes16*)place_in_b<UNITS>(to, row, 8 * piece), (const Bytes16*)from + piece);
            }
            close_copies();
        };
        fetch_inputs(0);
        float state[COLUMNS][4];
        Pair turned[COLUMNS][2];
        for_each_column([&](int j, int i) {
            const int row = 8 * j + 2 * (lane_index() & 3) + i;
            const int index = order[rows.first + min(row, num_rows - 1 - rows.first)];
            const long long from = (long long)(index / step_rows / num_steps) * step_rows + index % step_rows;
            const bool begins = rows.starts(starts, 0, row);
            const float* place = memory + from * memory_size + cell_start;
            state[j][i] = begins ? 0.0f : place[unit_of_lane(0)];
            state[j][2 + i] = begins ? 0.0f : place[unit_of_lane(1)];
        });
        round_to(turned, state);
        const auto put_made = [&](int which, int part, const Pair (&pairs)[COLUMNS][2]) {
            Element* to = made + which * MADE + warp_unit() + part * UNITS;
            store_turned(pairs, [&](int row, int half) { return to + row * MADE_PITCH + 8 * half; });
        };
        const auto put_state = [&](int which) {
            Element* to = states + which * OF_UNITS;
            store_turned(turned, [&](int row, int half) { return place_in_b<UNITS>(to, row, warp_unit() + 8 * half); });
        };
        put_state(0);
        put_made(1, 4, turned);
        unsigned next[COLUMNS][2];
        for_each_column([&](int j, int i) { next[j][i] = rows.starts_of_lane(starts, min(1, num_steps - 1), j, i); });
        wait_for_groups<0>();
        show_to_products();
        __syncthreads();
#pragma unroll 1
        for (int step = 0; step < num_steps; ++step) {
            const int which = step % 2;
            fetch_inputs(step + 1);
            bool forgets[COLUMNS][2];
            for_each_column([&](int j, int i) {
                forgets[j][i] = step + 1 < num_steps && next[j][i] > 0;
                next[j][i] = rows.starts_of_lane(starts, min(step + 2, num_steps - 1), j, i);
            });
            float sum[4][COLUMNS][4];  // gates r, z, q, n
#pragma unroll
            for (int gate = 0; gate < 4; ++gate) {
#pragma unroll
                for (int j = 0; j < COLUMNS; ++j) {
                    sum[gate][j][0] = sum[gate][j][1] = bias[gate][0];
                    sum[gate][j][2] = sum[gate][j][3] = bias[gate][1];
                }
                settle(sum[gate]);
            }
            begin_products();
#pragma unroll
            for (int k = 0; k < TILES; ++k) {
                const Element* of_inputs = inputs + which * OF_UNITS + k * 2 * BLOCK;
                by_input.add(sum[0], 0, k, of_inputs);
                by_input.add(sum[1], 1, k, of_inputs);
                by_input.add(sum[3], 2, k, of_inputs);
            }
#pragma unroll
            for (int k = 0; k < TILES; ++k) {
#pragma unroll
                for (int gate = 0; gate < 3; ++gate) {
                    add<UNITS>(sum[gate], by_state[3 * k + gate], states + which * OF_UNITS + k * 2 * BLOCK);
                }
            }
            end_products();
            wait_for_products<0>();
            Pair made_n[COLUMNS][2], made_r[COLUMNS][2], made_z[COLUMNS][2], made_q[COLUMNS][2], after[COLUMNS][2];
#pragma unroll
            for (int gate = 0; gate < 4; ++gate) settle(sum[gate]);
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    float found[2][5];
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        const int at = 2 * half + i;
                        const float of_r = sigmoid(sum[0][j][at]), of_z = sigmoid(sum[1][j][at]), of_q = sum[2][j][at];
                        const float of_n = quick_tanh(sum[3][j][at] + of_r * of_q);
                        const float is = of_n + of_z * (state[j][at] - of_n);
                        state[j][at] = forgets[j][i] ? 0.0f : is;
                        found[i][0] = of_n, found[i][1] = of_r, found[i][2] = of_z, found[i][3] = of_q;
                        found[i][4] = is;
                    }
                    made_n[j][half] = packed(found[0][0], found[1][0]);
                    made_r[j][half] = packed(found[0][1], found[1][1]);
                    made_z[j][half] = packed(found[0][2], found[1][2]);
                    made_q[j][half] = packed(found[0][3], found[1][3]);
                    after[j][half] = packed(found[0][4], found[1][4]);
                }
            }
            round_to(turned, state);
            put_state(1 - which);
            put_made(which, 0, made_n);
            put_made(which, 1, made_r);
            put_made(which, 2, made_z);
            put_made(which, 3, made_q);
            put_made(which, 4, after);
            wait_for_groups<0>();
            show_to_products();
            __syncthreads();
        }
        __syncthreads();
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
extern "C" __global__ void __launch_bounds__(THREADS, 1) gru_backward(
    const unsigned char* weights, const bool* starts, const unsigned char* delta, unsigned char* gates,
    unsigned char* hidden, float* bias_gradient, int num_rows, int num_steps)
{
    extern __shared__ char shared[];
    unsigned long long* arrivals = (unsigned long long*)shared;  // a stage's
    Element* deltas = (Element*)(shared + 128);                  // [2] of gates r, z, q, as B
    Element* stages = deltas + 2 * 3 * OF_UNITS;  // [STAGES]: of each row n, r, z, q, the state before, the own delta
    if (threadIdx.x < STAGES) prepare_arrivals(arrivals + threadIdx.x);
    Element* all_gates = (Element*)gates;
    Element* all_hidden = (Element*)hidden;
    const auto stage_of = [&](int round) { return stages + round % STAGES * STAGE; };
    int filled = 0;  // stages so far
    __syncthreads();
    if (carrier() >= 0) {
        leave_registers();
        for (int number = blockIdx.x; number * ROWS < num_rows; number += gridDim.x) {
            const Sequences rows(number, num_rows);
            const auto fill = [&](int round, int step) {
                if (step < 0) return;
                Element* to = stage_of(round);
                unsigned long long* arrival = arrivals + round % STAGES;
                if (carrier() == 1) expect_rows(arrival, ROWS * 6 * UNITS);
                if (carrier() == 1) bring_rows(rows, step, all_gates, 4 * UNITS, to, arrival);
                if (carrier() == 2) bring_rows(rows, step, all_hidden, UNITS, to + 4 * UNITS, arrival);
                if (carrier() == 3) bring_rows(rows, step, (const Element*)delta, UNITS, to + 5 * UNITS, arrival);
            };
            for (int i = 0; i + 1 < STAGES; ++i) fill(filled + i, num_steps - 1 - i);
            __syncthreads();
            for (int step = num_steps - 1; step >= 0; --step, ++filled) {
                wait_for_stored_rows();  // of the step before: there is room for another
                __syncthreads();
                if (carrier() == 0) store_rows(rows, step, all_gates, 4 * UNITS, stage_of(filled), STAGE_PITCH);
                fill(filled + STAGES - 1, step - (STAGES - 1));
                if (carrier() == 2) forget_rows(rows, step, starts, all_hidden);
            }
            wait_for_stored_rows();
            __syncthreads();
        }
        return;
    }
    take_registers();
    Pair by_gates[3 * TILES][4];
    load_weights_of_warp(by_gates, weights);
    float of_bias[4][2] = {};  // sums of the deltas of n, r, z, q
    for (int number = blockIdx.x; number * ROWS < num_rows; number += gridDim.x) {
        const Sequences rows(number, num_rows);
        __syncthreads();
        float carried[COLUMNS][4] = {};
        unsigned next[COLUMNS][2];
        for_each_column([&](int j, int i) { next[j][i] = rows.starts_of_lane(starts, num_steps - 1, j, i); });
#pragma unroll 1
        for (int step = num_steps - 1; step >= 0; --step, ++filled) {
            Element* stage = stage_of(filled);
            Element* to_products = deltas + filled % 2 * (3 * OF_UNITS);
            float keeps[COLUMNS][2], is_there[COLUMNS][2];
            for_each_column([&](int j, int i) {
                keeps[j][i] = next[j][i] > 0 ? 0.0f : 1.0f;
                is_there[j][i] = rows.has_of_lane(j, i) ? 1.0f : 0.0f;
                next[j][i] = rows.starts_of_lane(starts, max(step - 1, 0), j, i);
            });
            wait_for_rows(arrivals + filled % STAGES, filled / STAGES);
            Pair of[6][COLUMNS][2];  // n, r, z, q, the state before, the own delta; then the deltas of n, r, z, q
#pragma unroll
            for (int part = 0; part < 6; ++part) load_turned(of[part], stage + warp_unit() + part * UNITS, STAGE_PITCH);
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    FloatPair two[6];
#pragma unroll
                    for (int part = 0; part < 6; ++part) two[part] = unpack(of[part][j][half]);
                    float found[2][4];
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        const auto one = [&](int part) { return i == 0 ? two[part].low : two[part].high; };
                        float& later = carried[j][2 * half + i];
                        const float of_n = one(0), of_r = one(1), of_z = one(2), of_q = one(3);
                        const float by_state = fmaf(one(5), is_there[j][i], later);
                        const float rest = 1.0f - of_z;
                        found[i][0] = by_state * rest * fmaf(-of_n, of_n, 1.0f);
                        found[i][1] = found[i][0] * of_q * fmaf(-of_r, of_r, of_r);
                        found[i][2] = by_state * fmaf(one(4), keeps[j][i], -of_n) * (of_z * rest);
                        found[i][3] = found[i][0] * of_r;
                        later = by_state * (of_z * keeps[j][i]);
                    }
#pragma unroll
                    for (int part = 0; part < 4; ++part) {
                        of_bias[part][half] += found[0][part] + found[1][part];
                        of[part][j][half] = packed(found[0][part], found[1][part]);
                    }
                }
            }
#pragma unroll
            for (int part = 0; part < 4; ++part) {
                Element* place = stage + warp_unit() + part * UNITS;
                store_turned(of[part], [&](int row, int half) { return place + row * STAGE_PITCH + 8 * half; });
                if (part == 0) continue;
                const int first = (part - 1) * UNITS + warp_unit();
                store_turned(of[part], [&](int row, int half) {
                    return place_in_b<3 * UNITS>(to_products, row, first + 8 * half);
                });
            }
            show_to_products();
            __syncthreads();
            float sum[COLUMNS][4];
            begin_products();
#pragma unroll
            for (int k = 0; k < 3 * TILES; ++k) {
                const Element* b = to_products + k * 2 * BLOCK;
                if (k == 0) add<3 * UNITS, true>(sum, by_gates[k], b);
                else add<3 * UNITS>(sum, by_gates[k], b);
            }
            end_products();
            wait_for_products<0>();
            settle(sum);
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) {
#pragma unroll
                for (int i = 0; i < 4; ++i) carried[j][i] = fmaf(sum[j][i], keeps[j][i % 2], carried[j][i]);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int part = 0; part < 4; ++part) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float all = over_rows(of_bias[part][half]);
            if ((lane_index() & 3) == 0) {
                bias_gradient[blockIdx.x * (5 * UNITS) + part * UNITS + unit_of_lane(half)] = all;
            }
        }
    }
}
