// Draws of the standard normal distribution for the items of a batch, as a function of which draw of their table they are.
#include "random.cuh"
#include "warpdrive.cuh"

//   seed      [3]  of the store                                              read
//   draws     [1]  how many draws there were, in the upper 32 bits           read
//   num_sets, num_items, num_numbers  sets of numbers that each item has
//   deviates  [set, item, number]                                            written
extern "C" __global__ void draw_deviates(
    const unsigned int* seed, const unsigned long long* draws, int num_sets, int num_items, int num_numbers,
    float* deviates)
{
    const long long draw = (long long)(draws[0] >> 32), of_set = (long long)num_items * num_numbers;
    for (long long i = global_thread(); i < num_sets * of_set; i += num_global_threads()) {
        const int set = (int)(i / of_set), item = (int)(i % of_set / num_numbers), number = (int)(i % num_numbers);
        deviates[i] = Random(seed, item, set * num_numbers + number, draw, STREAM_UPDATE).normal();  // as ac_learn.cu
    }
}
