#include "warpdrive.cuh"

// Plays the first step, or pays for the second.
//   action        [env, agent]                                        read
//   state         [env]            0, then the game that is played    read, written
//   observation   [env, agent, 3]  the state, one-hot                 written
//   global_state  [env, 3]         likewise                           written
//   reward        [env, agent]     of the pair                        written
//   terminated    [env]            with the second step               written
//   truncated     [env]            never                              written
extern "C" __global__ void two_step_step(const int* action, int* state, float* observation, float* global_state,
                                         float* reward, bool* terminated, bool* truncated)
{
    const int env = env_index();
    if (env >= NUM_ENVS || first_agent() != 0) return;
    const int first = action[2 * env], sum = first + action[2 * env + 1], now = state[env];
    const int next = now == 0 ? 1 + first : 0;
    const float of_pair = now == 0 ? 0.0f : now == 1 ? 7.0f : sum == 2 ? 8.0f : (float)sum;
    for (int i = 0; i < 3; ++i) {
        global_state[3 * env + i] = i == next ? 1.0f : 0.0f;
        for (int agent = 0; agent < 2; ++agent) observation[3 * (2 * env + agent) + i] = global_state[3 * env + i];
    }
    for (int agent = 0; agent < 2; ++agent) reward[2 * env + agent] = of_pair;
    state[env] = next;
    terminated[env] = now != 0;
    truncated[env] = false;
}
