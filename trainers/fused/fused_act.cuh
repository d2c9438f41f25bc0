// One step of a policy group's agents: network, draw, log-probability, entropy and value.
//
// Constants: those of fused_mlp.cuh; GROUP_SIZE agents of the group, the first being the env's FIRST_AGENT, which are
// seen
// in column FIRST_SEEN and on of SEEN_COLUMNS and act in column FIRST_COLUMN and on of NUM_COLUMNS; NUM_HEADS heads
// with
// head_size(head) actions each; DRAWS: else only the value is wanted; GREEDY: the likeliest action instead of a drawn
// one;
// HAS_MASK.

// Draws one action of one head, as draw_action in draw.cuh does, but with each exponential taken once.
//   logit    [num_actions]  in shared memory; the weights take their place
//   allowed  [num_actions]  actions that may be drawn, if it HAS_MASK
//   uniform  in [0, 1)
//   log_prob, entropy       of this head's distribution, nats             added to
__device__ __forceinline__ int draw(
    float* logit, const bool* allowed, int num_actions, float uniform, float& log_prob, float& entropy)
{
    float largest = -INFINITY;
    int best = 0;
    bool has_choice = !HAS_MASK;
#pragma unroll 8
    for (int i = 0; i < num_actions; ++i) {
        if (HAS_MASK && !allowed[i]) {
            logit[i] = -INFINITY;
            continue;
        }
        has_choice = true;
        if (logit[i] > largest) {
            largest = logit[i];
            best = i;
        }
    }
    if (!has_choice) return 0;
    float sum = 0.0f;
    float weighted = 0.0f;
#pragma unroll 8
    for (int i = 0; i < num_actions; ++i) {
        const float above = logit[i] - largest;
        const float weight = quick_exp(above);
        sum += weight;
        weighted += weight > 0.0f ? weight * above : 0.0f;
        logit[i] = weight;
    }
    int action = best;
    if (!GREEDY) {
        const float target = uniform * sum;
        float passed = 0.0f;
        action = 0;
#pragma unroll 8
        for (int i = 0; i < num_actions; ++i) {
            passed += logit[i];
            action += passed <= target ? 1 : 0;
        }
        if (action == num_actions) {  // by rounding: then it is the last that has a weight
            do {
                action -= 1;
            } while (action > 0 && logit[action] == 0.0f);
        }
    }
    const float log_sum = quick_log(sum);
    log_prob += quick_log(logit[action]) - log_sum;
    entropy += log_sum - weighted / sum;
    return action;
}

//   observation  [env, column, feature]                                                           read
//   weights      bytes of elements, biases: see fused_mlp.cuh                                     read
//   mean, variance [feature]  where it NORMALISES                                                 read
//   mask         [env, agent of the group, output]  actions that may be taken, if it HAS_MASK     read
//   seed, env_step            name the draws                                                      read
//   action       [env, column, head]                                                              written if it DRAWS
//   log_prob, entropy  [env, agent of the group]  summed over heads, nats                         written if it DRAWS
//   value [env, agent of the group] written if it HAS_VALUE
//   block, num_blocks         which of how many work for this network
__device__ __forceinline__ void act(
    char* shared, int block, int num_blocks, const unsigned int* seed, const int* env_step, const float* observation,
    const unsigned char* weights, const float* biases, const float* mean, const float* variance, const bool* mask,
    int* action, float* log_prob, float* entropy, float* value, int num_rows)
{
    Network network = place_network(shared, (const Element*)weights, biases);
    wait_for_network();
    const int lane = lane_index();
    constexpr int TILE_ROWS = ROW_TILES * 16;
    constexpr int TOGETHER = WARPGROUPS ? 4 : 1;  // warps whose tiles lie side by side, and which end together
    const int num_tiles = (num_rows + TOGETHER * TILE_ROWS - 1) / (TOGETHER * TILE_ROWS);
    const int warp = threadIdx.x >> 5;
    const auto row_of = [&](int tile) { return (tile * TOGETHER + warp % TOGETHER) * TILE_ROWS + lane % TILE_ROWS; };
    const auto rows_of = [&](int tile) {  // the warp's
        const int row = row_of(tile);
        const long long seen = (long long)(row / GROUP_SIZE) * SEEN_COLUMNS + FIRST_SEEN + row % GROUP_SIZE;
        return share_rows(tile < num_tiles && row < num_rows ? observation + seen * NUM_FEATURES : nullptr);
    };
    // Tiles go round the blocks first, so that few of them are spread over all multiprocessors.
    const int first = block + num_blocks * (warp / TOGETHER);
    const int step = num_blocks * (WARPS / TOGETHER);
    auto rows = given_rows(rows_of(first));
    for (int tile = first; tile < num_tiles; tile += step) {
        const int row = row_of(tile);
        const bool is_row = row < num_rows;
        forward(
            network, rows, mean, variance, [](Pair(&)[ROW_TILES][FEATURE_TILES][4]) {},
            [](int, Pair(&)[ROW_TILES][AT_ONCE1][4]) {}, [](int, Pair(&)[ROW_TILES][AT_ONCE2][4]) {});
        rows = given_rows(rows_of(tile + step));

        // Where a warp has half as many rows as lanes, two lanes share a row: each takes every other head.
        constexpr int SHARE = ROW_TILES == 1 ? 2 : 1;
        const int turn = SHARE == 2 ? lane >> 4 : 0;
        float* output = network.stage + (lane % TILE_ROWS) * STAGE_PITCH;
        if (DRAWS) {
            float row_log_prob = 0.0f;
            float row_entropy = 0.0f;
            if (is_row) {
                const int env = row / GROUP_SIZE;
                const int agent = row % GROUP_SIZE;
                const long long column = (long long)env * NUM_COLUMNS + FIRST_COLUMN + agent;
                int start = 0;
#pragma unroll
                for (int head = 0; head < NUM_HEADS; ++head) {
                    if (head % SHARE == turn) {
                        Random random(seed, env, FIRST_AGENT + agent, env_step[env], STREAM_ACTION);
                        random.draw += head;  // the heads before it draw one number each
                        const bool* allowed = HAS_MASK ? mask + (long long)row * NUM_OUTPUTS + start : nullptr;
                        const float uniform = GREEDY ? 0.0f : random.uniform();
                        action[column * NUM_HEADS + head] =
                            draw(output + start, allowed, head_size(head), uniform, row_log_prob, row_entropy);
                    }
                    start += head_size(head);
                }
            }
            if (SHARE == 2) {
                row_log_prob += __shfl_xor_sync(ALL_LANES, row_log_prob, 16);
                row_entropy += __shfl_xor_sync(ALL_LANES, row_entropy, 16);
            }
            if (is_row && turn == 0) {
                log_prob[row] = row_log_prob;
                entropy[row] = row_entropy;
            }
        }
        if (HAS_VALUE && is_row && turn == 0) value[row] = output[NUM_OUTPUTS];
    }
}
