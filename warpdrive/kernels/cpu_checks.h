// Debug mode's checks: what the compiler calls where it was told to test for undefined behaviour
// (-fsanitize=bounds and others). These stand in for the sanitizer's own library, so that a finding ends the
// launch with its file and line instead of ending Python.
#pragma once
#include <stdint.h>
#include <stdio.h>

namespace warpdrive_cpu {

struct SourceLocation {
    const char* file;
    uint32_t line, column;
};
struct TypeName {
    uint16_t kind, info;
    char name[1];
};
// All of the compilers' records start like this.
struct Finding {
    SourceLocation place;
    const TypeName* type;
    const TypeName* other_type;
};

#define WARPDRIVE_HANDLER \
    extern "C" __attribute__((noinline, cold, used, no_sanitize("undefined"), visibility("hidden"))) void

template <class... Value>
__attribute__((noinline, cold, no_sanitize("undefined"))) static void found(const Finding* finding, const char* format,
                                                                           Value... value) {
    char what[300];
    snprintf(what, sizeof what, format, value...);
    fail({finding->place.file, finding->place.line}, what);
}

}  // namespace warpdrive_cpu

WARPDRIVE_HANDLER __ubsan_handle_out_of_bounds_abort(warpdrive_cpu::Finding* finding, void* index) {
    warpdrive_cpu::found(finding,
                         "index %lld is out of range of the array, which is %s. Test it, or make the array larger.",
                         static_cast<long long>(reinterpret_cast<intptr_t>(index)), finding->type->name);
}
WARPDRIVE_HANDLER __ubsan_handle_divrem_overflow_abort(warpdrive_cpu::Finding* finding, void*, void* divisor) {
    warpdrive_cpu::found(finding,
                         divisor ? "integer division overflows (%s): -1 divides the least integer. Test for it."
                                 : "integer division by zero (%s). A GPU would go on with garbage: test the divisor.",
                         finding->type->name);
}
WARPDRIVE_HANDLER __ubsan_handle_shift_out_of_bounds_abort(warpdrive_cpu::Finding* finding, void*, void* distance) {
    warpdrive_cpu::found(finding, "shift of %s by %lld bits, which is negative or too far. Limit the distance.",
                         finding->type->name, static_cast<long long>(reinterpret_cast<intptr_t>(distance)));
}
WARPDRIVE_HANDLER __ubsan_handle_type_mismatch_v1_abort(warpdrive_cpu::Finding* finding, void* pointer) {
    warpdrive_cpu::found(finding,
                         pointer ? "the address %p is not aligned for %s. Use a smaller type, or align the array."
                                 : "null pointer (%p) used as %s. Give the kernel an array here.",
                         pointer, finding->type->name);
}
WARPDRIVE_HANDLER __ubsan_handle_float_cast_overflow_abort(warpdrive_cpu::Finding* finding, void*) {
    warpdrive_cpu::found(finding,
                         "a %s value does not fit into %s. Limit it first, or use __float2int_rz, which saturates.",
                         finding->type->name, finding->other_type->name);
}
WARPDRIVE_HANDLER __ubsan_handle_missing_return(warpdrive_cpu::Finding* finding) {
    warpdrive_cpu::found(finding, "a function that returns a value reached its end without a return%s. Add one.", "");
}
WARPDRIVE_HANDLER __ubsan_handle_builtin_unreachable(warpdrive_cpu::Finding* finding) {
    warpdrive_cpu::found(finding, "reached a line declared unreachable%s. Test the condition.", "");
}

#ifdef WARPDRIVE_CPU_TSAN
// The watched build: what the compiler calls ahead of every access (-fsanitize=thread).
// Clang watches atomics in spite of no_sanitize("thread"): those below would call themselves without end.
#if __has_attribute(disable_sanitizer_instrumentation)
#define WARPDRIVE_UNWATCHED disable_sanitizer_instrumentation, no_sanitize("thread", "undefined")
#else
#define WARPDRIVE_UNWATCHED no_sanitize("thread", "undefined")
#endif
#define WARPDRIVE_WATCH extern "C" __attribute__((noinline, used, WARPDRIVE_UNWATCHED, visibility("hidden")))

namespace warpdrive_cpu {
__attribute__((noinline, WARPDRIVE_UNWATCHED)) static void note_write(void* address, size_t size, void* caller) {
    if (self.block) self.scheduler->write(self.block, self.thread, address, size, caller);
}
__attribute__((noinline, WARPDRIVE_UNWATCHED)) static void note_read(void* address, size_t size, void* caller) {
    if (self.block && self.watches_reads) self.scheduler->read(self.block, self.thread, address, size, caller);
}
__attribute__((noinline, WARPDRIVE_UNWATCHED)) static void note_atomic(const volatile void* address, size_t size,
                                                                       void* caller) {
    const void* place = const_cast<const void*>(address);
    if (self.block) self.scheduler->atomic(self.block, self.thread, place, size, caller);
}
__attribute__((noinline, WARPDRIVE_UNWATCHED)) static void note_fence() {
    if (self.block) self.scheduler->fence();
}
}  // namespace warpdrive_cpu

#define WARPDRIVE_CALLER __builtin_return_address(0)
#define WARPDRIVE_WATCH_SIZE(SIZE)                                                                            \
    WARPDRIVE_WATCH void __tsan_volatile_read##SIZE(void*) {}                                                 \
    WARPDRIVE_WATCH void __tsan_unaligned_volatile_read##SIZE(void*) {}                                       \
    WARPDRIVE_WATCH void __tsan_read##SIZE(void* p) {                                                         \
        warpdrive_cpu::note_read(p, SIZE, WARPDRIVE_CALLER);                                                  \
    }                                                                                                         \
    WARPDRIVE_WATCH void __tsan_unaligned_read##SIZE(void* p) {                                               \
        warpdrive_cpu::note_read(p, SIZE, WARPDRIVE_CALLER);                                                  \
    }                                                                                                         \
    WARPDRIVE_WATCH void __tsan_write##SIZE(void* p) {                                                        \
        warpdrive_cpu::note_write(p, SIZE, WARPDRIVE_CALLER);                                                 \
    }                                                                                                         \
    WARPDRIVE_WATCH void __tsan_unaligned_write##SIZE(void* p) {                                              \
        warpdrive_cpu::note_write(p, SIZE, WARPDRIVE_CALLER);                                                 \
    }                                                                                                         \
    WARPDRIVE_WATCH void __tsan_volatile_write##SIZE(void* p) {                                               \
        warpdrive_cpu::note_fence();  /* a flag that others wait for */                                       \
        warpdrive_cpu::note_atomic(p, SIZE, WARPDRIVE_CALLER);                                                \
    }                                                                                                         \
    WARPDRIVE_WATCH void __tsan_unaligned_volatile_write##SIZE(void* p) {                                     \
        warpdrive_cpu::note_fence();  /* a flag that others wait for */                                       \
        warpdrive_cpu::note_atomic(p, SIZE, WARPDRIVE_CALLER);                                                \
    }                                                                                                         \
    WARPDRIVE_WATCH void __tsan_read_write##SIZE(void* p) {                                                   \
        warpdrive_cpu::note_read(p, SIZE, WARPDRIVE_CALLER);                                                  \
        warpdrive_cpu::note_write(p, SIZE, WARPDRIVE_CALLER);                                                 \
    }                                                                                                         \
    WARPDRIVE_WATCH void __tsan_unaligned_read_write##SIZE(void* p) {                                         \
        warpdrive_cpu::note_read(p, SIZE, WARPDRIVE_CALLER);                                                  \
        warpdrive_cpu::note_write(p, SIZE, WARPDRIVE_CALLER);                                                 \
    }
WARPDRIVE_WATCH_SIZE(1)
WARPDRIVE_WATCH_SIZE(2)
WARPDRIVE_WATCH_SIZE(4)
WARPDRIVE_WATCH_SIZE(8)
WARPDRIVE_WATCH_SIZE(16)
WARPDRIVE_WATCH void __tsan_init() {}
WARPDRIVE_WATCH void __tsan_func_entry(void*) {}
WARPDRIVE_WATCH void __tsan_func_exit() {}
WARPDRIVE_WATCH void __tsan_read_range(void*, size_t) {}
WARPDRIVE_WATCH void __tsan_write_range(void* p, size_t n) { warpdrive_cpu::note_write(p, n, WARPDRIVE_CALLER); }
WARPDRIVE_WATCH void __tsan_vptr_read(void*) {}
WARPDRIVE_WATCH void __tsan_vptr_update(void*, void*) {}
WARPDRIVE_WATCH void __tsan_atomic_thread_fence(int) { warpdrive_cpu::note_fence(); }
WARPDRIVE_WATCH void __tsan_atomic_signal_fence(int) {}
WARPDRIVE_WATCH void* __tsan_memcpy(void* to, const void* from, size_t n) { return __builtin_memcpy(to, from, n); }
WARPDRIVE_WATCH void* __tsan_memmove(void* to, const void* from, size_t n) { return __builtin_memmove(to, from, n); }
WARPDRIVE_WATCH void* __tsan_memset(void* to, int value, size_t n) { return __builtin_memset(to, value, n); }

#define WARPDRIVE_WATCH_CHANGE(BITS, T, NAME)                                                             \
    WARPDRIVE_WATCH T __tsan_atomic##BITS##_fetch_##NAME(volatile T* p, T value, int) {                   \
        warpdrive_cpu::note_atomic(p, BITS / 8, WARPDRIVE_CALLER);                                        \
        return __atomic_fetch_##NAME(p, value, __ATOMIC_SEQ_CST);                                         \
    }
#define WARPDRIVE_WATCH_COMPARE(BITS, T, NAME)                                                            \
    WARPDRIVE_WATCH bool __tsan_atomic##BITS##_compare_exchange_##NAME(volatile T* p, T* old, T value, int, int) { \
        warpdrive_cpu::note_atomic(p, BITS / 8, WARPDRIVE_CALLER);                                        \
        return __atomic_compare_exchange_n(p, old, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);     \
    }
#define WARPDRIVE_WATCH_ATOMICS(BITS, T)                                                                  \
    WARPDRIVE_WATCH T __tsan_atomic##BITS##_load(const volatile T* p, int) {                              \
        warpdrive_cpu::note_atomic(p, BITS / 8, WARPDRIVE_CALLER);                                        \
        return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                                      \
    }                                                                                                     \
    WARPDRIVE_WATCH void __tsan_atomic##BITS##_store(volatile T* p, T value, int) {                       \
        warpdrive_cpu::note_atomic(p, BITS / 8, WARPDRIVE_CALLER);                                        \
        __atomic_store_n(p, value, __ATOMIC_SEQ_CST);                                                     \
    }                                                                                                     \
    WARPDRIVE_WATCH T __tsan_atomic##BITS##_exchange(volatile T* p, T value, int) {                       \
        warpdrive_cpu::note_atomic(p, BITS / 8, WARPDRIVE_CALLER);                                        \
        return __atomic_exchange_n(p, value, __ATOMIC_SEQ_CST);                                           \
    }                                                                                                     \
    WARPDRIVE_WATCH T __tsan_atomic##BITS##_compare_exchange_val(volatile T* p, T old, T value, int, int) { \
        warpdrive_cpu::note_atomic(p, BITS / 8, WARPDRIVE_CALLER);                                        \
        __atomic_compare_exchange_n(p, &old, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);           \
        return old;                                                                                       \
    }                                                                                                     \
    WARPDRIVE_WATCH_COMPARE(BITS, T, strong)                                                              \
    WARPDRIVE_WATCH_COMPARE(BITS, T, weak)                                                                \
    WARPDRIVE_WATCH_CHANGE(BITS, T, add)                                                                  \
    WARPDRIVE_WATCH_CHANGE(BITS, T, sub)                                                                  \
    WARPDRIVE_WATCH_CHANGE(BITS, T, and)                                                                  \
    WARPDRIVE_WATCH_CHANGE(BITS, T, or)                                                                   \
    WARPDRIVE_WATCH_CHANGE(BITS, T, xor)                                                                  \
    WARPDRIVE_WATCH_CHANGE(BITS, T, nand)
WARPDRIVE_WATCH_ATOMICS(8, uint8_t)
WARPDRIVE_WATCH_ATOMICS(16, uint16_t)
WARPDRIVE_WATCH_ATOMICS(32, uint32_t)
WARPDRIVE_WATCH_ATOMICS(64, uint64_t)
#endif
