"""An env for mistakes to be planted in: right as it is."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from warpdrive.env import Env, Group

KERNELS = """#include "warpdrive.cuh"
#include "random.cuh"
#include "planted.cuh"
extern "C" __global__ void planted_step(const int* action, float* place, int* time_step, int* count,
                                        float* observation, float* reward, bool* terminated, bool* truncated)
{
    const int env = env_index();
    if (env >= NUM_ENVS) return;
    ENV_SHARED(float, moved, NUM_AGENTS);
    const int time = time_step[env] + 1;
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        const int i = env * NUM_AGENTS + agent;
        moved[agent] = fminf(place[i] + 0.01f * action[i], 1.0f);
        reward[i] = 1.0f;
        count[i] = time;
    }
    env_sync();  // everyone has read the time, and has moved
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        const int i = env * NUM_AGENTS + agent;
        place[i] = moved[agent];
        see(observation, 2 * i, place[i]);
        observation[2 * i + 1] = moved[(agent + 1) % NUM_AGENTS];
    }
    if (first_agent() == 0) {
        time_step[env] = time;
        terminated[env] = false;
        truncated[env] = time >= 10;
    }
}
extern "C" __global__ void planted_reset(const bool* terminated, const bool* truncated, const unsigned* seed,
                                         const long long* env_step, float* place, int* time_step, int* count,
                                         float* observation)
{
    const int env = env_index();
    if (env >= NUM_ENVS || !(terminated[env] || truncated[env])) return;
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        const int i = env * NUM_AGENTS + agent;
        place[i] = 0.5f * Random(seed, env, agent, env_step[env], STREAM_RESET).uniform();
        count[i] = 0;
        see(observation, 2 * i, place[i]);
        observation[2 * i + 1] = 0.0f;
    }
    if (first_agent() == 0) time_step[env] = 0;
}
"""
HEADER = """#pragma once
__device__ void see(float* observation, int i, float value)
{
    observation[i] = value;
}
"""


@dataclass(frozen=True)
class PlantedConfig:
    folder: str = ""
    """Where planted.cu is."""
    episode_length: int = 10


class Planted(Env):
    Config = PlantedConfig
    num_agents = 3
    groups: ClassVar = {"walker": Group(range(3), spaces.Box(0, 1, (2,), np.float32), spaces.Discrete(3))}
    name, source = "planted", None

    def __init__(self, config: PlantedConfig | None = None) -> None:
        super().__init__(config)
        self.episode_length = self.config.episode_length
        self.source = Path(self.config.folder) / "planted.cu"

    def arrays(self) -> dict[str, Any]:
        return {
            "place": np.zeros(3, np.float32),
            "time_step": np.zeros((), np.int32),
            "count": np.zeros(3, np.int32),
        }


class Pooled(Planted):
    """No reset kernel: it restarts from rows of a pool."""

    def pool(self) -> dict[str, Any]:
        rows = np.arange(1, 6, dtype=np.float32)[:, None].repeat(3, 1) / 10
        return {"place": rows, "observation": rows[..., None].repeat(2, -1)}


def planted(folder: Path, *mistakes: tuple[str, str], kind: type[Planted] = Planted, **config: Any) -> Planted:
    """The env with each `old` of its source, or else of the file that it includes, turned into `new`."""
    kernels, header = KERNELS, HEADER
    if kind is not Planted:
        kernels = kernels[: kernels.index('extern "C" __global__ void planted_reset')]
    for old, new in mistakes:
        assert old in kernels + header, old
        if old in kernels:
            kernels = kernels.replace(old, new, 1)
        else:
            header = header.replace(old, new, 1)
    (folder / "planted.cu").write_text(kernels)
    (folder / "planted.cuh").write_text(header)
    return kind(PlantedConfig(str(folder), **config))


def line_of_mistake(folder: Path) -> str:
    """`path:line` of what is marked `// HERE`; "" if nothing is."""
    for file in (folder / "planted.cu", folder / "planted.cuh"):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if line.endswith("// HERE"):
                return f"{file}:{number}"
    return ""


def _group(high: int, dtype: type, low: int = 0) -> dict[str, Group]:
    return {"walker": Group(range(3), spaces.Box(low, high, (2,), dtype), spaces.Discrete(3))}


class Yes(Planted):
    groups: ClassVar = _group(1, np.bool_)


class Few(Planted):
    groups: ClassVar = _group(1, np.uint8)


class Bytes(Planted):
    groups: ClassVar = _group(255, np.uint8)


class Signed(Planted):
    groups: ClassVar = _group(127, np.int8, -128)


SMALL = {Yes: "bool", Few: "unsigned char", Bytes: "unsigned char", Signed: "signed char"}
"""Of envs that show small numbers: what kernels call them."""
SECOND_FEATURE = "        observation[2 * i + 1] = moved[(agent + 1) % NUM_AGENTS];\n"
SECOND_BYTE = "        observation[2 * i + 1] = moved[(agent + 1) % NUM_AGENTS] > 0.5f;\n"


def of_kind(kind: type[Planted], *mistakes: tuple[str, str]) -> list[tuple[str, str]]:
    """The changes that make the env show numbers of this kind."""
    ctype = SMALL[kind]
    places = ["float* observation, float* reward", "                                         float* observation)"]
    typed = [(place, place.replace("float* observation", f"{ctype}* observation")) for place in places]
    see = ("see(float* observation, int i, float value)", f"see({ctype}* observation, int i, float value)")
    return [*typed, see, (SECOND_FEATURE, SECOND_BYTE), *mistakes]
