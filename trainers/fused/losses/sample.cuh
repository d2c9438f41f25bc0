// What a sample brings besides its features, whatever its loss; a part of fused_learn.cuh.
#if OF_BOX
#include "heads/gaussian.cuh"
#else
#include "heads/categorical.cuh"
#endif

// Whether actions are read before the network computes, and come while it does; many would take the registers.
constexpr bool TAKES_EARLY = WARPGROUPS || NUM_HEADS <= 2;

struct Sample {
    float old_log_prob, old_value, advantage, target;
    bool counts;
    float share;  // of the loss: 1 / how many count, or 0
    const Action* action;
    const bool* mask;
    Action taken[NUM_HEADS];  // of `action`, if it TAKES_EARLY

    __device__ __forceinline__ Action taken_by(int head) const { return TAKES_EARLY ? taken[head] : action[head]; }
};
