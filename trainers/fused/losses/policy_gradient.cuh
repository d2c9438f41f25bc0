// A2C's and PPO's loss of a sample, and its derivative by what the network says; a part of fused_learn.cuh, which
// lists the constants.
#include "losses/sample.cuh"

static_assert(NUM_FIGURES == 5, "`differentiate` has five figures");

// Sums over the heads of a sample, which SHARE lanes hold.
__device__ __forceinline__ float over_heads(float of_my_heads)
{
    return SHARE == 2 ? of_my_heads + __shfl_xor_sync(ALL_LANES, of_my_heads, 16) : of_my_heads;
}

// The loss of one sample and its derivative by each output, which takes the outputs' place.
//   is_critic  whose sample it is, if it IS_EITHER
//   output   [NUM_ALL] in shared memory, then zeros up to whole tiles          read, written
//   turn     of SHARE lanes that share the sample: which this is
//   figures  policy loss, value loss, entropy, KL divergence, clipped          added to
// Returns the loss, in all lanes of the sample.
__device__ __forceinline__ float differentiate(
    bool is_critic, float* output, const Sample& sample, int turn, float entropy_coeff, float vf_loss_coeff,
    float clip, float (&figures)[NUM_FIGURES])
{
    float loss = 0.0f;
    if (HAS_POLICY_HERE) {
        float log_prob = 0.0f;
        float entropy = 0.0f;
        Heads heads;
        judge_heads(output, sample, turn, heads, log_prob, entropy);
        log_prob = over_heads(log_prob);
        entropy = over_heads(entropy);
        float policy_loss, by_log_prob;
        float kl = 0.0f;
        float is_clipped = 0.0f;
        if (IS_PPO) {
            const float log_ratio = log_prob - sample.old_log_prob;
            const float ratio = quick_exp(log_ratio);
            const float clipped = fminf(fmaxf(ratio, 1.0f - clip), 1.0f + clip);
            const float free_gain = ratio * sample.advantage;
            const float clipped_gain = clipped * sample.advantage;
            policy_loss = -fminf(free_gain, clipped_gain);
            by_log_prob = free_gain <= clipped_gain ? -free_gain : 0.0f;
            kl = ratio - 1.0f - log_ratio;
            is_clipped = fabsf(ratio - 1.0f) > clip ? 1.0f : 0.0f;
        } else {
            float weight = 1.0f;
            if (MAX_LOG_RATIO > 0.0f) {
                const float log_ratio = log_prob - sample.old_log_prob;
                const float ratio = quick_exp(log_ratio);
                is_clipped = fabsf(log_ratio) > MAX_LOG_RATIO ? 1.0f : 0.0f;
                weight = is_clipped != 0.0f ? 0.0f : fminf(ratio, 1.0f);
                kl = ratio - 1.0f - log_ratio;
            }
            policy_loss = -log_prob * sample.advantage * weight;
            by_log_prob = -sample.advantage * weight;
        }
        loss += policy_loss - entropy_coeff * entropy;
        figures[0] += policy_loss * sample.share;
        figures[2] += entropy * sample.share;
        figures[3] += kl * sample.share;
        figures[4] += is_clipped * sample.share;
        by_log_prob *= sample.share;
        const float by_entropy = entropy_coeff * sample.share;
        differentiate_heads(output, sample, turn, heads, by_log_prob, by_entropy);
    }
    if (HAS_VALUE_HERE) {
        const float value = output[VALUE_AT];
        const auto error = [](float found, float target, float& by_found) {
            const float off = found - target;
            if (!IS_PPO) {
                by_found = 2.0f * off;
                return off * off;
            }
            if (HUBER_DELTA > 0.0f && fabsf(off) > HUBER_DELTA) {
                by_found = off > 0.0f ? HUBER_DELTA : -HUBER_DELTA;
                return HUBER_DELTA * (fabsf(off) - 0.5f * HUBER_DELTA);
            }
            by_found = off;
            return 0.5f * off * off;
        };
        float by_value;
        float value_loss = error(value, sample.target, by_value);
        if (IS_PPO && CLIPS_VALUE) {
            const float moved = fminf(fmaxf(value - sample.old_value, -clip), clip);
            float by_clipped;
            const float clipped_loss = error(sample.old_value + moved, sample.target, by_clipped);
            if (clipped_loss > value_loss) {
                value_loss = clipped_loss;
                by_value = fabsf(value - sample.old_value) <= clip ? by_clipped : 0.0f;
            }
        }
        loss += vf_loss_coeff * value_loss;
        figures[1] += value_loss * sample.share;
        if (SHARE == 2) __syncwarp();  // both lanes have read the value
        if (turn == 0) output[VALUE_AT] = sample.share != 0.0f ? vf_loss_coeff * by_value * sample.share : 0.0f;
    }
    if (turn == 0) {
        for (int i = IS_EITHER && is_critic ? 1 : NUM_ALL; i < OUTPUT_TILES * 16; ++i) output[i] = 0.0f;
    }
    return loss;
}
