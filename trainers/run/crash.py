"""What a run leaves in `crash/` when it stops at a NaN or an infinity: enough to look at it without running again.

    crash/crash.json               what was found where, the last good checkpoint, the config
    crash/env.safetensors          every array of that env, as the env has it: no env axis
    crash/rollout.safetensors      the last rollout of that env: [step, ...]
    crash/gradient.safetensors     the policy's gradients, where one of them was found
    crash/policy.<name>.safetensors  the policy's parameters, from before

The host looks at the device only when it reports or saves, so the arrays are of the end of the iteration
`arrays_after_iteration`, which may be later than the `iteration` in which it went wrong.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save as tensors_to_bytes

from trainers.errors import NonFiniteError, RunFolderError, describe_device_fault, is_device_fault
from trainers.run import checkpoint, disk
from warpdrive.config import to_plain
from warpdrive.errors import KernelError, WarpDriveError

if TYPE_CHECKING:
    from trainers.trainer import Trainer

CRASH = "crash"
"""The folder, in the run folder."""
MAX_BYTES = 16 << 20
"""Of a tensor; what is larger is named in crash.json and left out."""


@contextlib.contextmanager
def dumps_crash(trainer: Trainer) -> Iterator[None]:
    """While it is entered, an error is kept in log.txt on its way out, with where in the code it came from if it is
    none of the project's own; and a NonFiniteError leaves a dump in the run folder."""
    try:
        yield
    except Exception as error:
        if isinstance(error, NonFiniteError):
            _say_dump(trainer, error)
        if not trainer.run.is_silent:
            lines = [f"error: {error}"] if isinstance(error, WarpDriveError) else traceback.format_exception(error)
            for line in "".join(lines).splitlines():
                trainer.run.note(line)
        raise


def _say_dump(trainer: Trainer, error: NonFiniteError) -> None:
    try:
        folder = dump_crash(trainer, error)
    except (OSError, RuntimeError, RunFolderError) as failure:  # a full disk, a lost device: the error goes first
        trainer.run.say(f"warning: no crash dump could be written ({failure})", style="yellow")
    else:
        trainer.run.say(f"crash dump: {folder}")


@contextlib.contextmanager
def explains_faults(trainer: Trainer) -> Iterator[None]:
    """While it is entered, a fault of the device is told with what is known of the run."""
    try:
        yield
    except Exception as error:
        if not is_device_fault(error):
            raise
        known = trainer.reporter.reported_iteration
        env_steps = known * trainer.config.trainer.train_batch_size
        good = f"All was well up to env step {env_steps:,} (iteration {known}), and {trainer.iteration} were asked for"
        raise KernelError(describe_device_fault(error, good, trainer.older_checkpoint())) from error


def dump_crash(trainer: Trainer, error: NonFiniteError) -> Path:
    """Writes the folder, on the rank whose env it is; an older one goes.

    Raises:
        OSError: it cannot be written.
        RunFolderError: the run folder is another one than at the start.
    """
    trainer.run.check_place()
    place = trainer.run.path / CRASH
    env = error.place.get("env")
    local_env = None if env is None else env - trainer.env.first_env
    if not (trainer.world.rank == 0 if local_env is None else 0 <= local_env < trainer.env.num_envs):
        return place
    files = _tensors_of(trainer, error.place.get("policy"), local_env, error.place["tensor"] == "gradient")
    left_out = [f"{file}: {name}" for file, ones in files.items() for name in ones if ones[name].nbytes > MAX_BYTES]
    older = checkpoint.list_checkpoints(trainer.run.checkpoints)
    report = {
        "error": str(error),
        **error.place,
        "arrays_after_iteration": trainer.iteration,
        "checkpoint": str(older[-1]) if older else None,
        "left_out": left_out,
        "config": to_plain(trainer.config),
    }
    beside = disk.temporary(place)
    beside.mkdir()
    try:
        for file, ones in files.items():
            small = {name: one.cpu().contiguous() for name, one in ones.items() if one.nbytes <= MAX_BYTES}
            disk.write(beside / f"{file}.safetensors", tensors_to_bytes(small))
        disk.write(beside / "crash.json", (json.dumps(report, indent=1) + "\n").encode())
        disk.flush_folder(beside)
        disk.replace_folder(beside, place)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return place


def _tensors_of(
    trainer: Trainer, policy: str | None, env: int | None, with_gradient: bool
) -> dict[str, Mapping[str, torch.Tensor]]:
    """File name without ending -> name -> tensor, on the device."""
    files: dict[str, Any] = {}
    if env is not None:
        files["env"] = checkpoint.arrays_of_env(trainer.env.data, env)
        rollout = trainer.rollout
        of_rollout = {name: rollout.data[name][:, env] for name in rollout.data.names()}
        for name, group in rollout.groups.items():
            for what, one in group.tensors.items():
                if what in group.fields and one.dim() > 1 and one.shape[1] == trainer.env.num_envs:
                    of_rollout[f"{what}.{name}"] = one[:, env]
        files["rollout"] = of_rollout
    if policy in trainer.policies:
        one = trainer.policies[policy]
        files[f"policy.{policy}"] = one.state_dict()
        if with_gradient:
            files["gradient"] = {name: p.grad for name, p in one.named_parameters() if p.grad is not None}
    return {file: {name: tensor.detach() for name, tensor in ones.items()} for file, ones in files.items()}
