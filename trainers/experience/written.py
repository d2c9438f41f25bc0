"""Whether an env's steps write all that a rollout keeps: looked at in a run's first iterations."""

from __future__ import annotations

import math

import torch

from trainers.experience.rollout import Rollout
from warpdrive.errors import EnvError
from warpdrive.layout import GLOBAL_STATE
from warpdrive.unwritten import ENOUGH, RULE, Search, bounds_of, outputs_of


class WrittenLook:
    """Looks at the first iteration, and at the one in which episodes first come to their `episode_length`.

    Where an env may write any number that a byte or two hold, the first one may be too few steps to tell: then at as
    many as it takes. Others cost nothing for it, and wait for nothing.

    look = WrittenLook(rollout)
    look.prepare()                   # before a rollout is collected
    look.check()                     # after it
    """

    def __init__(self, rollout: Rollout) -> None:
        env = rollout.env
        self.rollout, self._search, self._iteration = rollout, Search(bounds_of(env.env, env.layout)), 0
        ends = [name for name in outputs_of(env) if name != "reward"]
        self._names = ["reward", *ends, *env.env.figures]
        slots, length = self._slots(), env.env.episode_length or 0
        counted = [one.shape[0] * one.shape[1] for name, one in slots.items() if self._search.counts(name, one)]
        num_first = max((math.ceil(ENOUGH / size) for size in counted if size), default=1)
        self._looks = {*range(num_first), max(length - 1, 0) // rollout.num_steps}

    @property
    def is_due(self) -> bool:
        """Whether the iteration under way is looked at: nothing is done in any other."""
        return self._iteration in self._looks

    @property
    def is_over(self) -> bool:
        """Whether no iteration will be looked at any more."""
        return self._iteration > max(self._looks)

    def prepare(self) -> None:
        """Before the rollout is collected: its slots hold what no env writes by itself. Waits for nothing."""
        if self.is_due:
            with torch.inference_mode():
                self._search.fill(self._slots(), as_nan=self.rollout.active is None)

    def check(self) -> None:
        """Looks at what was collected since `prepare`; waits for the device.

        Raises:
            EnvError: names the first number that no step wrote: array, step, env, agent, feature.
        """
        if self.is_due:
            with torch.inference_mode():
                self._check()
        self._iteration += 1

    def _check(self) -> None:
        rollout, slots, exempt = self.rollout, self._slots(), {}
        if rollout.active is not None:  # of what agents see who are out of the game nothing need be written
            whose = {*rollout.observations} - {GLOBAL_STATE}
            exempt = {name: self._left(name) for name in slots if name in whose}
        found = self._search.first(slots, exempt)
        if found is None:
            if exempt:  # theirs may be read, masked or not: bools that are neither 0 nor 1, and what no space has
                self._search.put_back({name: one for name, one in slots.items() if one.itemsize == 1})
            self._check_ends()
            return
        name, (step, env, *rest) = found
        words = [f"env {env + rollout.env.first_env}"]
        if rest and name != GLOBAL_STATE:
            agent, *rest = rest
            words.append(f"agent {agent + rollout.first_agent(name)}")
        words += [f"feature {', '.join(map(str, rest))}"] if rest else []
        if self._iteration:
            words.append(f"in iteration {self._iteration + 1}")
        raise EnvError(
            f"env '{rollout.env.env.name}': step {step} left '{name}' unwritten of {', '.join(words)}. {RULE}"
        )

    def _check_ends(self) -> None:
        """An episode that terminates has no future, one that is truncated has: both cannot be."""
        both = (self.rollout.terminated & self.rollout.truncated).nonzero()
        if len(both):
            step, env = both[0].tolist()
            raise EnvError(
                f"env '{self.rollout.env.env.name}': step {step} says both terminated and truncated of env "
                f"{env + self.rollout.env.first_env}. Say terminated alone where the game itself is over."
            )

    def _slots(self) -> dict[str, torch.Tensor]:
        """What steps write, but for the last observation, which the first of a rollout is copied from."""
        data = self.rollout.data
        return {name: data[name][1:-1] for name in self.rollout.observations} | {n: data[n] for n in self._names}

    def _left(self, name: str) -> torch.Tensor:
        """[T, E, columns] bool: who is out of the game when a slot is written."""
        rollout = self.rollout
        first, count = rollout.first_agent(name), rollout.data[name].shape[2]
        return ~rollout.active[1:-1, :, first : first + count]
