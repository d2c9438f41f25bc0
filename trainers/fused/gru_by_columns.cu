// The kernels gru_forward and gru_backward of gru.cu by products of warpgroups: units are rows of a product, and
// sequences its columns, 8 COLUMNS of a block.
//
// A warp has 16 units of all the block's sequences, and their recurrent weights in registers. In every step warps bring
// states, or deltas, to shared memory, where products read those of all warps: one barrier a step. Those of the next
// step's input are under way by then, which wait for nobody. Rows come and go by bulk copies, which four more warps
// start, and are turned around on their way to and from the registers.
//
// Constants:
//   FULL_PRECISION  of elements: false
//   UNITS           of the cell; its input has as many columns
//   COLUMNS         an even number
//   OUTPUTS         columns of the layer after it, whole tiles of 16
//   THERE_BYTES, BACK_BYTES  of shared memory of a block of each kernel
#include "layers/gru_turned.cuh"

constexpr int FIRST = 128;  // bytes of arrivals

static_assert(THERE_BYTES == 2 * (WEIGHTS + (2 + INPUTS) * OF_UNITS + 2 * MADE), "gru_forward has other room");
static_assert(
    BACK_BYTES == FIRST + 2 * (OUTPUTS * UNITS + 2 * 3 * OF_UNITS + STAGES * STAGE), "gru_backward has other room");
static_assert(2 * STAGES * 8 <= FIRST && STAGE % 64 == 0, "stages begin where nothing can come");

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
    Element* inputs = states + 2 * OF_UNITS;          // [INPUTS], as B
    Element* made = inputs + INPUTS * OF_UNITS;       // [2]: gates n, r, z, q of each row, then its state
    Element* all_gates = (Element*)gates;
    Element* all_hidden = (Element*)hidden;
    place_input_weights(of_input, input_weights);
    show_to_products();
    if (carrier() >= 0) {
        leave_registers();
        for (int number = blockIdx.x; number * ROWS < num_rows; number += gridDim.x) {
            const Sequences rows(number, num_rows);
            meet();
            if (carrier() == 0) store_rows(rows, 0, all_hidden, UNITS, made + MADE + 4 * UNITS);
            for (int step = 0; step < num_steps; ++step) {
                wait_for_stored_rows();  // of the step before: the next one is made there
                meet();
                const Element* from = made + step % 2 * MADE;
                if (carrier() == 0) store_rows(rows, step + 1, all_hidden, UNITS, from + 4 * UNITS);
                if (carrier() == 1) store_rows(rows, step, all_gates, 4 * UNITS, from);
            }
            wait_for_stored_rows();
            meet();
        }
        return;
    }
    take_registers();
    Pair by_state[3 * TILES][4];  // gates r, z, q of a tile, one after the other
    load_weights_of_warp(by_state, weights);
    const InputWeights by_input(of_input);
    float bias[4][2];
    load_biases(bias, bias_input, bias_hidden);
    for (int number = blockIdx.x; number * ROWS < num_rows; number += gridDim.x) {
        const Sequences rows(number, num_rows);
        const auto fetch_inputs = [&](int step) {
            fetch_rows(inputs + step % INPUTS * OF_UNITS, (const Element*)input, rows, min(step, num_steps - 1));
        };
        fetch_inputs(0);
        fetch_inputs(1);
        float state[COLUMNS][4];
        Pair turned[COLUMNS][2];
        for_each_column([&](int j, int i) {
            const int row = row_of_lane(j, i);
            const int index = order[rows.first + min(row, num_rows - 1 - rows.first)];
            const long long from = (long long)(index / step_rows / num_steps) * step_rows + index % step_rows;
            const bool begins = rows.starts(starts, 0, row);
            const float* place = memory + from * memory_size + cell_start;
            state[j][i] = begins ? 0.0f : place[unit_of_lane(0)];
            state[j][2 + i] = begins ? 0.0f : place[unit_of_lane(1)];
        });
        round_to(turned, state);
        const auto put_made = [&](int which, int part, const Pair (&pairs)[COLUMNS][2]) {
            put_in_rows(made + which * MADE + part * UNITS, pairs);
        };
        put_in_b(states, turned);
        put_made(1, 4, turned);
        unsigned next[COLUMNS][2];
        for_each_column([&](int j, int i) { next[j][i] = rows.starts_of_lane(starts, min(1, num_steps - 1), j, i); });
        wait_for_groups<0>();
        show_to_products();
        meet();
        float sum[4][COLUMNS][4];
        const auto begin_step = [&](int step) {
            begin_sums(sum, bias, by_input, inputs + step % INPUTS * OF_UNITS);
        };
        begin_step(0);
#pragma unroll 1
        for (int step = 0; step < num_steps; ++step) {
            const int which = step % 2;
            fetch_inputs(step + 2);
            bool forgets[COLUMNS][2];
            for_each_column([&](int j, int i) {
                forgets[j][i] = step + 1 < num_steps && next[j][i] > 0;
                next[j][i] = rows.starts_of_lane(starts, min(step + 2, num_steps - 1), j, i);
            });
            add_states(sum, by_state, states + which * OF_UNITS);
            wait_for_sums(sum);
            Pair made_n[COLUMNS][2], made_r[COLUMNS][2], made_z[COLUMNS][2], made_q[COLUMNS][2], after[COLUMNS][2];
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    Stepped found[2];
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        const int at = 2 * half + i;
                        found[i] = step_unit(sum, j, at, state[j][at]);
                        state[j][at] = forgets[j][i] ? 0.0f : found[i].after;
                    }
                    made_n[j][half] = packed(found[0].n, found[1].n);
                    made_r[j][half] = packed(found[0].r, found[1].r);
                    made_z[j][half] = packed(found[0].z, found[1].z);
                    made_q[j][half] = packed(found[0].q, found[1].q);
                    after[j][half] = packed(found[0].after, found[1].after);
                }
            }
            round_to(turned, state);
            put_in_b(states + (1 - which) * OF_UNITS, turned);
            put_made(which, 0, made_n);
            put_made(which, 1, made_r);
            put_made(which, 2, made_z);
            put_made(which, 3, made_q);
            put_made(which, 4, after);
            begin_step(step + 1);
            wait_for_groups<0>();
            show_to_products();
            meet();
        }
        wait_for_products<0>();
        meet();
    }
}

// The way back, as in gru.cu, but for what goes to the input: see gru_by_input.cu; and from the outputs of the layer
// after it, whose products with their weights are added to what comes by later steps.
//   weights   as gru_pack.cu has them, backwards                                                 read
//   starts    as above                                                                           read
//   delta     [step, row, OUTPUTS]  the loss's derivatives by the outputs                        read
//   out_weights  [OUTPUTS, UNITS]                                                                read
//   gates     [step, row, 4 UNITS]  as above; then the loss's derivatives by what goes into
//             n, r, z, and by q                                                                  read, written
//   hidden    [step + 1, row, UNITS]  as above; then 0 where a step remembered nothing           read, written
//   bias_gradient  [block, 5 UNITS]  the first four: sums of those derivatives                   written
//   num_rows, num_steps
extern "C" __global__ void __launch_bounds__(THREADS, 1) gru_backward(
    const unsigned char* weights, const bool* starts, const unsigned char* delta, const unsigned char* out_weights,
    unsigned char* gates, unsigned char* hidden, float* bias_gradient, int num_rows, int num_steps)
{
    extern __shared__ char shared[];
    unsigned long long* arrivals = (unsigned long long*)shared;  // of a stage's rows
    unsigned long long* of_delta = arrivals + STAGES;            // and of what it has of the outputs, which is read before
    Fragment* of_outputs = (Fragment*)(shared + FIRST);
    Element* deltas = (Element*)of_outputs + OUTPUTS * UNITS;    // [2] of gates r, z, q, as B
    Element* stages = deltas + 2 * 3 * OF_UNITS;  // [STAGES]: n, r, z, q, the state before of each row; then their delta
    if (threadIdx.x < 2 * STAGES) prepare_arrivals(arrivals + threadIdx.x);
    place_out_weights(of_outputs, (const Element*)out_weights);
    Element* all_gates = (Element*)gates;
    Element* all_hidden = (Element*)hidden;
    const auto stage_of = [&](int round) { return stages + round % STAGES * STAGE; };
    int filled = 0;  // stages so far
    meet();
    if (carrier() >= 0) {
        leave_registers();
        for (int number = blockIdx.x; number * ROWS < num_rows; number += gridDim.x) {
            const Sequences rows(number, num_rows);
            const auto fill = [&](int round, int step) {
                if (step < 0) return;
                Element* to = stage_of(round);
                unsigned long long* arrival = arrivals + round % STAGES;
                if (carrier() == 1) {
                    expect_rows(arrival, ROWS * 5 * UNITS);
                    bring_rows(rows, step, all_gates, 4 * UNITS, to, arrival);
                }
                if (carrier() == 2) bring_rows(rows, step, all_hidden, UNITS, to + 4 * UNITS, arrival);
                if (carrier() == 3) {
                    expect_rows(of_delta + round % STAGES, rows.num_there() * OUTPUTS);
                    bring_outputs(rows, step, (const Element*)delta, to + MADE, of_delta + round % STAGES);
                }
            };
            for (int i = 0; i + 1 < STAGES; ++i) fill(filled + i, num_steps - 1 - i);
            meet();
            for (int step = num_steps - 1; step >= 0; --step, ++filled) {
                wait_for_stored_rows();  // of the step before: there is room for another
                meet();
                if (carrier() == 0) store_rows(rows, step, all_gates, 4 * UNITS, stage_of(filled));
                fill(filled + STAGES - 1, step - (STAGES - 1));
                if (carrier() == 2) forget_rows(rows, step, starts, all_hidden);
            }
            wait_for_stored_rows();
            meet();
        }
        return;
    }
    take_registers();
    Pair by_gates[3 * TILES][4];
    load_weights_of_warp(by_gates, weights);
    float of_bias[4][2] = {};  // sums of the deltas of n, r, z, q
    for (int number = blockIdx.x; number * ROWS < num_rows; number += gridDim.x) {
        const Sequences rows(number, num_rows);
        meet();
        float sum[COLUMNS][4] = {};  // the loss's derivatives by the states after a step
        const auto add_delta = [&](int round) {
            wait_for_rows(of_delta + round % STAGES, round / STAGES);
            add_outputs(sum, of_outputs, stage_of(round) + MADE);
        };
        add_delta(filled);
        unsigned next[COLUMNS][2];
        for_each_column([&](int j, int i) { next[j][i] = rows.starts_of_lane(starts, num_steps - 1, j, i); });
#pragma unroll 1
        for (int step = num_steps - 1; step >= 0; --step, ++filled) {
            Element* stage = stage_of(filled);
            Element* to_products = deltas + filled % 2 * (3 * OF_UNITS);
            Pair kept[COLUMNS];  // of two rows, all bits or none
            float keeps[COLUMNS][2];
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) {
                kept[j] = (next[j][0] > 0 ? 0u : 0xffffu) | (next[j][1] > 0 ? 0u : 0xffff0000u);
                keeps[j][0] = next[j][0] > 0 ? 0.0f : 1.0f;
                keeps[j][1] = next[j][1] > 0 ? 0.0f : 1.0f;
            }
            for_each_column([&](int j, int i) { next[j][i] = rows.starts_of_lane(starts, max(step - 1, 0), j, i); });
            wait_for_rows(arrivals + filled % STAGES, filled / STAGES);
            Pair of[5][COLUMNS][2];  // n, r, z, q, the state before; then the deltas of n, r, z, q
#pragma unroll
            for (int part = 0; part < 5; ++part) load_turned(of[part], stage + warp_unit() + part * UNITS, MADE_PITCH);
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    FloatPair two[5];
#pragma unroll
                    for (int part = 0; part < 5; ++part) two[part] = unpack(of[part][j][half]);
                    float found[2][4];
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        const auto one = [&](int part) { return i == 0 ? two[part].low : two[part].high; };
                        float& later = sum[j][2 * half + i];
                        const float of_n = one(0), of_r = one(1), of_z = one(2), of_q = one(3);
                        const float by_state = rows.has_of_lane(j, i) ? later : 0.0f;
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
                put_in_rows(stage + part * UNITS, of[part]);
                if (part == 0) continue;
#pragma unroll
                for (int j = 0; j < COLUMNS; ++j) of[part][j][0] &= kept[j], of[part][j][1] &= kept[j];
                const int first = (part - 1) * UNITS + warp_unit();
                store_turned(of[part], [&](int row, int half) {
                    return place_in_b<3 * UNITS>(to_products, row, first + 8 * half);
                });
            }
            if (step > 0) add_delta(filled + 1);
            settle(sum);
            show_to_products();
            meet();
            begin_products();
#pragma unroll
            for (int k = 0; k < 3 * TILES; ++k) add<3 * UNITS>(sum, by_gates[k], to_products + k * 2 * BLOCK);
            end_products();
            wait_for_products<0>();
            settle(sum);
        }
        meet();
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
