// Launches kernels compiled with cpu_shim.h: shares out blocks over OS threads, and catches kernels' faults.
// Built once per machine into a shared library; see warpdrive/backends/cpu.py.
#include <link.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "cpu_block.h"
#include "cpu_stop.h"

namespace warpdrive_cpu {

// ---- one OS thread
struct Worker {
    explicit Worker(bool is_debug) : fibers(is_debug), block(fibers) {}
    Fibers fibers;
    Block block;
};

// Set while this OS thread is inside a launch. A handler of signals reads it: so it needs no memory on first use, for which
// all that is local to threads must be small.
static thread_local Worker* running __attribute__((tls_model("initial-exec"))) = nullptr;
static int64_t block_start;                     // debug mode: when the block that runs was started

// Debug mode's fibers have guard pages. All fibers having one would use up the kernel's table of mappings.
static Worker& worker(bool is_debug) {
    static thread_local std::unique_ptr<Worker> workers[2];
    std::unique_ptr<Worker>& mine = workers[is_debug];
    if (!mine) mine = std::make_unique<Worker>(is_debug);
    return *mine;
}

static void fiber_main() {
    Block& block = running->block;  // a fiber never leaves its OS thread
    if (block.fibers.is_sanitized()) block.fibers.finish_switch(nullptr);
    block.run_threads();
}

static char fence_tag;
static const Scheduler kScheduler = {
    [](Block* block, unsigned thread, int predicate, Place place) { return block->barrier(thread, predicate, place); },
    [](Block* block, unsigned thread, uint32_t mask, uint64_t value, Place place, bool orders_memory,
       WarpValues* values) { block->meet(thread, mask, value, place, orders_memory, values); },
    [](Block* block, unsigned thread) { return block->live_lanes(thread / 32); },
    [] {
        release(&fence_tag);
        acquire(&fence_tag);
        if (running) running->block.note_fence();
    },
    [](Block* block, unsigned thread, const void* address, size_t size, const void* caller) {
        block->note_read(thread, address, size, caller);
    },
    [](Block* block, unsigned thread, const void* address, size_t size, const void* caller) {
        block->note_write(thread, address, size, caller);
    },
    [](Block* block, unsigned thread, const void* address, size_t size, const void* caller) {
        block->note_atomic(thread, address, size, caller);
    },
    [](Block* block, unsigned thread, Place place, const char* what) { block->fail(thread, place, 0, "%s", what); },
};

// ---- shared memory is the kernel library's thread-local storage
struct Segment {
    uintptr_t address;  // in: anything in the library
    char* data;
    size_t size;
};

static int find_thread_local(dl_phdr_info* library, size_t, void* argument) {
    Segment* segment = static_cast<Segment*>(argument);
    bool is_it = false;
    for (int i = 0; i < library->dlpi_phnum; ++i) {
        const auto& header = library->dlpi_phdr[i];
        const uintptr_t start = library->dlpi_addr + header.p_vaddr;
        is_it |= header.p_type == PT_LOAD && segment->address >= start && segment->address < start + header.p_memsz;
    }
    if (!is_it) return 0;
    for (int i = 0; i < library->dlpi_phnum; ++i) {
        if (library->dlpi_phdr[i].p_type != PT_TLS || !library->dlpi_tls_data) continue;
        segment->data = static_cast<char*>(library->dlpi_tls_data);
        segment->size = library->dlpi_phdr[i].p_memsz;
    }
    return 1;
}

// What is not relocation read-only of a library's writable segment: the variables that kernels can change.
static int find_variables(dl_phdr_info* library, size_t, void* argument) {
    Segment* segment = static_cast<Segment*>(argument);
    bool is_it = false;
    uintptr_t start = 0, end = 0, constant_end = 0;
    for (int i = 0; i < library->dlpi_phnum; ++i) {
        const auto& header = library->dlpi_phdr[i];
        const uintptr_t address = library->dlpi_addr + header.p_vaddr;
        if (header.p_type == PT_GNU_RELRO) constant_end = address + header.p_memsz;
        if (header.p_type != PT_LOAD) continue;
        is_it |= segment->address >= address && segment->address < address + header.p_memsz;
        if (header.p_flags & PF_W) {
            start = address;
            end = address + header.p_memsz;
        }
    }
    if (!is_it) return 0;
    start = std::max(start, constant_end);
    segment->data = reinterpret_cast<char*>(start);
    segment->size = end > start ? end - start : 0;
    return 1;
}

// ---- blocks
// Runs blocks from `place` on, at most up to `limit`. Returns where to go on; 0 after an error.
static uint64_t run_blocks(Worker& mine, Launch* launch, uint64_t place, uint64_t limit) {
    const uint64_t index = launch->options & kReverse ? launch->num_blocks - 1 - place : place;
    mine.block.view.scheduler = &kScheduler;
    mine.block.set_up(launch, index);
    if (launch->options & kDebug) {
        mine.block.view.first = mine.block.view.limit = 0;
        launch->entry(&mine.block.view, launch->arguments);  // no threads: only makes thread-local storage exist
        Segment shared{reinterpret_cast<uintptr_t>(launch->entry), nullptr, 0};
        dl_iterate_phdr(find_thread_local, &shared);
        if (shared.size) memset(shared.data, static_cast<int>(launch->fill), shared.size);
        mine.block.accesses.start_block(shared.data, shared.size);
        block_start = now();
    }
    const bool is_plain = !(launch->options & kDebug) && !mine.fibers.is_sanitized();
    const uint64_t end = is_plain ? limit : place + 1;
    mine.block.run(fiber_main, is_plain ? limit : 0);
    if (!launch->failed.load(std::memory_order_relaxed)) return end;
    mine.fibers.abandon_all();
    return 0;
}

// A launch shared among OS threads.
struct Job {
    Launch* launch;
    uint64_t chunk;
    int num_threads;
    std::atomic<uint64_t> next{0};
    std::atomic<int> num_busy{0}, num_here{0};
    char start_tag, end_tag;

    void work(int thread) {
        if (launch->options & kSpread) meet();
        Worker& mine = worker(launch->options & kDebug);
        Worker* before = running;
        running = &mine;
        acquire(&start_tag);
        if (launch->options & kSpread) {
            for (uint64_t i = thread; i < launch->num_blocks && run_some(mine, i, i + 1); i += num_threads) {
            }
        } else {
            for (;;) {
                const uint64_t first = next.fetch_add(chunk, std::memory_order_relaxed);
                if (first >= launch->num_blocks) break;
                if (!run_some(mine, first, std::min<uint64_t>(first + chunk, launch->num_blocks))) break;
            }
        }
        release(&end_tag);
        running = before;
    }

    // Nobody starts before all are here. Otherwise who comes late has been ordered after the others' blocks, by the
    // pool's mutex, and ThreadSanitizer sees no race.
    void meet() {
        ++num_here;
        while (num_here.load() < num_threads) std::this_thread::yield();
    }

    bool run_some(Worker& mine, uint64_t first, uint64_t limit) {
        for (uint64_t i = first; i < limit;) {
            if (launch->failed.load(std::memory_order_relaxed)) return false;
            i = run_blocks(mine, launch, i, limit);
            if (i == 0) return false;
        }
        return true;
    }
};

// ---- the pool of OS threads
class Pool {
public:
    void run(Job& job) {
        std::lock_guard<std::mutex> one_launch_at_a_time(launch_);
        while (static_cast<int>(threads_.size()) < job.num_threads - 1) {
            const int id = static_cast<int>(threads_.size()) + 1;
            threads_.emplace_back([this, id] { serve(id); });
        }
        release(&job.start_tag);
        {
            std::lock_guard<std::mutex> lock(mutex_);
            job_ = &job;
            ++number_;
            // Spread blocks have a fixed thread each, which must come even if the others have finished.
            if (job.launch->options & kSpread) job.num_busy = job.num_threads - 1;
        }
        wake_.notify_all();
        job.work(0);
        std::unique_lock<std::mutex> lock(mutex_);
        if (!(job.launch->options & kSpread)) job_ = nullptr;  // who has not come yet need not come
        idle_.wait(lock, [&] { return job.num_busy.load() == 0; });
        job_ = nullptr;
        acquire(&job.end_tag);
    }

    // A signal to each thread.
    void tell(int signal) {
        for (std::thread& thread : threads_) pthread_kill(thread.native_handle(), signal);
    }

private:
    void serve(int id) {
        uint64_t seen = 0;
        for (;;) {
            Job* job;
            {
                std::unique_lock<std::mutex> lock(mutex_);
                wake_.wait(lock, [&] { return number_ != seen; });
                seen = number_;
                job = job_;
                if (!job || id >= job->num_threads) continue;
                if (!(job->launch->options & kSpread)) ++job->num_busy;
            }
            job->work(id);
            std::lock_guard<std::mutex> lock(mutex_);
            if (--job->num_busy == 0) idle_.notify_all();
        }
    }

    std::mutex launch_, mutex_;
    std::condition_variable wake_, idle_;
    std::vector<std::thread> threads_;
    Job* job_ = nullptr;
    uint64_t number_ = 0;
};

// Never deleted: its threads may outlive the interpreter's other parts. A forked child has none of them and
// starts afresh.
static Pool* pool = new Pool;
static const int at_fork = pthread_atfork(nullptr, nullptr, [] { pool = new Pool; });

// Waking the pool costs several microseconds, which two threads win back from about twice that on.
static const int64_t kWorthSharing = 20000;

// ---- faults of a kernel, which end its launch and not the process
static const int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP};
static struct sigaction old_actions[5];
static std::atomic<int> num_passed_on[5];
static const unsigned kUnknownThread = ~0u;

// To whoever was there before, who may have come after us and give it back: then the process ends as by default.
static void pass_on(int signal, bool comes_again) {
    for (int i = 0; i < 5; ++i) {
        if (kSignals[i] != signal) continue;
        struct sigaction ends {};
        ends.sa_handler = SIG_DFL;
        sigaction(signal, num_passed_on[i]++ == 0 ? &old_actions[i] : &ends, nullptr);
    }
    if (!comes_again) syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), signal);
}

// Of an instruction in a library's function that a kernel called: where in the kernel it was called, as near as its stack
// tells; else itself.
static uintptr_t within_kernel(const Interrupted& at, const Fiber& fiber, const Launch* launch) {
    if (!find_code_of(launch) || is_code(at.instruction)) return at.instruction;
    const uintptr_t end = reinterpret_cast<uintptr_t>(fiber.base + fiber.size);
    for (uintptr_t place = at.stack & ~uintptr_t{7}; place + 8 <= end; place += 8) {
        const uintptr_t found = *reinterpret_cast<const uintptr_t*>(place);
        if (is_code(found - 1)) return found - 1;
    }
    return at.instruction;
}

static void on_fault(int signal, siginfo_t* info, void* state) {
    const bool is_sent = info->si_code <= 0;  // by a process, not by an instruction
    if (is_sent || !running || !running->fibers.current()) {
        pass_on(signal, !is_sent && signal != SIGTRAP);
        return;  // and the fault happens again
    }
    Block& block = running->block;
    const uintptr_t instruction = within_kernel(interrupted_at(state), *block.fibers.current(), block.launch);
    // But in debug mode a fiber runs one thread after the other, and nobody knows which.
    const unsigned thread = block.launch->options & kDebug ? block.fibers.current()->thread : kUnknownThread;
    char* address = static_cast<char*>(info->si_addr);
    const Place unknown{nullptr, 0};
    if (signal == SIGFPE) {
        block.fail(thread, unknown, instruction,
                   "integer division by zero, or of the smallest number by -1. A GPU would go on with garbage: test both.");
    } else if (signal == SIGILL || signal == SIGTRAP) {
        block.fail(thread, unknown, instruction,
                   "a trap: __builtin_trap, or a line that the compiler proved to have no meaning in C++. Rewrite it.");
    } else if (block.fibers.is_overflow(address)) {
        block.fail(thread, unknown, instruction,
                   "stack overflow: more than %zu bytes of locals and calls. Use smaller arrays or less recursion.",
                   kStack);
    }
    // Python knows which array lies there.
    block.fail(thread, unknown, instruction, "@%zx", reinterpret_cast<uintptr_t>(address));
}

// From now on. Who was there before still gets those of other code.
static void catch_faults() {
    struct sigaction action {}, old {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;  // we leave the handler by switching stacks
    for (int i = 0; i < 5; ++i) {
        sigaction(kSignals[i], &action, &old);
        if (old.sa_sigaction != on_fault) old_actions[i] = old;
        num_passed_on[i] = 0;
    }
}

static void leave_faults() {
    for (int i = 0; i < 5; ++i) sigaction(kSignals[i], &old_actions[i], nullptr);
}

// ---- a launch that takes long, outside of debug mode
static void stop_at(uintptr_t instruction) {
    if (!running || !running->fibers.current()) return;
    running->block.fail(kUnknownThread, Place{nullptr, 0}, instruction,
                        "ended by a signal, as this launch took long: a loop that does not end, or a wait for another "
                        "thread? Test the loop's condition.");
}

static LongLaunch* make_long_launch() {
    return new LongLaunch([](int signal) { pool->tell(signal); }, stop_at);
}
static LongLaunch* long_launch = make_long_launch();  // as the pool
static const int at_fork_of_long = pthread_atfork(nullptr, nullptr, [] { long_launch = make_long_launch(); });

static void run(Launch* launch) {
    const uint64_t num_threads = uint64_t{launch->threads_x} * launch->threads_y;
    if (launch->expected < 0) launch->expected = static_cast<int64_t>(launch->num_blocks * num_threads) * 20;
    const int available = static_cast<int>(std::min<uint64_t>(launch->num_threads, launch->num_blocks));
    const bool is_shared = available > 1 && (launch->expected >= kWorthSharing || (launch->options & kSpread));
    Job job{launch, launch->num_blocks, is_shared ? available : 1};
    const int64_t start = now();
    if (is_shared) {
        job.chunk = std::max<uint64_t>(1, launch->num_blocks / (available * 8ull));
        pool->run(job);
    } else {
        job.work(0);
    }
    launch->expected = (now() - start) * job.num_threads;
}

// ---- a block that does not end, in debug mode
// Ends the launch only where it interrupts the kernel's own code: elsewhere a lock may be held, or the scheduler be
// half done, and the next tick comes soon. The first tick leaves it to a barrier, which knows its place in the text.
static void on_tick(int, siginfo_t*, void* state) {
    if (!running || !running->fibers.current()) return;
    Block& block = running->block;
    if (now() - block_start < block.launch->limit) return;
    const bool was_late = block.is_late;
    block.is_late = true;
    const uintptr_t instruction = interrupted_at(state).instruction;
    if (!was_late || !is_code(instruction)) return;
    block.fail_late(block.fibers.current()->thread, Place{nullptr, 0}, instruction);
}

class Ticks {
public:
    explicit Ticks(Launch* launch) {
        if (launch->limit <= 0) return;
        if (!find_code_of(launch)) return;
        struct sigaction action {};
        action.sa_sigaction = on_tick;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER | SA_RESTART;
        sigaction(signal(), &action, nullptr);
        sigevent event{};
        event.sigev_notify = SIGEV_THREAD_ID;  // whoever is in the kernel; Python's other threads are left alone
        event.sigev_signo = signal();
        event._sigev_un._tid = static_cast<pid_t>(syscall(SYS_gettid));
        is_on_ = timer_create(CLOCK_MONOTONIC, &event, &timer_) == 0;
        itimerspec often{};
        often.it_interval.tv_nsec = often.it_value.tv_nsec = 20000000;
        if (is_on_) timer_settime(timer_, 0, &often, nullptr);
    }
    ~Ticks() {
        if (is_on_) timer_delete(timer_);
        // The handler stays: a last tick may be under way, and nobody else uses this signal.
    }

private:
    static int signal() { return SIGRTMIN + 11; }
    timer_t timer_{};
    bool is_on_ = false;
};

static void run_guarded(Launch* launch) {
    static std::mutex one_at_a_time;
    static char signal_stack[64 << 10];
    std::lock_guard<std::mutex> lock(one_at_a_time);
    stack_t stack{}, old_stack{};
    stack.ss_sp = signal_stack;
    stack.ss_size = sizeof signal_stack;
    sigaltstack(&stack, &old_stack);
    catch_faults();
    {
        Ticks ticks(launch);
        Accesses& accesses = worker(true).block.accesses;
        accesses.clear(static_cast<Watch>(launch->watch), launch->watched);
        run(launch);
        if (accesses.last().time) {
            launch->failed_block = accesses.last().block;
            launch->failed_thread = accesses.last().thread;
            launch->other_address = Block::address_of(accesses.last());
        }
    }
    if (under_sanitizer()) leave_faults();
    sigaltstack(&old_stack, nullptr);
}

}  // namespace warpdrive_cpu

// ---- what Python calls
extern "C" __attribute__((visibility("default"))) int warpdrive_cpu_run(warpdrive_cpu::Launch* launch) {
    using namespace warpdrive_cpu;
    launch->failed.store(0, std::memory_order_relaxed);
    if (launch->options & kDebug) {
        run_guarded(launch);
    } else {
        static std::once_flag once;  // a sanitizer tells of faults itself
        std::call_once(once, [] { under_sanitizer() ? void() : catch_faults(); });
        long_launch->begin(launch);
        run(launch);
        long_launch->end(launch);
    }
    return launch->failed.load(std::memory_order_relaxed);
}

// The `__device__` variables of the library that holds `address`. Returns their size in bytes.
extern "C" __attribute__((visibility("default"))) size_t warpdrive_cpu_variables(uintptr_t address, char** data) {
    warpdrive_cpu::Segment segment{address, nullptr, 0};
    dl_iterate_phdr(warpdrive_cpu::find_variables, &segment);
    *data = segment.data;
    return segment.size;
}
