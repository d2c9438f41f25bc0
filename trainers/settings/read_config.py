"""From a YAML file to a Config in which every part fits the others. Imports no torch."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainers.algorithms import ALGORITHMS, check_algorithm, find_algorithm
from trainers.callbacks import Callback, check_callback, is_name_of_callback, parts_of, place_of, problems_of
from trainers.experience.spec import spec_of
from trainers.networks import config_of_network
from trainers.networks.images import problem_of_images
from trainers.run.best import metrics_to_go_by, why_not_by
from trainers.settings.config import (
    MAX_SEED,
    SHARED,
    SYNONYMS,
    Config,
    EvaluationConfig,
    ModelConfig,
    PolicyConfig,
    PopulationConfig,
    SavingConfig,
    TrainerConfig,
    hints_for,
)
from trainers.settings.divisors import multiples_around, nearest_divisors
from trainers.settings.outside import check_allowed, is_outside
from warpdrive.config import (
    Problems,
    Schedule,
    Section,
    build,
    did_you_mean,
    shown,
    to_section,
    unknown_key,
    wrong_values,
)
from warpdrive.config_file import load_yaml, override
from warpdrive.env import Env, load_env
from warpdrive.errors import ConfigError, EnvError
from warpdrive.layout import parts

MAX_COUNT = 1_000_000
"""Of what an env counts in its config, such as agents: more is a slip, and would fill the host's memory."""
SECTIONS = {
    "trainer": TrainerConfig,
    "saving": SavingConfig,
    "evaluation": EvaluationConfig,
    "population": PopulationConfig,
}
TOP_KEYS = [field.name for field in dataclasses.fields(Config)]


def read_config(
    source: str | Path | Mapping[str, Any],
    overrides: Sequence[tuple[str, str]] = (),
    allow_import: bool = False,
    to_play: bool = False,
) -> Config:
    """Reads and checks a config.

    Args:
        source: a YAML file, or the mapping that one would hold.
        overrides: (dotted key, YAML value) pairs that replace what the file says.
        allow_import: whether it may name what is imported from outside: an env, "my_package.soccer:Soccer", an
            algorithm, a network, callbacks. To import a module is to run it: ask for it where you know the config.
        to_play: whether its policies only play: what they learned from need not be there any more.
    Raises:
        ConfigError: every mistake, one a line.
    """
    if not isinstance(source, str | Path | Mapping):
        raise ConfigError(f"a config of type {type(source).__name__}. Give a YAML file, or what one would hold.")
    for one in [overrides] if isinstance(overrides, str | Mapping) else overrides:
        if not isinstance(one, tuple | list) or len(one) != 2 or not all(isinstance(word, str) for word in one):
            such_as = "[('trainer.num_envs', '8')]"
            raise ConfigError(f"overrides: {shown(one)} is no pair of a dotted key and a YAML value, as in {such_as}.")
    section = to_section(source) if isinstance(source, Mapping) else load_yaml(source)
    for key, text in overrides:
        override(section, key, text, "command line")
    return _Reader(section, allow_import, to_play).read()


class _Reader:
    """Reads a config part by part and keeps all that is wrong."""

    def __init__(self, section: Section, allow_import: bool, to_play: bool) -> None:
        self.top, self.to_play = section, to_play
        self.problems = Problems()
        self.allow_import = allow_import
        self.adds_metrics = False
        """Whether callbacks may."""
        self.lengths: dict[str, int | None] = {}
        """By policy, the sequence_length of a network from outside that remembers."""
        self.configs = {name: find_algorithm(name)[1] for name in ALGORITHMS}
        self.known = {
            **{name: _keys(cls) for name, cls in SECTIONS.items()},
            "policy.<name>": sorted({key for one in self.configs.values() for key in _keys(one)}),
            "policy.<name>.model": _keys(ModelConfig),
        }

    def read(self) -> Config:
        for key in self.top:
            if key not in TOP_KEYS:
                self._add(unknown_key(key, TOP_KEYS, hints_for("", self.known)), key)
        env = self._env()
        trainer, saving, evaluation, population = (self._part(name, cls) for name, cls in SECTIONS.items())
        callbacks = self._callbacks(env)
        if env is not None and SHARED in env.groups:
            message = f"a group of its agents is called '{SHARED}', which means all agents here. Call it otherwise."
            self._add(message, "name")
        policy = self._policies(env)
        if env is not None:
            for name, one in policy.items():
                if one is not None and is_outside(one.model.type) and (name in env.groups or name == SHARED):
                    self._try_network(name, one, env)
        if trainer is not None:
            trainer = _with_batch(trainer, policy, self.lengths)
            self._check_trainer(trainer, env)
            if population is not None and population.size > 1 and trainer.num_gpus > 1:
                self._add("runs side by side are on one GPU. Set trainer.num_gpus: 1.", "population", "size")
            if population is not None and trainer.seed > (most := MAX_SEED + 1 - population.size):
                message = f"population.size: {population.size}: seeds after {trainer.seed} would be above {MAX_SEED}. "
                self._add(f"{message}Set it to {most} at most.", "trainer", "seed")
        if trainer is not None and env is not None:
            for name, one in policy.items():
                if one is not None and (name in env.groups or name == SHARED):
                    policy[name] = one = _with_lr(self._with_minibatches(name, one, trainer, env), trainer, env)
                    self._check_fits(name, one, trainer, env)
        if None not in (env, saving, evaluation):
            known = metrics_to_go_by([*policy, *env.groups], env.groups, evaluation, env.figures)
            self._check_best_metric(saving, known, env)
        self.problems.raise_if_any()
        parts = (trainer, policy, saving, evaluation, population, callbacks)
        return Config(self.top["name"], self.top.get("env") or {}, *parts)

    def _add(self, message: str, *keys: str) -> None:
        """Keeps what is wrong with a key."""
        self.problems.add(self._mark(*keys), ".".join(keys), message)

    def _mark(self, *keys: str) -> str:
        """The place of a key, or of the nearest above it that was given."""
        section, mark = self.top, self.top.mark
        for key in keys:
            if isinstance(section, Section):
                section, mark = section.get(key), section.marks.get(key, mark)
        return mark

    def _part(self, key: str, cls: type) -> Any:
        return self._build(cls, self.top.get(key), key, None, key)

    def _build(self, cls: type, mapping: Any, section: str, sentences: Mapping[str, str] | None, *keys: str) -> Any:
        """A `cls` of what stands under these keys; `section` and `sentences` are for hints."""
        if mapping is not None and not isinstance(mapping, Mapping):
            self._add(f"expected keys and values, got {shown(mapping)}", *keys)
            return None
        hints = hints_for(section, self.known, sentences)
        return build(cls, mapping, path=".".join(keys), hints=hints, problems=self.problems)

    def _env(self) -> Env | None:
        """The env with this config, as far as it can be made: its groups and episode length matter here."""
        name = self.top.get("name")
        if not isinstance(name, str):
            wrong = "is missing: the env's name." if name is None else f"expected the env's name, got {shown(name)}"
            self._add(wrong, "name")
            return None
        try:
            check_allowed(name, self.allow_import)
            default = load_env(name)
        except (ConfigError, EnvError) as error:
            self._add(" ".join(str(error).split()), "name")
            return None
        config = self._part("env", default.Config)
        if config is None:
            return default  # its groups have the same names, most of the time
        counts = [(key, getattr(config, key)) for key in _keys(type(config)) if key.startswith("num_")]
        too_many = [(key, number) for key, number in counts if isinstance(number, int) and number > MAX_COUNT]
        for key, number in too_many:
            self._add(f"expected a whole number of at most {MAX_COUNT:,}, got {shown(number)}", "env", key)
        wrong = [] if too_many else wrong_values(config)
        for key, message in wrong:
            self._add(message, "env", *([key] if key else []))
        if too_many or wrong:
            return default
        try:
            return load_env(name, config)
        except (EnvError, ConfigError) as error:
            key = re.match(r"env\.(\w+)", str(error))
            place = self._mark("env", *([key[1]] if key else []))
            self.problems.add(place, "" if key else "env", " ".join(str(error).split()))
        except (OverflowError, MemoryError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            message = f"'{name}' cannot be made with these numbers: one is too large ({reason}). Use smaller ones."
            self._add(message, "env")
        return None

    def _policies(self, env: Env | None) -> dict[str, PolicyConfig]:
        section = self.top.get("policy")
        if section is None:
            section = {SHARED: None}
        if not isinstance(section, Mapping):
            self._add(f"expected policies by name, got {shown(section)}", "policy")
            return {}
        misplaced = {*section} & {*self.known["policy.<name>"]} - ({*env.groups} if env is not None else set())
        policies = {name: self._policy(name, one) for name, one in section.items() if name not in misplaced}
        for key in sorted(misplaced):
            self._add(f"is a key of each policy. Write policy.{next(iter(policies), SHARED)}.{key}.", "policy", key)
        if env is not None and (policies or not misplaced):
            self._check_coverage(list(policies), env)
        return policies

    def _policy(self, name: str, section: Any) -> PolicyConfig | None:
        algorithm = section.get("algorithm", PolicyConfig.algorithm) if isinstance(section, Mapping) else None
        if not isinstance(algorithm, str | None):
            self._add(f"expected text, got {shown(algorithm)}", "policy", name, "algorithm")
            return None
        algorithm = PolicyConfig.algorithm if algorithm is None else algorithm
        cls = self._found(algorithm, lambda: find_algorithm(algorithm)[1], "policy", name, "algorithm")
        model = section.get("model") if isinstance(section, Mapping) else None
        kind = model.get("type") if isinstance(model, Mapping) else None
        if isinstance(kind, str):
            of_network = self._found(kind, lambda: config_of_network(kind), "policy", name, "model", "type")
            if cls is not None and of_network not in (None, ModelConfig):
                cls = _with_model(cls, of_network)
        if cls is None:
            return None
        config = self._build(cls, section, "policy.<name>", self._keys_of_others(algorithm, cls), "policy", name)
        for key, message in () if config is None else config.problems():
            self._add(message, "policy", name, *key.split("."))
        return config

    def _found(self, name: str, find: Callable[[], type], *keys: str) -> type | None:
        """What `find` gives, if the name may be imported and is there."""
        try:
            check_allowed(name, self.allow_import)
            return find()
        except ConfigError as error:
            self._add(str(error), *keys)
            return None

    def _keys_of_others(self, algorithm: str, cls: type) -> dict[str, str]:
        """What to say of keys that other algorithms have and this one has not, by the names of other libraries, too."""
        own, found = _keys(cls), {}
        for key in {*self.known["policy.<name>"]}.difference(own):
            *most, last = (f"{name}'s" for name, one in self.configs.items() if key in _keys(one))
            owners = f"{', '.join(most)} and {last}" if most else last
            for word in (key, *(word for word, ours in SYNONYMS.items() if ours == key)):
                what = "unknown key" if word == key else f"unknown key, here '{key}'"
                found[word] = f"{what}: it is {owners}, and the algorithm is {algorithm}. Leave it out, or change that."
        return found

    def _callbacks(self, env: Env | None) -> tuple[Any, ...]:
        given, mark = self.top.get("callbacks"), self._mark("callbacks")
        if given is None:
            return ()
        if not isinstance(given, list | tuple):
            message = f"expected a list, such as [\"my_package.curriculum:Harder\"], got {shown(given)}"
            self._add(message, "callbacks")
            return ()
        for i, entry in enumerate(given):
            try:
                check_allowed(parts_of(entry)[0], self.allow_import)
                kind, _ = check_callback(entry)
                self.adds_metrics |= kind.on_report is not Callback.on_report
                found = problems_of(entry, env)
            except ConfigError as error:
                self.adds_metrics = True  # perhaps
                found = [("", str(error))]
            for key, message in found:
                of_entry, path = place_of(entry, i, key)
                self.problems.add(of_entry or mark, path, message)
        return tuple(given)

    def _check_coverage(self, names: list[str], env: Env) -> None:
        if names == [SHARED]:
            return
        groups = list(env.groups)
        unknown = [name for name in names if name not in groups and name != SHARED]
        missing = [name for name in groups if name not in names]
        for name in unknown:
            known = [*missing, SHARED] if missing else groups
            message = f"no agents are called '{name}'.{did_you_mean(name, known)} ({', '.join([*groups, SHARED])})"
            self._add(message, "policy", name)
        if SHARED in names:
            others = " and ".join(f"policy.{name}" for name in names if name != SHARED)
            message = f"covers all agents: there can be no other policy beside it. There is {others}: change that."
            self._add(message, "policy", SHARED)
            return
        for name in missing:
            agents = env.groups[name].agents
            number = f"{len(agents)} agent{'s' if len(agents) > 1 else ''}"
            message = f"no policy covers agents '{name}' ({number}). Add policy.{name}, or one for all, {SHARED}."
            self._add(message, "policy")

    def _check_fits(self, name: str, policy: PolicyConfig, trainer: TrainerConfig, env: Env) -> None:
        """Whether its algorithm can learn what a policy is to do, and its network see what there is to see."""
        with contextlib.suppress(EnvError):  # of agents that differ, the Trainer tells
            spec = spec_of(env, name)
            try:
                check_algorithm(policy, spec, self.to_play)
            except EnvError as error:
                self._add(str(error).removeprefix(f"policy.{name}: "), "policy", name, "algorithm")
            for key, message in policy.problems_with(spec, trainer.num_steps, trainer.num_envs):
                self._add(message, "policy", name, *key.split("."))
            wrong = problem_of_images(policy.model.conv, parts(spec.observation_space))
            if policy.model.type == "cnn" and wrong is not None:
                key, message = wrong
                self._add(message, "policy", name, "model", key)
        if policy.normalize_observation and policy.model.type == "cnn":
            message = "a cnn sees arrays, and scales images by their space's bounds. Leave this out."
            self._add(message, "policy", name, "normalize_observation")

    def _with_minibatches(self, name: str, policy: PolicyConfig, trainer: TrainerConfig, env: Env) -> PolicyConfig:
        """With a number of minibatches that a rollout can be cut into, if its algorithm has any and none is given."""
        num_agents = env.num_agents if name == SHARED else len(env.groups[name].agents)
        num_gpus, of_each = trainer.num_gpus, "" if trainer.num_gpus == 1 else " on each GPU"
        if policy.of_rank(num_gpus) is not policy and (batch_size := getattr(policy, "batch_size", 0)) % num_gpus:
            near = " and ".join(str(n) for n in multiples_around(batch_size, num_gpus))
            message = f"{batch_size} transitions cannot be shared out evenly over num_gpus: {num_gpus}."
            self._add(f"{message} The nearest that can: {near}.", "policy", name, "batch_size")
        number, of_unit = trainer.train_batch_size * num_agents // num_gpus, 1
        what = "samples (train_batch_size x agents)"
        if policy.model.remembers or (name in self.lengths and not hasattr(policy, "replay_ratio")):
            key, its = ("sequence_length", "") if policy.model.remembers else ("type", "its network's sequence_length ")
            length = self.lengths.get(name, policy.model.sequence_length) or trainer.num_steps
            if length < 1 or trainer.num_steps % length:
                message = f"{its}{length} does not divide the {trainer.num_steps} steps of an iteration. "
                message += f"The nearest that do: {nearest_divisors(trainer.num_steps, length)}."
                self._add(message, "policy", name, "model", key)
                return policy
            of_unit = length * num_agents
            number, what = trainer.num_steps // length * trainer.num_envs // num_gpus, "sequences (each of one env)"
        num_minibatches = getattr(policy, "num_minibatches", 1)
        if num_minibatches is None:
            wanted = max(1, min(number * of_unit // policy.MINIBATCH, policy.MAX_MINIBATCHES, number))
            below = next(n for n in range(wanted, 0, -1) if number % n == 0)
            return dataclasses.replace(policy, num_minibatches=below)
        if number % num_minibatches:
            near = nearest_divisors(number, num_minibatches)
            message = (
                f"{num_minibatches} do not divide the {number} {what} of an iteration{of_each}. The nearest that do: "
                f"{near}."
            )
            self._add(message, "policy", name, "num_minibatches")
        return policy

    def _try_network(self, name: str, policy: PolicyConfig, env: Env) -> None:
        """Whether a network from outside can be made for this env, and gives what its policy needs."""
        import torch

        from trainers.networks.policy import make_policy

        try:
            network = make_policy(env, name, policy, torch.Generator().manual_seed(0)).network
        except ConfigError as error:
            self._add(str(error), "policy", name, "model", "type")
            return
        except EnvError:
            return  # of the env and the policy, not of the network: told where the policy is made
        if network.memory_size:
            self.lengths[name] = network.sequence_length
        if policy.to_train and not any(one.requires_grad for one in network.parameters()):
            message = f"network '{policy.model.type}': has no parameter that learns. Say to_train: false of its policy."
            self._add(message, "policy", name, "model", "type")

    def _check_best_metric(self, saving: SavingConfig, known: list[str], env: Env) -> None:
        name = saving.best_metric
        if name is None or name in known or (self.adds_metrics and is_name_of_callback(name)):
            return
        told = f"{shown(name)} is no metric that tells the best checkpoint."
        message = f"{told}{did_you_mean(name, known)} ({', '.join(known)})"
        if (why := why_not_by(name, env.groups)) is not None:
            message = f"{why} Take one of {', '.join(known)}."
        elif name.startswith("eval/") and not any(one.startswith("eval/") for one in known):
            message = f"'{name}' needs evaluations. Set evaluation.eval_freq, or take one of {', '.join(known)}."
        self._add(message, "saving", "best_metric")

    def _check_trainer(self, trainer: TrainerConfig, env: Env | None) -> None:
        def add(key: str, message: str) -> None:
            self._add(message, "trainer", key)

        size, num_envs = trainer.train_batch_size, trainer.num_envs
        if size % num_envs:
            nearest = " and ".join(str(n) for n in multiples_around(size, num_envs))
            add("train_batch_size", f"{size} is no multiple of num_envs ({num_envs}). The nearest that are: {nearest}.")
        if num_envs % trainer.num_gpus:
            near = " and ".join(str(n) for n in multiples_around(num_envs, trainer.num_gpus))
            message = f"{num_envs} envs cannot be shared out evenly over num_gpus: {trainer.num_gpus}."
            add("num_envs", f"{message} The nearest that can: {near}.")
        if trainer.num_gpus > 1 and ":" in trainer.device:
            add("device", f"names one GPU beside num_gpus: {trainer.num_gpus}. Each process takes its own: say cuda.")
        if trainer.num_episodes is not None and trainer.total_timesteps is not None:
            add("num_episodes", "given beside total_timesteps: both say how long to train. Give one.")
        elif trainer.num_episodes is None and trainer.total_timesteps is None:
            add("total_timesteps", "is missing: how long to train, in env steps (or num_episodes, in episodes).")
        elif trainer.num_episodes is not None and env is not None and env.episode_length is None:
            add("num_episodes", f"the episodes of '{self.top['name']}' have no fixed length. Give total_timesteps.")


def _with_batch(
    trainer: TrainerConfig, policy: Mapping[str, PolicyConfig | None], of_outside: Mapping[str, int | None]
) -> TrainerConfig:
    """With a train_batch_size that all policies like, if none is given: in whole sequences of those that are recurrent,
    `of_outside` of networks from outside."""
    if trainer.train_batch_size is not None:
        return trainer
    policies = [one for one in policy.values() if one is not None]
    min_batch = max((one.MIN_BATCH for one in policies), default=1)
    num_steps = max([-(-min_batch // trainer.num_envs), *(one.MIN_STEPS for one in policies)])
    lengths = [one.model.sequence_length for one in policies if one.model.remembers] + [*of_outside.values()]
    whole = math.lcm(*(length for length in lengths if length is not None))
    return dataclasses.replace(trainer, train_batch_size=-(-num_steps // whole) * whole * trainer.num_envs)


def _with_lr(policy: PolicyConfig, trainer: TrainerConfig, env: Env) -> PolicyConfig:
    """With a step size that falls over the run, if none is given."""
    length = trainer.total_timesteps
    if length is None and trainer.num_episodes is not None and env.episode_length is not None:
        length = trainer.num_episodes * env.episode_length
    if policy.lr is not None or length is None:
        return policy
    return dataclasses.replace(policy, lr=Schedule(((0, policy.FALLS[0]), (length, policy.FALLS[1]))))


def falls_over_run(policy: PolicyConfig) -> bool:
    """Whether its step size is the one that `_with_lr` gives, for whichever length."""
    points = policy.lr.points if isinstance(policy.lr, Schedule) else ()
    falls = [(0, policy.FALLS[0]), (points[-1][0], policy.FALLS[1])] if points and hasattr(policy, "FALLS") else None
    return list(points) == falls


def _with_model(cls: type, model: type) -> type:
    """An algorithm's config whose `model` has the keys of this network."""
    own = dataclasses.field(default_factory=model)
    return dataclasses.make_dataclass(cls.__name__, [("model", model, own)], bases=(cls,), frozen=True)


def _keys(cls: type) -> list[str]:
    return [field.name for field in dataclasses.fields(cls)]
