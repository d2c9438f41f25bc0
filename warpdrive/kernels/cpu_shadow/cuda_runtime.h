// Stands in for <cuda_runtime.h>: the shim has what kernels need of it.
#pragma once
#include "../cpu_shim.h"
