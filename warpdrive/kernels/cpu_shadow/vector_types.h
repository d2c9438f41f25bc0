// Stands in for <vector_types.h>: the shim has what kernels need of it.
#pragma once
#include "../cpu_shim.h"
