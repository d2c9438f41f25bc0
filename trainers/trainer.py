"""Trainer: collects rollouts, lets each policy's algorithm learn from them, reports and saves."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from trainers.acting.actor import make_actors
from trainers.algorithms import check_algorithm, find_algorithm
from trainers.algorithms.algorithm import Algorithm, Clock
from trainers.callbacks import Callback, Callbacks
from trainers.evaluation import Evaluation
from trainers.experience.rollout import Rollout, max_truncations
from trainers.experience.spec import GroupSpec, spec_of
from trainers.experience.written import WrittenLook
from trainers.heads import make_head
from trainers.learning.compiled import Compiler
from trainers.learning.distributed import device_of, join, world
from trainers.learning.graphs import Graphed, SideBySide
from trainers.learning.guard import Guard
from trainers.networks.policy import Policy, make_policy
from trainers.replay.chunks import Chunks
from trainers.report.metrics import Metrics
from trainers.report.profiling import Profile
from trainers.report.reporter import Reporter
from trainers.report.timing import Timing
from trainers.run import checkpoint
from trainers.run.best import latest_figure
from trainers.run.checks import check_finite, check_ranks_agree
from trainers.run.crash import dumps_crash, explains_faults
from trainers.run.estimate import check_memory, explains_shortage
from trainers.run.generators import generator_states, seed_everything
from trainers.run.identity import Changes, identity_of, progress_of
from trainers.run.resume import load, restore, resume_run
from trainers.run.run_folder import RunFolder
from trainers.run.saves import Saves
from trainers.run.stop import SAVE, Stopped, StopSignals, signal_name
from trainers.settings.config import SHARED, Config, TrainerConfig, check_run_name, total_env_steps
from warpdrive.backends import choose_backend, why_this_device
from warpdrive.backends.ahead import compiling_ahead
from warpdrive.backends.base import Backend
from warpdrive.backends.cuda_drivers import BindingsDriver
from warpdrive.env import Env, load_env
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.errors import ConfigError, check_kind


class Trainer:
    """A run, from a config.

    trainer = Trainer(read_config("tag.yaml"))
    trainer.train()
    trainer.run.path                        # the run folder
    trainer.policies["tagger"](observation) # logits, value

    An iteration is one rollout and one update of each policy; between two reports the host waits for
    nothing that the device does.

    Under torchrun each rank makes one, of its share of the envs (see distributed.py); the first speaks and saves.

    Args:
        config: see `read_config`.
        run_name: the run folder's name, made of the config's if not given.
        source: the text of the config file, kept in the run folder.
        command: what was typed, likewise.
        resume: the folder of a run, or one of its checkpoints, to go on from; bit for bit as if it had never stopped.
        track: whether Weights & Biases is told of the run, too: offline, unless $WANDB_MODE says otherwise.
        profile: whether a few iterations are traced by torch.profiler, into the run folder's profile/.
        callbacks: what is called between iterations, besides what the config names.
        allow_changed: whether the run to go on with may have had another env, other sources of it or other networks.
        is_quiet: whether what it says is in its folder's log.txt alone.
        is_held: whether a run that is resumed leaves its folder as it was until `go_on`.
    Raises:
        CheckpointError: there is nothing to resume from, or it is of another kind of run.
        ConfigError: `trainer.num_gpus` is not how many ranks there are.
        EnvError: a policy cannot act in the env.
        MemoryShortError: the run does not fit into the device's memory.
    """

    @explains_shortage
    def __init__(
        self,
        config: Config,
        run_name: str | None = None,
        source: str | None = None,
        command: Sequence[str] = (),
        resume: Path | None = None,
        track: bool = False,
        profile: bool = False,
        callbacks: Sequence[Callback] = (),
        allow_changed: bool = False,
        is_quiet: bool = False,
        is_held: bool = False,
    ) -> None:
        check_kind(config, Config, "Trainer: config", "read_config makes one of a YAML file.")
        check_run_name(run_name)
        if config.population.size > 1:
            message = f"population.size: {config.population.size}: a Trainer is one run"
            raise ConfigError(f"{message}. Make a trainers.population.Population, or set it to 1.")
        self.config, self.allow_changed = config, allow_changed
        self.callbacks = Callbacks(config.callbacks, callbacks)
        settings = config.trainer
        env = load_env(config.name, config.env)
        agents = {SHARED: range(env.num_agents)} if SHARED in config.policy else _agents_of_groups(env)
        specs = {name: spec_of(env, name) for name in agents}
        for name, spec in specs.items():  # what no policy can see or act in is told before anything is made or compiled
            make_head(spec.action_space)
            check_algorithm(config.policy[name], spec)
        if resume is None:
            self.callbacks.check_new_run(env)
        self.world = join(settings)
        self.backend = make_backend(settings)
        check_memory(config, env, self.backend)
        resumed = None if resume is None else checkpoint.run_folder_to_resume(resume)
        generator = torch.Generator().manual_seed(settings.seed)
        self.policies = {name: self._make_policy(env, name, generator, resume is None) for name in agents}
        self.run = RunFolder(config, run_name, source, command, resumed, is_quiet)
        self.run.say(why_this_device(self.backend), style="bold")
        self.run.write_machine(self.backend)
        seed_everything(settings.seed)
        if settings.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS is first used
            torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.deterministic = True  # the same convolutions every time
        self.precision = settings.precision_on(self.backend.device.type, config.policy.values())
        torch.backends.cudnn.allow_tf32 = self.precision in ("tf32", "bf16")
        torch.set_float32_matmul_precision("high" if self.precision in ("tf32", "bf16") else "highest")

        with compiling_ahead(self.backend):
            self._make(env, agents, specs)
        self.iteration, self._go_on, self._look = 0, None, WrittenLook(self.rollout)
        self.num_iterations = math.ceil(total_env_steps(config, env) / settings.train_batch_size)
        self.reporter = Reporter(self, self.timing, track)
        self.saves = Saves(self)
        self.profile = Profile(self) if profile else None
        self.env.reset()
        self.rollout.begin()
        if resume is None:
            self.run.add_to_history(0, self.world.size)
        else:
            with self.run.unlocked_if_refused():
                self._go_on = resume_run(self, resume)
                if not is_held:
                    self.go_on()

    def go_on(self) -> None:
        """Begins to write into the folder of a run that is resumed, where that was held back."""
        if self._go_on is not None:
            call, self._go_on = self._go_on, None
            call()

    def _make(self, env: Env, agents: Mapping[str, range], specs: Mapping[str, GroupSpec]) -> None:
        """What has kernels, which are compiled beside it: nothing here launches one."""
        config, settings = self.config, self.config.trainer
        num_envs = settings.num_envs // self.world.size
        self.env = EnvWrapper(
            env,
            num_envs,
            first_env=self.world.rank * num_envs,
            seed=settings.seed,
            backend=self.backend,
            final_observations=max_truncations(env, settings.num_steps),
        )
        self.identity = identity_of(config, env, self.env.device.type, self.world.size)
        self.compiler = None
        if settings.compiles_on(self.backend.device.type):
            self.compiler = Compiler(self.run.say, takes_all=settings.compile is True)
        more = {"compiler": self.compiler, "multiprocessors": settings.multiprocessors}
        actors = make_actors(self.env, self.policies, self.precision, **more)
        trained = {name: one for name, one in config.policy.items() if one.to_train and name in specs}
        kinds = {name: find_algorithm(one.algorithm)[0] for name, one in trained.items()}
        fields = {name: kind.fields(trained[name], specs[name]) for name, kind in kinds.items()}
        self.rollout = Rollout(self.env, actors, settings.num_steps, fields)
        self.guard = Guard(self.rollout)
        self.algorithms: dict[str, Algorithm] = {}
        self.phases: dict[str, dict[str, Graphed]] = {}
        """By policy and name; a GPU replays them."""
        for number, (name, group) in enumerate(self.rollout.groups.items()):
            if name in kinds:
                seed = settings.seed + number + len(self.policies) * self.world.rank
                one = self.algorithms[name] = kinds[name](trained[name], group, self.guard, seed)
                self.phases[name] = {
                    phase: self._graphed(call, [one.generator]) for phase, call in one.phases().items()
                }
        self.stores = {f"{word}.{name}": s for name, one in self.algorithms.items() for word, s in one.stores().items()}
        for name, store in self.stores.items():
            if store.tiered is not None:
                store.tiered.files_of_run(name, self.run, config.saving.replay, self.world)
        self.chunks = Chunks(self.stores if config.saving.replay else {}, self.world)
        self.chunks.say = self.run.say
        share_nothing = all(one.shares_nothing for one in self.algorithms.values())
        graphs = [list(ones.values()) for ones in self.phases.values()]
        self.side_by_side = SideBySide(graphs, self.backend, share_nothing)
        self.metrics = Metrics(self.rollout, {**agents, **_agents_of_groups(env)})

        self._plays_itself = True
        """Whether no other plays its rollouts, and begins them."""
        self._play = self._graphed(self._collect)
        self.timing = Timing(self.env.device, self._collect, self.rollout.is_whole)
        self.plays_alone = not self.rollout.is_whole
        """Whether steps can be timed within a rollout: no other run plays at the same time, and the env's are apart."""
        self._play_in_parts = self._graphed(self.timing.collect_in_parts, warm_up=0, beside=self._play)
        self.evaluation = None
        if config.evaluation.eval_freq and self.world.rank == 0:
            self.evaluation = self.make_evaluation()

    @property
    def env_steps(self) -> int:
        """Steps made so far, over all envs."""
        return self.iteration * self.config.trainer.train_batch_size

    @property
    def clock(self) -> Clock:
        """What algorithms plan an iteration by."""
        return Clock(self.iteration, self.env_steps, self.config.trainer.train_batch_size)

    def train(self) -> None:
        """Runs all iterations that are left; reports, and saves as often as the config says and at the end.

        Ctrl-C and SIGTERM end it after the iteration under way, with a checkpoint; a second Ctrl-C ends it at once.
        SIGUSR1 saves it.

        Raises:
            Stopped: it was ended so.
        """
        self.reporter.announce()
        self.saves.wait()  # a run that was ended at once may have left one behind
        started_at, started_iteration = time.perf_counter(), self.iteration
        with (
            explains_faults(self),
            self.run.locked(),
            StopSignals(self.config.saving.grace_seconds, self.saves.now, heeds_save=True) as stop,
            self.world.watched(),
            dumps_crash(self),
            self.reporter.live(),
            self.saves.kept(),
        ):
            while self.is_under_way:
                self.look_after(self.iterate() if self.profile is None else self.profile.iterate())
                self.heed(self.world.agree_on(self.saves.asked(stop)))
        self.reporter.conclude(time.perf_counter() - started_at, self.iteration - started_iteration)

    @property
    def is_under_way(self) -> bool:
        """Whether iterations are left."""
        return self.iteration < self.num_iterations

    def look_after(self, figures: Mapping[str, Mapping[str, torch.Tensor | float]]) -> None:
        """After an iteration, by what it gave: callbacks, and a report and a checkpoint where they are due."""
        saving, reporter = self.config.saving, self.reporter
        reporter.advance()
        self.callbacks.iterated(self)
        is_best = False
        if self.iteration % saving.metrics_log_freq == 0 or not self.is_under_way:
            looked_at = {name: {**found, **self.algorithms[name].report()} for name, found in figures.items()}
            is_best = reporter.begin_report(looked_at)
        freq, is_last = saving.model_params_save_freq, not self.is_under_way
        if is_last or is_best or (freq and self.iteration % freq == 0):
            reporter.flush()
            if is_last:
                reporter.saved(self.saves.save_last())
            else:
                self.saves.save_if_possible()
        self.saves.poll()

    def heed(self, caught: int | None) -> None:
        """Saves, if that was asked for; or saves and stops, raising Stopped, if a signal was caught. Not after the last
        iteration, which is saved."""
        if caught is None or not self.is_under_way:
            return
        self.reporter.flush()
        if caught == SAVE:
            self.saves.save_if_possible(begin=True)
            return
        is_saved = self.saves.iteration == self.iteration
        place = self.run.checkpoints / checkpoint.LAST if is_saved else self.reporter.saved(self.saves.save_last())
        self.run.say(f"stopped by {signal_name(caught)} after {self.env_steps:,} env steps, checkpoint: {place}")
        raise Stopped(caught)

    def stop(self) -> None:
        """For callbacks: makes the iteration under way the last. A run that is resumed goes on."""
        self.callbacks.stop()

    @explains_shortage
    def iterate(self) -> dict[str, dict[str, torch.Tensor | float]]:
        """One rollout and one update of each policy.

        Returns:
            policy -> debug figures, on the device.
        """
        timing = self.timing
        if self._plays_itself:
            self.begin()
        in_parts = self.plays_alone and not self.reporter.waits_for_parts and timing.asks_for_parts()
        (self._play_in_parts if in_parts else self._play)()
        timing.end_rollout()
        self._look.check()
        clock = self.clock
        updates = [partial(one.update, clock, self.phases[name]) for name, one in self.algorithms.items()]
        figures = dict(zip(self.algorithms, self.side_by_side(updates), strict=True))
        timing.end_iteration()
        if self.compiler is not None:
            self.compiler.tell()
        self.iteration += 1
        return figures

    def begin(self) -> None:
        """What comes before a rollout."""
        self._look.prepare()
        self.timing.begin_iteration()

    def leave_playing(self) -> None:
        """From here on another plays the rollouts, from `begin_steps` on, between `begin` and `iterate`."""
        self._plays_itself = False
        self._play = self._graphed(self._look_at_rollout)

    def _collect(self, mark: Callable[[], None] | None = None) -> None:
        self.rollout.collect(mark)
        self._look_at_rollout()

    def _look_at_rollout(self) -> None:
        self.guard.check_rollout()
        self.metrics.add_rollout()

    def _graphed(self, call: Callable[[], Any], generators: Sequence[torch.Generator] = (), **how: Any) -> Graphed:
        is_enabled = self.config.trainer.cuda_graphs
        return Graphed(call, self.backend, generators, lambda line: self.run.say(line, "yellow"), is_enabled, **how)

    def make_evaluation(self) -> Evaluation:
        """Envs of their own in which the policies play as `evaluation:` says."""
        config = self.config.evaluation
        env = load_env(self.config.name, self.config.env)
        return Evaluation(env, self.policies, config.num_episodes, config.seed, self.backend, config.greedy)

    def save(self) -> Path:
        """Writes a checkpoint of now into the run folder.

        Raises:
            CheckpointError: a policy or its optimiser holds a NaN or an infinity. The older checkpoints stay.
            NonFiniteError: the run met one since the last report. They stay, too.
            NotSavedError: the disk is full or cannot be written. They stay, too.
            RunFolderError: the run folder is another one than at the start. Nothing was written.
        """
        return self.saves.save()

    def begin_save(self, with_stores: bool = True) -> Callable[[], Path]:
        """Writes a checkpoint up to where training may go on; what it gives does the rest, see `begin_checkpoint`."""
        self.world.first(self.run.check_place)
        learned = self.learned()
        if not with_stores:
            learned = {file: tensors for file, tensors in learned.items() if file not in self.chunks.stores}
        check_finite(
            learned,
            f"Nothing was saved after {self.env_steps:,} env steps, {self.older_checkpoint()}. "
            "Are the env's rewards and observations finite? Else lower the policy's lr.",
        )
        of_all = {file: tensors for file, tensors in learned.items() if file not in self.chunks.stores}
        check_ranks_agree(of_all, self.world)
        self.guard.raise_if_halted(self.iteration)  # else the envs' arrays might hold what it found
        self.rollout.end()
        progress = {"iteration": self.iteration, **progress_of(self.config, self.identity)}
        progress |= self.callbacks.progress()
        rng = generator_states(self.generators())
        for states in self.world.gather(rng["minibatches"]):
            rng["minibatches"] |= states
        figure = latest_figure(self.config, self.env.groups, self.run.metrics)
        tensors = {**learned, checkpoint.ENV: checkpoint.arrays_of(self.env.data)}
        arguments = (self.run.checkpoints, self.env_steps, tensors, rng, progress)
        num_kept = self.config.saving.num_checkpoints
        return checkpoint.begin_checkpoint(*arguments, num_kept, figure, self.world, self.chunks, with_stores)

    def num_bytes_of_checkpoint(self) -> int:
        """Of the disk, of all ranks together, for the last one."""
        tensors = {**self.learned(), checkpoint.ENV: checkpoint.arrays_of(self.env.data)}
        num_steps = (self.num_iterations - self.iteration) * self.config.trainer.num_steps
        return checkpoint.num_bytes_of_checkpoint(tensors, self.world) + self.chunks.num_bytes(num_steps)

    def learned(self) -> dict[str, Mapping[str, torch.Tensor]]:
        """What a checkpoint holds besides the envs, by file: live tensors."""
        found = {f"policy.{name}": policy.state_dict() for name, policy in self.policies.items()}
        for name, one in self.algorithms.items():
            found |= {f"{file}.{name}": tensors for file, tensors in one.state().items()}
        return {**found, **self.chunks.small()}

    def generators(self) -> dict[str, torch.Generator]:
        """Of the minibatches' order; each rank has its own."""
        of_rank = f", rank {self.world.rank}" if self.world.rank else ""
        return {f"{name}{of_rank}": one.generator for name, one in self.algorithms.items()}

    def older_checkpoint(self) -> str:
        """Which the last good checkpoint is, in words."""
        older = checkpoint.list_checkpoints(self.run.checkpoints)
        return f"the last good checkpoint is {older[-1]}" if older else "and there is no older checkpoint"

    def restore(self, path: Path) -> Changes:
        """Takes over a checkpoint, to go on exactly from there; gives what is another than in its run.

        Raises:
            CheckpointError: it is damaged, or of another kind of run. Then nothing has changed.
        """
        return restore(self, load(self, path))

    @property
    def graph_of_rollout(self) -> Graphed:
        """What an iteration replays first."""
        return self._play

    @property
    def graphs_of_updates(self) -> list[Graphed]:
        """What it may replay then."""
        return [one for phases in self.phases.values() for one in phases.values()]

    def forget_graphs(self) -> None:
        """What was captured is captured anew."""
        for graphed in (self._play, self._play_in_parts, *self.graphs_of_updates):
            graphed.forget()

    def _make_policy(self, env: Env, name: str, generator: torch.Generator, reads_file: bool) -> Policy:
        config = self.config.policy[name]
        policy = make_policy(env, name, config, generator)
        if config.model.model_ckpt_filepath is not None and reads_file:  # a run that is resumed has its own
            file = Path(config.model.model_ckpt_filepath)
            parameters = policy.state_dict()
            checkpoint.restore_tensors(parameters, checkpoint.load_tensors(file, parameters), file)
        return policy.to(self.backend.device)


def make_backend(settings: TrainerConfig) -> Backend:
    """The backend that `env_backend` and `device` ask for."""
    driver = settings.env_backend if settings.env_backend in ("pycuda", "bindings") else "auto"
    env_backend = settings.env_backend if driver == "auto" else "cuda"
    if world().size > 1 and driver == "auto" and BindingsDriver.is_installed():
        driver = "bindings"  # PyCUDA's launches keep Python from ending a rank whose device waits for a dead one
    return choose_backend(env_backend, device_of(settings), driver=driver)


def _agents_of_groups(env: Env) -> dict[str, range]:
    return {name: group.agents for name, group in env.groups.items()}
