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
