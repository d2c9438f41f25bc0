"""One CPU core: the grid-world step kernel against a vectorised numpy step of the same rules, in one run.

python benchmarks/cpu_env_step.py --num-envs 2000 --num-taggers 4
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
from report import NUM_REPEATS, ROOT, median, time_calls, write_report

sys.path.insert(0, str(ROOT / "tests"))
from oracles import tag_gridworld as oracle

from warpdrive.backends.cpu import CpuBackend
from warpdrive.env_wrapper import EnvWrapper


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-envs", type=int, default=2000)
    parser.add_argument("--num-taggers", type=int, default=4)
    parser.add_argument("--grid-length", type=int, default=100)
    parser.add_argument("--num-calls", type=int, default=200)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    backend = CpuBackend(num_threads=1)
    results = {}
    for name, full in (("full", True), ("partial", False)):
        config = {"num_taggers": arguments.num_taggers, "grid_length": arguments.grid_length}
        config["use_full_observation"] = full
        env = EnvWrapper("tag_gridworld", arguments.num_envs, backend=backend, env_config=config)
        env.reset()
        parameters = oracle.TagGridworldParameters(**config)
        state = oracle.start(parameters, arguments.num_envs)
        rng = np.random.default_rng(0)
        action = rng.integers(0, 5, (arguments.num_envs, env.num_agents)).astype(np.int32)
        env.data["action"] = action
        kernel_us = median(time_calls(backend, env.prepare_step(), arguments.num_calls))
        numpy_us = []
        for _ in range(NUM_REPEATS):
            start = time.perf_counter()
            for _ in range(arguments.num_calls // 4):
                oracle.step(parameters, state, action)
            numpy_us.append((time.perf_counter() - start) / (arguments.num_calls // 4) * 1e6)
        num_agent_steps = arguments.num_envs * env.num_agents
        results[name] = {
            "num_envs": arguments.num_envs,
            "num_agents": env.num_agents,
            "kernel_us": kernel_us,
            "numpy_us": median(numpy_us),
            "kernel_ns_an_agent_step": round(kernel_us * 1e3 / num_agent_steps, 2),
            "times_faster_than_numpy": round(median(numpy_us) / kernel_us, 2),
        }
    write_report("cpu_env_step", backend, results, arguments.out)


if __name__ == "__main__":
    main()
