"""What an env is: the rules of one simulated world, written as a config, arrays, constants and kernels."""

from __future__ import annotations

import difflib
import importlib
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from warpdrive.drawing import Drawing, draw_positions
from warpdrive.env_names import ENVS_PACKAGE, list_envs
from warpdrive.errors import ConfigError, EnvError
from warpdrive.layout import Layout

_IMPORT_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


@dataclass(frozen=True)
class Group:
    """The agents that share a policy, and what one of them sees and does."""

    agents: range
    """Their places on the agent axis, one slice."""
    observation_space: spaces.Box | spaces.Dict
    """Of one agent: [feature] float32, or several such under names."""
    action_space: spaces.Discrete | spaces.MultiDiscrete | spaces.Box
    """Of one agent."""

    @property
    def head_sizes(self) -> tuple[int, ...]:
        """Number of actions of each head; none for a Box."""
        if isinstance(self.action_space, spaces.Discrete):
            return (int(self.action_space.n),)
        if isinstance(self.action_space, spaces.MultiDiscrete):
            return tuple(int(size) for size in self.action_space.nvec)
        return ()


class Env:
    """One world. Derive from it in `<env>/<env>.py`, beside the kernels in `<env>/<env>.cu`.

    class Tag(Env):
        Config = TagConfig                       # a frozen dataclass with a default for every field
        num_agents = 5
        episode_length = 100                     # steps until `truncated`; None if there is no limit
        groups = {"tagger": Group(...), ...}     # in agent order, every agent in one of them

        def arrays(self):                        # the first state of one env, without the env axis
            return {"x": np.zeros(5, np.float32), ...}

        def constants(self):                     # name -> number, for the kernels
            return {"GRID_LENGTH": self.config.grid_length}

    The kernels: `<env>_step` reads `action` and writes `observation`, `reward`, `terminated` and `truncated`
    besides the env's own arrays; `<env>_reset`, if there is one, restarts envs that ended (see EnvironmentReset).
    Groups that see or act differently have arrays of their own, `observation_<group>`, `action_<group>` (see Layout).

    Two arrays have a meaning if an env has them: `active` [agent] bool, whether an agent is in the game; and
    `action_mask` [agent, sum of head sizes] bool (or `action_mask_<group>`), which actions may be taken. A head of
    which none may takes action 0.

    What no agent sees may still help to judge them: with `global_state_space = spaces.Box(...)` an env says that its
    kernels write such a state into `global_state` [feature]. A central critic then reads it.
    """

    Config: ClassVar[type]
    num_agents: int
    episode_length: int | None
    groups: Mapping[str, Group]
    global_state_space: spaces.Box | None = None

    def __init__(self, config: Any = None) -> None:
        self.config = self.Config() if config is None else config

    @property
    def name(self) -> str:
        """The name of the file that defines the env: kernels are `<name>_step`, `<name>_reset`."""
        module = type(self).__module__
        return _file(type(self)).stem if module == "__main__" else module.rpartition(".")[2]

    @property
    def source(self) -> Path:
        """The `.cu` file, beside the `.py`."""
        return _file(type(self)).with_suffix(".cu")

    def arrays(self) -> dict[str, np.ndarray]:
        """The first state of one env, without the env axis; every copy starts from it."""
        raise NotImplementedError

    def pool(self) -> dict[str, np.ndarray] | None:
        """Starts to draw from, name -> [row, ...]; every row a whole start, observations too. None: no pool."""
        return None

    def constants(self) -> dict[str, Any]:
        """Numbers for the kernels, by name in capitals; sequences become arrays."""
        return {}

    def drawing(self, episode: Mapping[str, np.ndarray]) -> Drawing:
        """How an episode looks, in circles, segments, polygons, texts and grids of cells (see warpdrive/drawing.py).

        By default, agents are discs at the arrays x and y, whatever else these hold is grey, and who is not `active`
        is hollow.

        Args:
            episode: the env's arrays (see `arrays`) over the episode, but for observations, the global state and action
                masks: name -> [frame, ...], frame 0 being the start.
        Raises:
            EnvError: there is nothing to draw.
        """
        return draw_positions(self, episode)

    def check(self) -> None:
        """Raises EnvError where the definition contradicts itself."""
        place, expected = f"env '{self.name}'", 0
        for name, group in self.groups.items():
            if not isinstance(group.agents, range):
                raise EnvError(f"{place}: group '{name}' has agents {group.agents!r}. Give a range: range(0, 4).")
            if group.agents.start != expected or group.agents.step != 1 or not len(group.agents):
                raise EnvError(
                    f"{place}: group '{name}' has agents {list(group.agents)[:8]}, expected a slice from {expected}. "
                    "Groups cover the agent axis in order, without gap or overlap."
                )
            expected = group.agents.stop
        if expected != self.num_agents:
            raise EnvError(f"{place}: groups cover {expected} agents of {self.num_agents}. Every agent needs one.")
        Layout(self.groups, self.global_state_space)
        for name, array in self.arrays().items():
            self.check_start(name, array)

    def check_start(self, name: str, array: Any) -> None:
        """Raises EnvError where what an array starts from, or a pool of such starts, holds what is no number."""
        if np.issubdtype(np.asarray(array).dtype, np.floating) and not np.isfinite(array).all():
            raise EnvError(
                f"env '{self.name}': array '{name}' starts with a NaN or an infinity. Start it with numbers."
            )


def load_env(name: str | type[Env], config: Mapping[str, Any] | Any = None) -> Env:
    """An env by the name of its folder in cuda_envs, or from outside as `my_package.soccer:Soccer`; or by its class.

    Args:
        config: a mapping of what differs from the defaults, or a Config; None for the defaults.
    Raises:
        ConfigError: no such env, or a key or value its Config does not take.
        EnvError: the env contradicts itself.
    """
    kind = name if isinstance(name, type) and issubclass(name, Env) else _env_class(name)
    if config is None or isinstance(config, Mapping):
        from warpdrive.config import build

        config = build(kind.Config, config or {}, path="env")
    env = kind(config)
    env.check()
    return env


def _file(kind: type[Env]) -> Path:
    """The `.py` file that defines an env.

    Raises:
        EnvError: it is in no file that could name it, as in a notebook.
    """
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    if file is None or Path(file).stem == "__main__" or not Path(file).is_file():
        raise EnvError(
            f"env class '{kind.__qualname__}' is defined in no file that names its kernels (a notebook or a prompt?). "
            'Say it in the class, name = "my_env" and source = Path("my_env.cu"), or move the class to my_env.py.'
        )
    return Path(file)


def _env_class(name: str) -> type[Env]:
    if not isinstance(name, str):
        raise ConfigError(f"an env is given by its name or its class, got {name!r}.")
    if ":" in name and not _IMPORT_NAME.fullmatch(name):
        raise ConfigError(
            f"env '{name}': expected a module and a class of it with one colon between, 'my_package.my_env:MyEnv'."
        )
    module_name, _, class_name = name.partition(":")
    if not class_name:
        if not re.fullmatch(r"[a-z0-9_]+", name) or name not in list_envs():
            near = difflib.get_close_matches(name, list_envs(), 1)
            hint = f"Did you mean '{near[0]}'?" if near else f"There are: {', '.join(list_envs())}."
            raise ConfigError(f"unknown env '{name}'. {hint} An env of your own is 'my_package.my_env:MyEnv'.")
        module_name = f"{ENVS_PACKAGE}.{name}.{name}"
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"env '{name}': {error}. Is its folder on PYTHONPATH?") from None
    if class_name:
        if not isinstance(found := getattr(module, class_name, None), type) or not issubclass(found, Env):
            hint = " It is the program that runs: give the module that the class is in." * (module_name == "__main__")
            raise ConfigError(f"env '{name}': {module_name} has no Env named '{class_name}'.{hint}")
        return found
    return next(
        kind
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Env) and kind.__module__ == module_name
    )
