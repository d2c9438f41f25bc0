"""The same numbers as one row of floats, as a Dict, as bytes, and with the agent's number: what each takes.

python benchmarks/observation_kinds.py --device cuda trainer.precision=bf16

2,000 envs of 5 agents by networks of 256x256, and 16,384 by 64x64; PPO of 4 epochs x 4 minibatches, 32 steps. A step of
the env costs next to nothing. Every kind has 32 features, which are the same numbers, but for those that `ids` gives up
for the agent's.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from gymnasium import spaces
from report import NUM_REPEATS, write_report
from throughput import pairs_of

from trainers.report.throughput import describe, measure, temporary_trainer
from trainers.settings.read_config import read_config
from warpdrive.env import Env, Group

NUM_AGENTS, NUM_FEATURES = 5, 32
KINDS = {
    "row": {"": (np.float32, 32)},
    "dict": {"a": (np.float32, 5), "b": (np.float32, 11), "c": (np.float32, 16)},
    "uint8": {"": (np.uint8, 32)},
    "int8": {"": (np.int8, 32)},
    "mixed": {"a": (np.uint8, 15), "b": (np.float32, 13), "c": (np.int8, 4)},
    "ids": {"": (np.float32, 32 - NUM_AGENTS)},
}
"""By name: key of the Dict -> dtype and size; "" of a Box."""
BOUNDS = {np.float32: (0.0, 1.0), np.uint8: (0, 255), np.int8: (-128, 127)}
SIZES = {"2000_256": (2000, 256), "16384_64": (16384, 64)}
"""Envs, and how wide the two hidden layers are."""
STEP = """
#include "warpdrive.cuh"
// Shows numbers of no meaning, 0 to 255, as each array has them, and pays for them.
extern "C" __global__ void observation_kinds_step(
    const int* action, int* time_step, float* reward, bool* terminated, bool* truncated, {parameters})
{{
    const int env = env_index();
    if (env >= NUM_ENVS) return;
    const int time = time_step[env] + 1;
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {{
        const int i = env * NUM_AGENTS + agent;
        const auto number = [&](int column) {{
            const unsigned mixed = (unsigned)((time * 977 + i) * 32 + column) * 0x9e3779b1u;
            return (int)(mixed >> 24);
        }};
        {writes}
        reward[i] = action[i] == number(0) % 5 ? 1.0f : 0.0f;
    }}
    env_sync();
    if (first_agent() == 0) {{
        time_step[env] = time % 25;
        terminated[env] = false;
        truncated[env] = time >= 25;
    }}
}}
"""


@dataclass(frozen=True)
class KindsConfig:
    kind: Literal["row", "dict", "uint8", "int8", "mixed", "ids"] = "row"


class Kinds(Env):
    """Five agents who see numbers of no meaning."""

    Config = KindsConfig
    num_agents, episode_length = NUM_AGENTS, 25
    name = "observation_kinds"

    def __init__(self, config: KindsConfig | None = None) -> None:
        super().__init__(config)
        boxes = {
            key: spaces.Box(*BOUNDS[dtype], (size,), dtype) for key, (dtype, size) in KINDS[self.config.kind].items()
        }
        seen = boxes[""] if "" in boxes else spaces.Dict(boxes)
        self.groups = {"agent": Group(range(NUM_AGENTS), seen, spaces.Discrete(5))}

    def arrays(self) -> dict[str, Any]:
        kinds = KINDS[self.config.kind].items()
        seen = {_array_of(key): np.full((NUM_AGENTS, size), BOUNDS[dtype][0], dtype) for key, (dtype, size) in kinds}
        return {"time_step": np.zeros((), np.int32), **seen}

    @cached_property
    def source(self) -> Path:
        """Written for this kind."""
        parameters, writes, start = [], [], 0
        for key, (dtype, size) in KINDS[self.config.kind].items():
            name, (low, high) = _array_of(key), BOUNDS[dtype]
            kind = {np.float32: "float", np.uint8: "unsigned char", np.int8: "signed char"}[dtype]
            scaled = "number(start + j) / 255.0f" if high == 1.0 else f"number(start + j) + {low}"
            parameters.append(f"{kind}* {name}")
            loop = f"for (int j = 0; j < {size}; ++j) {name}[i * {size} + j] = ({kind})({scaled});"
            writes.append(loop.replace("start", str(start)))
            start += size
        file = Path(tempfile.mkdtemp()) / "observation_kinds.cu"
        file.write_text(STEP.format(parameters=", ".join(parameters), writes="\n        ".join(writes)))
        return file


def _array_of(key: str) -> str:
    return f"observation_{key}".rstrip("_")


def config_of(kind: str, num_envs: int, width: int) -> dict[str, Any]:
    policy = {
        "algorithm": "PPO",
        "lr": 0.00025,
        "num_epochs": 4,
        "num_minibatches": 4,
        "normalize_return": False,
        "agent_id": kind == "ids",
        "model": {"fc_dims": [width, width], "activation": "tanh", "shared_trunk": False},
    }
    trainer = {"num_envs": num_envs, "train_batch_size": 32 * num_envs, "total_timesteps": 10**12}
    return {"name": "observation_kinds:Kinds", "env": {"kind": kind}, "trainer": trainer, "policy": {"agent": policy}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--repeats", type=int, default=NUM_REPEATS)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=SIZES)
    parser.add_argument("--out", type=Path, help="folder of the JSON")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    arguments = parser.parse_args()
    results: dict[str, Any] = {}
    for word in arguments.sizes:
        num_envs, width = SIZES[word]
        for kind in arguments.kinds:
            pairs = [*pairs_of(arguments.overrides), ("trainer.device", arguments.device)]
            config = read_config(config_of(kind, num_envs, width), pairs, allow_import=True)
            with temporary_trainer(config) as trainer:
                backend = trainer.backend
                found = measure(trainer, arguments.repeats)
                told = describe(trainer, "observation_kinds.py", arguments.overrides)
            row = results.setdefault(word, {}).get("row", found)
            found["times_the_row"] = round(found["train"]["us_a_step"] / row["train"]["us_a_step"], 3)
            results[word][kind] = {**told, **found}
    write_report(f"observation_kinds_{backend.name}", backend, results, arguments.out)
    for word, kinds in results.items():
        told = (f"{kind} {one['train']['us_a_step']} ({one['times_the_row']})" for kind, one in kinds.items())
        print(f"{word}: us a step (times the row): {', '.join(told)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
