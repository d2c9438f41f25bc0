// Updates of a Q-network in one launch, as many as are due: draw, gather, targets, loss, gradient, Adam, priorities,
// target network. The blocks of a team share a batch; each holds both networks in its shared memory, and steps its share
// of the parameters, whose memory stays in its registers.
//
// A team meets three times an update: when gradients are there, when their length is, and when the new weights are. Where
// nothing is done with the length but to see that it is finite, that is seen with the new weights, and taken back.
// What limits it is the way from one product to the next, and to global memory and back at each meeting.
//
// Constants, besides those of q_layers.cuh, team.cuh and gather.cuh:
//   BATCH         transitions of an update
//   PRIORITIZED   whether they are drawn by a sum tree
//   DOUBLE        whether the network chooses the action that the target network judges
//   HUBER_DELTA   0: squared errors
//   TARGET_FREQ   updates from one step of the target network to the next
//   TAU           how far it steps
//   CLIPS         whether gradients are shortened to max_norm
//   SLICES        threads that add up the parts of one parameter's gradient
#include "q_batch.cuh"
#include "team.cuh"

constexpr long long NOTHING_FOUND = 1ll << 62;  // guard.py has the same
constexpr int SHARES = THREADS / SLICES;        // quads of a block at once
constexpr int SLOTS = (QUADS + TEAM * SHARES - 1) / (TEAM * SHARES);
constexpr bool STEPS_FIRST = TEAM > 1 && SLOTS <= 2 && !CLIPS && !PRIORITIZED;  // and learns the length after

static_assert(SLICES <= 32 && THREADS % SLICES == 0, "slices are lanes of a warp");

// Quad parameters with Adam's memory of them, as long as a thread has them.
struct Share {
    Quad parameter, mean, mean_square, target;
    int element, step;  // where products read them
    bool is_bias;

    // The target network's step.
    __device__ __forceinline__ void follow()
    {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float way = parameter.of[i] - target.of[i];
            target.of[i] = TAU < 0.5f ? target.of[i] + TAU * way : parameter.of[i] - way * (1.0f - TAU);
        }
    }
};

__device__ __forceinline__ void put(const Share& share, const Quad& value, Element* weights, float* biases)
{
    if (share.is_bias) {
        *(Quad*)(biases + share.element) = value;
    } else {
        *(Pair*)(weights + share.element) = packed(value.of[0], value.of[1]);
        *(Pair*)(weights + share.element + share.step) = packed(value.of[2], value.of[3]);
    }
}

// ---- all of it

// Makes the updates that are due.
//   schedule         [2]  updates made before, and those that are due now             read, written
//   done, observation, side, reward, action  what the store keeps                     read
//   head             [1 or more]  steps added to it                                   read
//   seed, draws      as table.py has them                                             read; read, written
//   leaves, nodes, range, beta, maximum, refused  of its sum tree, if it is PRIORITIZED
//   index            [BATCH]  leaves that were drawn, if it is                        written
//   lowest           [TEAM]  the smallest that each block drew                        written
//   priority_alpha, priority_epsilon  of new priorities
//   weight0, bias0, weight1, bias1, weight2, bias2  the network's, layer by layer     read, written
//   target           [PARAMETERS]  the target network's, in the same order            read, written
//   average, square  [PARAMETERS]  Adam's                                             read, written
//   adam_steps       [2 LAYERS]  steps made, the same number for each tensor          read, written
//   lr               [1]                                                              read
//   halted, run_halted, first_name  [1]  of the guard: see adam_step                  read, written
//   figures          [4]  of the last update: loss, q_mean, td_error, grad_norm       written
//   parts            [TEAM, QUADS, 4]  of the gradient                                written
//   sums             [TEAM, 4]  of the blocks: the figures, and squares of gradients  written
//   elements, biases [2, WEIGHTS], [2, BIASES]  the networks as products read them; 0 between rows   read, written
//   arrivals         [1]  of the team                                                 read, written
//   stratum          of a batch's points: see point_of
//   max_norm         to which gradients are shortened, if it CLIPS
extern "C" __global__ void __launch_bounds__(THREADS) q_learn(
    long long* schedule, const DoneCode* done, const float* observation, const float* side, const float* reward,
    const ActionCode* action, const long long* head, const unsigned int* seed, unsigned long long* draws, int* leaves,
    long long* nodes, const long long* range, const float* beta, int* maximum, long long* refused, long long* index,
    int* lowest, float priority_alpha, float priority_epsilon, float* weight0, float* bias0, float* weight1,
    float* bias1, float* weight2, float* bias2, float* target, float* average, float* square, float* adam_steps,
    const float* lr, float* halted, float* run_halted, long long* first_name, float* figures, float* parts,
    float* sums, unsigned char* elements, float* biases, unsigned long long* arrivals, unsigned long long stratum,
    float max_norm)
{
    extern __shared__ char memory[];
    Shared& shared = *(Shared*)memory;
    const int tid = threadIdx.x;
    const int rank = blockIdx.x;
    const int lane = lane_index();
    const Steps steps = {done, observation, side, reward, action};
    const Tree tree(leaves, nodes);
    const Changes<NUM_LEAVES> changes = {shared.low, shared.high};
    Team team = {arrivals, 0ull};
    const Parameters<float> parameters = {{weight0, weight1, weight2}, {bias0, bias1, bias2}};
    Element* next_weights = TEAM == 1 ? &shared.weight[0][0] : (Element*)elements;
    float* next_biases = TEAM == 1 ? &shared.bias[0][0] : biases;

    const long long num_made = schedule[0];
    const int num_due = (int)schedule[1];
    const u64 first_draw = draws[0] >> 32;
    const float rate = lr[0];
    float num_steps = adam_steps[0];
    bool is_halted = halted[0] != 0.0f;
    if (num_due == 0) return;

    // All is 0 that is beyond a layer's columns.
    if (TEAM == 1) {
        for (int i = tid; i < (int)(sizeof(shared.weight) / 16); i += THREADS) ((Bytes16*)shared.weight)[i] = {};
    }
    for (int i = tid; i < (int)(sizeof(shared.features) / 16); i += THREADS) ((Bytes16*)shared.features)[i] = {};
    const int row = tid / LANES;
    const bool is_there = rank * ROWS + row < BATCH;
    const int number = is_there ? rank * ROWS + row : BATCH - 1;  // of the row's item in the batch
    const Drawable drawable = drawable_of(head[0]);
    // A thread a row draws for all that gather it, while a layer has no work for the last warps.
    const int next_row = tid - (THREADS - ROWS);
    const auto draw_next = [&](int k) {
        if (next_row < 0) return;
        Next& next = shared.next[next_row];
        next.point = point_of(seed, min(rank * ROWS + next_row, BATCH - 1), first_draw + k, stratum);
        if (!PRIORITIZED) next.item = draw_uniform(drawable, next.point);
    };
    const auto look_at_next = [&] {
        if (PRIORITIZED || next_row < 0) return;
        Next& next = shared.next[next_row];
        next.fate = fate_of<DoneAt>(steps.done, next.item.slot, next.item.env());
    };
    draw_next(0);  // others bring parameters meanwhile
    look_at_next();
    __syncthreads();
    Share share[SLOTS];
    const auto quad_of = [&](int slot) { return (slot * TEAM + rank) * SHARES + tid / SLICES; };
#pragma unroll
    for (int slot = 0; slot < SLOTS; ++slot) {
        Share& mine = share[slot];
        mine = {};
        if (quad_of(slot) >= QUADS) continue;
        const Place place(quad_of(slot));
        mine.element = place.element();
        mine.step = place.step();
        mine.is_bias = place.is_bias;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int from = place.number(i);
            if (from < 0) continue;
            mine.parameter.of[i] = parameters[from];
            mine.mean.of[i] = average[from];
            mine.mean_square.of[i] = square[from];
            mine.target.of[i] = target[from];
        }
        if (tid % SLICES != 0) continue;
        put(mine, mine.parameter, next_weights, next_biases);
        put(mine, mine.target, next_weights + WEIGHTS, next_biases + BIASES);
    }
    const auto start_networks = [&](int count) {  // as all blocks have put them: the first layers, then the others
        if (TEAM == 1) return;
        constexpr int FIRST = weights_at(1) * sizeof(Element) / 16, ALL = WEIGHTS * sizeof(Element) / 16;
        for (int i = tid; i < count * BIASES / 4; i += THREADS) {
            start_copy((Bytes16*)shared.bias + i, (const Bytes16*)biases + i);
        }
        for (int part = 0; part < 2; ++part) {
            for (int network = 0; network < count; ++network) {
                for (int i = (part ? FIRST : 0) + tid; i < (part ? ALL : FIRST); i += THREADS) {
                    start_copy((Bytes16*)shared.weight[network] + i, (const Bytes16*)elements + network * ALL + i);
                }
            }
            close_copies();
        }
    };
    const Next first_next = PRIORITIZED ? Next{} : shared.next[row];
    Coming first_coming(steps, first_next.item, first_next.fate);
    team.together();
    start_networks(2);
    if (!PRIORITIZED) first_coming.store(shared, is_there);

    const auto gather_by_priority = [&] {
        if (tid == 0) shared.lowest = (int)LARGEST_LEAF;
        __syncthreads();
        const Weighing weighing = {tree.total(), (u64)((range[1] - range[0]) * NUM_ROWS), beta[0]};
        const Drawn drawn = draw_by_priority<LANES>(tree, weighing, shared.next[row].point, &shared.lowest);
        if (is_there && tid % LANES == 0) index[number] = drawn.leaf;
        __syncthreads();
        if (tid == 0) lowest[rank] = shared.lowest;
        const float alone = weighing.weight(drawn.units);
        const Item item = {drawn.leaf / NUM_ROWS * PERIOD, drawn.leaf % NUM_ROWS, alone};
        Coming(steps, item, fate_of<DoneAt>(steps.done, item.slot, item.env())).store(shared, is_there);
        team.together();
        int least = (int)LARGEST_LEAF;
        for (int block = 0; block < TEAM; ++block) least = min(least, __ldcg(lowest + block));
        if (tid % LANES == 0 && is_there && weighing.total > 0) {
            shared.item_weight[row] = __fdiv_rn(alone, weighing.weight((unsigned)least));
        }
    };
    wait_for_groups<1>();

    for (int k = 0; k < num_due; ++k) {
        const bool is_last = k + 1 == num_due;
        if (PRIORITIZED) gather_by_priority();
        __syncthreads();
        hidden_layer<0>(shared, shared.features, shared.features + ROWS * PITCH0, shared.hidden1, shared.delta1);
        const auto find_rates = [&] {  // by a warp that neither draws nor has a part in the last layer, where it may be
            if (tid != (WARPS > 2 ? THREADS - 33 : 0)) return;
            shared.rates.follows = (num_made + k + 1) % TARGET_FREQ == 0;
            const float made = num_steps + 1.0f;
            shared.rates.step_size = rate / -expm1f(made * -0.105360516f);  // 1 - 0.9^steps, see adam_step
            shared.rates.correction = 1.0f / sqrtf(-expm1f(made * -0.0010005003f));
        };
        if (!is_last) draw_next(k + 1);
        if constexpr (LAYERS > 2) {
            hidden_layer<1>(shared, shared.hidden1, shared.delta1, shared.hidden2, shared.delta2);
            if (!is_last) look_at_next();
            find_rates();
            last_layer(shared, shared.hidden2, shared.delta2);
        } else {
            if (!is_last) look_at_next();
            find_rates();
            last_layer(shared, shared.hidden1, shared.delta1);
        }
        const Next next = PRIORITIZED ? Next{} : shared.next[row];
        Coming coming(steps, next.item, next.fate);
        judge(shared);

        Quad* part = (Quad*)parts + (long long)rank * QUADS;
        int unit = tid / 32;
        if constexpr (LAYERS > 2) {
            hidden_deltas<2>(shared, shared.delta_out, shared.hidden2, shared.delta2);
            hidden_deltas<1>(shared, shared.delta2, shared.hidden1, shared.delta1);
            unit = gradient_of<2>(unit, shared.delta_out, shared.hidden2, part);
            unit = gradient_of<1>(unit, shared.delta2, shared.hidden1, part);
        } else {
            hidden_deltas<1>(shared, shared.delta_out, shared.hidden1, shared.delta1);
            unit = gradient_of<1>(unit, shared.delta_out, shared.hidden1, part);
        }
        gradient_of<0>(unit, shared.delta1, shared.features, part);
        if (is_last && tid < NUM_FIGURES) {
            float sum = 0.0f;
            for (int r = 0; r < ROWS; ++r) sum += shared.of_batch[tid][r];
            sums[rank * 4 + tid] = sum;
        }
        __syncthreads();
        const float size = shared.of_batch[2][row];  // of this row's error
        if (!PRIORITIZED && !is_last) coming.store(shared, is_there);
        const Rates rates = shared.rates;
        team.together();

        // The whole gradient of this thread's share, and its length.
        Quad gradient[SLOTS];
        float squares = 0.0f;
#pragma unroll
        for (int slot = 0; slot < SLOTS; ++slot) {
            const Quad* first = (const Quad*)parts + min(quad_of(slot), QUADS - 1);
            Quad sum = {};
#pragma unroll 8
            for (int block = tid % SLICES; block < TEAM; block += SLICES) {
                const float4 one = __ldcg((const float4*)(first + (long long)block * QUADS));
                sum.of[0] += one.x;
                sum.of[1] += one.y;
                sum.of[2] += one.z;
                sum.of[3] += one.w;
            }
            const bool is_mine = quad_of(slot) < QUADS && tid % SLICES == 0;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                gradient[slot].of[i] = over_warp(sum.of[i], SLICES);
                if (is_mine) squares += gradient[slot].of[i] * gradient[slot].of[i];
            }
        }
        if (!is_halted && !isfinite(squares)) {  // the first tensor is told
#pragma unroll
            for (int slot = 0; slot < SLOTS; ++slot) {
                if (quad_of(slot) >= QUADS) continue;
                const Place place(quad_of(slot));
                for (int i = 0; i < 4; ++i) {
                    const bool is_told = place.number(i) >= 0 && !isfinite(gradient[slot].of[i]);
                    if (is_told) atomicMin(first_name, 2ll * place.layer + (place.is_bias ? 1 : 0));
                }
            }
        }
        squares = over_warp(squares);
        if (lane == 0) shared.squares[tid / 32] = squares;
        const auto tell_squares = [&] {
            __syncthreads();
            if (tid >= 32) return;
            const float of_block = over_warp(lane < WARPS ? shared.squares[lane] : 0.0f);
            if (lane == 0) sums[rank * 4 + 3] = of_block;
        };
        float length = 0.0f;
        const auto has_no_length = [&] {  // which all blocks find, and halt
            float all_squares = 0.0f;
            for (int block = lane; block < TEAM; block += 32) all_squares += __ldcg(sums + block * 4 + 3);
            length = sqrtf(over_warp(all_squares));
            const bool is_bad = !is_halted && !isfinite(length);
            if (is_bad && rank == 0 && tid == 0) {
                if (__ldcg(first_name) == NOTHING_FOUND) first_name[0] = 0;  // too long, though no part is
                halted[0] = run_halted[0] = 1.0f;
            }
            is_halted |= is_bad;
            return is_bad;
        };
        if (!STEPS_FIRST) {
            tell_squares();
            team.together();
            has_no_length();
        }
        const float shortened = CLIPS ? fminf(1.0f, max_norm / (length + 1e-6f)) : 1.0f;
        Share before[STEPS_FIRST ? SLOTS : 1];
        const auto put_all = [&](bool with_target) {
#pragma unroll
            for (int slot = 0; slot < SLOTS; ++slot) {
                if (quad_of(slot) >= QUADS || tid % SLICES != 0) continue;
                const Share& mine = share[slot];
                put(mine, mine.parameter, next_weights, next_biases);
                if (with_target) put(mine, mine.target, next_weights + WEIGHTS, next_biases + BIASES);
            }
        };
#pragma unroll
        for (int slot = 0; slot < SLOTS; ++slot) {
            Share& mine = share[slot];
            if (STEPS_FIRST) before[slot] = mine;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float slope = gradient[slot].of[i] * shortened;
                if (!is_halted) {
                    mine.mean.of[i] += 0.1f * (slope - mine.mean.of[i]);
                    mine.mean_square.of[i] = 0.999f * mine.mean_square.of[i] + 0.001f * slope * slope;
                    mine.parameter.of[i] -=
                        rates.step_size * step_of(mine.mean.of[i], mine.mean_square.of[i], rates.correction);
                }
            }
            if (rates.follows) mine.follow();
        }
        put_all(rates.follows);
        if (PRIORITIZED && !is_halted) {
            const unsigned seen = (unsigned)__ldcg(maximum);
            changes.begin();
            if (is_there && tid % LANES == 0) {
                const unsigned value = leaf_of(size, priority_alpha, priority_epsilon);
                const int leaf = (int)__ldcg(index + number);
                const bool counts = number + 1 == BATCH || (int)__ldcg(index + number + 1) != leaf;
                if (accepts(size, value, number, seen, maximum, refused) && counts) {
                    set_leaf(tree, changes, leaf, value, true);
                }
            }
            changes.end(tree);
        }
        if (STEPS_FIRST) tell_squares();
        if (STEPS_FIRST || !is_last) team.together();
        if (!is_last) start_networks(rates.follows ? 2 : 1);
        if (STEPS_FIRST && has_no_length()) {  // all is as it was
#pragma unroll
            for (int slot = 0; slot < SLOTS; ++slot) {
                share[slot] = before[slot];
                if (rates.follows) share[slot].follow();
            }
            if (!is_last) {
                wait_for_copies();
                put_all(true);
                team.together();
                start_networks(2);
            }
        }
        if (!is_halted) num_steps += 1.0f;
        if (is_last) {
            if (rank > 0 || tid > 0) break;
            for (int figure = 0; figure < NUM_FIGURES; ++figure) {  // once a launch
                float sum = 0.0f;
                for (int block = 0; block < TEAM; ++block) sum += __ldcg(sums + block * 4 + figure);
                figures[figure] = sum / BATCH;
            }
            figures[3] = length;
            break;
        }
        wait_for_groups<1>();
    }

#pragma unroll
    for (int slot = 0; slot < SLOTS; ++slot) {
        if (quad_of(slot) >= QUADS || tid % SLICES != 0) continue;
        const Place place(quad_of(slot));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int to = place.number(i);
            if (to < 0) continue;
            parameters[to] = share[slot].parameter.of[i];
            average[to] = share[slot].mean.of[i];
            square[to] = share[slot].mean_square.of[i];
            target[to] = share[slot].target.of[i];
        }
    }
    if (rank == 0 && tid < 2 * LAYERS) adam_steps[tid] = num_steps;
    if (rank == 0 && tid == 0) {
        draws[0] += (u64)num_due << 32;
        schedule[0] = num_made + num_due;
    }
}
