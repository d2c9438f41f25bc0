"""Population: runs of one config side by side on one device, each with a seed of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from trainers.callbacks import Callbacks, entry_of_member
from trainers.errors import NonFiniteError, RunFolderError
from trainers.fused.joint import join_rollouts
from trainers.learning.graphs import SideBySide
from trainers.run import disk
from trainers.run.again import has_checkpoints
from trainers.run.checkpoint import RESOLVED_CONFIG
from trainers.run.crash import dumps_crash, explains_faults
from trainers.run.lock import lock_run
from trainers.run.reading import check_files_and_folders, check_folder, members_in
from trainers.run.run_folder import make_run_folder, removed_if_refused, write_needed
from trainers.run.stop import SAVE, Stopped, StopSignals
from trainers.settings.config import Config, PopulationConfig
from trainers.trainer import Trainer
from warpdrive.config_file import dump_yaml
from warpdrive.env import load_env
from warpdrive.errors import CheckpointError, ConfigError, check_kind, printable

QUEUES = 32
"""Of a GPU, as many as it has: by default a process uses 8, and no more members are then at work at once."""


def config_of_member(config: Config, number: int, folder: Path) -> Config:
    """That of a run by itself: member i has seed `trainer.seed` + i, and such arguments of callbacks as are its own."""
    trainer = dataclasses.replace(config.trainer, seed=config.trainer.seed + number)
    saving = dataclasses.replace(config.saving, basedir=str(folder))
    callbacks = tuple(entry_of_member(entry, number) for entry in config.callbacks)
    parts = {"trainer": trainer, "saving": saving, "population": PopulationConfig(), "callbacks": callbacks}
    return dataclasses.replace(config, **parts)


class Population:
    """`population.size` runs, each in a folder of its own: all that may be done with a run may be done with a member.

    population = Population(read_config("pole.yaml", [("population.size", "8")]))
    population.train()
    population.members[3].policies        # as of any Trainer

    What a member learns is what a run with its config learns, bit for bit: members share nothing but the device. On a
    GPU, those whose updates are kernels of this project play and learn at the same time, since one of them often takes
    a few multiprocessors; others do so one after the other, an iteration each.

    A member that meets a NaN, or loses its folder, ends, and the others go on.

    Args:
        config: see `read_config`.
        name: of the folder, made of the config's if not given.
        source: the text of the config file, kept in the folder.
        command: what was typed.
        resume: the folder of a population to go on with; members that have no checkpoint begin anew.
        track, allow_changed: see `Trainer`.
        say: is told how it goes.
    Raises:
        CheckpointError: there is nothing to resume from.
        RunFolderError: another process trains there.
    """

    def __init__(
        self,
        config: Config,
        name: str | None = None,
        source: str | None = None,
        command: Sequence[str] = (),
        resume: Path | None = None,
        track: bool = False,
        allow_changed: bool = False,
        say: Callable[[str], None] | None = None,
    ) -> None:
        check_kind(config, Config, "Population: config", "read_config makes one of a YAML file.")
        self.config = config
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", str(QUEUES))  # read where a process first uses a GPU
        if resume is None:
            env, basedir = load_env(config.name, config.env), Path(config.saving.basedir)
            for number in range(config.population.size):
                Callbacks(config_of_member(config, number, basedir).callbacks).check_new_run(env)
            self.path = make_run_folder(basedir, name, config)
            with removed_if_refused(self.path):
                write_needed(self.path / "config.yaml", dump_yaml(config) if source is None else source)
        else:
            self.path = Path(resume)
            check_members(self.path, config.population.size)
        self._lock = lock_run(self.path)
        options = {"source": source, "command": command, "track": track, "is_quiet": True}
        options |= {"allow_changed": allow_changed, "is_held": True}
        members: dict[int, Trainer] = {}
        configs = {number: config_of_member(config, number, self.path) for number in range(config.population.size)}
        for number, one in configs.items():
            if has_checkpoints(place := self.path / f"member_{number}"):
                members[number] = Trainer(one, resume=place, **options)
        for member in members.values():  # none is refused: from here on all may be written
            member.go_on()
        with removed_if_refused(None if resume else self.path):
            write_needed(self.path / RESOLVED_CONFIG, dump_yaml(config))
        new = [number for number in configs if number not in members]
        for number in new:
            if os.path.lexists(place := self.path / f"member_{number}"):  # it ended before its first checkpoint
                place.rename(disk.make_numbered(self.path, f"ended_{place.name}", "members that ended early"))
            members[number] = Trainer(configs[number], run_name=place.name, **options)
        self.members = [members[number] for number in configs]
        self.say = say or (lambda line: self.members[0].run.show(printable(line)))
        if resume is not None and new:
            self.say(f"these have no checkpoint, and begin anew: member {', '.join(map(str, new))}")
        self.failed: dict[int, NonFiniteError | RunFolderError] = {}
        """By number, members that met a NaN, or whose folder is theirs no more."""
        self._told = min(member.iteration for member in self.members)
        """Iterations that were told of, of each member that was under way."""
        self.joint = join_rollouts([list(member.algorithms.values()) for member in self.members])
        """What plays for all of them, where they learn while they play."""
        if self.joint is not None:
            for member in self.members:
                member.leave_playing()
        algorithms = [one for member in self.members for one in member.algorithms.values()]
        graphs = [[member.graph_of_rollout, *member.graphs_of_updates] for member in self.members]
        share_nothing = all(one.shares_nothing for one in algorithms)
        self.side_by_side = SideBySide(graphs, self.members[0].backend, share_nothing)
        if self.side_by_side.is_enabled:
            for member in self.members:
                member.plays_alone = False

    def train(self) -> None:
        """Runs all iterations that are left of all members; reports, saves and stops as `Trainer.train` does.

        Raises:
            Stopped: a signal ended it; every member is saved.
            NonFiniteError, RunFolderError: of the first member that met a NaN, or whose folder was moved, removed or
                replaced or could not take its last checkpoint, once the others are done.
        """
        first = self.members[0]
        self.say(f"a population of {len(self.members)} in {self.path}; each says what it does in its log.txt")
        started, begun = time.perf_counter(), [member.iteration for member in self.members]
        with contextlib.ExitStack() as stack:
            stack.enter_context(explains_faults(first))
            saving = first.config.saving
            stop = stack.enter_context(StopSignals(saving.grace_seconds, first.saves.now, heeds_save=True))
            for member in self.members:
                member.reporter.announce()
                member.saves.wait()
                for one in (member.run.locked(), member.reporter.live(), member.saves.kept()):
                    stack.enter_context(one)
            while self.under_way:
                self._look_after(self.iterate(), stop)
        seconds = time.perf_counter() - started
        trained = [member.iteration - before for member, before in zip(self.members, begun, strict=True)]
        for number, member in enumerate(self.members):
            if number not in self.failed:
                member.reporter.conclude(seconds, trained[number])
        env_steps = sum(trained) * self.config.trainer.train_batch_size
        self.say(f"trained {env_steps:,} env steps in {seconds:.1f} s ({env_steps / seconds:,.0f} env steps/s)")
        for line in self._lines():
            self.say(line)
        told = [one.reporter.why_no_return() for number, one in enumerate(self.members) if number not in self.failed]
        if env_steps and told and None not in told:
            self.say(f"of each member: {told[0]}")
        if self.failed:
            raise next(iter(self.failed.values()))

    @property
    def under_way(self) -> list[Trainer]:
        """Members that have iterations left."""
        return [m for number, m in enumerate(self.members) if m.is_under_way and number not in self.failed]

    def iterate(self) -> dict[int, dict[str, Mapping[str, torch.Tensor | float]]]:
        """One iteration of each member that is under way; of each, by its number, what `Trainer.iterate` gives."""
        playing = self.under_way
        if self.joint is not None and playing:
            for member in playing:
                member.begin()
            self.joint([self.members.index(member) for member in playing])
        if len(playing) == len(self.members) and self.side_by_side.is_at_once:
            figures = self.side_by_side([member.iterate for member in playing])
        else:
            figures = [member.iterate() for member in playing]
        return dict(zip(map(self.members.index, playing), figures, strict=True))

    def _look_after(self, figures: Mapping[int, Mapping], stop: StopSignals) -> None:
        """Reports, saves and stops, where that is due."""
        for number, found in figures.items():
            try:
                with dumps_crash(self.members[number]):
                    self.members[number].look_after(found)
            except (NonFiniteError, RunFolderError) as error:
                self._end(number, error)
        self._report()
        # Of one signal to save the first member alone hears.
        asked = [self.members[number].saves.asked(stop) for number in figures]
        caught = stop.caught if stop.caught is not None else (SAVE if SAVE in asked else None)
        stopped = None
        for member in self.under_way:
            try:
                member.heed(caught)
            except Stopped as error:
                stopped = error
            except RunFolderError as error:
                self._end(self.members.index(member), error)
        if stopped is not None:
            self.say(f"stopped after {self.members[next(iter(figures))].env_steps:,} env steps of each: {self.path}")
            raise stopped

    def _end(self, number: int, error: NonFiniteError | RunFolderError) -> None:
        """One member ends; the others go on. Its error names it from then on."""
        self.failed[number] = error
        self.say(f"member {number} ends here: {error}")
        error.args = (f"member {number}: {error}",)

    def _report(self) -> None:
        """A line, once all members that are under way have reported; the last one once none is."""
        reported = [m.reporter.reported_iteration for n, m in enumerate(self.members) if n not in self.failed]
        done = min((m.reporter.reported_iteration for m in self.under_way), default=max(reported, default=0))
        if done <= self._told:
            return
        self._told = done
        low, high = (f"{end(reported) * self.config.trainer.train_batch_size:,}" for end in (min, max))
        so_far = f"{low} of each" if low == high else f"{low} to {high}"
        self.say(f"env steps {so_far:>20}  " + "  ".join(self._lines()))

    def _lines(self) -> list[str]:
        """Of each group, the mean of the members' last returns, and from whose to whose they are; of how many, where
        some have none."""
        found: dict[str, list[tuple[float, int]]] = {}
        members = {number: member for number, member in enumerate(self.members) if number not in self.failed}
        for number, member in members.items():
            for group, value in member.run.last_returns().items():
                found.setdefault(group, []).append((value, number))
        lines = []
        for group, values in found.items():
            mean = sum(value for value, _ in values) / len(values)
            (low, lowest), (high, highest) = min(values), max(values, key=lambda one: (one[0], -one[1]))
            of = "" if len(values) == len(members) else f", {len(values)} of {len(members)} members"
            lines.append(f"{group} {mean:+.3f} ({low:+.3f} of member {lowest} to {high:+.3f} of member {highest}{of})")
        return lines


def check_members(folder: Path, size: int) -> None:
    """Raises CheckpointError if a folder holds no population that can go on, or what is not its own, and ConfigError if
    it has more members."""
    found = members_in(folder)
    if not found or not (folder / RESOLVED_CONFIG).is_file():
        raise CheckpointError(f"{folder}: holds no population. Give its folder, or that of a run.")
    check_files_and_folders(folder)
    for one in folder.glob("member_*"):
        check_folder(one)
    if not has_checkpoints(folder):
        raise CheckpointError(f"{folder}: no member has a checkpoint. Train anew.")
    if int(found[-1].name.removeprefix("member_")) >= size:
        told = f"population.size: {size} members were asked for, and {folder} holds {len(found)}"
        raise ConfigError(f"{told}. Leave it as it was, or give more: the others begin anew.")
