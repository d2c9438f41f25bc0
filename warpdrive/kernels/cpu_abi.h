// What a compiled kernel and the CPU runtime agree on. A kernel links against nothing: it reaches the
// scheduler through a table of functions handed to its entry point.
#pragma once
#include <stddef.h>
#include <stdint.h>

struct uint3 {
    unsigned x, y, z;
};

namespace warpdrive_cpu {

struct Block;  // the scheduler's state of one running block

// Eight bytes, so that a barrier returns it in a register.
struct Votes {
    uint16_t any, all;
    int32_t count;
};

// Where in the user's text something is called. As a default argument, WARPDRIVE_HERE is the place of the call.
struct Place {
    const char* file;
    unsigned line;
    static constexpr Place here(const char* file = __builtin_FILE(), unsigned line = __builtin_LINE()) {
        return Place{file, line};
    }
};
#define WARPDRIVE_HERE warpdrive_cpu::Place::here()

// What every lane of a warp brought to a warp primitive; bit i of `arrived` says whether lane i took part.
struct WarpValues {
    uint32_t arrived;
    uint64_t value[32];
};

struct Scheduler {
    // Parks the calling thread until every unfinished thread of the block has arrived.
    Votes (*barrier)(Block*, unsigned thread, int predicate, Place);
    // The same among the unfinished threads of `mask`. Only __syncwarp orders memory.
    void (*warp)(Block*, unsigned thread, uint32_t mask, uint64_t value, Place, bool orders_memory, WarpValues*);
    uint32_t (*active_mask)(Block*, unsigned thread);
    void (*fence)();
    // Debug mode's watched build: this thread is about to read, to write, or to do something atomic.
    void (*read)(Block*, unsigned thread, const void* address, size_t size, const void* caller);
    void (*write)(Block*, unsigned thread, const void* address, size_t size, const void* caller);
    void (*atomic)(Block*, unsigned thread, const void* address, size_t size, const void* caller);
    // Ends the launch with an error; does not return.
    void (*fail)(Block*, unsigned thread, Place, const char* what);
};

// What an entry point receives: run threads [first, limit) of one block.
struct BlockView {
    const Scheduler* scheduler;
    Block* block;
    uint3 block_index, block_size, grid_size;
    unsigned first, limit;
    bool is_muted;       // a repeated run of debug mode: printf stays silent
    bool watches_reads;  // the watched build tells of them, too
};

typedef void (*Entry)(const BlockView*, void* const* arguments);

}  // namespace warpdrive_cpu
