// What a sample brings besides its features, side by side: samples that come in an order of their own are read at once,
// where arrays of single numbers would each be asked for all that stands around one. Constants:
//   NUM_HEADS     words of an action
//   SAMPLE_BYTES  of a row, whole sectors of 32

struct alignas(16) SampleRow {
    float log_prob, value, advantage, target;
    int counts;  // whether its agent is in the game
    int action[SAMPLE_BYTES / 4 - 5];
};
static_assert(sizeof(SampleRow) == SAMPLE_BYTES && SAMPLE_BYTES % 32 == 0, "rows meet, or have a part of a sector");
static_assert(SAMPLE_BYTES >= 4 * (5 + NUM_HEADS), "an action has no room");
