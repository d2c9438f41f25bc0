"""Microseconds the host needs for one launch that was prepared.

python benchmarks/launch.py --device cuda
"""

import argparse
import time
from pathlib import Path

import numpy as np
from report import NUM_REPEATS, median, time_calls, time_graph, write_report

from warpdrive.backends import choose_backend
from warpdrive.backends.base import Source
from warpdrive.backends.cuda import compile_to_cubin
from warpdrive.data_manager import DataManager
from warpdrive.function_manager import FunctionManager
from warpdrive.signature import read_signatures

SOURCE = """
extern "C" __global__ void touch(float* a, float* b, float* c, const float* d, const int* e)
{
    if (threadIdx.x == 0) a[blockIdx.x] += 1.0f;
}
"""


EMPTY = 'extern "C" __global__ void empty() {}'


def host_microseconds(backend, call, num_calls: int = 300) -> list[float]:
    """What a launch takes from the host while the device's queue has room."""
    figures = []
    for _ in range(2 * NUM_REPEATS):
        backend.synchronize()
        start = time.perf_counter()
        for _ in range(num_calls):
            call()
        figures.append((time.perf_counter() - start) / num_calls * 1e6)
        backend.synchronize()
    return figures[NUM_REPEATS:]


def bare_launch(backend):
    """The driver's own function, called from Python with nothing around it: the least a launch can take."""
    from cuda.bindings import driver as cuda

    cubin = compile_to_cubin(Source("<empty>", EMPTY, "", read_signatures(EMPTY)), backend.arch)
    _, module = cuda.cuModuleLoadData(cubin)
    _, function = cuda.cuModuleGetFunction(module, b"empty")
    stream = cuda.CUstream(backend.driver.stream_handle)
    return lambda: cuda.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, 0, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--driver", default="auto", help="auto, pycuda or bindings")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    backend = choose_backend(device=arguments.device, driver=arguments.driver)
    data = DataManager(backend.device)
    for name in "abcd":
        data.push(name, np.zeros(32, np.float32))
    data.push("e", np.zeros(32, np.int32))
    call = FunctionManager(data, SOURCE, num_envs=1, num_agents=32, backend=backend).prepare("touch")
    results = {"host_us": median(host_microseconds(backend, call)), "eager_us": median(time_calls(backend, call, 2000))}
    if backend.name == "cuda":
        results["in_a_graph_us"] = median(time_graph(backend, call, 1000))
        results["bare_driver_us"] = median(host_microseconds(backend, bare_launch(backend)))
        results["driver"] = backend.driver.name
    write_report(f"launch_{backend.name}_{results.get('driver', 'host')}".lower().replace(".", "_"), backend, results,
                 arguments.out)  # fmt: skip


if __name__ == "__main__":
    main()
