// Choices from lists of actions: the draw of one, its log-probability and entropy, and their derivatives.
//
// Constants:
//   NUM_HEADS   choices of an agent, each of head_size(head) actions
//   HAS_MASK    whether some actions may not be taken

// Draws one action of one head, as draw_action in sampler.cu does, but with each exponential taken once.
//   TAKES_LIKELIEST    the likeliest action instead of a drawn one
//   logit              [num_actions]  in shared memory; the weights take their place
//   allowed            [num_actions]  actions that may be drawn, if it HAS_MASK
//   uniform            in [0, 1)
//   log_prob, entropy  of this head's distribution, nats                  added to
template <bool TAKES_LIKELIEST>
__device__ __forceinline__ int draw(
    float* logit, const bool* allowed, int num_actions, float uniform, float& log_prob, float& entropy)
{
    float largest = -INFINITY;
    int best = 0;
    bool has_choice = !HAS_MASK;
#pragma unroll 8
    for (int i = 0; i < num_actions; ++i) {
        if (HAS_MASK && !allowed[i]) {
            logit[i] = -INFINITY;
            continue;
        }
        has_choice = true;
        if (logit[i] > largest) {
            largest = logit[i];
            best = i;
        }
    }
    if (!has_choice) return 0;
    float sum = 0.0f;
    float weighted = 0.0f;
#pragma unroll 8
    for (int i = 0; i < num_actions; ++i) {
        const float above = logit[i] - largest;
        const float weight = quick_exp(above);
        sum += weight;
        weighted += weight > 0.0f ? weight * above : 0.0f;
        logit[i] = weight;
    }
    int action = best;
    if (!TAKES_LIKELIEST) {
        const float target = uniform * sum;
        float passed = 0.0f;
        action = 0;
#pragma unroll 8
        for (int i = 0; i < num_actions; ++i) {
            passed += logit[i];
            action += passed <= target ? 1 : 0;
        }
        if (action == num_actions) {  // by rounding: then it is the last that has a weight
            do {
                action -= 1;
            } while (action > 0 && logit[action] == 0.0f);
        }
    }
    const float log_sum = quick_log(sum);
    log_prob += quick_log(logit[action]) - log_sum;
    entropy += log_sum - weighted / sum;
    return action;
}

using Action = int;

// Draws for a row's heads that are this lane's.
//   TAKES_BEST         the likeliest actions instead of drawn ones
//   output             [NUM_OUTPUTS]  logits, in shared memory, where they do not stay
//   allowed            [NUM_OUTPUTS]  actions that may be drawn, if it HAS_MASK
//   random             of the row's agent in this step
//   turn               of SHARE lanes that share the row: which this is
//   action             [NUM_HEADS]                                        written
//   log_prob, entropy  of these heads' distributions, nats                added to
template <bool TAKES_BEST>
__device__ __forceinline__ void draw_heads(
    float* output, const bool* allowed, const Random& random, int turn, Action* action, float*, float& log_prob,
    float& entropy)
{
    int start = 0;
#pragma unroll
    for (int head = 0; head < NUM_HEADS; ++head) {
        if (head % SHARE == turn) {
            Random own = random;
            own.draw += head;  // the heads before it draw one number each
            const float uniform = TAKES_BEST ? 0.0f : own.uniform();
            action[head] = draw<TAKES_BEST>(
                output + start, HAS_MASK ? allowed + start : nullptr, head_size(head), uniform, log_prob, entropy);
        }
        start += head_size(head);
    }
}

// What of a sample's heads is needed twice: the logarithm of the sum of each one's exponentials, and its entropy.
struct Heads {
    float log_sum[NUM_HEADS];
    float entropy[NUM_HEADS];
};

// Those of a sample that are this lane's.
//   output             [NUM_OUTPUTS]  logits, in shared memory
//   sample             its mask, and what was taken
//   turn               of SHARE lanes that share the sample: which this is
//   log_prob, entropy  of what was taken, of the distributions, nats      added to
template <typename Sample>
__device__ __forceinline__ void judge_heads(
    const float* output, const Sample& sample, int turn, Heads& heads, float& log_prob, float& entropy)
{
    int start = 0;
#pragma unroll
    for (int head = 0; head < NUM_HEADS; ++head) {
        const int size = head_size(head);
        if (head % SHARE == turn) {
            const float* logit = output + start;
            const bool* allowed = HAS_MASK ? sample.mask + start : nullptr;
            float largest = -INFINITY;
#pragma unroll 8
            for (int i = 0; i < size; ++i) {
                if (!HAS_MASK || allowed[i]) largest = fmaxf(largest, logit[i]);
            }
            float sum = 0.0f;
            float weighted = 0.0f;
#pragma unroll 8
            for (int i = 0; i < size; ++i) {
                if (HAS_MASK && !allowed[i]) continue;
                const float above = logit[i] - largest;
                const float weight = quick_exp(above);
                sum += weight;
                weighted += weight * above;
            }
            const float log_of_sum = quick_log(sum);
            const int taken = sample.taken_by(head);
            heads.log_sum[head] = largest + log_of_sum;
            heads.entropy[head] = sum > 0.0f ? log_of_sum - weighted / sum : 0.0f;
            if (!HAS_MASK || allowed[taken]) log_prob += logit[taken] - heads.log_sum[head];
            entropy += heads.entropy[head];
        }
        start += size;
    }
}

// The derivatives of the loss by those heads' logits, which take the logits' place.
//   by_log_prob, by_entropy  those by the sums that `judge_heads` added to
template <typename Sample>
__device__ __forceinline__ void differentiate_heads(
    float* output, const Sample& sample, int turn, const Heads& heads, float by_log_prob, float by_entropy)
{
    int start = 0;
#pragma unroll
    for (int head = 0; head < NUM_HEADS; ++head) {
        const int size = head_size(head);
        if (head % SHARE == turn) {
            float* logit = output + start;
            const bool* allowed = HAS_MASK ? sample.mask + start : nullptr;
            const int taken = sample.taken_by(head);
#pragma unroll 8
            for (int i = 0; i < size; ++i) {
                const float log_of_one = logit[i] - heads.log_sum[head];
                const float probability = quick_exp(log_of_one);
                const float derivative = probability * (by_entropy * (log_of_one + heads.entropy[head]) - by_log_prob);
                const bool counts = sample.share != 0.0f && (!HAS_MASK || allowed[i]);
                logit[i] = counts ? (i == taken ? derivative + by_log_prob : derivative) : 0.0f;
            }
        }
        start += size;
    }
}
