"""Frames of 84 x 84 x 4 bytes through the network of DQN's paper in Nature: what a step takes, and what that gains.

python benchmarks/frames.py --device cuda
python benchmarks/frames.py --device cuda --only PPO_256 trainer.precision=tf32

PPO and PQN of 4 epochs x 4 minibatches after 32 steps, DQN of 16 updates of 256 frames each after 1 step of 256 envs.
An agent is paid for the number of the bright quarter. Each runs as WAYS has it, in a process of its own; compiled
twice, the first time with an empty cache of what torch.compile made.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from report import NUM_REPEATS, write_report
from throughput import pairs_of

from trainers.report.throughput import describe, measure, temporary_trainer
from trainers.settings.read_config import read_config
from warpdrive.backends import choose_backend
from warpdrive.env import Env, Group

SIZE, DEPTH = 84, 4
STEP = """
#include "warpdrive.cuh"
// Shows a frame with a bright quarter, and pays for that quarter's number.
extern "C" __global__ void frames_step(
    const int* action, int* time_step, float* reward, bool* terminated, bool* truncated, unsigned char* observation)
{
    const int env = env_index();
    if (env >= NUM_ENVS) return;
    const auto quarter = [&](int time) { return ((unsigned)(time * 977 + env) * 0x9e3779b1u) >> 30; };
    const int time = time_step[env] + 1, shown = quarter(time);
    constexpr int WORDS = SIZE * DEPTH / 8;
    unsigned long long* const frame = (unsigned long long*)(observation + (size_t)env * SIZE * SIZE * DEPTH);
    for (int i = first_agent(); i < SIZE * WORDS; i += agent_stride()) {
        const int row = i / WORDS, place = 2 * (row >= SIZE / 2) + (i % WORDS >= WORDS / 2);
        frame[i] = 0x0101010101010101ull * (place == shown ? 200 : (time + i) % 64);
    }
    env_sync();
    if (first_agent() == 0) {
        reward[env] = action[env] == (int)quarter(time - 1) ? 1.0f : 0.0f;
        time_step[env] = time % 25;
        terminated[env] = false;
        truncated[env] = time >= 25;
    }
}
"""
WORKLOADS = {
    "PPO_256": ("PPO", 256),
    "PPO_1024": ("PPO", 1024),
    "PQN_256": ("PQN", 256),
    "DQN_256": ("DQN", 256),
}
"""Algorithm, envs."""
WAYS = {
    "tf32": ("trainer.precision=tf32", "trainer.compile=false"),
    "bf16": ("trainer.precision=bf16", "trainer.compile=false"),
    "default": (),
    "default_again": (),
}
"""Settings; none are those of a GPU: bf16, compiled."""
LEARNING = {
    "PPO": {"num_epochs": 4, "num_minibatches": 4, "model": {"shared_trunk": True}},
    "PQN": {"num_epochs": 4, "num_minibatches": 4, "model": {"layer_norm": False}},
    "DQN": {"batch_size": 256, "replay_ratio": 0.0625, "buffer_size": 32_768, "learning_starts": 256},
}


@dataclass(frozen=True)
class FramesConfig:
    """Nothing is to be said."""


class Frames(Env):
    """One agent who sees a frame."""

    Config = FramesConfig
    num_agents, episode_length = 1, 25
    name = "frames"
    groups = {
        "agent": Group(range(1), spaces.Box(0, 255, (SIZE, SIZE, DEPTH), np.uint8), spaces.Discrete(4)),
    }

    def arrays(self) -> dict[str, Any]:
        return {"time_step": np.zeros((), np.int32), "observation": np.zeros((1, SIZE, SIZE, DEPTH), np.uint8)}

    def constants(self) -> dict[str, int]:
        return {"SIZE": SIZE, "DEPTH": DEPTH}

    @cached_property
    def source(self) -> Path:
        file = Path(tempfile.mkdtemp()) / "frames.cu"
        file.write_text(STEP)
        return file


def config_of(workload: str) -> dict[str, Any]:
    algorithm, num_envs = WORKLOADS[workload]
    policy = {"algorithm": algorithm, "lr": 0.00025, **LEARNING[algorithm]}
    policy["model"] = {**policy.get("model", {}), "type": "cnn", "conv": "nature"}
    num_steps = 1 if algorithm == "DQN" else 32
    trainer = {"num_envs": num_envs, "train_batch_size": num_steps * num_envs, "total_timesteps": 10**12}
    return {"name": "frames:Frames", "trainer": trainer, "policy": {"agent": policy}}


def measure_one(workload: str, device: str, repeats: int, overrides: list[str]) -> dict[str, Any]:
    config = read_config(config_of(workload), [*pairs_of(overrides), ("trainer.device", device)], allow_import=True)
    with temporary_trainer(config) as trainer:
        found = measure(trainer, repeats)
        return {**describe(trainer, "frames.py", overrides), **found}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--repeats", type=int, default=NUM_REPEATS)
    parser.add_argument("--only", nargs="+", default=list(WORKLOADS), choices=WORKLOADS)
    parser.add_argument("--out", type=Path, help="folder of the JSON")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    arguments = parser.parse_args()
    given = (arguments.device, arguments.repeats, arguments.overrides)
    if arguments.child:
        print(json.dumps(measure_one(arguments.only[0], *given)))
        return 0
    results: dict[str, Any] = {}
    for workload in arguments.only:
        found = results[workload] = {}
        with tempfile.TemporaryDirectory() as cache:
            for word, settings in WAYS.items():
                found[word] = _in_a_process(cache, workload, *given[:2], [*settings, *arguments.overrides])
        first = found["tf32"]["train"]["us_a_step"]
        for one in found.values():
            one["times_tf32"] = round(first / one["train"]["us_a_step"], 3)
        told = (
            f"{word} {one['train']['us_a_step']} us a step ({one['seconds']['warm_up']['train']} s until then)"
            for word, one in found.items()
        )
        print(f"{workload}: {', '.join(told)}", flush=True)
    backend = choose_backend("auto", arguments.device)
    write_report(f"frames_{backend.name}", backend, results, arguments.out)
    return 0


def _in_a_process(cache: str, workload: str, device: str, repeats: int, overrides: list[str]) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", "--only", workload, "--device", device, "--repeats", str(repeats)]
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache}
    run = subprocess.run([*command, "--", *overrides], env=environment, capture_output=True, text=True, check=False)
    if run.returncode:
        raise SystemExit(f"{' '.join(command)}\n{run.stderr}")
    return json.loads(run.stdout.strip().splitlines()[-1])


if __name__ == "__main__":
    sys.exit(main())
