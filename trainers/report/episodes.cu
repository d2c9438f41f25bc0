#include "warpdrive.cuh"

constexpr int AHEAD = 12;
constexpr int THREADS = 256;  // of a block, at most: see FunctionManager.launch_shape

// Steps of an agent that are loaded while those before them are added up: else each waits for its own load.
struct Steps {
    float earned[AHEAD];
    bool terminated[AHEAD], truncated[AHEAD];
};

// Adds up the returns and lengths of the episodes that ended in a rollout. Episodes run on across rollouts.
// Sums are kept env by env, so their order, and with it their last bit, never changes.
//   reward          [step, env, agent]                                            read
//   terminated      [step, env]                                                   read
//   truncated       [step, env]                                                   read
//   running_return  [env, agent]  of the episode under way                        read, written
//   running_length  [env]         steps of the episode under way                  read, written
//   return_sum      [env, agent]  of the episodes ended since the last report     read, written
//   length_sum      [env]         likewise                                        read, written
//   num_ended       [env]         episodes ended since the last report            read, written
//   num_truncated   [env]         truncations in this rollout                     read
//   num_dropped     [env]         those of them whose last observation was not kept, since the last report
//                                                                                 read, written
//   num_steps       of the rollout
//   max_truncations of an env in a rollout, whose last observations are kept
extern "C" __global__ void __launch_bounds__(THREADS) episodes(
    const float* reward, const bool* terminated, const bool* truncated, float* running_return, long long* running_length,
    float* return_sum, long long* length_sum, long long* num_ended, const int* num_truncated, long long* num_dropped,
    int num_steps, int max_truncations)
{
    const long long num_rows = (long long)NUM_ENVS * NUM_AGENTS;
    for (long long row = global_thread(); row < num_rows; row += num_global_threads()) {
        const int env = (int)(row / NUM_AGENTS);
        const bool counts = row % NUM_AGENTS == 0;  // the first agent counts for its env, alone: no other reads these
        float episode_return = running_return[row];
        float ended_return = return_sum[row];
        long long length = counts ? running_length[env] : 0;
        long long ended_length = counts ? length_sum[env] : 0;
        long long ended = counts ? num_ended[env] : 0;
        const auto load = [&](int first) {
            Steps steps;
#pragma unroll
            for (int k = 0; k < AHEAD; ++k) {
                if (first + k >= num_steps) break;
                const long long step_env = (long long)(first + k) * NUM_ENVS + env;
                steps.earned[k] = reward[(first + k) * num_rows + row];
                steps.terminated[k] = terminated[step_env];
                steps.truncated[k] = truncated[step_env];
            }
            return steps;
        };
        Steps next = load(0);
        for (int first = 0; first < num_steps; first += AHEAD) {
            const Steps now = next;
            if (first + AHEAD < num_steps) next = load(first + AHEAD);
#pragma unroll
            for (int k = 0; k < AHEAD; ++k) {
                if (first + k >= num_steps) break;
                episode_return += now.earned[k];
                length += 1;
                if (!now.terminated[k] && !now.truncated[k]) continue;
                ended_return += episode_return;
                ended_length += length;
                ended += 1;
                episode_return = 0.0f;
                length = 0;
            }
        }
        running_return[row] = episode_return;
        return_sum[row] = ended_return;
        if (counts) {
            running_length[env] = length;
            length_sum[env] = ended_length;
            num_ended[env] = ended;
            if (num_truncated[env] > max_truncations) num_dropped[env] += num_truncated[env] - max_truncations;
        }
    }
}

// Adds up what an env itself said of the episodes that ended in a rollout: what the last step of each wrote.
//   figure      [step, env]                                               read
//   terminated  [step, env]                                               read
//   truncated   [step, env]                                               read
//   figure_sum  [env]         of the episodes ended since the last report  read, written
//   num_steps   of the rollout
extern "C" __global__ void episode_figure(const float* figure, const bool* terminated, const bool* truncated,
                                          float* figure_sum, int num_steps)
{
    for (long long env = global_thread(); env < NUM_ENVS; env += num_global_threads()) {
        float sum = figure_sum[env];
        for (int t = 0; t < num_steps; ++t) {
            const long long step_env = (long long)t * NUM_ENVS + env;
            if (terminated[step_env] || truncated[step_env]) sum += figure[step_env];
        }
        figure_sum[env] = sum;
    }
}
