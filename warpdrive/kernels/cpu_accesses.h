// What debug mode learns from the reads and writes of its watched build (see cpu_checks.h), which tell it of each
// before it happens. One thing a launch: whom to blame is looked for once something is known to be wrong.
//
// Two threads that write different values to one place, with nothing between that orders them, leave a result that
// depends on who comes last: a lost update, such as `count[env] = count[env] + 1` by all threads of a block. So for
// every place this keeps who wrote it last; a write by another thread is a mistake if it changes what is there.
// Writes of the same value, which many kernels rely on, are let pass.
//
// What is found is a mistake; not every mistake is found. A fence since the other access may have ordered the two, and
// so may a __syncwarp those of a warp. An atomic alone orders nothing but itself.
#pragma once
#include <stdint.h>
#include <string.h>

#include <unordered_map>
#include <vector>

namespace warpdrive_cpu {

// As in cpu_launch.py.
enum Watch : unsigned {
    kLostUpdates = 0,  // the first write that changes what another thread wrote
    kRaces = 1,        // the first two accesses of different threads, one a write that changes the place
    kAnyRaces = 2,     // the same, as if fences ordered nothing
    kUnset = 3,        // the first read of shared memory that nobody in the block has written
    kRecord = 4,       // nothing, but keeps every write for kCompare
    kCompare = 5,      // the first write that differs from the one kept
    kFind = 6,         // the last write of a given place
};

struct Access {
    unsigned block, thread;
    unsigned generation, warp_clock;  // barriers that the block, and the warp, had passed
    const void* caller;
    bool is_change;  // a write, and what is there now is not what was there
    uint64_t time;   // 0: there was none
};

// `blamed` is the read of a pair, or the later write.
struct Finding {
    char kind;  // 'l'ost update, 'r'ead against a write, 'u'nset, 'd'ifferent write
    const char* address;
    Access blamed, other;
};

class Accesses {
public:
    void clear(Watch watch, uintptr_t watched) {
        watch_ = watch;
        watched_ = reinterpret_cast<const char*>(watched);
        places_.clear();
        time_ = fenced_at_ = num_compared_ = 0;
        is_pending_ = false;
        last_ = Access{};
        if (watch == kRecord) recorded_.clear();
    }

    // Blocks run one after the other. Each has its own shared memory, at the same addresses.
    void start_block(const char* shared, size_t size) {
        shared_ = shared;
        shared_size_ = size;
        is_pending_ = false;
        if (watch_ == kUnset) is_set_.assign(size, false);
    }

    bool watches_reads() const { return watch_ == kRaces || watch_ == kAnyRaces || watch_ == kUnset; }

    void note_fence() {
        if (watch_ != kAnyRaces) fenced_at_ = ++time_;
    }

    void note_atomic(const Access& mine, const char* address, size_t size) { set(mine, address, size); }

    // The write happens after this returns; settle(), called before anything else happens, sees what it did.
    void note_write(Access mine, const char* address, size_t size) {
        mine.time = ++time_;
        set(mine, address, size);
        if (watch_ == kUnset || watch_ == kFind || size > sizeof before_) return;
        const Access* other = nullptr;
        char kind = 'd';
        if (watch_ <= kAnyRaces) {
            Places& place = places_[address];
            kind = is_unordered(place.write, mine, address) ? 'l' : 'r';
            other = kind == 'l' ? &place.write : nullptr;
            for (const Access& read : place.reads) {
                if (!other && is_unordered(read, mine, address)) other = &read;
            }
            finding_ = {kind, address, kind == 'l' || !other ? mine : *other, kind == 'l' && other ? *other : mine};
            mine.is_change = place.write.is_change && is_same(place.write, mine);
            place.write = mine;
        } else {
            finding_ = {kind, address, mine, mine};
        }
        is_guilty_ = other != nullptr;
        is_pending_ = is_guilty_ || watch_ != kLostUpdates;
        if (!is_pending_) return;
        size_ = size;
        memcpy(before_, address, size);
    }

    // Whether this read is what is looked for.
    bool note_read(Access mine, const char* address, size_t size) {
        mine.time = ++time_;
        if (watch_ == kUnset) {
            if (!is_shared(address)) return false;
            finding_ = {'u', address, mine, mine};
            for (size_t i = 0; i < size; ++i) {
                if (!is_set_[address - shared_ + i]) return true;
            }
            return false;
        }
        Places& place = places_[address];
        if (place.write.is_change && is_unordered(place.write, mine, address)) {
            finding_ = {'r', address, mine, place.write};
            return true;
        }
        if (!is_same(place.reads[0], mine)) place.reads[1] = place.reads[0];
        place.reads[0] = mine;
        return false;
    }

    // Whether the write noted last, which has happened now, is what is looked for.
    bool settle() {
        if (__builtin_expect(!is_pending_, 1)) return false;
        is_pending_ = false;
        const char* address = finding_.address;
        if (watch_ <= kAnyRaces) {
            if (memcmp(before_, address, size_) == 0) return false;
            places_[address].write.is_change = true;
            return is_guilty_;
        }
        Recorded now{finding_.blamed.block, finding_.blamed.thread, {}};
        memcpy(now.value, address, size_);
        if (watch_ == kRecord) {
            recorded_.push_back(now);
            return false;
        }
        const size_t index = num_compared_++;
        return index >= recorded_.size() || memcmp(&recorded_[index], &now, sizeof now) != 0;
    }

    const Finding& finding() const { return finding_; }
    const Access& last() const { return last_; }  // kFind

private:
    struct Places {
        Access write, reads[2];  // the last ones; reads of two threads
    };
    struct Recorded {
        unsigned block, thread;
        char value[16];
    };

    bool is_shared(const char* address) const { return address >= shared_ && address < shared_ + shared_size_; }
    static bool is_same(const Access& a, const Access& b) {
        return a.block == b.block && a.thread == b.thread && a.generation == b.generation;
    }

    void set(const Access& mine, const char* address, size_t size) {
        if (watch_ == kFind && address <= watched_ && watched_ < address + size) {
            last_ = mine;
            last_.time = ++time_;
        }
        if (watch_ != kUnset || !is_shared(address)) return;
        for (size_t i = 0; i < size; ++i) is_set_[address - shared_ + i] = true;
    }

    // Whether there was a `first`, and nothing is known to put it before `second`.
    bool is_unordered(const Access& first, const Access& second, const char* address) const {
        if (first.time == 0) return false;
        if (fenced_at_ > first.time) return false;
        if (first.block != second.block) return !is_shared(address);
        if (first.thread == second.thread || first.generation != second.generation) return false;
        return first.thread / 32 != second.thread / 32 || first.warp_clock == second.warp_clock;
    }

    Watch watch_ = kLostUpdates;
    const char* watched_ = nullptr;
    Access last_{};
    std::unordered_map<const void*, Places> places_;
    uint64_t time_ = 0, fenced_at_ = 0;
    const char* shared_ = nullptr;
    size_t shared_size_ = 0;
    std::vector<bool> is_set_;
    std::vector<Recorded> recorded_;
    size_t num_compared_ = 0;

    bool is_pending_ = false, is_guilty_ = false;
    Finding finding_{};
    size_t size_ = 0;
    char before_[16];
};

}  // namespace warpdrive_cpu
