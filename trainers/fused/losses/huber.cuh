// What Q-learning loses by a distance from its target. Constant:
//   HUBER_DELTA  the distance beyond which the loss grows linearly; 0: half of all squares
#pragma once

struct HuberLoss {
    float loss, slope;
};
// One that is not finite stays so: it is told by the gradient that it makes.
__device__ __forceinline__ HuberLoss huber_loss(float distance)
{
    const float size = fabsf(distance);
    const bool is_far = HUBER_DELTA > 0.0f && size > HUBER_DELTA && isfinite(size);
    if (!is_far) return {0.5f * size * size, distance};
    return {HUBER_DELTA * (size - 0.5f * HUBER_DELTA), distance > 0.0f ? HUBER_DELTA : -HUBER_DELTA};
}
