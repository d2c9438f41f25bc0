"""Microseconds the host needs for one launch that was prepared.

python benchmarks/launch.py --device cuda
"""

import argparse
from pathlib import Path

import numpy as np
from report import median, time_calls, time_graph, write_report

from warpdrive.backends import choose_backend
from warpdrive.data_manager import DataManager
from warpdrive.function_manager import FunctionManager

SOURCE = """
extern "C" __global__ void touch(float* a, float* b, float* c, const float* d, const int* e)
{
    if (threadIdx.x == 0) a[blockIdx.x] += 1.0f;
}
"""


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
    results = {"eager_us": median(time_calls(backend, call, 2000))}
    if backend.name == "cuda":
        results["in_a_graph_us"] = median(time_graph(backend, call, 1000))
        results["driver"] = backend.driver.name
    write_report(f"launch_{backend.name}_{results.get('driver', 'host')}".lower().replace(".", "_"), backend, results,
                 arguments.out)  # fmt: skip


if __name__ == "__main__":
    main()
