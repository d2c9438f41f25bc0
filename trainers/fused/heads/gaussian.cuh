// Numbers of a Box, from normal distributions: their draw, log-probability and entropy, and their derivatives.
// What is drawn is in parts of the Box: see GaussianHead.
//
// A row's outputs are the numbers' means, then the logarithms of their standard deviations.
// The latter have biases alone, which are the head's parameter: the biases' gradient is its.
//
// Constants:
//   NUM_HEADS        numbers of an action
//   LOW, HIGH        ends of the Box
//   CENTRE, SCALE    what is drawn stands for CENTRE + SCALE times it,
//   SQUASHES         or CENTRE + SCALE times the hyperbolic tangent of it
//   STRETCH          log SCALE + log(2 pi) / 2
//   NUM_POINTS, POINTS, WEIGHTS
//                    of a mean over the standard normal distribution, if it SQUASHES

using Action = float;

static_assert(NUM_OUTPUTS == 0 || NUM_OUTPUTS == 2 * NUM_HEADS, "a number has a mean and a deviation");

// Draws a row's numbers that are this lane's, as draw_all in gaussian_sampler.cu does.
//   TAKES_BEST         the means instead of drawn numbers
//   output             [NUM_OUTPUTS]  in shared memory
//   random             of the row's agent in this step
//   turn               of SHARE lanes that share the row: which this is
//   action             [NUM_HEADS]  for the env: in its unit, clipped     written
//   drawn              [NUM_HEADS]                                        written
//   log_prob, entropy  of these numbers' distributions, nats; if it
//                      SQUASHES, the entropy is of one draw               added to
template <bool TAKES_BEST>
__device__ __forceinline__ void draw_heads(
    const float* output, const bool*, const Random& random, int turn, Action* action, float* drawn, float& log_prob,
    float& entropy)
{
#pragma unroll 1
    for (int i = turn; i < NUM_HEADS; i += SHARE) {
        Random own = random;
        own.draw += 2 * i;  // a normal number takes two
        const float deviate = TAKES_BEST ? 0.0f : own.normal();
        const float log_std = output[NUM_HEADS + i];
        const float number = output[i] + expf(log_std) * deviate;
        drawn[i] = number;
        const float part = SQUASHES ? tanhf(number) : number;
        action[i] = fminf(fmaxf(CENTRE[i] + SCALE[i] * part, LOW[i]), HIGH[i]);
        const float spread = log_std + STRETCH[i] + (SQUASHES ? log_slope_of_tanh(number) : 0.0f);
        log_prob -= 0.5f * deviate * deviate + spread;
        entropy += 0.5f + spread;
    }
}

// What of a sample's numbers is needed twice: nothing.
struct Heads {};

// Log-probability and entropy of a sample's numbers that are this lane's.
//   output             [NUM_OUTPUTS]  in shared memory
//   sample             what was drawn
//   turn               of SHARE lanes that share the sample: which this is
//   log_prob, entropy  of what was drawn, of the distributions, nats      added to
template <typename Sample>
__device__ __forceinline__ void judge_heads(
    const float* output, const Sample& sample, int turn, Heads&, float& log_prob, float& entropy)
{
#pragma unroll
    for (int i = 0; i < NUM_HEADS; ++i) {
        if (i % SHARE != turn) continue;
        const float mean = output[i];
        const float log_std = output[NUM_HEADS + i];
        const float drawn = sample.taken_by(i);
        const float deviate = (drawn - mean) * quick_exp(-log_std);
        const float spread = log_std + STRETCH[i];
        log_prob -= 0.5f * deviate * deviate + spread;
        entropy += 0.5f + spread;
        if (SQUASHES) {
            log_prob -= log_slope_of_tanh(drawn);
            const float deviation = quick_exp(log_std);
            for (int k = 0; k < NUM_POINTS; ++k) {
                entropy += WEIGHTS[k] * log_slope_of_tanh(mean + deviation * POINTS[k]);
            }
        }
    }
}

// The derivatives of the loss by those numbers' outputs, which take the outputs' place.
//   by_log_prob, by_entropy  the loss's derivative by the first sum of `judge_heads`, and less that by the second
template <typename Sample>
__device__ __forceinline__ void differentiate_heads(
    float* output, const Sample& sample, int turn, const Heads&, float by_log_prob, float by_entropy)
{
    const bool counts = sample.share != 0.0f;
#pragma unroll
    for (int i = 0; i < NUM_HEADS; ++i) {
        if (i % SHARE != turn) continue;
        const float mean = output[i];
        const float log_std = output[NUM_HEADS + i];
        const float per_deviation = quick_exp(-log_std);
        const float deviate = (sample.taken_by(i) - mean) * per_deviation;
        float by_mean = by_log_prob * deviate * per_deviation;
        float by_log_std = by_log_prob * (deviate * deviate - 1.0f) - by_entropy;
        if (SQUASHES) {
            const float deviation = quick_exp(log_std);
            for (int k = 0; k < NUM_POINTS; ++k) {  // the slope of log_slope_of_tanh is -2 tanh
                const float by_point = 2.0f * by_entropy * WEIGHTS[k] * quick_tanh(mean + deviation * POINTS[k]);
                by_mean += by_point;
                by_log_std += by_point * deviation * POINTS[k];
            }
        }
        output[i] = counts ? by_mean : 0.0f;
        output[NUM_HEADS + i] = counts ? by_log_std : 0.0f;
    }
}
