// A gated recurrent unit through whole sequences, forwards and backwards, and one step of it for those who play.
//
// A block walks through the steps of some sequences, or SPLIT of them do together, who tell each other their units. What
// it works on at once, an item, is one step of ROWS of them; what the next one takes from global memory is on its way
// meanwhile.
//
// Constants, besides those of layers/gru.cuh (cell.py makes them):
//   DELTA_PITCH  elements from a row's deltas in shared memory to the next,
//   STATE_PITCH  and floats from its state, of the block's units
//   IS_TANH      the activation that the input came out of: tanh, or else the positive part
//   STEP_BYTES   of shared memory of a block of gru_step
#include "layers/gru.cuh"

// Of gates n, r, z, q, those that are multiplied: n by the weights of the input alone.
constexpr int FIRST_PART = IN_TILES > 0 ? 0 : 1;

// Sums of the deltas' products that do not wait for each other: a gate's each, where registers have room.
constexpr int CHAINS = UNROLLS && ROW_TILES == 1 ? 3 : 1;

static_assert(DELTA_PITCH >= (4 - FIRST_PART) * UNITS && DELTA_PITCH % PIECE == 0, "rows of deltas meet");
static_assert(
    STEP_BYTES == SHARED_FRAGMENTS * sizeof(Fragment) + ROWS * (HIDDEN_PITCH + 2 * IN_PITCH) * sizeof(Element),
    "gru_step has other room");
static_assert(STATE_PITCH >= UNITS / SPLIT && STATE_PITCH % 4 == 0, "rows of states meet");

// One step of ROWS sequences: where they begin, and how many there are.
struct Item {
    int step, number, first, rows;
    long long place;  // of the first among [step, row]
};
__device__ __forceinline__ Item item_of(int step, int number, int num_items, int num_rows)
{
    Item item = {step, number, (cell_index() * num_items + number) * ROWS};
    item.rows = max(0, min(ROWS, num_rows - item.first));
    item.place = (long long)step * num_rows + item.first;
    return item;
}

// Which of a lane's rows start something new. Nothing waits for it before it is used.
struct Starts {
    bool of[2 * ROW_TILES];
};
__device__ __forceinline__ Starts read_starts(const bool* starts, const Item& item)
{
    Starts found;
    for_each_row([&](int row, int half) {
        found.of[half] = false;
        if (row < item.rows) found.of[half] = starts[item.place + row];
    });
    return found;
}

// One step of every agent.
//   weights, bias_input, bias_hidden  as below                                              read
//   gates        [row, 3 UNITS]  n, r, z of the input, if those are given                   read
//   input, input_weights  as below                                                          read
//   memory       [row, memory_size]  before the step; if it `remembers`, then after it      read, written
//   hidden       [row, UNITS]  after the step                                               written
//   num_rows
//   memory_size, cell_start  units of all cells of the policy, and the first that is this one's
extern "C" __global__ void __launch_bounds__(THREADS) gru_step(
    const unsigned char* weights, const float* bias_input, const float* bias_hidden, const unsigned char* gates,
    const unsigned char* input, const unsigned char* input_weights, float* memory, unsigned char* hidden, int num_rows,
    int memory_size, int cell_start, bool remembers)
{
    extern __shared__ char shared[];
    Fragment* of_input = (Fragment*)shared;
    Element* states = (Element*)(of_input + SHARED_FRAGMENTS);  // [ROWS][HIDDEN_PITCH]
    Element* inputs = states + ROWS * HIDDEN_PITCH;            // [2][ROWS][IN_PITCH]
    fetch_input_weights(of_input, input_weights);
    const Weights recurrent(weights, of_input + INPUT_FRAGMENTS);
    const Biases bias(bias_input, bias_hidden);
    const int unit = first_unit();
    const long long step = (long long)num_cells() * ROWS;
    if (SPLIT > 1) meet();  // all blocks have begun
    const auto rows_at = [&](long long first) { return (int)max(0LL, min((long long)ROWS, num_rows - first)); };
    Floats next[2 * ROW_TILES];
    const auto fetch = [&](long long first, int buffer) {
        const int rows = rows_at(first);
        fetch_input(inputs + buffer * (ROWS * IN_PITCH), (const Element*)input + first * INPUTS, rows);
        for_each_row([&](int row, int half) {
            next[half] = {0.0f, 0.0f, 0.0f, 0.0f};
            if (row < rows) next[half] = *(const Floats*)(memory + (first + row) * memory_size + cell_start + unit);
        });
    };
    fetch((long long)cell_index() * ROWS, 0);
    int buffer = 0;
#pragma unroll 1
    for (long long first = (long long)cell_index() * ROWS; first < num_rows; first += step, buffer = 1 - buffer) {
        const int rows = rows_at(first);
        const Given given = read_gates((const Element*)gates + first * (3 * UNITS), 3 * UNITS, rows);
        Floats before[2 * ROW_TILES];
        for_each_row([&](int row, int half) {
            before[half] = next[half];
            share(states + row * HIDDEN_PITCH + unit, elements(before[half]));
        });
        wait_for_copies();
        meet();
        fetch(first + step, 1 - buffer);
        const Sums sum = multiply_states(states, recurrent, bias, inputs + buffer * (ROWS * IN_PITCH), of_input);
        for_each_row([&](int row, int half) {
            if (row >= rows) return;
            const Stepped found = step_row(sum, given, half, before[half]);
            if (remembers) *(Floats*)(memory + (first + row) * memory_size + cell_start + unit) = found.after;
            four_at((Element*)hidden + (first + row) * UNITS + unit) = elements(found.after);
        });
        meet();
    }
}

// Every step of some sequences.
//   weights      as gru_pack.cu has them, forwards                                             read
//   bias_input   [3 UNITS]  of gates n, r, z                                                   read
//   bias_hidden  [3 UNITS]  of gates r, z, n                                                   read
//   memory       [sequence of the rollout, step_rows, memory_size]  before its first step      read
//   order        [step, row]  numbers of the samples among [step of the rollout, step_rows]    read
//   starts       [step, row]  whether nothing is remembered in this step                       read
//   input        [step, row, INPUTS]  if there are IN_TILES                                    read
//   input_weights  as gru_pack.cu has them, forwards                                           read
//   gates        [step, row, 4 UNITS]  n, r, z of the input, if they are given; then n, r, z, q  read, written
//   hidden       [step + 1, row, UNITS]  before each step, and after the last                  written
//   num_rows, num_steps, num_items  the last: of a step of a block
//   step_rows    agents of the group in all envs
//   memory_size, cell_start  as above
extern "C" __global__ void __launch_bounds__(THREADS) gru_forward(
    const unsigned char* weights, const float* bias_input, const float* bias_hidden, const float* memory,
    const int* order, const bool* starts, const unsigned char* input, const unsigned char* input_weights,
    unsigned char* gates, unsigned char* hidden, int num_rows, int num_steps, int num_items, int step_rows,
    int memory_size, int cell_start)
{
    extern __shared__ char shared[];
    const int all_rows = num_items * ROWS;
    Fragment* of_input = (Fragment*)shared;
    Element* inputs = (Element*)(of_input + SHARED_FRAGMENTS);  // [2][ROWS][IN_PITCH]
    Element* states = inputs + 2 * ROWS * IN_PITCH;  // [2][all_rows][HIDDEN_PITCH], before a step, and after it
    fetch_input_weights(of_input, input_weights);
    float* exact = (float*)(states + 2 * all_rows * HIDDEN_PITCH);  // [all_rows][STATE_PITCH]
    Element* all_gates = (Element*)gates;
    Element* all_hidden = (Element*)hidden;
    const Weights recurrent(weights, of_input + INPUT_FRAGMENTS);
    const Biases bias(bias_input, bias_hidden);
    const int unit = first_unit(), own_unit = first_of_block();
    const int last = num_steps * num_items - 1;
    const auto item_at = [&](int k) { return item_of(k / num_items, k % num_items, num_items, num_rows); };
    const auto read_item = [&](const Item& item) {
        return read_gates(all_gates + item.place * (4 * UNITS), 4 * UNITS, item.rows);
    };
    const auto input_at = [&](int k) { return inputs + (k & 1) * (ROWS * IN_PITCH); };
    const auto fetch_item = [&](int k, const Item& item) {
        fetch_input(input_at(k), (const Element*)input + item.place * INPUTS, item.rows);
    };
    // What the sequences of an item forget before their next step.
    const auto read_next_starts = [&](Item item) {
        item.place += num_rows;
        if (item.step + 1 == num_steps) item.rows = 0;
        return read_starts(starts, item);
    };
    if (SPLIT > 1) meet();  // all blocks have begun
    for (int number = 0; number < num_items; ++number) {
        const Item item = item_of(0, number, num_items, num_rows);
        const Starts begins = read_starts(starts, item);
        for_each_row([&](int row, int half) {
            Floats before = {0.0f, 0.0f, 0.0f, 0.0f};
            if (row < item.rows) {
                const int index = order[item.first + row];
                const long long from = (long long)(index / step_rows / num_steps) * step_rows + index % step_rows;
                if (!begins.of[half]) before = *(const Floats*)(memory + from * memory_size + cell_start + unit);
                four_at(all_hidden + (long long)(item.first + row) * UNITS + unit) = elements(before);
            }
            share(states + (number * ROWS + row) * HIDDEN_PITCH + unit, elements(before));
            *(Floats*)(exact + (number * ROWS + row) * STATE_PITCH + own_unit) = before;
        });
    }
    Item item = item_at(0);
    Given next = read_item(item);
    Starts next_starts = read_next_starts(item);
    fetch_item(0, item);
#pragma unroll 1
    for (int k = 0; k <= last; ++k) {
        const Item now = item;
        const Given given = next;
        const Starts forgets = next_starts;
        if (k < last) {
            item = item_at(k + 1);
            next = read_item(item);
            next_starts = read_next_starts(item);
        }
        wait_for_copies();
        meet();
        if (k < last) fetch_item(k + 1, item);
        const int first = now.number * ROWS;
        const Element* before = states + ((now.step & 1) * all_rows + first) * HIDDEN_PITCH;
        const Sums sum = multiply_states(before, recurrent, bias, input_at(k), of_input);
        Element* after = states + ((~now.step & 1) * all_rows + first) * HIDDEN_PITCH + unit;
        for_each_row([&](int row, int half) {
            Floats* state = (Floats*)(exact + (first + row) * STATE_PITCH + own_unit);
            const Stepped found = step_row(sum, given, half, *state);
            const Four rounded = elements(found.after);
            const Floats nothing = {0.0f, 0.0f, 0.0f, 0.0f};
            *state = forgets.of[half] ? nothing : found.after;
            share(after + row * HIDDEN_PITCH, forgets.of[half] ? elements(nothing) : rounded);
            if (row >= now.rows) return;
            Element* place = all_gates + (now.place + row) * (4 * UNITS) + unit;
            four_at(place) = elements(found.n);
            four_at(place + UNITS) = elements(found.r);
            four_at(place + 2 * UNITS) = elements(found.z);
            four_at(place + 3 * UNITS) = elements(found.q);
            four_at(all_hidden + (now.place + num_rows + row) * UNITS + unit) = rounded;
        });
    }
    if (SPLIT > 1) meet();  // none ends before the others told it their last units
}

// What the way back takes of an item: n, r, z, q, the state before, and the loss's derivatives by the state after.
struct Passed {
    Four of[2 * ROW_TILES][6];
};

// The way back: from the loss's derivatives by what each step gave to those by its gates.
//   weights        as gru_pack.cu has them, backwards                                                read
//   starts         as above                                                                          read
//   delta          [step, row, UNITS]  the loss's derivatives by the states after each step, but for
//                  what comes by later steps                                                         read
//   gates          [step, row, 4 UNITS]  n, r, z, q as above; then the loss's derivatives by what
//                  goes into n, r, z, and by q                                                       read, written
//   hidden         [step + 1, row, UNITS]  as above; then 0 where a step remembered nothing          read, written
//   input          [step, row, INPUTS]  as above                                                     read
//   input_weights  as gru_pack.cu has them, backwards                                                read
//   by_input       [step, row, INPUTS]  the loss's derivatives by what went into the activation that
//                  the input came out of, if there are IN_TILES                                      written
//   bias_gradient  [block, 4 UNITS + INPUTS]  sums of those derivatives                              written
//   num_rows, num_steps, num_items  as above
extern "C" __global__ void __launch_bounds__(THREADS) gru_backward(
    const unsigned char* weights, const bool* starts, const unsigned char* delta, const unsigned char* input,
    const unsigned char* input_weights, unsigned char* gates, unsigned char* hidden, unsigned char* by_input,
    float* bias_gradient, int num_rows, int num_steps, int num_items)
{
    extern __shared__ char shared[];
    Fragment* of_input = (Fragment*)shared;
    Element* tiles = (Element*)(of_input + SHARED_FRAGMENTS);       // [2][ROWS][DELTA_PITCH]: by FIRST_PART.., z, q
    fetch_input_weights(of_input, input_weights);
    float* carried = (float*)(tiles + 2 * ROWS * DELTA_PITCH);      // [num_items ROWS][STATE_PITCH]
    Element* all_gates = (Element*)gates;
    Element* all_hidden = (Element*)hidden;
    const Weights recurrent(weights, of_input + INPUT_FRAGMENTS);
    const int unit = first_unit(), own_unit = first_of_block();
    const int last = num_steps * num_items - 1;
    const auto item_at = [&](int k) {
        return item_of(num_steps - 1 - k / num_items, k % num_items, num_items, num_rows);
    };
    const auto read_item = [&](const Item& item) {
        Passed passed;
        for_each_row([&](int row, int half) {
#pragma unroll
            for (int i = 0; i < 6; ++i) passed.of[half][i] = elements({0.0f, 0.0f, 0.0f, 0.0f});
            if (row >= item.rows) return;
            const long long place = item.place + row;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                passed.of[half][i] = four_at(all_gates + place * (4 * UNITS) + i * UNITS + unit);
            }
            passed.of[half][4] = four_at(all_hidden + place * UNITS + unit);
            passed.of[half][5] = four_at((const Element*)delta + place * UNITS + unit);
        });
        return passed;
    };
    for (int number = 0; number < num_items; ++number) {
        for_each_row([&](int row, int half) {
            *(Floats*)(carried + (number * ROWS + row) * STATE_PITCH + own_unit) = {0.0f, 0.0f, 0.0f, 0.0f};
        });
    }
    if (SPLIT > 1) meet();  // all blocks have begun
    Floats by_bias[5] = {};
    const bool has_inputs = IN_TILES == TILES || unit < INPUTS;  // whether this warp has some of the input's columns
    wait_for_copies();
    Passed next = read_item(item_at(0));
    Starts next_starts = read_starts(starts, item_at(0));
#pragma unroll 1
    for (int k = 0; k <= last; ++k) {
        const Item now = item_at(k);
        const Passed passed = next;
        const Starts forgets = next_starts;
        if (k < last) {
            next = read_item(item_at(k + 1));
            next_starts = read_starts(starts, item_at(k + 1));
        }
        Element* tile = tiles + (k & 1) * (ROWS * DELTA_PITCH);
        float* carried_to = carried + now.number * ROWS * STATE_PITCH + own_unit;
        for_each_row([&](int row, int half) {
            const Floats n = floats(passed.of[half][0]), r = floats(passed.of[half][1]);
            const Floats z = floats(passed.of[half][2]), q = floats(passed.of[half][3]);
            const Floats before = floats(passed.of[half][4]), own = floats(passed.of[half][5]);
            Floats& later = *(Floats*)(carried_to + row * STATE_PITCH);
            Floats by[4], onwards;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float by_state = own.of[i] + later.of[i];
                const float was = forgets.of[half] ? 0.0f : before.of[i];
                by[0].of[i] = by_state * (1.0f - z.of[i]) * (1.0f - n.of[i] * n.of[i]);
                by[1].of[i] = by[0].of[i] * q.of[i] * r.of[i] * (1.0f - r.of[i]);
                by[2].of[i] = by_state * (was - n.of[i]) * z.of[i] * (1.0f - z.of[i]);
                by[3].of[i] = by[0].of[i] * r.of[i];
                onwards.of[i] = forgets.of[half] ? 0.0f : by_state * z.of[i];
#pragma unroll
                for (int part = 0; part < 4; ++part) by_bias[part].of[i] += by[part].of[i];
            }
            later = onwards;
#pragma unroll
            for (int part = 0; part < 4; ++part) {
                const Four rounded = elements(by[part]);
                Element* place = all_gates + (now.place + row) * (4 * UNITS) + part * UNITS + unit;
                if (part >= FIRST_PART) share(tile + row * DELTA_PITCH + (part - FIRST_PART) * UNITS + unit, rounded);
                if (row < now.rows) four_at(place) = rounded;
            }
            if (forgets.of[half]) four_at(all_hidden + (now.place + row) * UNITS + unit) = elements({});
        });
        meet();
        Four gave[2 * ROW_TILES];  // what the slopes are of
        for_each_row([&](int row, int half) {
            if (IN_TILES == 0 || !has_inputs || row >= now.rows) return;
            gave[half] = four_at((const Element*)input + (now.place + row) * INPUTS + unit);
        });
        // Tiles of n, r, z by the weights of the input; of r, z, q by those of the state.
        float to_input[ROW_TILES][2][4] = {};
        float to_state[CHAINS][ROW_TILES][2][4] = {};
        const Fragment* mine = of_input + (threadIdx.x >> 5) * (3 * TILES * 32) + lane_index();
        const auto add = [&](int i, bool by_input_weights, bool by_weights) {
#pragma unroll
            for (int r = 0; r < ROW_TILES; ++r) {
                Pair a[4];
                load_rows(a, tile + r * 16 * DELTA_PITCH + 16 * (i - FIRST_PART * TILES), DELTA_PITCH);
                if (by_input_weights) {
                    const Fragment b = mine[i * 32];
                    multiply(to_input[r][0], a, b.pair[0], b.pair[1]);
                    multiply(to_input[r][1], a, b.pair[2], b.pair[3]);
                }
                if (by_weights) {
                    const Fragment b = recurrent[i - TILES];
                    float(&two)[2][4] = to_state[i / TILES % CHAINS][r];
                    multiply(two[0], a, b.pair[0], b.pair[1]);
                    multiply(two[1], a, b.pair[2], b.pair[3]);
                }
            }
        };
        constexpr bool TOGETHER = IN_TILES > 0 && ROW_TILES == 1;  // two tiles leave no registers for both
        if (IN_TILES > 0 && !TOGETHER && has_inputs) {
#pragma unroll(2 * SOME_UNROLLED)
            for (int i = 0; i < 3 * TILES; ++i) add(i, true, false);
        }
#pragma unroll(UNROLLED<4 * TILES>)
        for (int i = TOGETHER ? 0 : TILES; i < 4 * TILES; ++i) {
            add(i, TOGETHER && i < 3 * TILES && has_inputs, i >= TILES);
        }
        for_each_row([&](int row, int half) {
            if (IN_TILES > 0 && has_inputs && row < now.rows) {
                Floats by = sums_of(to_input[half / 2], half);
                const Floats activated = floats(gave[half]);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float x = activated.of[i];
                    by.of[i] *= IS_TANH ? 1.0f - x * x : x > 0.0f ? 1.0f : 0.0f;
                    by_bias[4].of[i] += by.of[i];
                }
                four_at((Element*)by_input + (now.place + row) * INPUTS + unit) = elements(by);
            }
            if (now.step == 0 || forgets.of[half]) return;
            Floats& later = *(Floats*)(carried_to + row * STATE_PITCH);
#pragma unroll
            for (int chain = 0; chain < CHAINS; ++chain) {
                const Floats more = sums_of(to_state[chain][half / 2], half);
#pragma unroll
                for (int i = 0; i < 4; ++i) later.of[i] += more.of[i];
            }
        });
    }
#pragma unroll
    for (int i = 0; i < 20; ++i) {
        float whole = by_bias[i / 4].of[i % 4];
        for (int flip = 4; flip < 32; flip *= 2) whole += __shfl_xor_sync(ALL_LANES, whole, flip);
        const bool is_there = lane_index() < 4 && (i < 16 || has_inputs);
        if (is_there) bias_gradient[cell_index() * (4 * UNITS + INPUTS) + i / 4 * UNITS + unit + i % 4] = whole;
    }
}
