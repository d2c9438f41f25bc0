// PQN's loss of a sample, half the squared error of the value of the action that was taken, and its derivative; a part
// of fused_learn.cuh, which lists the constants.
#include "losses/sample.cuh"

static_assert(NUM_HEADS == 1 && !HAS_VALUE, "each output is the value of an action");
static_assert(NUM_FIGURES >= 3, "`differentiate` has three figures");

// The loss of one sample and its derivative by each output, which takes the outputs' place.
//   output   [NUM_ALL] in shared memory, then zeros up to whole tiles                    read, written
//   turn     of SHARE lanes that share the sample: which this is
//   figures  loss, value of the action, distance from its target                         added to
// The rest is a policy gradient's. Returns the loss, in all lanes of the sample.
__device__ __forceinline__ float differentiate(
    bool, float* output, const Sample& sample, int turn, float, float, float, float (&figures)[NUM_FIGURES])
{
    const int taken = sample.taken_by(0);
    const float value = output[taken];
    const float off = value - sample.target;
    const float loss = 0.5f * off * off;
    figures[0] += loss * sample.share;
    figures[1] += value * sample.share;
    figures[2] += fabsf(off) * sample.share;
    if (SHARE == 2) __syncwarp();  // both lanes have read the value
    if (turn == 0) {
        for (int i = 0; i < OUTPUT_TILES * 16; ++i) {
            output[i] = i == taken && sample.share != 0.0f ? off * sample.share : 0.0f;
        }
    }
    return loss;
}
