"""What an env is: the rules of one simulated world, written as a config, arrays, constants and kernels."""

from __future__ import annotations

import difflib
import importlib
import numbers
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from warpdrive.config import build, join_path, wrong_values
from warpdrive.config_values import shown
from warpdrive.drawing import Drawing, draw_positions
from warpdrive.env_names import ENVS_PACKAGE, env_files, list_envs
from warpdrive.errors import ConfigError, EnvError
from warpdrive.layout import ACTION_MASK, ACTIVE, Layout, mask_place

OUTPUTS = ("reward", "terminated", "truncated")
"""What every step writes, besides what is seen."""
FRAMEWORK_CONSTANTS = (
    "NUM_ENVS", "NUM_AGENTS", "THREADS_PER_ENV", "ENVS_PER_BLOCK", "NUM_POOL_ROWS", "NUM_KEPT", "KEEP_TERMINATED",
)  # fmt: skip
"""Numbers that kernels of envs are compiled with, besides those of constants()."""
METRICS = ("ep_rew_mean", "ep_len_mean", "num_episodes", "mean_reward", "std_reward", "mean_ep_length")
"""What else is reported as `rollout/<name>` or `eval/<name>`, which no figure of an env may be called."""

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

        def tables(self):                        # what all envs share and only read, of any size
            return {"wall": np.zeros((64, 64), bool)}

    The kernels: `<env>_step` reads `action` and writes `observation`, `reward`, `terminated` and `truncated`
    besides the env's own arrays; `<env>_reset`, if there is one, restarts envs that ended (see EnvironmentReset).
    Groups that see or act differently have arrays of their own, `observation_<group>`, `action_<group>` (see Layout).

    Two arrays have a meaning if an env has them: `active` [agent] bool, whether an agent is in the game; and
    `action_mask` [agent, sum of head sizes] bool (or `action_mask_<group>`), which actions may be taken. A head of
    which none may takes action 0.

    What changes in mid-run without being played, as a curriculum's numbers do, is an array or a table that `settable`
    names: `EnvWrapper.set` writes it, and what restarts begin with, `start_<name>`.

    What no agent sees may still help to judge them: with `global_state_space = spaces.Box(...)` an env says that its
    kernels write such a state into `global_state` [feature]. A central critic then reads it.

    What tells of an episode besides its return, such as whether it was won, is an array of one float32 a env that
    `figures` names: every step writes it, and what the last step of an episode wrote is reported. No restart changes
    it: what `<env>_reset` writes there is undone.
    """

    Config: ClassVar[type]
    num_agents: int
    episode_length: int | None
    groups: Mapping[str, Group]
    global_state_space: spaces.Box | None = None
    settable: Sequence[str] = ()
    lasting: Sequence[str] = ()
    """Arrays that no restart touches, as what is counted over all episodes of a run."""
    bounds: Mapping[str, tuple[int, int]] = {}
    """Array -> the least and the largest number in it, of those that kernels index by; see `why_impossible`."""
    threads: int | None = None
    """Of an env on a GPU, from 1 to 1,024, where a step has more to share out than agents: units, cells, features.
    None: what its agents need. A power of two up to 16 lets envs share a block (see FunctionManager)."""
    figures: Mapping[str, str] = {}
    """Name of an array -> what its mean over episodes says, reported as `rollout/<name>` and `eval/<name>`."""

    def __init__(self, config: Any = None) -> None:
        self.config = self.Config() if config is None else config
        if wrong := wrong_values(self.config):
            raise EnvError("\n".join(f"{join_path('env', key)}: {message}" for key, message in wrong))

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

    def tables(self) -> dict[str, np.ndarray]:
        """What all copies share and no kernel writes: maps, layouts, decks. A kernel takes `map` as `const T* map`.

        They follow from the config, as no checkpoint holds them but those that are `settable`.
        """
        return {}

    def pool(self) -> dict[str, np.ndarray] | None:
        """Starts to draw from, name of an array -> [row, ...]. None: no pool.

        Without a reset kernel every row is a whole start, observations too. A reset kernel draws for itself, of
        `const T* pool_<name>` and the constant NUM_POOL_ROWS.
        """
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

    def why_impossible(self, state: Mapping[str, np.ndarray]) -> str | None:
        """What of a state no play leads to, so that kernels might read and write elsewhere by it: a sentence without
        its full stop; None if there is nothing. A checkpoint, which anybody may have written, is refused by it.

        By default, what leaves `bounds`. An env whose numbers are packed, or belong together, adds what it must.

        Args:
            state: the env's arrays, [env, ...].
        """
        for name, (low, high) in self.bounds.items():
            if (why := why_outside(name, state[name], low, high)) is not None:
                return why
        return None

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
        length = self.episode_length
        if length is not None and not (isinstance(length, numbers.Integral) and length >= 1):
            raise EnvError(f"{place}: episode_length is {length!r}. Give a whole number of at least 1, or None.")
        layout, arrays = Layout(self.groups, self.global_state_space), self.arrays()
        for name, array in arrays.items():
            self.check_numbers(name, array)
        self._check_meanings(arrays)
        if unknown := [name for name in self.lasting if name not in arrays or name in layout.kept]:
            raise EnvError(f"{place}: lasting names '{unknown[0]}', which is no array of its own in arrays().")
        if unknown := [name for name in self.bounds if name not in arrays]:
            raise EnvError(f"{place}: bounds name '{unknown[0]}', which is not in arrays().")
        for name, both in self.bounds.items():
            if np.shape(both) != (2,):
                raise EnvError(f"{place}: bounds of '{name}' are {both!r}. Give the least and the largest: (0, 9).")
        if self.threads is not None and not (type(self.threads) is int and 1 <= self.threads <= 1024):
            raise EnvError(f"{place}: threads is {self.threads!r}. Give a number from 1 to 1024, or None.")
        for name in self.figures:
            if name in METRICS:
                raise EnvError(f"{place}: figures names '{name}', which is reported of every env. Choose another.")
            array = np.asarray(arrays.get(name))
            if array.shape or array.dtype != np.float32:
                raise EnvError(
                    f"{place}: figures names '{name}', which is no array of one float32. Have it in arrays() as "
                    "np.zeros((), np.float32), and let every step write it."
                )
        for name in self.constants():
            if name in FRAMEWORK_CONSTANTS:
                raise EnvError(f"{place}: constants() has '{name}', which the framework sets. Leave it out.")
        if self.settable:
            written = {*OUTPUTS, *layout.actions, *layout.kept}
            self._check_settable([name for name in (*arrays, *self.tables()) if name not in written])

    def check_numbers(self, name: str, array: Any, wrong: str = "starts with", way_out: str = "Start it with") -> None:
        """Raises EnvError where what an array starts from, or is set to, holds what is no number."""
        array = np.asarray(array)
        if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
            raise EnvError(f"env '{self.name}': '{name}' {wrong} a NaN or an infinity. {way_out} numbers.")

    def _check_meanings(self, arrays: Mapping[str, Any]) -> None:
        """Raises EnvError where `active` or a mask is not as what it says asks."""
        if ACTIVE in arrays:
            self._check_array(ACTIVE, arrays[ACTIVE], (self.num_agents,), "which agents are in the game")
        for name, group in self.groups.items():
            mask = mask_place(self.groups, name, arrays)
            if mask is None:
                continue
            num_agents, whose = len(group.agents), f"the agents of '{name}' may take"
            if mask.array == ACTION_MASK:
                num_agents, whose = self.num_agents, f"agents may take, those of '{name}', too"
            shape = (num_agents, sum(group.head_sizes))
            self._check_array(mask.array, arrays[mask.array], shape, f"which actions {whose}")

    def _check_array(self, name: str, array: Any, shape: tuple[int, ...], meaning: str) -> None:
        array = np.asarray(array)
        if array.shape != shape or array.dtype != np.bool_:
            raise EnvError(
                f"env '{self.name}': array '{name}' is {list(array.shape)} {array.dtype}, but must be {list(shape)} "
                f"bool: it says {meaning}. Make it so, or give it another name."
            )

    def _check_settable(self, can_be: Collection[str]) -> None:
        place, pool = f"env '{self.name}'", self.pool() or {}
        if isinstance(self.settable, str):
            raise EnvError(f"{place}: settable is '{self.settable}'. Give names in a tuple: ('{self.settable}',).")
        for name in self.settable:
            if name not in can_be:
                raise EnvError(
                    f"{place}: settable names '{name}', which is neither in arrays() nor in tables(), or which each "
                    f"step writes. There are: {', '.join(can_be) or 'none'}."
                )
            if name in pool:
                raise EnvError(
                    f"{place}: settable names '{name}', but restarts take it from pool(). Leave it out of one of them."
                )


def why_outside(name: str, array: np.ndarray, low: float, high: float) -> str | None:
    """Which number of an array [env, ...] is not from `low` to `high`, in words; None if all are."""
    wrong = np.argwhere(~((array >= low) & (array <= high)))
    if not len(wrong):
        return None
    env, *place = (int(i) for i in wrong[0])
    of_place = f", place {place}" if place else ""
    return f"'{name}' of env {env}{of_place} is {array[tuple(wrong[0])]}, and never but from {low} to {high}"


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
        config = build(kind.Config, config or {}, path="env")
    elif not is_dataclass(config):
        raise ConfigError(f"env: expected keys and values, got {shown(config)}.")
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
            if family := [one for one, file in env_files().items() if file.parent.name == name]:
                hint = f"It is a family: choose one of {', '.join(family)}."
            raise ConfigError(f"unknown env '{name}'. {hint} An env of your own is 'my_package.my_env:MyEnv'.")
        module_name = f"{ENVS_PACKAGE}.{env_files()[name].parent.name}.{name}"
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
