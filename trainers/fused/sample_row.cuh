// What a sample brings besides its features, side by side: samples that come in an order of their own are read at once,
// where arrays of single numbers would each be asked for all that stands around one. Constant:
//   NUM_HEADS  words of an action

struct alignas(16) SampleRow {
    float log_prob, value, advantage, target;
    int counts;  // whether its agent is in the game
    int action[(NUM_HEADS + 5 + 7) / 8 * 8 - 5];
};
static_assert(sizeof(SampleRow) % 32 == 0, "a row has a part of a sector of memory");
