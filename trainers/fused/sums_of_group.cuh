// Sums that a warpgroup has of products, to memory and from there: a part of files that include warpgroup.cuh, or what
// takes its place, before.

// Sums of 64 rows by 8 COUNT columns, to [.., pitch] floats, or from there; `out` is where the warpgroup's begin.
template <int COUNT, typename Each>
__device__ __forceinline__ void for_each_pair(float (&sum)[COUNT][4], float* out, int pitch, Each each)
{
    const int row = (threadIdx.x >> 5) % 4 * 16 + (lane_index() >> 2);
    float* place = out + row * pitch + 2 * (lane_index() & 3);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        each(sum[i][0], sum[i][1], (FloatPair*)(place + 8 * i));
        each(sum[i][2], sum[i][3], (FloatPair*)(place + 8 * pitch + 8 * i));
    }
}
template <int COUNT>
__device__ __forceinline__ void begin_sums(float (&sum)[COUNT][4], float* out, int pitch, bool goes_on)
{
    for_each_pair(sum, out, pitch, [&](float& low, float& high, const FloatPair* place) {
        const FloatPair was = goes_on ? *place : FloatPair{0.0f, 0.0f};
        low = was.low;
        high = was.high;
    });
    settle(sum);
}
template <int COUNT>
__device__ __forceinline__ void write_sums(float (&sum)[COUNT][4], float* out, int pitch)
{
    settle(sum);
    for_each_pair(sum, out, pitch, [](float low, float high, FloatPair* place) { *place = {low, high}; });
}

// Row sums alone, which stand in every column of a product with ones; `out` [64] is the warpgroup's.
__device__ __forceinline__ void begin_row_sums(float (&sum)[1][4], const float* out, bool goes_on)
{
    const float* place = out + (threadIdx.x >> 5) % 4 * 16 + (lane_index() >> 2);
    sum[0][0] = sum[0][1] = goes_on ? place[0] : 0.0f;
    sum[0][2] = sum[0][3] = goes_on ? place[8] : 0.0f;
    settle(sum);
}
__device__ __forceinline__ void write_row_sums(float (&sum)[1][4], float* out)
{
    settle(sum);
    if ((lane_index() & 3) != 0) return;
    float* place = out + (threadIdx.x >> 5) % 4 * 16 + (lane_index() >> 2);
    place[0] = sum[0][0];
    place[8] = sum[0][2];
}
