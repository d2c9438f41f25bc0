// Stands in for <assert.h>, whose assert would end the Python process. Without #pragma once, as the original.
#include "../cpu_shim.h"
#undef assert
#ifdef NDEBUG
#define assert(condition) ((void)0)
#else
#define assert(condition) \
    ((condition) ? (void)0 : warpdrive_cpu::fail({__FILE__, __LINE__}, "assertion failed: " #condition \
                                 ". Correct what breaks it, or the assert."))
#endif
