// Steps of networks towards those that they follow, such as target networks.
#include "warpdrive.cuh"

// A block a piece.
//   targets, followed  [tensor]  addresses of parameters: of who follows, and of who is followed
//   pieces  [piece, 4]  tensor, first of its numbers, (first among those of all), how many      read
//   tau     the part of the way that is made; 1 copies
extern "C" __global__ void follow(
    const long long* targets, const long long* followed, const long long* pieces, int num_pieces, float tau)
{
    for (int piece = blockIdx.x; piece < num_pieces; piece += gridDim.x) {
        const long long tensor = pieces[4 * piece], first = pieces[4 * piece + 1], count = pieces[4 * piece + 3];
        float* target = (float*)targets[tensor] + first;
        const float* goal = (const float*)followed[tensor] + first;
        for (long long i = threadIdx.x; i < count; i += blockDim.x) {
            const float here = target[i], there = goal[i], way = there - here;
            target[i] = tau < 0.5f ? here + tau * way : there - way * (1.0f - tau);  // as torch's lerp
        }
    }
}
