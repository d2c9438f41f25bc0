// From values of actions to a choice: the best, the first of equals, or now and then any that may be taken.

constexpr float NEVER = 1e-30f;  // a probability that is none, but has a logarithm

// The largest value of a row's actions, in whose place the logarithms of the probabilities come, unless the best is
// TAKEN.
//   output   [NUM_OUTPUTS]  values, in shared memory                 read, written
//   allowed  [NUM_OUTPUTS]  actions that may be taken, if it HAS_MASK
//   epsilon  the probability that is shared by all of them
template <bool TAKEN>
__device__ __forceinline__ float choose(float* output, const bool* allowed, float epsilon)
{
    float largest = -1e9f;
    int best = 0;
    int count = 0;
    for (int i = 0; i < NUM_OUTPUTS; ++i) {
        if (HAS_MASK && !allowed[i]) continue;
        if (count == 0 || output[i] > largest || isnan(output[i])) {
            largest = output[i];
            best = i;
        }
        if (isnan(largest)) break;  // it stays one, as torch's
        count += 1;
    }
    if (TAKEN) return largest;
    count = 0;
    for (int i = 0; i < NUM_OUTPUTS; ++i) count += !HAS_MASK || allowed[i] ? 1 : 0;
    const float shared = epsilon / (float)max(count, 1);
    for (int i = 0; i < NUM_OUTPUTS; ++i) output[i] = logf(fmaxf(i == best ? shared + 1.0f - epsilon : shared, NEVER));
    return largest;
}
