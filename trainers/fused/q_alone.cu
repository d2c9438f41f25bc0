// Updates of a small Q-network in one launch by one block, which has the whole batch: draw, gather, targets, loss,
// gradient, Adam, target network. Nothing but what is drawn comes from global memory: both networks and what is left of
// their weights are in shared memory, and Adam's memory of each is in the registers of the thread whose warp multiplies
// its gradient. So as many learners work side by side as there are multiprocessors: one a block.
//
// What limits it is the latency of its 13 steps between barriers; of 20,000 cycles an update products have 12,000, and
// Adam 4,000.
//
// Where with_envs.py gives it the envs' step, it plays a rollout, and makes updates between its steps as they fall due.
//
// Constants, besides those of q_kept.cuh, and of q_play.cuh where it plays:
//   TARGET_FREQ   updates from one step of the target network to the next
//   CLIPS         whether gradients are shortened to max_norm
#include "q_kept.cuh"

#ifdef STEP_ENVS
#include "q_play.cuh"
#endif

constexpr long long NOTHING_FOUND = 1ll << 62;  // guard.py has the same

// Makes the updates that are due.
//   schedule         [2]  updates made before, and those that are due now; or where it plays, in place of the latter,
//                    env steps before, over all envs                                  read, written
//   done, observation, side, reward, action  what the store keeps                     read; where it plays written
//   head             [1 or more]  steps added to it                                   read; where it plays written
//   seed, draws      as table.py has them                                             read; read, written
//   weight0, bias0, weight1, bias1, weight2, bias2  the network's, layer by layer     read, written
//   target           [PARAMETERS]  the target network's, in the same order            read, written
//   average, square  [PARAMETERS]  Adam's                                             read, written
//   adam_steps       [2 LAYERS]  steps made, the same number for each tensor          read, written
//   lr               [1]                                                              read
//   halted, run_halted, first_name  [1]  of the guard: see adam_step                  read, written
//   figures          [4]  of the last update: loss, q_mean, td_error, grad_norm       written
//   threads          [3, SLOTS, THREADS, 4]  of weights, as threads have them: the target network's, and Adam's
//                    two where a launch begins and ends                               read, written
//   stratum          of a batch's points: see point_of
//   max_norm         to which gradients are shortened, if it CLIPS
// What follows is read and written where it plays; see Rollout and Kept:
//   env_seed, env_step, epsilon, exponents  as q_act has them
//   seen, acted, q_value, paid, terminated, truncated, last, truncations  of the rollout
//   side_step, num_truncated, num_dropped  of the store
//   learning_starts, replay_ratio [1]  by which updates fall due
//   num_steps        of the rollout; what STEP_ENVS needs comes after it
extern "C" __global__ void __launch_bounds__(THREADS) q_alone(
    long long* schedule, DoneCode* done, float* observation, float* side, float* reward, ActionCode* action,
    long long* head, const unsigned int* seed, unsigned long long* draws,
    float* weight0, float* bias0, float* weight1, float* bias1, float* weight2, float* bias2, float* target,
    float* average, float* square, float* adam_steps, const float* lr, float* halted, float* run_halted,
    long long* first_name, float* figures, float* threads, unsigned long long stratum, float max_norm,
    const unsigned int* env_seed, const long long* env_step, const float* epsilon, const float* exponents,
    const float* seen, int* acted, float* q_value, const float* paid, const bool* terminated, const bool* truncated,
    const float* last, const int* truncations, long long* side_step, long long* num_truncated, long long* num_dropped,
    long long learning_starts, const double* replay_ratio, int num_steps)
{
    extern __shared__ char memory[];
    Shared& shared = *(Shared*)memory;
    Quad* stored = (Quad*)(memory + sizeof(Shared));
    const int tid = threadIdx.x;
    const int lane = lane_index();
    const auto is_first = [] { return fresh_thread() == 0; };
    // By functions, so that no register holds between their uses what is in nobody's way as a parameter: see joint.py.
    const auto steps = [&] { return Steps{done, observation, side, reward, action}; };
    const auto parameters = [&] { return Parameters<float>{{weight0, weight1, weight2}, {bias0, bias1, bias2}}; };
    const auto of_thread = [&](int which, int slot) -> Quad& {
        float* first = threads;
        return ((Quad*)first)[(which * SLOTS + slot) * THREADS + tid];
    };
    constexpr int OF_TARGET = 0, OF_MEAN = 1, OF_SQUARE = 2;

    if (!STEPS_ENVS && schedule[1] == 0) return;

#pragma unroll 4
    for (int i = tid; i < (int)(sizeof(Shared) / 16); i += THREADS) ((Bytes16*)memory)[i] = {};
    __syncthreads();
    Progress& progress = shared.progress;
    if (tid == 0) {
        progress.begin = head[0];
        progress.num_made = schedule[0];
        progress.steps_before = schedule[1];
        progress.num_draws = draws[0] >> 32;
        progress.rate = lr[0];
        progress.num_adam_steps = adam_steps[0];
        progress.is_halted = halted[0] != 0.0f;
        progress.drawn_for = -1;
        for (int i = 0; i < 3; ++i) {
            progress.seed[i] = seed[i];
            progress.env_seed[i] = env_seed[i];
        }
    }
    Mine mine;
    const auto rest_of = [&](int slot) -> Rest& { return shared.rest[FULL_PRECISION ? 0 : slot][tid]; };
#pragma unroll 1
    for (int slot = 0; slot < SLOTS; ++slot) {  // by way of memory, so that this is there once, not for each of them
        const Owned owned = owned_of(slot);
        if (owned.number < 0) continue;
        const Place place(owned.number);
        Quad parameter = {}, following = {}, mean = {}, mean_square = {};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int from = place.number(i);
            if (from < 0) continue;
            parameter.of[i] = parameters()[from];
            following.of[i] = target[from];
            mean.of[i] = average[from];
            mean_square.of[i] = square[from];
        }
        Rest unused;
        part(parameter, shared.weight[0] + owned.element, owned.down, rest_of(slot));
        part(following, shared.weight[1] + owned.element, owned.down, unused);
        of_thread(OF_TARGET, slot) = following;
        of_thread(OF_MEAN, slot) = mean;
        of_thread(OF_SQUARE, slot) = mean_square;
    }
#pragma unroll
    for (int slot = 0; slot < SLOTS; ++slot) {
        mine.mean[slot] = of_thread(OF_MEAN, slot);
        mine.square[slot] = of_thread(OF_SQUARE, slot);
    }
    const auto number_of_bias = [&](int i) {  // as torch has parameters; -1: it is beyond its layer
        return Place(FRAGMENTS * 32 + i / 4).number(i % 4);
    };
    for (int i = tid; i < BIASES; i += THREADS) {
        const int from = number_of_bias(i);
        if (from < 0) continue;
        shared.bias[0][i] = parameters()[from];
        shared.bias[1][i] = target[from];
        shared.bias_mean[i] = average[from];
        shared.bias_square[i] = square[from];
    }

    const auto row = [&] { return fresh_thread() / LANES; };
    // A thread a row draws for all that gather it: of the last warps, for which the last layer's gradient has less work.
    const int next_row = tid - (THREADS - ROWS);
    const auto draw_next = [&](long long now, u64 draw) {
        if (next_row < 0) return;
        Next& next = shared.next[next_row];
        next.point = point_of(progress.seed, min(next_row, BATCH - 1), draw, stratum);
        next.item = draw_uniform(drawable_of(now), next.point);
    };
    const auto look_at_next = [&] {
        const Item& item = shared.next[max(next_row, 0)].item;
        return fate_of<DoneAt>(steps().done, item.slot, item.env());
    };
    // Makes the updates that are left after a step, at least one.
    const auto make_updates = [&] {
        const auto now = [&] { return progress.begin + (STEPS_ENVS ? progress.step + 1 : 0); };
        const bool is_gathered = progress.drawn_for == progress.step;  // as the last update left it, ahead of a step
        if (!is_gathered) draw_next(now(), progress.num_draws);
        __syncthreads();
        if (next_row >= 0) {
            Next& next = shared.next[next_row];
            const int newest = progress.slot;
            const int back = newest - next.item.slot + (next.item.slot > newest ? NUM_SLOTS : 0);
            next.is_stale = !is_gathered || back < N_STEP;
            if (next.is_stale || progress.has_lost) {
                const Fate fate = look_at_next(), before = next.fate;
                next.is_stale |= fate.code != before.code || fate.num_steps != before.num_steps;
                next.fate = fate;
            }
        }
        __syncthreads();
        const Next& given = shared.next[row()];
        if (given.is_stale) Coming(steps(), given.item, given.fate).store(shared, row() < BATCH);
#pragma unroll 1
        do {
            __syncthreads();
#pragma unroll 1
            for (int pass = 0; pass < (DOUBLE ? 3 : 2); ++pass) {  // what came after by one network, or both; then the rows
                const int network = pass == 0 ? 1 : 0;
                const bool is_after = pass < (DOUBLE ? 2 : 1);
                if (pass > 0 && (LAYERS == 2 || DOUBLE)) __syncthreads();
                hidden_layers(shared, network, shared.features + (is_after ? ROWS * PITCH0 : 0));
                float* q = network ? shared.q_of_target : shared.q + (is_after ? ROWS * Shared::Q_PITCH : 0);
                last_of_rows(shared, network, q, [&](int first) {
                    if (is_after) return;
                    __syncwarp();
                    if (lane < 16) judge_row(shared, first + lane);
                });
            }
            __syncthreads();

            Quad gradient[SLOTS];
            float squares = 0.0f;
            constexpr int FIRST1 = LAYERS > 2 ? SLOTS2 : 0;
            const bool is_last = progress.num_left == 1;
            if (!is_last || STEPS_ENVS) draw_next(now() + (is_last ? 1 : 0), progress.num_draws + 1);
            if (tid == THREADS - ROWS - 1) {  // of the last warp that does not draw
                progress.is_last = is_last;
                const float made = progress.num_adam_steps + 1.0f;
                shared.rates.follows = (progress.num_made + 1) % TARGET_FREQ == 0;
                shared.rates.step_size = progress.rate / -expm1f(made * -0.105360516f);  // 1 - 0.9^steps, see adam_step
                shared.rates.correction = 1.0f / sqrtf(-expm1f(made * -0.0010005003f));
            }
            if constexpr (LAYERS > 2) {
                Quad of_layer[SLOTS2];
                gradient_of_rows<LAYERS - 1>(shared.delta_out, shared.hidden2, of_layer, shared.of_bias);
                squares += keep<0>(of_layer, gradient, stored);
                __syncthreads();
                deltas_of_rows<LAYERS - 1>(shared.delta_out, shared.weight[0], shared.hidden2);
                __syncthreads();
            }
            const Element* delta1 = LAYERS > 2 ? shared.hidden2 : shared.delta_out;  // of the outputs of layer 1
            if (LAYERS == 2) __syncthreads();  // what was drawn
            const Fate fate = look_at_next();  // which comes while this is multiplied
            {
                Quad of_layer[SLOTS1];
                gradient_of_rows<1>(delta1, shared.hidden1, of_layer, shared.of_bias);
                squares += keep<FIRST1>(of_layer, gradient, stored);
            }
            if (next_row >= 0) shared.next[next_row].fate = fate;
            __syncthreads();
            deltas_of_rows<1>(delta1, shared.weight[0], shared.hidden1);
            __syncthreads();
            const Next next = shared.next[row()];
            Coming coming(steps(), next.item, next.fate);  // which is on its way, until there is room for it
            {
                Quad of_layer[SLOTS0];
                gradient_of_rows<0>(shared.hidden1, shared.features, of_layer, shared.of_bias);
                squares += keep<FIRST1 + SLOTS1>(of_layer, gradient, stored);
            }
            const auto gradient_in = [&](int slot) -> Quad {
                return slot < STORED ? stored[slot * THREADS + tid] : gradient[slot];
            };
            __syncthreads();
            for (int i = fresh_thread(); i < BIASES; i += THREADS) squares += shared.of_bias[i] * shared.of_bias[i];
            squares = over_warp(squares);
            if (lane == 0) shared.squares[fresh_thread() / 32] = squares;
            __syncthreads();
            float all_squares = 0.0f;
#pragma unroll
            for (int warp = 0; warp < WARPS; ++warp) all_squares += shared.squares[warp];
            const float length = sqrtf(all_squares);
            if (__builtin_expect(!progress.is_halted && !isfinite(length), 0)) {  // the first tensor is told
                long long first = NOTHING_FOUND;
                for_each_slot([&](int slot, const Owned& owned) {
                    const Quad one = gradient_in(slot);
                    const bool is_told = !isfinite(one.of[0] + one.of[1] + one.of[2] + one.of[3]);
                    if (owned.is_there && is_told) first = min(first, 2ll * owned.layer);
                });
                for (int i = tid; i < BIASES; i += THREADS) {
                    const int layer = (i >= biases_at(1)) + (LAYERS > 2 && i >= biases_at(LAYERS - 1));
                    if (!isfinite(shared.of_bias[i])) first = min(first, 2ll * layer + 1);
                }
                long long* name = first_name;
                if (first != NOTHING_FOUND) atomicMin(name, first);
                __syncthreads();
                if (is_first()) {
                    progress.is_halted = true;
                    if (__ldcg(name) == NOTHING_FOUND) name[0] = 0;  // too long, though no part is
                    halted[0] = run_halted[0] = 1.0f;
                }
                __syncthreads();
            }
            const bool is_halted = progress.is_halted;
            const float shortened = CLIPS ? fminf(1.0f, max_norm / (length + 1e-6f)) : 1.0f;
            const Rates rates = shared.rates;
            const auto step = [&](float slope, float& mean, float& mean_square, float parameter) {
                mean += 0.1f * (slope - mean);
                mean_square += 0.001f * (slope * slope - mean_square);
                return parameter - rates.step_size * step_of(mean, mean_square, rates.correction);
            };
            if (!is_halted || rates.follows) {
#pragma unroll
                for (int first = 0; first < SLOTS; first += AT_ONCE) {
                    Quad parameter[AT_ONCE], slope[AT_ONCE], following[AT_ONCE];
                    for_some_slots(first, [&](int slot, int i, const Owned& owned) {
                        parameter[i] = whole(shared.weight[0] + owned.element, owned.down, rest_of(slot));
                        slope[i] = gradient_in(slot);
                        if (rates.follows && TAU < 1.0f) following[i] = of_thread(OF_TARGET, slot);
                    });
                    if (!is_halted) {
                        for_some_slots(first, [&](int slot, int i, const Owned&) {
#pragma unroll
                            for (int n = 0; n < 4; ++n) {
                                parameter[i].of[n] = step(slope[i].of[n] * shortened, mine.mean[slot].of[n],
                                                          mine.square[slot].of[n], parameter[i].of[n]);
                            }
                        });
                        for_some_slots(first, [&](int slot, int i, const Owned& owned) {
                            part(parameter[i], shared.weight[0] + owned.element, owned.down, rest_of(slot));
                        });
                    }
                    if (__builtin_expect(!rates.follows, TARGET_FREQ > 1)) continue;
                    for_some_slots(first, [&](int slot, int i, const Owned& owned) {
                        Quad& next = following[i];
#pragma unroll
                        for (int n = 0; n < 4; ++n) {
                            next.of[n] = followed_by(TAU < 1.0f ? next.of[n] : parameter[i].of[n], parameter[i].of[n]);
                        }
                        of_thread(OF_TARGET, slot) = next;
                        Rest unused;
                        part(next, shared.weight[1] + owned.element, owned.down, unused);
                    });
                }
#pragma unroll 1
                for (int i = fresh_thread(); i < BIASES; i += THREADS) {
                    float& bias = shared.bias[0][i];
                    if (!is_halted) {
                        bias = step(shared.of_bias[i] * shortened, shared.bias_mean[i], shared.bias_square[i], bias);
                    }
                    if (rates.follows) shared.bias[1][i] = followed_by(shared.bias[1][i], bias);
                }
            }
            if (is_first()) {
                if (!is_halted) progress.num_adam_steps += 1.0f;
                ++progress.num_made;
                ++progress.num_draws;
                --progress.num_left;
                progress.length = length;
                progress.drawn_for = progress.step + 1;
            }
            if (progress.is_last && !STEPS_ENVS) break;
            coming.store(shared, row() < BATCH);
        } while (!progress.is_last);
    };

#ifdef STEP_ENVS
    static_assert(2 * PLAYED_ROWS <= ROWS, "no room to play in");
    // What is acted by lies where rows of an update are between updates.
    Element* features = (Element*)(memory + SHARED_BYTES - SEEN_BYTES);
    float* numbers = (float*)shared.delta_out;
    static_assert(PLAYED_ROWS * (CHOICE_PITCH + 2) * sizeof(float) <= sizeof(shared.delta_out), "no room to choose in");
    const Choice<PLAYED_ROWS> choice = {
        shared.weight[0], shared.bias[0], features, shared.hidden1, shared.hidden2, numbers,
        numbers + PLAYED_ROWS * CHOICE_PITCH, numbers + PLAYED_ROWS * (CHOICE_PITCH + 1)};
    const auto made_after = [&](long long steps) {
        return updates_by(progress.steps_before + steps * NUM_ENVS, learning_starts, replay_ratio[0]);
    };
    const auto plan_updates = [&](int t) {  // ahead, by a thread that others do not wait for
        progress.made_then = made_after(t);
        const bool are_there = drawable_of(progress.begin + t + 1).count > 0;
        progress.due_then = are_there ? (int)(made_after(t + 1) - progress.made_then) : 0;
    };
    if (is_first()) {
        plan_updates(0);
        progress.slot = (int)(progress.begin % NUM_SLOTS);
    }
    for (int i = tid; i < PLAYED_ROWS * PITCH0; i += THREADS) narrow(features[i], 0.0f);
    __syncthreads();
    see(choice, seen);
#pragma unroll 1
    for (;;) {
        __syncthreads();
        const int t = progress.step, slot = progress.slot;  // before it is moved on
        if (t == num_steps) break;
        if (is_first()) {
            progress.num_made = progress.made_then;
            progress.num_left = progress.due_then;
            progress.has_lost = 0;
        }
        const long long step = (long long)t * NUM_ENVS;
        act(choice, progress.env_seed, env_step, epsilon, exponents, acted + step * NUM_COLUMNS,
            q_value + step * GROUP_SIZE);
        STEP_ENVS(t)
        if (tid == THREADS / 2) plan_updates(t + 1);
        keep_step(
            {seen, acted, q_value, paid, terminated, truncated, last, truncations},
            {done, observation, side, reward, action, side_step, num_truncated, num_dropped}, t, progress.begin + t,
            slot, &progress.has_lost, features);
        if (progress.num_left > 0) make_updates();
        if (is_first()) {
            ++progress.step;
            progress.slot = slot_after(slot, 1);
        }
    }
    if (is_first()) {
        progress.num_made = made_after(num_steps);
        head[0] = head[1] = progress.begin + num_steps;
        schedule[1] = progress.steps_before + (long long)num_steps * NUM_ENVS;
    }
#else
    if (is_first()) progress.num_left = (int)progress.steps_before;
    __syncthreads();
    make_updates();
#endif
    __syncthreads();
    if (progress.drawn_for < 0) return;

    if (tid < NUM_FIGURES) {  // once a launch
        float sum = 0.0f;
        for (int r = 0; r < ROWS; ++r) sum += shared.of_batch[tid][r];
        figures[tid] = sum / BATCH;
    }
    if (tid == NUM_FIGURES) figures[3] = progress.length;
#pragma unroll
    for (int slot = 0; slot < SLOTS; ++slot) {
        of_thread(OF_MEAN, slot) = mine.mean[slot];
        of_thread(OF_SQUARE, slot) = mine.square[slot];
    }
#pragma unroll 1
    for (int slot = 0; slot < SLOTS; ++slot) {
        const Owned owned = owned_of(slot);
        if (owned.number < 0) continue;
        const Place place(owned.number);
        const Quad parameter = whole(shared.weight[0] + owned.element, owned.down, rest_of(slot));
        const Quad following = of_thread(OF_TARGET, slot);
        const Quad mean = of_thread(OF_MEAN, slot), mean_square = of_thread(OF_SQUARE, slot);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int to = place.number(i);
            if (to < 0) continue;
            parameters()[to] = parameter.of[i];
            target[to] = following.of[i];
            average[to] = mean.of[i];
            square[to] = mean_square.of[i];
        }
    }
    for (int i = tid; i < BIASES; i += THREADS) {
        const int to = number_of_bias(i);
        if (to < 0) continue;
        parameters()[to] = shared.bias[0][i];
        target[to] = shared.bias[1][i];
        average[to] = shared.bias_mean[i];
        square[to] = shared.bias_square[i];
    }
    if (tid < 2 * LAYERS) adam_steps[tid] = progress.num_adam_steps;
    if (is_first()) {
        draws[0] = progress.num_draws << 32 | (draws[0] & 0xffffffffu);
        schedule[0] = progress.num_made;
    }
}
