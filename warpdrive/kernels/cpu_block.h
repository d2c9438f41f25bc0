// The scheduler of one block: which CUDA thread runs next, who waits for what, and when nobody can go on.
//
// Threads start in order. A fiber runs the loop over threads until one of them has to wait; that fiber then
// belongs to the waiting thread, and another fiber goes on with the loop. Whoever is ready goes on in order, so a
// result does not depend on timing. `place` is a thread's position in that order, which debug mode reverses.
#pragma once
#include <stdarg.h>

#include <atomic>
#include <vector>

#include "cpu_abi.h"
#include "cpu_accesses.h"
#include "cpu_fiber.h"

namespace warpdrive_cpu {

enum Options : unsigned {
    kDebug = 1,       // each thread on a fiber of its own with a guard page; shared memory is filled
    kReverse = 2,     // threads and blocks run last to first
    kMuted = 4,       // printf is silent
    kSpread = 8,      // block i runs on OS thread i modulo their number, however small the launch
    kEveryFiber = 16  // each thread on a fiber of its own
};

// Filled in by Python (see cpu_launch.py); the fields from `failed` on are written here.
struct Launch {
    Entry entry;
    void* const* arguments;
    unsigned num_blocks, threads_x, threads_y;
    unsigned options;
    int num_threads;   // OS threads
    unsigned fill;     // debug mode: the byte that shared memory holds before a block starts
    int64_t limit;     // debug mode: nanoseconds that a block may take; 0: as long as it likes
    int64_t expected;  // nanoseconds of work, measured by the launch before; below 0: unknown
    unsigned watch;      // debug mode's watched build: what to look for, a Watch
    uintptr_t watched;   // the place that kFind is about
    std::atomic<int> failed;
    unsigned failed_block, failed_thread, failed_line;
    uintptr_t failed_address;  // of the machine instruction, 0: `failed_line` of `failed_file` is known
    uintptr_t other_address;   // of a second access, 0: there is none
    const char* failed_file;
    char message[400];
};

static const unsigned kNever = 0;  // what a finished thread waits for
static const Votes kNoVotes = {0, 1, 0};

// Lanes that meet in one warp primitive.
struct WarpMeeting {
    uint32_t mask, arrived;
    bool orders_memory;
    unsigned num_to_read;  // lanes that have not taken the values yet
    int next;              // in the list of a warp's open meetings, -1 at the end
    unsigned tag;          // names the meeting to ThreadSanitizer
    uint64_t value[32];
};

struct Block {
    struct Thread {
        Fiber* fiber;
        const unsigned* waits_for;  // ready once *waits_for differs from `seen`
        unsigned seen;
        Place place;  // of the call it waits in
    };

    explicit Block(Fibers& fibers) : fibers(fibers) {}

    Fibers& fibers;
    Launch* launch = nullptr;
    BlockView view{};
    unsigned num_threads = 0;
    unsigned num_started = 0;
    unsigned num_live = 0;  // neither finished nor yet to start
    std::vector<Thread> threads;

    unsigned num_arrived = 0;  // at the barrier
    unsigned generation = 0;   // barriers passed
    Votes votes = kNoVotes, result = kNoVotes;
    Place first_place{};         // where the first thread waits for this barrier
    unsigned first_thread = 0;

    bool has_warps = false;
    std::vector<WarpMeeting> meetings;
    std::vector<int> free_meetings, open_meetings;
    std::vector<unsigned> releases;  // of each thread, from warp primitives
    unsigned num_meetings = 0;
    char tags[1024];         // addresses that stand for warp meetings
    char barrier_tags[2];    // two in turn: a thread slow to leave one barrier must not learn of arrivals at the next
    char start_tag, end_tag;

    Accesses accesses;
    std::vector<unsigned> warp_clocks;       // barriers of each warp that ordered memory
    volatile bool is_late = false;           // the block has taken longer than launch->limit

    unsigned thread_at(unsigned place) const { return reversed() ? num_threads - 1 - place : place; }
    unsigned place_of(unsigned thread) const { return reversed() ? num_threads - 1 - thread : thread; }
    bool reversed() const { return launch->options & kReverse; }
    bool is_eager() const { return launch->options & (kDebug | kEveryFiber); }
    bool has_started(unsigned thread) const { return place_of(thread) < num_started; }
    bool is_ready(unsigned thread) const { return *threads[thread].waits_for != threads[thread].seen; }
    bool is_finished(unsigned thread) const { return threads[thread].waits_for == &kNever; }
    void set_finished(unsigned thread) {
        threads[thread].waits_for = &kNever;
        threads[thread].seen = 0;
    }

    // Sets up block `index` of a launch. Nothing runs yet.
    void set_up(Launch* of, uint64_t index) {
        launch = of;
        num_threads = of->threads_x * of->threads_y;
        if (threads.size() < num_threads) threads.resize(num_threads);
        num_started = 0;
        num_live = num_threads;
        num_arrived = 0;
        votes = kNoVotes;
        has_warps = false;
        is_late = false;
        view.block = this;
        view.block_index = uint3{static_cast<unsigned>(index), 0, 0};
        view.block_size = uint3{of->threads_x, of->threads_y, 1};
        view.grid_size = uint3{of->num_blocks, 1, 1};
        view.is_muted = of->options & kMuted;
        view.watches_reads = (of->options & kDebug) && accesses.watches_reads();
    }

    // Runs the block to its end, or to the launch's first error, and after it those up to `end_block`.
    void run(void (*fiber_main)(), uint64_t end_block) {
        main_ = fiber_main;
        end_block_ = end_block;
        if (under_tsan()) fibers.reserve(num_threads, main_);
        acquire(&end_tag);  // shared memory is this OS thread's, block after block
        release(&start_tag);
        fibers.switch_to(fibers.take(main_));
        acquire(&end_tag);
        fibers.end_block();
    }

    // What every fiber does, forever: start the next threads, then pass on.
    void run_threads() {
        Fiber* const fiber = fibers.current();
        for (;;) {
            const unsigned first = num_started;
            view.first = thread_at(first);
            view.limit = is_eager() ? view.first + 1 : num_threads;
            const unsigned limit = is_eager() ? first + 1 : num_threads;
            fiber->thread = view.first;
            acquire(&start_tag);
            launch->entry(&view, launch->arguments);
            if (is_eager()) settle();
            release(&end_tag);
            unsigned place;
            if (fiber->parked_thread >= 0) {  // this fiber was given to one thread, which has ended now
                const unsigned thread = static_cast<unsigned>(fiber->parked_thread);
                place = place_of(thread);
                set_finished(thread);
                --num_live;
                if (has_warps) reconsider_warp(thread / 32);
            } else {
                place = limit - 1;
                num_started = limit;
                finish_places(first, limit);
            }
            // Nobody is left in this block: the same fiber goes on with the next, which saves two switches.
            if (num_live == 0 && view.block_index.x + 1 < end_block_) {
                fiber->parked_thread = -1;
                set_up(launch, view.block_index.x + 1);
                continue;
            }
            fibers.give_back(fiber);
            pass_on(place, fiber);
        }
    }

    // ---- barriers
    Votes barrier(unsigned thread, int predicate, Place place) {
        settle();
        if (is_late) fail_late(thread, place, 0);
        if (predicate) {
            votes.any = 1;
            ++votes.count;
        } else {
            votes.all = 0;
        }
        if (num_arrived++ == 0) {
            first_place = place;
            first_thread = thread;
        } else if ((launch->options & kDebug) && !is_same(place, first_place)) {
            fail(thread, place, 0,
                 "divergent barrier: this thread waits here while thread %u waits at %s:%u. "
                 "Let all threads of the block reach the same __syncthreads.",
                 first_thread, first_place.file, first_place.line);
        }
        char* tag = &barrier_tags[generation & 1];
        release(tag);
        threads[thread].place = place;
        park(thread, &generation);
        yield_after(place_of(thread));
        acquire(tag);
        return result;
    }

    // ---- warps
    uint32_t live_lanes(unsigned warp) const {
        uint32_t lanes = 0;
        for (unsigned i = 0; i < 32; ++i) {
            const unsigned thread = warp * 32 + i;
            if (thread < num_threads && !(has_started(thread) && is_finished(thread))) lanes |= 1u << i;
        }
        return lanes;
    }

    void meet(unsigned thread, uint32_t mask, uint64_t value, Place place, bool orders_memory, WarpValues* values) {
        settle();
        if (is_late) fail_late(thread, place, 0);
        if (!has_warps) open_warps();
        const unsigned warp = thread / 32, lane = thread % 32;
        if (!(mask >> lane & 1)) {
            fail(thread, place, 0, "warp primitive with mask 0x%08x, which leaves out the calling lane %u. "
                 "Put every lane that calls it into the mask.", mask, lane);
        }
        const int index = find_meeting(warp, lane, mask);
        WarpMeeting& mine = meetings[index];
        mine.value[lane] = value;
        mine.arrived |= 1u << lane;
        mine.orders_memory |= orders_memory;
        ++mine.num_to_read;
        char* tag = &tags[mine.tag % sizeof tags];
        if (orders_memory) release(tag);
        threads[thread].place = place;
        park(thread, &releases[thread]);
        reconsider_warp(warp);
        if (!is_ready(thread)) yield_after(place_of(thread));
        if (orders_memory) acquire(tag);
        WarpMeeting& meeting = meetings[index];  // others may have made the vector move
        values->arrived = meeting.arrived;
        memcpy(values->value, meeting.value, sizeof meeting.value);
        if (--meeting.num_to_read == 0) free_meetings.push_back(index);
    }

    // ---- reads and writes of the watched build, see cpu_accesses.h
    void note_read(unsigned thread, const void* address, size_t size, const void* caller) {
        settle();
        if (!is_local(address) && accesses.note_read(access(thread, caller), at(address), size)) report();
    }
    void note_write(unsigned thread, const void* address, size_t size, const void* caller) {
        settle();
        if (!is_local(address)) accesses.note_write(access(thread, caller), at(address), size);
    }
    void note_atomic(unsigned thread, const void* address, size_t size, const void* caller) {
        settle();
        accesses.note_atomic(access(thread, caller), at(address), size);
    }
    void note_fence() { accesses.note_fence(); }

    // Within the call, not behind it.
    static uintptr_t address_of(const Access& access) { return reinterpret_cast<uintptr_t>(access.caller) - 1; }

    // Looks at what the last write has done.
    void settle() {
        if (accesses.settle()) report();
    }

    // ---- errors
    [[noreturn]] void fail_late(unsigned thread, Place place, uintptr_t address) {
        fail(thread, place, address,
             "still running after %g seconds: a loop that does not end, or a wait for another thread. Test the "
             "loop's condition, or give it longer: WARPDRIVE_DEBUG_SECONDS.",
             static_cast<double>(launch->limit) / 1e9);
    }

    // Notes the first error of the launch and leaves the block as it stands.
    __attribute__((format(printf, 5, 6), noreturn)) void fail(unsigned thread, Place place, uintptr_t address,
                                                              const char* format, ...) {
        int none = 0;
        if (launch->failed.compare_exchange_strong(none, 1)) {
            va_list values;
            va_start(values, format);
            vsnprintf(launch->message, sizeof launch->message, format, values);
            va_end(values);
            launch->failed_block = view.block_index.x;
            launch->failed_thread = thread;
            launch->failed_file = place.file;
            launch->failed_line = place.line;
            launch->failed_address = address;
        }
        fibers.switch_to(nullptr);
        __builtin_unreachable();
    }

private:
    void (*main_)() = nullptr;
    uint64_t end_block_ = 0;

    static const char* at(const void* address) { return static_cast<const char*>(address); }
    bool is_local(const void* address) const {
        const Fiber* fiber = fibers.current();
        return at(address) >= fiber->base && at(address) < fiber->base + fiber->size;
    }
    Access access(unsigned thread, const void* caller) const {
        const unsigned clock = thread / 32 < warp_clocks.size() ? warp_clocks[thread / 32] : 0;
        return {view.block_index.x, thread, generation, clock, caller, false, 0};
    }

    // Python knows which array lies there, and which line an address is.
    [[noreturn]] void report() {
        const Finding& found = accesses.finding();
        launch->other_address = address_of(found.other);
        fail(found.blamed.thread, Place{nullptr, 0}, address_of(found.blamed), "!%c %zx %u %u %u %u", found.kind,
             reinterpret_cast<uintptr_t>(found.address), found.blamed.block, found.blamed.thread, found.other.block,
             found.other.thread);
    }

    static bool is_same(const Place& a, const Place& b) { return a.line == b.line && strcmp(a.file, b.file) == 0; }

    void finish_places(unsigned first, unsigned limit) {
        if (first > 0 || limit < num_threads) {  // otherwise nobody will ask
            for (unsigned i = first; i < limit; ++i) set_finished(thread_at(i));
        }
        num_live -= limit - first;
        if (!has_warps) return;
        for (unsigned i = first; i < limit; ++i) {
            if (i == first || thread_at(i) % 32 == 0) reconsider_warp(thread_at(i) / 32);
        }
    }

    void release_barrier() {
        result = votes;
        votes = kNoVotes;
        num_arrived = 0;
        ++generation;
    }

    // The thread waits until *waits_for changes. If its fiber ran the loop over threads, the fiber is its own now.
    void park(unsigned thread, const unsigned* waits_for) {
        Fiber* fiber = fibers.current();
        Thread& mine = threads[thread];
        mine.waits_for = waits_for;
        mine.seen = *waits_for;
        if (fiber->parked_thread >= 0) return;
        const unsigned first = num_started, place = place_of(thread);
        num_started = place + 1;
        fiber->parked_thread = static_cast<int>(thread);
        mine.fiber = fiber;
        finish_places(first, place);
    }

    Fiber* next_ready(unsigned from_place, unsigned limit) const {
        for (unsigned place = from_place; place < limit; ++place) {
            const unsigned thread = thread_at(place);
            if (is_ready(thread)) return threads[thread].fiber;
        }
        return nullptr;
    }

    // Who goes on once the thread at `place` cannot: those after it in order, then threads yet to start, then, all
    // having had their turn, the barrier if everyone is there.
    Fiber* choose(unsigned place) {
        if (Fiber* ready = next_ready(place + 1, num_started)) return ready;
        if (num_started < num_threads) return fibers.take(main_);
        if (num_arrived == num_live) release_barrier();
        Fiber* ready = next_ready(0, num_threads);
        if (!ready) deadlock();
        return ready;
    }

    void yield_after(unsigned place) {
        Fiber* next = choose(place);
        if (next != fibers.current()) fibers.switch_to(next);
    }

    void pass_on(unsigned place, Fiber* fiber) {
        Fiber* next = num_live == 0 ? nullptr : choose(place);
        if (next != fiber) fibers.switch_to(next);
    }

    [[noreturn]] void deadlock() {
        unsigned in_warp = num_threads, in_barrier = num_threads;
        for (unsigned thread = num_threads; thread-- > 0;) {
            if (is_finished(thread)) continue;
            (threads[thread].waits_for == &generation ? in_barrier : in_warp) = thread;
        }
        if (in_barrier == num_threads) {
            fail(in_warp, threads[in_warp].place, 0,
                 "deadlock: waits in a warp primitive for lanes that wait in others. Give them all the same mask.");
        }
        const Place other = threads[in_warp].place;
        fail(in_barrier, threads[in_barrier].place, 0,
             "deadlock: %u of %u live threads wait at this __syncthreads; "
             "thread %u waits in a warp primitive at %s:%u. Let every thread that is waited for reach it.",
             num_arrived, num_live, in_warp, other.file, other.line);
    }

    void open_warps() {
        has_warps = true;
        open_meetings.assign((num_threads + 31) / 32, -1);
        releases.assign(num_threads, 0);
        if (warp_clocks.size() < open_meetings.size()) warp_clocks.resize(open_meetings.size());
        meetings.clear();
        free_meetings.clear();
    }

    // The open meeting of these lanes which this lane has not joined yet, or a new one.
    int find_meeting(unsigned warp, unsigned lane, uint32_t mask) {
        int index = open_meetings[warp];
        while (index >= 0 && !(meetings[index].mask == mask && !(meetings[index].arrived >> lane & 1))) {
            index = meetings[index].next;
        }
        if (index >= 0) return index;
        if (free_meetings.empty()) {
            index = static_cast<int>(meetings.size());
            meetings.emplace_back();
        } else {
            index = free_meetings.back();
            free_meetings.pop_back();
        }
        WarpMeeting& meeting = meetings[index];
        meeting.mask = mask;
        meeting.arrived = 0;
        meeting.orders_memory = false;
        meeting.num_to_read = 0;
        meeting.tag = num_meetings++;
        meeting.next = open_meetings[warp];
        open_meetings[warp] = index;
        return index;
    }

    // Ends the meetings of a warp for which no live lane is missing.
    void reconsider_warp(unsigned warp) {
        int* link = &open_meetings[warp];
        if (*link < 0) return;
        const uint32_t live = live_lanes(warp);
        while (*link >= 0) {
            WarpMeeting& meeting = meetings[*link];
            if (meeting.mask & live & ~meeting.arrived) {
                link = &meeting.next;
                continue;
            }
            warp_clocks[warp] += meeting.orders_memory;
            for (unsigned i = 0; i < 32; ++i) {
                if (meeting.arrived >> i & 1) ++releases[warp * 32 + i];
            }
            *link = meeting.next;
        }
    }
};

}  // namespace warpdrive_cpu
