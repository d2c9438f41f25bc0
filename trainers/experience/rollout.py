"""What happened in T steps, `[T, E, A, ...]`: allocated once, written in place by the kernels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch

from trainers.acting.actor import Actor, Call, players_of, prepare_copy
from trainers.experience.field import Field
from trainers.experience.group_rollout import GroupRollout
from trainers.learning.distributed import world
from trainers.networks.features import Arrays
from warpdrive.data_manager import DataManager
from warpdrive.env import Env
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.layout import ACTION, ACTIVE, FINAL, GLOBAL_STATE, OBSERVATION, Layout


def max_truncations(env: Env, num_steps: int) -> int:
    """How often one env can be truncated in a rollout of `num_steps`."""
    if env.episode_length is None:
        return num_steps
    return math.ceil(num_steps / env.episode_length)  # truncations are an episode length apart


def kept_of_env(env: Env, layout: Layout, actors: Iterable[Actor]) -> tuple[list[str], list[str]]:
    """Names of the env's arrays that a rollout keeps: what is seen, before each step and after the last; and what a
    step takes and gives."""
    seen = list(layout.observations)
    configs = [actor.policy.config for actor in actors]
    if GLOBAL_STATE in layout.kept and any(one.central_critic or one.reads_state for one in configs):
        seen.append(GLOBAL_STATE)  # kept as what agents see is, for the critics and mixers that read it
    return seen, ["reward", "terminated", "truncated", *env.figures, *layout.actions]


class Rollout:
    """T steps of all envs.

    observation [T+1, E, A, ...] as the env gives it, action [T, E, A] or [T, E, A, heads] int32, reward [T, E, A]
    float32, terminated, truncated [T, E] bool, the env's figures [T, E] float32: in `data`, under these names, for
    kernels that read whole rollouts.
    Where groups see or act differently, each has its own arrays there, as in the env (see Layout). Where a central
    critic reads the env's global_state [T+1, E, F], that is there, too.
    active [T+1, E, A], survived [T, E, A] bool: whether an agent is in the game before step t, and after it but
    before a reset; None if the env has no array `active`.
    `groups` holds a GroupRollout per policy; `calls` all launches in order, and `is_env` which of them are the env's.
    `is_whole`: the actor and the envs make their steps in launches that are both's.

    Every launch is packed when the rollout is made, so that `collect` only calls: nothing is copied to
    the host, and the host waits for nothing.

    Args:
        env: made with `final_observations` of at least the truncations an env may have in T steps.
        actors: by policy, who plays (see `make_actors`).
        num_steps: T.
        fields: by policy, what is kept of each step besides what its actor declares.
    """

    def __init__(
        self,
        env: EnvWrapper,
        actors: Mapping[str, Actor],
        num_steps: int,
        fields: Mapping[str, Sequence[Field]] | None = None,
    ) -> None:
        self.env = env
        self.num_steps = num_steps
        self.num_envs = env.num_envs
        self.observations, self._of_a_step = kept_of_env(env.env, env.layout, actors.values())
        self.max_truncations = len(env.data[FINAL + self.observations[0]])
        self.data = DataManager(env.device)
        for name in (*self.observations, *self._of_a_step):
            array, steps = env.data[name], num_steps + (name in self.observations)
            self.data.add(name, torch.zeros((steps, *array.shape), dtype=array.dtype, device=array.device))
        self.reward, self.terminated, self.truncated = (self.data[n] for n in ("reward", "terminated", "truncated"))
        self.active = self.survived = None
        if ACTIVE in env.data:
            shape = (num_steps + 1, env.num_envs, env.num_agents)
            self.active = torch.ones(shape, dtype=torch.bool, device=env.device)
            self.survived = torch.ones_like(self.active[:-1])
        self.groups = {name: GroupRollout(actor, self, (fields or {}).get(name, ())) for name, actor in actors.items()}
        self._players = players_of(list(actors.values()))
        of_env: list[Call] = []
        whole = self._players[0].prepare_rollout(lambda: self._prepare_steps([])) if self._may_be_whole() else None
        self.is_whole = whole is not None
        self.calls = self._prepare_steps(of_env) if whole is None else whole
        self.calls += [call for player in self._players for call in player.prepare_end()]
        ids = {id(call) for call in of_env}
        self.is_env = [id(call) in ids for call in self.calls]

    @property
    def observation(self) -> torch.Tensor:
        """[T+1, E, A, F], where all groups see alike."""
        return self.data[OBSERVATION]

    @property
    def action(self) -> torch.Tensor:
        """[T, E, A] or [T, E, A, heads], where all groups act alike."""
        return self.data[ACTION]

    def seen(self, t: int | None = None) -> Arrays:
        """The observation arrays by name: of step t, or of all T+1."""
        return {name: self.data[name] if t is None else self.data[name][t] for name in self.observations}

    def first_agent(self, name: str) -> int:
        """Of the env's agents, the first that an observation array, or `reward`, holds."""
        groups, layout = self.env.groups, self.env.layout
        if name == "reward" or layout.observations[name].num_agents == self.env.num_agents:
            return 0
        return next(
            groups[group].agents.start
            for group, places in layout.observation.items()
            if any(place.array == name for place in places.values())
        )

    def active_at_truncation(self, k: int, agents: range | None = None) -> torch.Tensor:
        """[E, A] bool: who was in the game, of these agents or of all, when an env was truncated for the k-th time."""
        number = self.truncated.cumsum(0, dtype=torch.int32)
        step = (number <= k).sum(0).clamp_max(self.num_steps - 1)  # of an env without such a truncation: any
        survived = self.survived[step, torch.arange(self.num_envs, device=step.device)]
        return survived if agents is None else survived[:, agents.start : agents.stop]

    def begin(self) -> None:
        """Starts from what the env's observation arrays hold, after a reset or a restore."""
        for name in self.observations:
            self.data[name][-1].copy_(self.env.data[name])
        if self.active is not None:
            self.active[-1].copy_(self.env.data[ACTIVE])

    def forget(self) -> None:
        """What recurrent policies remember is gone: every env starts a new episode."""
        for player in self._players:
            player.forget()

    def end(self) -> None:
        """Writes what the envs show now back into their observation arrays, for a checkpoint."""
        for name in self.observations:
            self.env.data[name].copy_(self.data[name][-1])

    def begin_steps(self) -> None:
        """Makes room for T steps, from where the last rollout ended."""
        with torch.inference_mode():
            for array in self._carried():
                array[0].copy_(array[-1])
            self.env.data["num_truncated"].zero_()

    @staticmethod
    def prepare_to_begin(rollouts: Sequence[Rollout]) -> Call:
        """The `begin_steps` of several, by a few launches for all of them."""
        carried = [array for one in rollouts for array in one._carried()]
        first, last = [array[0] for array in carried], [array[-1] for array in carried]
        num_truncated = [one.env.data["num_truncated"] for one in rollouts]

        def begin_steps() -> None:
            with torch.inference_mode():
                torch._foreach_copy_(first, last)
                torch._foreach_zero_(num_truncated)

        return begin_steps

    def _carried(self) -> list[torch.Tensor]:
        """Arrays that begin with what they ended with in the rollout before."""
        arrays = [self.data[name] for name in self.observations]
        return arrays if self.active is None else [*arrays, self.active]

    def collect(self, mark: Call | None = None) -> None:
        """Plays T steps from where the last rollout ended; `mark` is called where the env begins or ends its part."""
        self.begin_steps()
        with torch.inference_mode():
            if mark is None:
                for call in self.calls:
                    call()
                return
            was_env = False
            for call, is_env in zip(self.calls, self.is_env, strict=True):
                if is_env != was_env:
                    mark()
                call()
                was_env = is_env
            if was_env:
                mark()

    def calls_of_env(self) -> list[Call]:
        """The env's part of a rollout, with the actions that the last one left there."""
        if self.is_whole:
            steps = range(self.num_steps)
            return [call for t in steps for call in self.env.prepare_step_and_reset(**self.slots(t))]
        return [call for call, is_env in zip(self.calls, self.is_env, strict=True) if is_env]

    def _may_be_whole(self) -> bool:
        """Whether nothing but an actor and the envs has a part in steps."""
        groups, is_alone = self.groups.values(), len(self._players) == 1 and world().size == 1
        has_masks = any(group.mask is not None for group in groups)
        return is_alone and not has_masks and self.active is None and not self.env.after_step

    def _prepare_steps(self, of_env: list[Call]) -> list[Call]:
        return [call for t in range(self.num_steps) for call in self._prepare_step(t, of_env)]

    def _prepare_step(self, t: int, of_env: list[Call]) -> list[Call]:
        groups = self.groups.values()
        calls = [prepare_copy(group.mask[t], group.env_mask) for group in groups if group.mask is not None]
        calls += [call for player in self._players for call in player.prepare_step(t)]
        between = [*self.env.after_step]
        if self.active is not None:
            between.append(prepare_copy(self.survived[t], self.env.data[ACTIVE]))
        between += [call for player in self._players for call in player.prepare_between(t)]
        slots = self.slots(t)
        if between:
            own = [self.env.prepare_step(**slots), self.env.prepare_reset(**slots)]
            calls += [own[0], *between, own[1]]
        else:
            own = self.env.prepare_step_and_reset(**slots)
            calls += own
        of_env += own
        if self.active is not None:
            calls.append(prepare_copy(self.active[t + 1], self.env.data[ACTIVE]))
        if world().size > 1:
            calls.append(world().moved)
        return calls

    def slots(self, t: int) -> dict[str, torch.Tensor]:
        """The views that step t reads and writes in place of the env's arrays."""
        slots = {name: self.data[name][t] for name in self._of_a_step}
        return slots | {name: self.data[name][t + 1] for name in self.observations}
