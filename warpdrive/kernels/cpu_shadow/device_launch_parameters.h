// Stands in for <device_launch_parameters.h>: the shim has what kernels need of it.
#pragma once
#include "../cpu_shim.h"
