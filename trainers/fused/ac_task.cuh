// A tile of a gradient: some parameters of a layer, those between some of its inputs and some of its outputs.
// ac_learner.py lists them.
#pragma once

struct Task {
    long long delta, given;              // where rows of elements are
    long long out, in;                   // of the layer
    long long out_width, in_width;       // of the rows
    long long first_out, first_in;       // of the tile
    long long weights, biases;           // where their gradients begin
    long long name;                      // the number of the weight among all that learn; the bias's is the next
};
