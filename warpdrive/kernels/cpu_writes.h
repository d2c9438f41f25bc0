// Finds lost updates in debug mode, such as `count[env] = count[env] + 1` by all threads of a block.
//
// Two threads that write different values to one place, with nothing between that orders them, leave a result that
// depends on who comes last. So for every place this keeps who wrote it last; a write by another thread is a
// mistake if it changes what is there. Writes of the same value, which many kernels rely on, are let pass.
//
// What is found is a mistake; not every mistake is found. A block that has used an atomic or a fence since the other
// write may have ordered the two by it, and so may lanes of a warp that has passed a __syncwarp.
#pragma once
#include <stdint.h>
#include <string.h>

#include <unordered_map>

namespace warpdrive_cpu {

struct Write {
    unsigned block, thread;
    unsigned generation, warp_clock;  // barriers that the block, and the warp, had passed
    uint64_t time;
};

class Writes {
public:
    void clear() {
        last_.clear();
        time_ = synchronized_at_ = 0;
        is_pending_ = has_synchronized_ = false;
    }

    // Blocks run one after the other. Each has its own shared memory, at the same addresses.
    void start_block(const char* shared, size_t size) {
        shared_ = shared;
        shared_size_ = size;
        is_pending_ = has_synchronized_ = false;
    }

    void note_synchronization() {
        synchronized_at_ = ++time_;
        has_synchronized_ = true;
    }

    // The write happens after this returns; is_lost(), called before anything else happens, sees what it did.
    void note(Write mine, const char* address, size_t size, const void* caller) {
        mine.time = ++time_;
        Write& last = last_.emplace(address, mine).first->second;
        const bool is_shared = address >= shared_ && address < shared_ + shared_size_;
        if (last.time != mine.time && !is_ordered(last, mine, is_shared) && size <= sizeof before_) {
            is_pending_ = true;
            address_ = address;
            size_ = size;
            caller_ = caller;
            other_ = last;
            memcpy(before_, address, size);
        }
        last = mine;
    }

    bool is_lost() {
        if (__builtin_expect(!is_pending_, 1)) return false;
        is_pending_ = false;
        return memcmp(before_, address_, size_) != 0;
    }

    const Write& other() const { return other_; }
    uintptr_t address() const { return reinterpret_cast<uintptr_t>(address_); }
    uintptr_t caller() const { return reinterpret_cast<uintptr_t>(caller_) - 1; }  // within the call, not behind it

private:
    // Whether `first` may be known to come before `second`.
    bool is_ordered(const Write& first, const Write& second, bool is_shared) const {
        if (first.block != second.block) return is_shared || has_synchronized_;
        if (first.thread == second.thread || first.generation != second.generation) return true;
        if (synchronized_at_ > first.time) return true;
        return first.thread / 32 == second.thread / 32 && first.warp_clock != second.warp_clock;
    }

    std::unordered_map<const void*, Write> last_;
    uint64_t time_ = 0, synchronized_at_ = 0;
    bool has_synchronized_ = false;  // this block has used an atomic or a fence
    const char* shared_ = nullptr;
    size_t shared_size_ = 0;

    bool is_pending_ = false;
    const char* address_ = nullptr;
    size_t size_ = 0;
    const void* caller_ = nullptr;
    Write other_{};
    char before_[16];
};

}  // namespace warpdrive_cpu
