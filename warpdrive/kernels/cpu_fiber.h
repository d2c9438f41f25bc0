// Fibers: stacks that one OS thread switches among, and what the sanitizers must be told about it.
#pragma once
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <utility>
#include <vector>

// Present only in a process that runs under a sanitizer.
extern "C" {
__attribute__((weak)) void __sanitizer_start_switch_fiber(void** save, const void* bottom, size_t size);
__attribute__((weak)) void __sanitizer_finish_switch_fiber(void* save, const void** bottom, size_t* size);
__attribute__((weak)) void __asan_unpoison_memory_region(const volatile void*, size_t);
__attribute__((weak)) void* __tsan_get_current_fiber(void);
__attribute__((weak)) void* __tsan_create_fiber(unsigned);
__attribute__((weak)) void __tsan_destroy_fiber(void*);
__attribute__((weak)) void __tsan_switch_to_fiber(void*, unsigned);
__attribute__((weak)) void __tsan_acquire(void*);
__attribute__((weak)) void __tsan_release(void*);
}

namespace warpdrive_cpu {

static inline bool under_tsan() { return __tsan_switch_to_fiber != nullptr; }
static inline bool under_sanitizer() { return under_tsan() || __sanitizer_start_switch_fiber != nullptr; }
static inline void acquire(void* tag) {
    if (__builtin_expect(under_tsan(), 0)) __tsan_acquire(tag);
}
static inline void release(void* tag) {
    if (__builtin_expect(under_tsan(), 0)) __tsan_release(tag);
}

static const size_t kPage = 64 << 10;  // a multiple of every page size in use
// A kernel with a frame of more than half of this is refused when it is compiled.
static const size_t kStack = 128 << 10;
static const size_t kSanitizedStack = 1 << 20;

// ---- the switch: callee-saved registers only. Floating-point control words are the same in all fibers.
struct Context {
    void* stack_pointer;
};
extern "C" void warpdrive_cpu_switch(void** save, void* load);
extern "C" void warpdrive_cpu_start();

#if defined(__x86_64__)
asm(R"(
.text
.p2align 4
.globl warpdrive_cpu_switch
.hidden warpdrive_cpu_switch
.type warpdrive_cpu_switch,@function
warpdrive_cpu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size warpdrive_cpu_switch,.-warpdrive_cpu_switch
.globl warpdrive_cpu_start
.hidden warpdrive_cpu_start
.type warpdrive_cpu_start,@function
warpdrive_cpu_start:
  .cfi_startproc
  .cfi_undefined rip
  callq *%rbx
  ud2
  .cfi_endproc
.size warpdrive_cpu_start,.-warpdrive_cpu_start
)");

static inline void make_context(Context& context, char* base, size_t size, void (*function)()) {
    void** top = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(base + size) & ~uintptr_t{63});
    *--top = nullptr;  // keeps the stack pointer a multiple of 16 at the call
    *--top = nullptr;
    *--top = reinterpret_cast<void*>(warpdrive_cpu_start);  // the switch returns here
    *--top = nullptr;                                       // rbp
    *--top = reinterpret_cast<void*>(function);             // rbx
    for (int i = 0; i < 4; ++i) *--top = nullptr;           // r12 to r15
    context.stack_pointer = top;
}
#elif defined(__aarch64__)
asm(R"(
.text
.p2align 4
.globl warpdrive_cpu_switch
.hidden warpdrive_cpu_switch
.type warpdrive_cpu_switch,%function
warpdrive_cpu_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size warpdrive_cpu_switch,.-warpdrive_cpu_switch
.globl warpdrive_cpu_start
.hidden warpdrive_cpu_start
.type warpdrive_cpu_start,%function
warpdrive_cpu_start:
  blr x19
  brk #0
.size warpdrive_cpu_start,.-warpdrive_cpu_start
)");

static inline void make_context(Context& context, char* base, size_t size, void (*function)()) {
    char* top = reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(base + size) & ~uintptr_t{63});
    void** saved = reinterpret_cast<void**>(top - 160);
    memset(saved, 0, 160);
    saved[0] = reinterpret_cast<void*>(function);              // x19
    saved[11] = reinterpret_cast<void*>(warpdrive_cpu_start);  // x30, where the switch returns to
    context.stack_pointer = saved;
}
#else
#error "the CPU backend runs on x86-64 and aarch64"
#endif

// ---- fibers of one OS thread
struct Fiber {
    Context context;
    char* base;
    size_t size;
    Fiber* next;         // in a list of free fibers
    int parked_thread;   // the CUDA thread that this fiber has been given to, -1 while it runs the loop over threads
    unsigned thread;     // the CUDA thread that runs here when each has a fiber of its own
    bool is_started;
    void* asan_stack;
    void* tsan_fiber;
};

class Fibers {
public:
    // `is_guarded`: below each stack lies a page that cannot be touched.
    explicit Fibers(bool is_guarded) : is_guarded_(is_guarded) {
        if (__tsan_get_current_fiber) own_.tsan_fiber = __tsan_get_current_fiber();
        pthread_attr_t attributes;
        if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
            void* bottom;
            pthread_attr_getstack(&attributes, &bottom, &own_.size);
            own_.base = static_cast<char*>(bottom);
            pthread_attr_destroy(&attributes);
        }
    }

    ~Fibers() {
        for (Fiber* fiber : all_) {
            if (fiber->tsan_fiber && __tsan_destroy_fiber) __tsan_destroy_fiber(fiber->tsan_fiber);
            delete fiber;
        }
        for (auto& [address, size] : mapped_) munmap(address, size);
    }

    Fiber* current() const { return current_; }  // nullptr: the OS thread's own stack

    Fiber* take(void (*function)()) {
        Fiber* fiber = free_;
        if (fiber) {
            free_ = fiber->next;
        } else {
            fiber = make();
        }
        fiber->parked_thread = -1;
        if (!fiber->is_started) {
            make_context(fiber->context, fiber->base, fiber->size, function);
            fiber->is_started = true;
            if (under_tsan()) fiber->tsan_fiber = __tsan_create_fiber(0);
        }
        return fiber;
    }

    // Makes `count` fibers ready for taking. ThreadSanitizer orders a fiber after its creator, which must therefore
    // not be another CUDA thread.
    void reserve(unsigned count, void (*function)()) {
        std::vector<Fiber*> taken(count);
        for (Fiber*& fiber : taken) fiber = take(function);
        for (unsigned i = count; i-- > 0;) {
            taken[i]->next = free_;
            free_ = taken[i];
        }
    }

    // The fiber stays suspended where it is and goes on there when it is taken again. Under ThreadSanitizer a
    // fiber is one thread of the program, so two CUDA threads of a block may not share it.
    void give_back(Fiber* fiber) {
        Fiber*& list = under_tsan() ? spent_ : free_;
        fiber->next = list;
        fiber->parked_thread = -1;
        list = fiber;
    }

    void end_block() {
        while (spent_) {
            Fiber* fiber = spent_;
            spent_ = fiber->next;
            fiber->next = free_;
            free_ = fiber;
        }
    }

    // After a failed launch fibers hang in the middle of kernels: all start afresh.
    void abandon_all() {
        free_ = spent_ = nullptr;
        for (Fiber* fiber : all_) {
            fiber->is_started = false;
            fiber->next = free_;
            free_ = fiber;
            if (fiber->tsan_fiber && __tsan_destroy_fiber) __tsan_destroy_fiber(fiber->tsan_fiber);
            fiber->tsan_fiber = nullptr;
            if (__asan_unpoison_memory_region) __asan_unpoison_memory_region(fiber->base, fiber->size);
        }
    }

    // `target` nullptr is the OS thread's own stack.
    void switch_to(Fiber* target) {
        Fiber* from = current_ ? current_ : &own_;
        Fiber* to = target ? target : &own_;
        current_ = target;
        if (__builtin_expect(is_sanitized_, 0)) {
            const unsigned no_sync = 1;  // a switch orders nothing: only barriers do
            if (under_tsan()) __tsan_switch_to_fiber(to->tsan_fiber, no_sync);
            if (__sanitizer_start_switch_fiber) __sanitizer_start_switch_fiber(&from->asan_stack, to->base, to->size);
        }
        warpdrive_cpu_switch(&from->context.stack_pointer, to->context.stack_pointer);
        if (__builtin_expect(is_sanitized_, 0)) finish_switch(from->asan_stack);
    }

    void finish_switch(void* asan_stack) {
        const void* bottom;
        size_t size;
        if (__sanitizer_finish_switch_fiber) __sanitizer_finish_switch_fiber(asan_stack, &bottom, &size);
    }

    bool is_sanitized() const { return is_sanitized_; }

    // Whether a fault at `address` is the current stack running over its guard page.
    bool is_overflow(const char* address) const {
        return current_ && address >= current_->base - kPage && address < current_->base + 512;
    }

private:
    Fiber* make() {
        const size_t stack = is_sanitized_ ? kSanitizedStack : kStack;
        const size_t guard = is_guarded_ ? kPage : 0;
        const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        void* mapped = mmap(nullptr, stack + guard, PROT_READ | PROT_WRITE, flags, -1, 0);
        if (mapped == MAP_FAILED || (guard && mprotect(mapped, guard, PROT_NONE) != 0)) {
            const char* why = strerror(errno);
            fprintf(stderr, "warpdrive: cannot map the stack of a CUDA thread: %s. Raise vm.max_map_count.\n", why);
            abort();
        }
        mapped_.emplace_back(mapped, stack + guard);
        // Stack tops that share an offset within a page would compete for a handful of cache sets.
        const size_t colour = all_.size() % 61 * 320;
        Fiber* fiber = new Fiber{};
        fiber->base = static_cast<char*>(mapped) + guard;
        fiber->size = stack - colour;
        all_.push_back(fiber);
        return fiber;
    }

    Fiber own_{};
    Fiber* current_ = nullptr;
    Fiber* free_ = nullptr;
    Fiber* spent_ = nullptr;
    std::vector<Fiber*> all_;
    std::vector<std::pair<void*, size_t>> mapped_;
    const bool is_guarded_;
    const bool is_sanitized_ = under_sanitizer();
};

}  // namespace warpdrive_cpu
