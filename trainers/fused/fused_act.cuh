// One step of a policy group's agents: network, draw, log-probability, entropy and value.
//
// Constants, besides those of layers/mlp.cuh and of the heads (OF_BOX, for the preprocessor, says which):
//   GROUP_SIZE                    agents of the group
//   FIRST_AGENT, ALL_AGENTS       of the env's agents, the group's first, and how many there are
//   SEEN_COLUMNS, FIRST_SEEN      columns of the array they observe in, and the first that is theirs
//   NUM_COLUMNS, FIRST_COLUMN     of the one they act in
//   DRAWS                         whether actions are wanted, or the value alone
//   GREEDY                        whether the likeliest action is taken instead of a drawn one
//   OF_VALUES, for the preprocessor: outputs are values of actions; the largest is the value, the best mostly drawn
#if OF_BOX
#include "heads/gaussian.cuh"
#else
#include "heads/categorical.cuh"
#endif
#if OF_VALUES
#include "heads/epsilon_greedy.cuh"
#endif

//   shared             shared memory of the block
//   block, num_blocks  which of how many work for this network
//   is_critic          whose it is, if it IS_EITHER
//   seed, env_step     name the draws                                               read
//   seen               what the network sees: [env, column, feature], or seen.py's  read
//   active             [env, agent of all]  if it HIDES what they see from agents that are out of the game  read
//   weights, biases    as layers/mlp.cuh has them                                   read
//   mean, variance     [feature]  if it NORMALISES                                  read
//   mask               [env, agent of the group, output]  may be taken, if HAS_MASK read
//   action             [env, column, head]  if it DRAWS; of a Box floats, clipped   written
//   drawn              [env, agent of the group, head]  of a Box, not clipped       written
//   log_prob, entropy  [env, agent of the group]  over heads, nats, if it DRAWS     written
//   epsilon            [1]  how often any action is drawn, if OF_VALUES             read
//   value              [env, agent of the group]  if it HAS_VALUE, or OF_VALUES     written
//   num_rows           agents of the group in all envs
__device__ __forceinline__ void act(
    char* shared, int block, int num_blocks, bool is_critic, const unsigned int* seed, const long long* env_step,
    Seen seen, const bool* active, const unsigned char* weights, const float* biases, const float* mean,
    const float* variance, const bool* mask, const float* epsilon, int* action, float* drawn, float* log_prob,
    float* entropy, float* value, int num_rows)
{
    Network network = place_network(shared, (const Element*)weights, biases);
    const int lane = lane_index();
    constexpr int TILE_ROWS = ROW_TILES * 16;
    constexpr int TOGETHER = WARPGROUPS ? 4 : 1;  // warps whose tiles lie side by side, and which end together
    const int num_tiles = (num_rows + TOGETHER * TILE_ROWS - 1) / (TOGETHER * TILE_ROWS);
    const int warp = threadIdx.x >> 5;
    const auto row_of = [&](int tile) { return (tile * TOGETHER + warp % TOGETHER) * TILE_ROWS + lane % TILE_ROWS; };
    const auto rows_of = [&](int tile) {  // the warp's
        const int row = row_of(tile);
        return find_rows(seen, active, tile < num_tiles && row < num_rows ? row : -1);
    };
    // Tiles go round the blocks first, so that few of them are spread over all multiprocessors.
    const int first = block + num_blocks * (warp / TOGETHER);
    const int step = num_blocks * (WARPS / TOGETHER);
    auto rows = given_rows(rows_of(first));
    wait_for_network();
    for (int tile = first; tile < num_tiles; tile += step) {
        const int row = row_of(tile);
        const bool is_row = row < num_rows;
#if BY_LAYERS
        read_outputs(network, (long long)tile * TILE_ROWS, num_rows);
#else
        forward(
            network, rows, mean, variance, [](Pair(&)[ROW_TILES][FEATURE_TILES][4]) {},
            [](int, Pair(&)[ROW_TILES][AT_ONCE1][4]) {}, [](int, Pair(&)[ROW_TILES][AT_ONCE2][4]) {});
        rows = given_rows(rows_of(tile + step));
#endif

        const int turn = SHARE == 2 ? lane >> 4 : 0;
        float* output = network.stage + (lane % TILE_ROWS) * STAGE_PITCH;
#if OF_VALUES
        if (is_row && turn == 0) {
            const bool* allowed = HAS_MASK ? mask + (long long)row * NUM_OUTPUTS : nullptr;
            value[row] = choose<GREEDY || !DRAWS>(output, allowed, epsilon[0]);
        }
#endif
        if (DRAWS && HAS_POLICY_HERE) {
            float row_log_prob = 0.0f;
            float row_entropy = 0.0f;
            if (is_row) {
                const int env = row / GROUP_SIZE;
                const int agent = row % GROUP_SIZE;
                const long long column = (long long)env * NUM_COLUMNS + FIRST_COLUMN + agent;
                draw_heads<GREEDY>(
                    output, HAS_MASK ? mask + (long long)row * NUM_OUTPUTS : nullptr,
                    Random(seed, env, FIRST_AGENT + agent, env_step[env], STREAM_ACTION), turn,
                    (Action*)action + column * NUM_HEADS, drawn + (long long)row * NUM_HEADS, row_log_prob,
                    row_entropy);
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
        if (HAS_VALUE_HERE && is_row && turn == 0) value[row] = output[VALUE_AT];
    }
}
