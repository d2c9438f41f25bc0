// What an agent is paid for a step, as learning sees it.
#pragma once
#include "warpdrive.cuh"

//   scale  what rewards are multiplied with
//   clip   they are clipped to +- this, after they are scaled
__device__ __forceinline__ float paid(float reward, float scale, float clip)
{
    return fminf(fmaxf(reward * scale, -clip), clip);
}
