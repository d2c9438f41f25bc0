"""One CPU core: the step kernels of shipped envs against vectorised numpy of the same rules, in one run.

python benchmarks/cpu_env_step.py

Both step the same envs from the same state by the same actions, in turn, NUM_STEPS at a time. Tag's numpy is the
oracle of the tests, written to be read and not to be fast: the report says so (`is_oracle`). Before anything is
timed, the two must agree. Times are of the processor, so that a machine that others use as well tells the same.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from env_step import PUBLISHED
from numpy_envs import ORACLES, STEPS, Arrays
from report import median, write_report

from warpdrive.backends.cpu import CpuBackend
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.testing import random_actions

NUM_STEPS = 25
"""Steps timed without a break: as long as the shortest episode."""

TOLERANCE = 1e-5
MOST_APART = 1e-4
"""Of all env steps compared: where rounding decides who is nearest, or what ended."""

FIVE_AGENTS = {**PUBLISHED, "num_taggers": 1, "num_runners": 4}
WORKLOADS = {
    "tag_gridworld": ("tag_gridworld", {"num_taggers": 4, "grid_length": 100}),
    "tag_gridworld, partial": (
        "tag_gridworld",
        {"num_taggers": 4, "grid_length": 100, "use_full_observation": False},
    ),
    "tag_continuous": ("tag_continuous", {**FIVE_AGENTS, "use_full_observation": True}),
    "tag_continuous, partial": ("tag_continuous", {**FIVE_AGENTS, "num_other_agents_observed": 4}),
    "simple_spread": ("simple_spread", {}),
    "simple_spread, continuous actions": ("simple_spread", {"continuous_actions": True}),
    "simple_tag": ("simple_tag", {}),
    "simple_tag, continuous actions": ("simple_tag", {"continuous_actions": True}),
    "cartpole": ("cartpole", {}),
    "mountain_car": ("mountain_car", {}),
    "continuous_mountain_car": ("continuous_mountain_car", {}),
    "acrobot": ("acrobot", {}),
    "pendulum": ("pendulum", {}),
}
"""name -> env, config: the shipped envs that `numpy_envs/` has, too; the others are held to what was recorded."""


class Pair:
    """One env, by its kernel and by numpy."""

    def __init__(self, name: str, num_envs: int, backend: CpuBackend) -> None:
        env_name, config = WORKLOADS[name]
        self.env = EnvWrapper(env_name, num_envs, backend=backend, seed=1, env_config=config)
        self.env.reset()
        self.actions = [step["action"] for step in random_actions(self.env.env, num_envs, NUM_STEPS)]
        self.calls = [self.env.prepare_step(action=action) for action in self.actions]
        self.numpy_step = STEPS[env_name](self.env.env, num_envs)
        self.numpy_actions = [_env_last(action.numpy()) for action in self.actions]
        self.start = {name: self.env.data[name].clone() for name in self.env.data.names()}

    def numpy_state(self) -> Arrays:
        """The kernel's arrays as they are now, for numpy."""
        names = [name for name in self.env.data.names() if "observation" not in name]
        return {name: _env_last(self.env.data.pull(name)) for name in names}

    def check(self) -> float:
        """The share of env steps in which kernel and numpy, from the same state, do not agree. Episodes restart."""
        reset, num_apart = self.env.prepare_reset(), 0
        num_rounds = 4
        for _ in range(num_rounds):
            for call, action in zip(self.calls, self.numpy_actions, strict=True):
                expected = self.numpy_step(self.numpy_state(), action)
                call()
                apart = np.zeros(self.env.num_envs, bool)
                for name, values in expected.items():
                    ours = self.env.data.pull(name)
                    theirs = values if "observation" in name else np.moveaxis(values, -1, 0)
                    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
                        raise SystemExit(
                            f"{self.env.env.name}: '{name}' is {ours.dtype} {ours.shape}, numpy's {theirs.dtype} "
                            f"{theirs.shape}. Mend numpy_envs/."
                        )
                    is_close = np.isclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE)
                    apart |= ~is_close.reshape(len(ours), -1).all(axis=1)
                num_apart += int(apart.sum())
                reset()
        return num_apart / (num_rounds * NUM_STEPS * self.env.num_envs)

    def time_kernel(self) -> float:
        """Seconds of the processor that NUM_STEPS take from the start."""
        for name, array in self.start.items():
            self.env.data[name].copy_(array)
        start = time.process_time()
        for call in self.calls:
            call()
        return time.process_time() - start

    def time_numpy(self) -> float:
        for name, array in self.start.items():
            self.env.data[name].copy_(array)
        arrays = self.numpy_state()
        start = time.process_time()
        for action in self.numpy_actions:
            arrays.update(self.numpy_step(arrays, action))
        return time.process_time() - start


def _env_last(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(array, 0, -1))


def measure(pair: Pair, repeats: int, seconds: float) -> dict:
    """A repeat takes at least `seconds`; kernel and numpy take turns within it."""
    sides: tuple[Callable[[], float], ...] = (pair.time_kernel, pair.time_numpy)
    num_rounds = max(1, round(seconds / sum(side() for side in sides)))
    us: list[tuple[float, float]] = []
    for _ in range(repeats + 1):
        totals = [0.0, 0.0]
        for _ in range(num_rounds):
            for number, side in enumerate(sides):
                totals[number] += side()
        us.append(tuple(total / num_rounds / NUM_STEPS * 1e6 for total in totals))
    us = us[1:]  # the first warms up
    kernel_us, numpy_us = (median([one[side] for one in us]) for side in range(2))
    ratios = [numpy / kernel for kernel, numpy in us]
    return {
        "num_envs": pair.env.num_envs,
        "num_agents": pair.env.num_agents,
        "kernel_us": kernel_us,
        "numpy_us": numpy_us,
        "kernel_ns_an_agent_step": round(kernel_us * 1e3 / pair.env.num_envs / pair.env.num_agents, 2),
        "times_faster_than_numpy": round(statistics.median(ratios), 2),
        "times_faster_of_each_repeat": [round(ratio, 2) for ratio in ratios],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-envs", type=int, default=2000)
    parser.add_argument("--only", default="", help="workloads whose name holds this")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.3, help="of one repeat")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.only and not arguments.out:
        parser.error("--only leaves workloads out. Say where the rest may go: --out FOLDER.")
    backend = CpuBackend(num_threads=1)
    results = {}
    for name in WORKLOADS:
        if arguments.only not in name:
            continue
        pair = Pair(name, arguments.num_envs, backend)
        apart = pair.check()
        if apart > MOST_APART:
            raise SystemExit(f"{name}: kernel and numpy differ in {apart:.2%} of all env steps. Mend numpy_envs/.")
        is_oracle = WORKLOADS[name][0] in ORACLES
        found = measure(pair, arguments.repeats, arguments.seconds)
        results[name] = {**found, "share_apart": apart, "is_oracle": is_oracle}
        print(f"{name}: {results[name]['times_faster_than_numpy']} times as fast as numpy", flush=True)
    write_report("cpu_env_step", backend, results, arguments.out)


if __name__ == "__main__":
    main()
