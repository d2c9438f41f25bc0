#include "warpdrive.cuh"

// Pays for how near the dial comes to three quarters of its way.
//   action       [env, 1, 1]  from LOW to HIGH  read
//   observation  [env, 1, 1]  1                 written
//   reward       [env, 1]                       written
//   terminated, truncated  [env]  never         written
extern "C" __global__ void dial_step(const float* action, float* observation, float* reward, bool* terminated,
                                     bool* truncated)
{
    const int env = env_index();
    if (env >= NUM_ENVS || first_agent() > 0) return;
    const float part = (action[env] - LOW) / (HIGH - LOW);
    reward[env] = 1.0f - 2.0f * fabsf(part - 0.75f);
    observation[env] = 1.0f;
    terminated[env] = false;
    truncated[env] = false;
}
