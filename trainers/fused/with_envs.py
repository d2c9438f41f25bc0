"""A rollout in one launch: a kernel that acts, and between its steps the envs' own step and restart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from trainers.fused.packed import KERNELS
from warpdrive.function_manager import Constant, FunctionManager, write_constants
from warpdrive.reset import StepFunction

if TYPE_CHECKING:
    from trainers.experience.rollout import Rollout

LAST = "int num_steps)"
"""The end of a kernel's parameters, as its file has it: those of the envs follow."""
SHARED_BYTES = 48 << 10
"""Static shared memory that an env's step and restart may have, which a kernel leaves to them."""


def envs_of_block(step: StepFunction, num_agents: int, rows: int, threads: int) -> int:
    """How many envs a block can have whose kernel acts for so many rows by so many threads; 0: none."""
    num_envs = rows // num_agents
    if step.threads_per_env > 1:  # an env's barriers are a part of a warp's, where several envs share a block
        if step.threads_per_env not in (2, 4, 8, 16, 32):
            return 0
        if num_envs == 1:  # and the block's where it is alone: of its threads only some step envs
            return 0
    return num_envs if num_envs * step.threads_per_env <= threads else 0


def compile_with_envs(
    text: str, kernel: str, constants: Mapping[str, Constant], step: StepFunction, rollout: Rollout, num_envs: int,
    include_folders: Sequence[Path] = (), change: Callable[[str], str] | None = None, is_long: bool = False,
) -> tuple[FunctionManager, dict[str, torch.Tensor]]:  # fmt: skip
    """A kernel with STEP_ENVS(t) after each step t of `num_steps`, which is its last parameter; and what its launch is
    given of the envs.

    Args:
        text: of its file.
        constants: of the text. It and they are in a namespace of their own: an env's names may be the same.
        num_envs: of a block, whose first threads step them.
        include_folders: where the text includes from, besides this one.
        change: of the text, once it has all parameters, where a launch has a block of each of several runs.
        is_long: whether the kernel waits for its own code, so that draws are written out less; see random.cuh.
    """
    env, slots = rollout.env, rollout.slots(0)
    arrays = {f"of_{one.name}": slots.get(one.name, env.data[one.name]) for one in step.parameters}
    now = {name: f"of_{name} + (t) * {slot.numel()}ll" for name, slot in slots.items()}
    call = step.call({one.name: now.get(one.name, f"of_{one.name}") for one in step.parameters})
    parameters = ", ".join(str(replace(one, name=f"of_{one.name}")) for one in step.parameters)
    text = text.replace(LAST, f"{LAST[:-1]}, {parameters})")
    place = "#define BLOCK_IS_A_ROW\n#define CODE_IS_LONG" if is_long else "#define BLOCK_IS_A_ROW"
    if change is not None:
        text, place = change(text), f"{place}\n#define BLOCK_OF_ENVS 0"
    whole = f"""{place}
{step.text}
#define STEP_ENVS(t) __syncthreads(); if (threadIdx.x < ENVS_PER_BLOCK * THREADS_PER_ENV) {call} __syncthreads();
namespace acting {{
{write_constants(constants)}
{text}
}}
using acting::{kernel};
"""
    functions = FunctionManager(
        None, whole, step.constants, env.num_envs, env.num_agents, env.backend,
        include_folders=[KERNELS, *include_folders, *step.include_folders], name=f"<{kernel} with envs>",
        block=(step.threads_per_env, num_envs),
    )  # fmt: skip
    return functions, arrays
