// Stands in for <cuda.h>: the shim has what kernels need of it.
#pragma once
#include "../cpu_shim.h"
