// What a sample brings besides its features, side by side: samples that come in an order of their own are read at once,
// where arrays of single numbers would each be asked for all that stands around one. Constants:
//   NUM_HEADS     words of an action
//   SAMPLE_BYTES  of a row, whole sectors of 32
//   GROUP_SIZE, FIRST_AGENT, ALL_AGENTS, NUM_COLUMNS, FIRST_COLUMN  as fused_learn.cuh has them

struct alignas(16) SampleRow {
    float log_prob, value, advantage, target;
    int counts;  // whether its agent is in the game
    int action[SAMPLE_BYTES / 4 - 5];
};
static_assert(sizeof(SampleRow) == SAMPLE_BYTES && SAMPLE_BYTES % 32 == 0, "rows meet, or have a part of a sector");
static_assert(SAMPLE_BYTES >= 4 * (5 + NUM_HEADS), "an action has no room");

// Of a sample among [step, env, agent of the group]: its agent among [step, env, agent of all], and where its action is.
__device__ __forceinline__ long long place_among_all(int sample)
{
    return (long long)(sample / GROUP_SIZE) * ALL_AGENTS + FIRST_AGENT + sample % GROUP_SIZE;
}
__device__ __forceinline__ long long place_of_action(int sample)
{
    return ((long long)(sample / GROUP_SIZE) * NUM_COLUMNS + FIRST_COLUMN + sample % GROUP_SIZE) * NUM_HEADS;
}
