#include "warpdrive.cuh"
#include "random.cuh"
// A bright cell is in one of 4 corners of 5 x 5; the answer that names it pays 1.
extern "C" __global__ void corners_step(const int* action, const unsigned* seed, const long long* env_step, int* corner,
                                        unsigned char* observation_image, signed char* observation_sign, float* reward,
                                        bool* terminated, bool* truncated)
{
    const int env = env_index();
    if (env >= NUM_ENVS || first_agent() > 0) return;
    reward[env] = action[env] == corner[env] ? 1.0f : 0.0f;
    const int next = Random(seed, env, 0, env_step[env], 77).below(4);
    corner[env] = next;
    for (int cell = 0; cell < 25; ++cell) observation_image[env * 25 + cell] = 10;
    observation_image[env * 25 + (next / 2) * 20 + (next % 2) * 4] = 200;
    observation_sign[env] = -3;
    terminated[env] = false;
    truncated[env] = false;
}
