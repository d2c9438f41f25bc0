"""An env whose definition is wrong gets one line that names the env or its kernel, what is wrong, and where."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from compile_only import CompileOnlyBackend
from gymnasium import spaces

from warpdrive.backends.cuda import _nvrtc
from warpdrive.env import Env, Group
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.errors import CompileError, EnvError, WarpDriveError

KERNEL = """
#include "warpdrive.cuh"
extern "C" __global__ void odd_step(float* place, float* observation)
{
    const int env = env_index();
    if (env >= NUM_ENVS) return;
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        place[env * NUM_AGENTS + agent] += 1.0f;
        observation[env * NUM_AGENTS + agent] = place[env * NUM_AGENTS + agent];
    }
}
"""
COMPILERS = [
    pytest.param("nvcc", marks=pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc here")),
    pytest.param("nvrtc", marks=pytest.mark.skipif(_nvrtc() is None, reason="there is no NVRTC here")),
]
SEEN, MOVES = spaces.Box(-1.0, 1.0, (1,), np.float32), spaces.Discrete(2)


@dataclass(frozen=True)
class OddConfig:
    pass


class Odd(Env):
    """Right as it is; each test sets one thing wrong."""

    Config = OddConfig
    name = "odd"
    source = None
    num_agents = 4
    episode_length = None
    groups: ClassVar = {"first": Group(range(2), SEEN, MOVES), "second": Group(range(2, 4), SEEN, MOVES)}
    start: ClassVar[dict[str, Any]] = {"place": np.zeros(4, np.float32), "observation": np.zeros((4, 1), np.float32)}
    rows = None

    def arrays(self) -> dict[str, Any]:
        return self.start

    def pool(self) -> dict[str, Any] | None:
        return self.rows


def odd(folder: Path, text: str = KERNEL, **wrong: Any) -> Odd:
    env = Odd()
    env.source = folder / "odd.cu"
    env.source.write_text(text)
    for name, value in wrong.items():
        setattr(env, name, value)
    return env


def refusal(device: str, env: Odd) -> str:
    with pytest.raises(WarpDriveError) as caught:
        EnvWrapper(env, 3, device)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_without_a_mistake_it_is_made(device, tmp_path):
    env = EnvWrapper(odd(tmp_path), 3, device)
    env.reset()
    assert env.step()[0].flatten().tolist() == [1.0] * 12


@pytest.mark.parametrize(
    ("array", "given", "shown", "wanted"),
    [
        ("observation", np.zeros((4, 3), np.float32), r"\[4, 3\] torch.float32", r"\[4, 1\] float32"),
        ("observation", np.zeros((4, 1), np.float64), r"\[4, 1\] torch.float64", r"\[4, 1\] float32"),
        ("action", np.zeros((4, 2), np.int32), r"\[4, 2\] torch.int32", r"\[4\] int32"),
        ("action", np.zeros(4, np.float32), r"\[4\] torch.float32", r"\[4\] int32"),
        ("reward", np.zeros(3, np.float32), r"\[3\] torch.float32", r"\[4\] float32"),
    ],
)
def test_a_space_that_does_not_match_the_array(device, tmp_path, array, given, shown, wanted):
    env = odd(tmp_path, start={**Odd.start, array: given})
    line = rf"^env 'odd': array '{array}' is {shown} a copy, its spaces say {wanted}. Make them agree.$"
    with pytest.raises(EnvError, match=line):
        EnvWrapper(env, 3, device)


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (range(1, 4), r"group 'second' has agents \[1, 2, 3\], expected a slice from 2. .* without gap or overlap.$"),
        (range(3, 4), r"group 'second' has agents \[3\], expected a slice from 2. .* without gap or overlap.$"),
        (range(2, 3), "groups cover 3 agents of 4. Every agent needs one.$"),
        (range(2, 5), "groups cover 5 agents of 4. Every agent needs one.$"),
        (range(2, 6, 2), r"group 'second' has agents \[2, 4\], expected a slice from 2. .* without gap or overlap.$"),
        ([2, 3], r"group 'second' has agents \[2, 3\]. Give a range: range\(0, 4\).$"),
    ],
)
def test_a_group_that_overlaps_another_or_leaves_agents_out(tmp_path, second, words):
    env = odd(tmp_path, groups={"first": Group(range(2), SEEN, MOVES), "second": Group(second, SEEN, MOVES)})
    with pytest.raises(EnvError, match=f"^env 'odd': {words}"):
        EnvWrapper(env, 3, "cpu")


def test_an_array_that_the_kernel_names_and_the_env_has_not(device, tmp_path):
    line = refusal(device, odd(tmp_path, KERNEL.replace("float* place", "float* place, float* plaice")))
    assert line == (
        "kernel 'odd_step' has a parameter 'plaice', but no array 'plaice' was pushed. Did you mean 'place'?"
    )


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_start_that_holds_what_is_no_number(tmp_path, wrong):
    place = np.array([0, 0, wrong, 0], np.float32)
    line = "^env 'odd': array 'place' starts with a NaN or an infinity. Start it with numbers.$"
    with pytest.raises(EnvError, match=line):
        EnvWrapper(odd(tmp_path, start={**Odd.start, "place": place}), 3, "cpu")
    rows = {"place": np.stack([Odd.start["place"], place]), "observation": np.zeros((2, 4, 1), np.float32)}
    with pytest.raises(EnvError, match=line):
        EnvWrapper(odd(tmp_path, rows=rows), 3, "cpu")


@pytest.mark.parametrize("declared", ["__shared__ float much[13000]", "ENV_SHARED(float, much, 13000)"])
def test_more_shared_memory_than_the_device_has(device, tmp_path, declared):
    use = f"{declared}; much[first_agent()] = place[0]; env_sync(); place[0] = much[1];"
    env = odd(tmp_path, KERNEL.replace("    for (", f"    {use}\n    for ("))
    with pytest.raises(CompileError) as caught:
        EnvWrapper(env, 3, device)
    assert_shared_memory_is_named(str(caught.value))


@pytest.mark.parametrize("compiler", COMPILERS)
def test_more_shared_memory_than_a_gpu_has_is_seen_without_one(tmp_path, compiler):
    use = "__shared__ float much[13000]; much[first_agent()] = place[0]; env_sync(); place[0] = much[1];"
    env = odd(tmp_path, KERNEL.replace("    for (", f"    {use}\n    for ("))
    with pytest.raises(CompileError) as caught:
        EnvWrapper(env, 3, backend=CompileOnlyBackend(compiler, "sm_90"))
    assert_shared_memory_is_named(str(caught.value))


def assert_shared_memory_is_named(message: str) -> None:
    """The one line, then the kernel's own line and a caret. More than the 52,000 bytes where envs share a block."""
    first, *shown = message.splitlines()
    assert "odd.cu:3:1: error: kernel 'odd_step' has " in first and " bytes of static shared memory. A GPU's " in first
    assert first.endswith("or dynamic shared memory (extern __shared__).") and len(shown) == 2
