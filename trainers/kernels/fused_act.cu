// One step of a policy group's agents: network, draw, log-probability, entropy and value in one launch.
//
// Constants: those of fused_mlp.cuh; GROUP_SIZE agents of the group, the first being the env's FIRST_AGENT, which are seen
// in column FIRST_SEEN and on of SEEN_COLUMNS and act in column FIRST_COLUMN and on of NUM_COLUMNS; NUM_HEADS heads with
// HEAD_SIZES actions each; DRAWS: else only the value is wanted; GREEDY: the likeliest action instead of a drawn one;
// HAS_MASK.
#include "fused_mlp.cuh"
#include "draw.cuh"

//   observation  [env, column, feature]                                                           read
//   weights      bytes of elements, biases: see fused_mlp.cuh                                     read
//   mean, variance [feature]  where it NORMALISES                                                 read
//   mask         [env, agent of the group, output]  actions that may be taken, if it HAS_MASK     read
//   seed, env_step            name the draws                                                      read
//   action       [env, column, head]                                                              written if it DRAWS
//   log_prob, entropy  [env, agent of the group]  summed over heads, nats                         written if it DRAWS
//   value        [env, agent of the group]                                                        written if it HAS_VALUE
extern "C" __global__ void __launch_bounds__(WARPS * 32) act(
    const float* observation, const unsigned char* weights, const float* biases, const float* mean,
    const float* variance, const bool* mask, const unsigned int* seed, const int* env_step, int* action,
    float* log_prob, float* entropy, float* value, int num_rows)
{
    extern __shared__ char shared[];
    Network network = place_network(shared, (const Element*)weights, biases);
    wait_for_copies();
    __syncthreads();
    const int lane = lane_index();
    constexpr int TILE_ROWS = ROW_TILES * 16;
    const int num_tiles = (num_rows + TILE_ROWS - 1) / TILE_ROWS;
    // Tiles go round the blocks first, so that few of them are spread over all multiprocessors.
    for (int tile = blockIdx.x + gridDim.x * (threadIdx.x >> 5); tile < num_tiles; tile += gridDim.x * WARPS) {
        const auto place_of = [&](int row) -> const float* {
            if (row >= num_rows) return nullptr;
            const long long seen = (long long)(row / GROUP_SIZE) * SEEN_COLUMNS + FIRST_SEEN + row % GROUP_SIZE;
            return observation + seen * NUM_FEATURES;
        };
        Rows rows;
#pragma unroll
        for (int r = 0; r < ROW_TILES; ++r) {
            rows.upper[r] = place_of(tile * TILE_ROWS + r * 16 + (lane >> 2));
            rows.lower[r] = place_of(tile * TILE_ROWS + r * 16 + 8 + (lane >> 2));
        }
        const auto forget_features = [](Pair(&)[ROW_TILES][FEATURE_TILES][4]) {};
        const auto forget = [](int, Pair(&)[ROW_TILES][4]) {};
        forward<1>(network, rows, mean, variance, forget_features, forget, forget);

        // Where a warp has half as many rows as lanes, two lanes share a row: each takes every other head.
        constexpr int SHARE = ROW_TILES == 1 ? 2 : 1;
        const int turn = SHARE == 2 ? lane >> 4 : 0;
        const int row = tile * TILE_ROWS + lane % TILE_ROWS;
        const bool is_row = row < num_rows;
        const float* output = network.stage + (lane % TILE_ROWS) * STAGE_PITCH;
        if (DRAWS) {
            float row_log_prob = 0.0f;
            float row_entropy = 0.0f;
            if (is_row) {
                const int env = row / GROUP_SIZE;
                const int agent = row % GROUP_SIZE;
                const long long column = (long long)env * NUM_COLUMNS + FIRST_COLUMN + agent;
                int start = 0;
                for (int head = 0; head < NUM_HEADS; ++head) {
                    if (head % SHARE == turn) {
                        Random random(seed, env, FIRST_AGENT + agent, env_step[env], STREAM_ACTION);
                        random.draw += head;  // the heads before it draw one number each
                        const bool* allowed = HAS_MASK ? mask + (long long)row * NUM_OUTPUTS + start : nullptr;
                        action[column * NUM_HEADS + head] = draw_action<GREEDY>(
                            output + start, allowed, HEAD_SIZES[head], random, row_log_prob, row_entropy);
                    }
                    start += HEAD_SIZES[head];
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
