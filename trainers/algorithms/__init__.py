"""One file per algorithm: `a2c.py` holds A2C and A2CConfig. A new file is found by its name; one from outside by its
import name, "my_package.reinforce:Reinforce"."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from trainers.settings.config import whole_env_steps
from trainers.settings.outside import class_name, config_class, import_class, is_outside
from warpdrive.config import did_you_mean
from warpdrive.errors import ConfigError, EnvError

if TYPE_CHECKING:
    from trainers.experience.spec import GroupSpec
    from trainers.settings.config import Config, PolicyConfig
    from warpdrive.env import Env

NOT_ALGORITHMS = {"actor_critic", "algorithm", "off_policy", "on_policy", "q_learning", "q_replay", "q_sequences"}
NOT_ALGORITHMS |= {"team_replay"}
ALGORITHMS = sorted(
    file.stem.upper() for file in Path(__file__).parent.glob("[a-z]*.py") if file.stem not in NOT_ALGORITHMS
)


def find_algorithm(name: str) -> tuple[type, type]:
    """An algorithm's class and the class of its config, `<Class>Config` beside it.

    Raises:
        ConfigError: there is none of this name, or it lacks what an algorithm must have.
    """
    if is_outside(name):
        return _from_outside(name)
    if name not in ALGORITHMS:
        known = ", ".join(ALGORITHMS)
        raise ConfigError(f"unknown algorithm '{name}'.{did_you_mean(name, ALGORITHMS)} ({known})")
    module = importlib.import_module(f"{__name__}.{name.lower()}")
    return getattr(module, name), getattr(module, f"{name}Config")


def check_algorithm(config: PolicyConfig, spec: GroupSpec, to_play: bool = False) -> None:
    """Raises EnvError where an algorithm cannot learn what a policy is to do; or, if that is only `to_play`, have
    learned it."""
    kind = find_algorithm(config.algorithm)[0]
    config = config.played() if to_play else config
    why = kind.why_not(config, spec) or (kind.why_no_memory(config) if config.model.remembers else None)
    if why is not None:
        raise EnvError(f"policy.{spec.name}: {class_name(config.algorithm)} {why}")


def warnings_of(config: Config, env: Env) -> list[str]:
    """A line of each policy that is to learn, and whose run ends before it does."""
    num_env_steps, found = whole_env_steps(config, env), []
    for name, one in config.policy.items():
        kind = find_algorithm(one.algorithm)[0]
        why = kind.why_idle(one, num_env_steps, config.trainer.num_envs) if one.to_train else None
        if why is not None:
            found.append(f"warning: policy.{name} never learns: {why}")
    return found


def why_no_kernels(name: str) -> str | None:
    """Why fused kernels do not stand in for an algorithm: one from outside may differ from what it derives from, unless
    its class has a `loss_of_kernels` of its own."""
    if is_outside(name) and "loss_of_kernels" not in vars(find_algorithm(name)[0]):
        return f"{class_name(name)} says nothing of its loss_of_kernels"
    return None


def _from_outside(name: str) -> tuple[type, type]:
    from trainers.algorithms.algorithm import Algorithm
    from trainers.settings.config import PolicyConfig

    kind = import_class(name, "algorithm", Algorithm)
    for method, does in (("actor", "says who plays"), ("phases", "says what an iteration does")):
        if getattr(getattr(kind, method), "__qualname__", "") == f"Algorithm.{method}":
            raise ConfigError(f"algorithm '{name}': has no `{method}`, which {does}. See docs/own_algorithm.md.")
    return kind, config_class(kind, PolicyConfig)
