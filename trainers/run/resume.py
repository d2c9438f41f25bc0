"""How a run goes on from a checkpoint: all of it, bit for bit, or nothing is touched."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trainers.errors import MisfitError, NothingLeftError, UnreadableError
from trainers.replay.listing import listings_of
from trainers.replay.of_ranks import EMPTY, is_of_rank, moved_stores, own_files
from trainers.replay.storage import of_steps
from trainers.run import checkpoint
from trainers.run.checkpoint import Checkpoint
from trainers.run.checks import check_finite
from trainers.run.generators import new_of_ranks, prepare_generators
from trainers.run.identity import Changes, changes_since
from trainers.run.manifest import read_manifest
from trainers.run.reading import MAX_JSON_BYTES, STEP_NAME
from trainers.run.tensor_file import num_bytes_of
from warpdrive.config import shown
from warpdrive.data_manager import START
from warpdrive.env import why_outside
from warpdrive.errors import CheckpointError

if TYPE_CHECKING:
    from trainers.trainer import Trainer


_NEVER_NEGATIVE = re.compile(r"/(exp_avg_sq|step)$|(^|[._])norm\.(variance|count)$")
"""Names of an optimiser's and of running statistics' tensors."""


def resume_run(trainer: Trainer, path: Path) -> Callable[[], None]:
    """Restores the newest checkpoint that is whole, of a run folder or the one given; says which are not. What it gives
    begins to write into the folder: until then that is as it was.

    Raises:
        UnreadableError: nobody can tell now whether the newest is whole; nor is an older one taken instead.
        MisfitError: it is of another run.
        NothingLeftError: this one is to be shorter.
        CheckpointError: none is whole.
    """
    candidates, run, is_store_alone = checkpoint.candidates(path), trainer.run, False
    for place in candidates:
        try:
            saved = load(trainer, place)
            _check_length(trainer, saved)
        except UnreadableError as error:
            older = candidates[candidates.index(place) + 1 :]
            way_out = f" An older one is taken only where it is named: --resume {older[0]}" if older else ""
            raise UnreadableError(f"{error}{way_out}") from None
        except MisfitError:
            raise
        except CheckpointError as error:
            if place == candidates[-1] == checkpoint.place_of(path):
                raise
            found = str(error).removesuffix(" Use an older checkpoint.")
            is_store_alone |= found.endswith(EMPTY)  # of this one the rest is whole
            if place == candidates[-1]:
                found, way_out = found.removesuffix(f" {EMPTY}"), EMPTY if is_store_alone else "Train anew."
                raise CheckpointError(f"{found} No checkpoint of this run is whole. {way_out}") from None
            run.say(f"warning: {found} Going back to the one before.", style="yellow")
            continue
        changes = restore(trainer, saved)
        break
    trainer.world.gather(place)  # all have read it: now others may be renamed

    def accept() -> None:
        run.accept(trainer.env_steps)
        for aside in checkpoint.set_aside_after(place):
            run.say(f"set aside: {aside}")

    def go_on() -> None:
        trainer.world.first(accept)
        run.say(f"resumed from {place}, after {trainer.env_steps:,} env steps")
        for line in changes.lines():
            run.say(f"changed since then: {line}", style="yellow")
        run.add_to_history(trainer.env_steps, trainer.world.size, place, changes.allowed)

    return go_on


def load(trainer: Trainer, path: Path) -> Checkpoint:
    """Reads a checkpoint, every byte of it; of its stores' files nothing is kept in memory.

    Raises:
        MisfitError: it is of another run, and far larger than this one makes it. Then its tensors are not read.
        CheckpointError: it is damaged.
    """
    place = checkpoint.place_of(path)
    manifest = place / checkpoint.MANIFEST
    try:
        saved = checkpoint.load_checkpoint(path, lambda told: _sizes(trainer, told, manifest))
    except MisfitError as error:
        _changes(trainer, read_manifest(manifest)["progress"], manifest)  # says more, if it is the config that differs
        is_of_store = any(str(error).startswith(f"{place / name}.") for name in trainer.chunks.stores)
        raise MisfitError(f"{error} {EMPTY}" if is_of_store else str(error)) from None
    trainer.chunks.check_sums(saved.path.parent, saved.replay)
    return saved


def _check_length(trainer: Trainer, saved: Checkpoint) -> None:
    """Raises NothingLeftError where a run is to be shorter than it was trained already."""
    iteration, settings = saved.progress.get("iteration"), trainer.config.trainer
    if type(iteration) is not int or iteration <= trainer.num_iterations:
        return
    _changes(trainer, saved.progress, saved.path / checkpoint.MANIFEST)  # says more, if an iteration has another size
    key = "total_timesteps" if settings.num_episodes is None else "num_episodes"
    made = f"has made {iteration * settings.train_batch_size:,} env steps already"
    length = f"trainer.{key}: {getattr(settings, key):,}"
    raise NothingLeftError(f"{saved.path}: the run {made}, and {length} is less. Give more, or an older checkpoint.")


def _sizes(trainer: Trainer, told: Mapping[str, Any], manifest: Path) -> dict[str, int]:
    """By file of a checkpoint, bytes of the tensors that this run has for it, at most; 0 where it has none. Of stores
    that begin empty nobody knows: they are left out.

    Raises:
        MisfitError: all together they are far larger; or an older version kept what stores have in another way.
    """
    world, listings = trainer.world, listings_of(told, manifest)
    for name in trainer.stores.keys() - listings.keys():
        if f"{name}.safetensors" in told["files"]:
            way_out = f"policy.{name.partition('.')[2]}.model.model_ckpt_filepath takes over what it learned"
            raise MisfitError(f"{manifest}: is of an older version, which kept {name} otherwise: {way_out}.")
    arrays = checkpoint.arrays_of(trainer.env.data)
    ours = {name: num_bytes_of(tensors) for name, tensors in trainer.learned().items()}
    ours[checkpoint.ENV] = num_bytes_of(arrays, world, checkpoint.axes_of_ranks(checkpoint.ENV, arrays, world))
    for name in trainer.chunks.stores:
        ours[name] = world.size * ours[name]
    found = {}
    for file in told["files"]:
        name = file.removesuffix(".safetensors")
        name = name.rpartition(".rank_")[0] if name in listings and is_of_rank(name) else name
        if name in listings and name in trainer.stores and listings[name].num_slots != trainer.stores[name].num_slots:
            continue  # of another size: `check_fits` says whether that is all
        if name in ours or name not in trainer.stores:
            found[file] = ours.get(name, 0)
    sizes = {file: told["files"][file]["bytes"] for file in found}
    size, needed = sum(sizes.values()), sum(ours.values())
    are_small = all(sizes[file] <= found[file] + MAX_JSON_BYTES for file in found)  # else that one is named
    if are_small and size > needed + MAX_JSON_BYTES:
        what = f"has files of {size:,} bytes, and their tensors have {needed:,} in this config"
        raise MisfitError(f"{manifest.parent}: {what}. Take the config that it was saved with, or another checkpoint.")
    return found


def _changes(trainer: Trainer, progress: Mapping[str, Any], manifest: Path) -> Changes:
    """Since a run was saved. Raises MisfitError where it is another run than this one."""
    changes = changes_since(progress, trainer.config, trainer.identity, manifest, trainer.allow_changed)
    if changes.refused:
        raise MisfitError("\n".join(changes.refused))
    return changes


def restore(trainer: Trainer, saved: Checkpoint) -> Changes:
    """Takes over what `load` gave; see `Trainer.restore`."""
    manifest, chunks = saved.path / checkpoint.MANIFEST, trainer.chunks
    iteration = saved.progress.get("iteration")
    if type(iteration) is not int or not 0 <= iteration < 1 << 53:
        message = f"expected progress.iteration to be a whole number, got {shown(iteration)}."
        raise CheckpointError(f"{manifest}: {message}")
    changes = _changes(trainer, saved.progress, manifest)
    _check_name(saved.path, iteration * trainer.config.trainer.train_batch_size)
    trainer.callbacks.check(saved.progress, manifest)
    if "env" in saved.tensors:
        saved.tensors["env"] = checkpoint.parts_of_arrays(saved.tensors["env"], trainer.world)
    chunks.check_fits(saved.path.parent, saved.replay)
    saved = replace(saved, tensors=own_files(saved.tensors, chunks.stores, saved.replay, trainer.world))
    changes.moved = moved_stores(chunks.stores, saved.replay, trainer.world)
    changes.resized = [*chunks.resized]
    for name in chunks.resized:
        saved.tensors[name] = of_steps(saved.tensors[name])
    empty = changes.empty = _empty(trainer, saved)
    into = {**trainer.learned(), checkpoint.ENV: checkpoint.arrays_of(trainer.env.data), **chunks.small(saved.replay)}
    into = {file: tensors for file, tensors in into.items() if file not in empty}
    checkpoint.check_files(into, saved)
    for file, tensors in into.items():
        try:
            checkpoint.check_tensors(tensors, saved.tensors[file], saved.path / f"{file}.safetensors")
        except CheckpointError as error:
            if file not in chunks.stores:
                raise
            raise CheckpointError(f"{error} {EMPTY}") from None
    learned = [file for file in into if file not in chunks.stores and file != checkpoint.ENV]
    read = {f"{saved.path / file}.safetensors": saved.tensors[file] for file in learned}
    check_finite(read, "Use an older checkpoint.")
    _check_averages(read)
    _check_state(trainer, saved)
    for file, store in chunks.stores.items():
        if file not in into:
            continue
        why = chunks.resized.get(file, store).why_not_restored(saved.tensors[file], saved.replay[file].num_steps)
        if why is not None:
            place = saved.path / f"{file}.safetensors"
            raise CheckpointError(f"{place}: {why}. It was changed by hand; saving.replay=false goes on without it.")
    generators = trainer.generators()
    reseed = new_of_ranks(saved.rng, generators, trainer.config.trainer.seed, iteration) if changes.of_ranks else None
    restore_generators = prepare_generators(saved.rng, saved.path / checkpoint.RNG, generators)

    # All of it fits: from here on nothing is refused.
    chunks.restore(saved.path.parent, saved.replay, are_ours=saved.path.parent == trainer.run.checkpoints.resolve())
    for file, tensors in into.items():
        checkpoint.restore_tensors(tensors, saved.tensors[file], saved.path / f"{file}.safetensors")
    chunks.move_resized()
    for name in (*empty, *changes.resized):
        trainer.stores[name].draw_elsewhere(f"after iteration {iteration}")
    for one in trainer.algorithms.values():
        one.forget_news()
        one.restored()
    restore_generators()
    if reseed is not None:
        reseed()
    trainer.callbacks.restore(saved.progress)
    trainer.guard.clear()
    trainer.forget_graphs()
    trainer.iteration = iteration
    trainer.saves.iteration = None  # not in this run's folder
    trainer.rollout.begin()
    return changes


def _check_name(place: Path, env_steps: int) -> None:
    """Raises CheckpointError where a name, which is the manifest's number, tells another than progress does."""
    named = STEP_NAME.fullmatch(place.name)
    if named and int(named.group(1)) != env_steps:
        told = f"progress.iteration makes {env_steps} env steps, and env_steps says {int(named.group(1))}"
        raise CheckpointError(f"{place / checkpoint.MANIFEST}: {told}. Use an older checkpoint.")


def _check_averages(files: Mapping[str, checkpoint.Tensors]) -> None:
    """Raises CheckpointError where counts, means of squares or variances are negative: roots of them are NaNs."""
    for file, tensors in files.items():
        for name, tensor in tensors.items():
            if _NEVER_NEGATIVE.search(name) and tensor.numel() and tensor.min() < 0:
                raise CheckpointError(f"{file}: '{name}' holds a negative number. Use an older checkpoint.")


def _check_state(trainer: Trainer, saved: Checkpoint) -> None:
    """Raises CheckpointError where envs hold what no play leads to: their kernels would index by it."""
    held = {name: array.numpy() for name, array in saved.tensors[checkpoint.ENV].items()}
    starts = {name.removeprefix(START): array for name, array in held.items() if name.startswith(START)}
    of_env = "or the env's `bounds` or `why_impossible` forbid what its play leads to: mend them, or"
    causes = f"It was changed by hand, {of_env}"
    found = [(trainer.env.env.why_impossible(state), causes) for state in (held, held | starts)]
    # What is seen and remembered; of an env's own arrays nobody knows whether a NaN means something.
    ours = [*trainer.env.layout.observations, *(one.spec.array("memory") for one in trainer.rollout.groups.values())]
    finite = [name for name in ours if name in held and held[name].dtype.kind == "f"]
    bounds = {name: (-np.finfo(held[name].dtype).max, np.finfo(held[name].dtype).max) for name in finite}
    bounds |= {name: ends for one in trainer.algorithms.values() for name, ends in one.bounds().items()}
    found += [(why_outside(name, held[name], *ends), "It was changed by hand;") for name, ends in bounds.items()]
    for why, cause in found:
        if why is not None:
            place = saved.path / f"{checkpoint.ENV}.safetensors"
            raise CheckpointError(f"{place}: {why}. {cause} use an older checkpoint.")


def _empty(trainer: Trainer, saved: Checkpoint) -> dict[str, str]:
    """The stores that begin empty, each with the reason; takes what the checkpoint has of them out of it.

    Raises:
        CheckpointError: it holds no steps of one that has some.
    """
    empty = {}
    for name in trainer.stores:
        if name in trainer.chunks.stores and name in saved.replay:
            continue
        saved.tensors.pop(name, None)
        if trainer.stores[name].num_steps_added:
            message = f"holds no steps of {name}, and this run has played some. Resume from it by a new process."
            raise CheckpointError(f"{saved.path}: {message}")
        empty[name] = "it was saved without it" if name in trainer.chunks.stores else "saving.replay is false"
    return empty
