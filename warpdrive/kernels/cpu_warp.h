// Warp votes, shuffles and reductions. Every lane of the mask meets in the scheduler and sees all lanes' values.
#pragma once
#include "cpu_abi.h"

namespace warpdrive_cpu {

WARPDRIVE_COLD WarpValues warp(uint32_t mask, uint64_t value, Place place, bool orders_memory = false) {
    const uint3 index = self.thread_index;
    const unsigned thread = self.thread;
    WarpValues values;
    self.scheduler->warp(self.block, thread, mask, value, place, orders_memory, &values);
    self.thread_index = index;
    self.thread = thread;
    is_detached = true;
    return values;
}

WARPDRIVE_COLD unsigned active_mask() { return self.scheduler->active_mask(self.block, self.thread); }

static inline int lane() { return static_cast<int>(this_thread() & 31u); }

template <class T>
static inline uint64_t to_bits(T value) {
    static_assert(sizeof(T) <= 8, "a warp primitive exchanges at most 8 bytes a lane");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    return bits;
}

template <class T>
static inline T from_bits(uint64_t bits) {
    T value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// The value of lane `source`, or the caller's own where there is no such lane.
template <class T>
static inline T shuffle(unsigned mask, T value, int source, Place place) {
    const WarpValues values = warp(mask, to_bits(value), place);
    return source >= 0 && source < 32 && (values.arrived >> source & 1) ? from_bits<T>(values.value[source]) : value;
}

// Combines the lanes' values in lane order.
template <class T, class Combine>
static inline T reduce(unsigned mask, T value, Place place, Combine combine) {
    const WarpValues values = warp(mask, to_bits(value), place);
    bool is_first = true;
    T result = value;
    for (int i = 0; i < 32; ++i) {
        if (!(values.arrived >> i & 1)) continue;
        const T next = from_bits<T>(values.value[i]);
        result = is_first ? next : combine(result, next);
        is_first = false;
    }
    return result;
}

}  // namespace warpdrive_cpu

static inline void __syncwarp(unsigned mask = 0xffffffffu, warpdrive_cpu::Place place = WARPDRIVE_HERE) {
    warpdrive_cpu::warp(mask, 0, place, true);
}
static inline unsigned __activemask() { return warpdrive_cpu::active_mask(); }

static inline unsigned __ballot_sync(unsigned mask, int predicate, warpdrive_cpu::Place place = WARPDRIVE_HERE) {
    const warpdrive_cpu::WarpValues values = warpdrive_cpu::warp(mask, predicate != 0, place);
    unsigned ballot = 0;
    for (int i = 0; i < 32; ++i) {
        if ((values.arrived >> i & 1) && values.value[i]) ballot |= 1u << i;
    }
    return ballot;
}
static inline int __any_sync(unsigned mask, int predicate, warpdrive_cpu::Place place = WARPDRIVE_HERE) {
    return __ballot_sync(mask, predicate, place) != 0;
}
static inline int __all_sync(unsigned mask, int predicate, warpdrive_cpu::Place place = WARPDRIVE_HERE) {
    return __ballot_sync(mask, !predicate, place) == 0;
}

template <class T>
static inline unsigned __match_any_sync(unsigned mask, T value, warpdrive_cpu::Place place = WARPDRIVE_HERE) {
    const uint64_t mine = warpdrive_cpu::to_bits(value);
    const warpdrive_cpu::WarpValues values = warpdrive_cpu::warp(mask, mine, place);
    unsigned equal = 0;
    for (int i = 0; i < 32; ++i) {
        if ((values.arrived >> i & 1) && values.value[i] == mine) equal |= 1u << i;
    }
    return equal;
}

// `width` is a power of two: lanes exchange within aligned groups of that many.
template <class T>
static inline T __shfl_sync(unsigned mask, T value, int source, int width = 32,
                            warpdrive_cpu::Place place = WARPDRIVE_HERE) {
    const int group = warpdrive_cpu::lane() & ~(width - 1);
    return warpdrive_cpu::shuffle(mask, value, group + (source & (width - 1)), place);
}
template <class T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                               warpdrive_cpu::Place place = WARPDRIVE_HERE) {
    const int lane = warpdrive_cpu::lane(), source = lane - static_cast<int>(delta);
    return warpdrive_cpu::shuffle(mask, value, source < (lane & ~(width - 1)) ? -1 : source, place);
}
template <class T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                                 warpdrive_cpu::Place place = WARPDRIVE_HERE) {
    const int lane = warpdrive_cpu::lane(), source = lane + static_cast<int>(delta);
    return warpdrive_cpu::shuffle(mask, value, source > (lane | (width - 1)) ? -1 : source, place);
}
template <class T>
static inline T __shfl_xor_sync(unsigned mask, T value, int flip, int width = 32,
                                warpdrive_cpu::Place place = WARPDRIVE_HERE) {
    const int lane = warpdrive_cpu::lane(), source = lane ^ flip;
    return warpdrive_cpu::shuffle(mask, value, source > (lane | (width - 1)) ? -1 : source, place);
}

#define WARPDRIVE_REDUCE(NAME, T, EXPRESSION)                                                 \
    static inline T NAME(unsigned mask, T value, warpdrive_cpu::Place place = WARPDRIVE_HERE) {          \
        return warpdrive_cpu::reduce(mask, value, place, [](T a, T b) { return EXPRESSION; }); \
    }
WARPDRIVE_REDUCE(__reduce_add_sync, int, a + b)
WARPDRIVE_REDUCE(__reduce_add_sync, unsigned, a + b)
WARPDRIVE_REDUCE(__reduce_min_sync, int, a < b ? a : b)
WARPDRIVE_REDUCE(__reduce_min_sync, unsigned, a < b ? a : b)
WARPDRIVE_REDUCE(__reduce_max_sync, int, a > b ? a : b)
WARPDRIVE_REDUCE(__reduce_max_sync, unsigned, a > b ? a : b)
WARPDRIVE_REDUCE(__reduce_and_sync, unsigned, a & b)
WARPDRIVE_REDUCE(__reduce_or_sync, unsigned, a | b)
WARPDRIVE_REDUCE(__reduce_xor_sync, unsigned, a ^ b)
