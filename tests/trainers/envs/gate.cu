#include "warpdrive.cuh"

// Lets the keeper go, and pays.
//   action       [env, agent]     of the keeper; OPEN is the one that counts                     read
//   time_step    [env]            steps of the episode                                           read, written
//   active       [env, agent]     the keeper until it opens the gate, the gatherer always        read, written
//   observation  [env, agent, 3]  its number, whether the gate is open, part that is over        written
//   reward       [env, agent]     the keeper's for staying, the gatherer's behind an open gate   written
//   terminated   [env]            time is up                                                     written
//   truncated    [env]            never                                                          written
extern "C" __global__ void gate_step(const int* action, int* time_step, bool* active, float* observation,
                                     float* reward, bool* terminated, bool* truncated)
{
    const int env = env_index();
    if (env >= NUM_ENVS || first_agent() != 0) return;
    const int keeper = env * NUM_AGENTS;
    const int time = time_step[env] + 1;
    const bool was_open = !active[keeper];
    const bool stays = !was_open && action[keeper] != OPEN;
    active[keeper] = stays;
    reward[keeper] = stays ? TEMPTATION : 0.0f;
    reward[keeper + 1] = was_open ? 1.0f : 0.0f;
    for (int agent = 0; agent < NUM_AGENTS; ++agent) {
        float* seen = observation + 3 * (keeper + agent);
        seen[0] = (float)agent;
        seen[1] = stays ? 0.0f : 1.0f;
        seen[2] = (float)time / EPISODE_LENGTH;
    }
    time_step[env] = time;
    terminated[env] = time >= EPISODE_LENGTH;
    truncated[env] = false;
}
