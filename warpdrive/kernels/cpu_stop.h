// Ends a launch that takes long, at Ctrl-C or SIGTERM: Python would look at them when it is over. And, for whatever ends
// a launch by a signal, where in a kernel's code that found it.
#pragma once
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "cpu_block.h"

namespace warpdrive_cpu {

static int64_t now() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * int64_t{1000000000} + time.tv_nsec;
}

// Where a signal found its thread.
struct Interrupted {
    uintptr_t instruction, stack;
};
static Interrupted interrupted_at(const void* state) {
    const ucontext_t* machine = static_cast<const ucontext_t*>(state);
#if defined(__x86_64__)
    const auto& registers = machine->uc_mcontext.gregs;
    return {static_cast<uintptr_t>(registers[REG_RIP]), static_cast<uintptr_t>(registers[REG_RSP])};
#else
    return {machine->uc_mcontext.pc, machine->uc_mcontext.sp};
#endif
}

static uintptr_t code_start, code_end;  // of the kernel library

static int find_code(dl_phdr_info* library, size_t, void* argument) {
    const uintptr_t address = *static_cast<uintptr_t*>(argument);
    for (int i = 0; i < library->dlpi_phnum; ++i) {
        const auto& header = library->dlpi_phdr[i];
        const uintptr_t start = library->dlpi_addr + header.p_vaddr;
        if (header.p_type != PT_LOAD || address < start || address >= start + header.p_memsz) continue;
        code_start = start;
        code_end = start + header.p_memsz;
        return 1;
    }
    return 0;
}
// Fills in where the code of this launch's kernel library is; whether it was found.
static bool find_code_of(const Launch* launch) {
    uintptr_t entry = reinterpret_cast<uintptr_t>(launch->entry);
    return dl_iterate_phdr(find_code, &entry);
}
static bool is_code(uintptr_t address) { return address >= code_start && address < code_end; }

// Watches the launches of Python's main thread, which alone looks at signals. A kernel's endless loop is never over: so
// once a launch has taken long, a signal ends it wherever that interrupts the kernel's own code; elsewhere a lock may be
// held, or the scheduler be half done, and the next try comes soon.
class LongLaunch {
public:
    // tell: sends a signal to the other threads of a launch. stop: fails the launch at an instruction of a kernel, if the
    // thread is in one, and does not return then.
    LongLaunch(void (*tell)(int), void (*stop)(uintptr_t)) : tell_(tell) { stop_at_ = stop; }

    void begin(Launch* launch) {
        static thread_local const bool is_main = syscall(SYS_gettid) == getpid();
        if (!is_main || under_sanitizer() || since_.load(std::memory_order_relaxed)) return;
        if (!is_watched_) start();
        launch_ = launch;
        since_.store(now(), std::memory_order_release);
    }

    void end(Launch* launch) {
        if (!since_.load(std::memory_order_relaxed) || launch_ != launch) return;
        since_.store(0, std::memory_order_relaxed);
        if (!listens_.load()) return;
        std::lock_guard<std::mutex> lock(mutex_);
        for (int i = 0; i < 2; ++i) sigaction(kStops[i], &python_[i], nullptr);
        listens_.store(false);
        const int came = came_.exchange(0);
        if (came && !launch->failed.load()) raise(came);  // the launch came to its end by itself
    }

private:
    static constexpr int kStops[2] = {SIGINT, SIGTERM};
    static constexpr int64_t kLong = 2000000000;  // ns
    static inline std::atomic<int> came_{0};      // the signal
    static inline void (*stop_at_)(uintptr_t);

    static int nudge() { return SIGRTMIN + 12; }

    void start() {
        main_ = pthread_self();
        struct sigaction action {};
        action.sa_sigaction = [](int, siginfo_t*, void* state) {
            const uintptr_t instruction = interrupted_at(state).instruction;
            if (is_code(instruction)) stop_at_(instruction);
        };
        action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART;  // we leave the handler by switching stacks
        sigaction(nudge(), &action, nullptr);
        std::thread([this] {
            for (;;) {
                usleep(100000);
                look();
            }
        }).detach();
        is_watched_ = true;
    }

    void look() {
        const int64_t since = since_.load(std::memory_order_acquire);
        if (!since || now() - since < kLong) return;
        std::lock_guard<std::mutex> lock(mutex_);
        if (since_.load() != since) return;
        if (!listens_.load()) {
            find_code_of(launch_);
            struct sigaction action {};
            action.sa_handler = [](int signal) { came_.store(signal); };
            action.sa_flags = SA_RESTART;
            for (int i = 0; i < 2; ++i) sigaction(kStops[i], &action, &python_[i]);
            listens_.store(true);
        }
        if (!came_.load()) return;
        pthread_kill(main_, nudge());
        tell_(nudge());
    }

    void (*tell_)(int);
    std::mutex mutex_;  // between who looks and a launch's end
    std::atomic<int64_t> since_{0};
    std::atomic<bool> listens_{false};
    bool is_watched_ = false;
    Launch* launch_ = nullptr;
    pthread_t main_{};
    struct sigaction python_[2];
};

}  // namespace warpdrive_cpu
