// Stands in for <vector_functions.h>: the shim has what kernels need of it.
#pragma once
#include "../cpu_shim.h"
