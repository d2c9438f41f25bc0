"""Stops a run that meets a NaN or an infinity, before anything is learned from it; the host waits for nothing.

What is found is kept on the device: a flag that makes every later step of every optimiser do nothing, and the place.
The host reads both when it reports and when it saves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from trainers.errors import NonFiniteError
from trainers.experience.rollout import Rollout
from trainers.learning.distributed import world
from warpdrive.backends.base import LaunchShape
from warpdrive.function_manager import FunctionManager
from warpdrive.layout import FINAL, GLOBAL_STATE

SOURCE = Path(__file__).parent / "finite.cu"
NOTHING_FOUND = 1 << 62
"""In place of a row; float64, in which it travels to the host, has this number."""
SEARCH_THREADS, MAX_SEARCH_BLOCKS = 256, 2048
KERNELS = {torch.float32: "first_nonfinite", torch.float64: "first_nonfinite_double"}
FINAL_KERNELS = {torch.float32: "first_nonfinite_final", torch.float64: "first_nonfinite_final_double"}
"""By the dtype of what is searched. Whole numbers are always finite; half floats are known by their loss."""
FEW_BYTES = 1 << 20
"""Of a rollout that is searched by one launch. On an H100 it takes 3 us less than five for some KiB of CartPole, and
1.4 ms more than five for 100 steps of 2,000 x 1,000 agents of grid-world Tag."""


@dataclass(frozen=True)
class _Place:
    """One tensor that is watched: `agents` of which policies its rows are."""

    tensor: str
    policy: str | None
    """None: of whichever policy the row's agent has."""
    first_agent: int
    num_agents: int
    """Rows are [step, env, agent]; 0: the rows are no steps, but parameters or statistics of the policy."""
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class GradientCheck:
    """A launch that looks at a gradient, and what it finds on the device. It reads `norms`; all else it writes."""

    norms: torch.Tensor
    """[parameters], of each parameter's gradient."""
    norm: torch.Tensor
    """Of all of it, before it is shortened."""
    scale: torch.Tensor
    """What shortens it."""
    skip: torch.Tensor
    """Not 0: no step may be made."""
    look: Callable[[], None]


class Guard:
    """Watches observations, rewards, values, losses and gradients of a run.

    guard.check_rollout()                 # after collect
    guard.check_loss("tagger", losses, index)
    check = guard.prepare_gradient("tagger", ...)  # what an optimiser calls before its step
    guard.raise_if_halted(iteration)      # waits for the device

    In PPO the first bad minibatch stops what would follow; the minibatches before it were learned from. Other policies
    finish the update that is under way, then nothing is learned any more.

    Among several ranks, what one of them meets halts all policies on all ranks, from the next step of an optimiser on.

    Args:
        rollout: what is watched.
    """

    def __init__(self, rollout: Rollout) -> None:
        env = rollout.env
        self.world = world()
        self.rollout = rollout
        self.num_envs, self.num_agents = env.num_envs, env.num_agents
        self._functions = FunctionManager(
            rollout.data, SOURCE, num_envs=env.num_envs, num_agents=env.num_agents, backend=env.backend
        )
        # Of one step, in the order in which they come to be: the first of them is told.
        self._places: list[_Place] = [self._place_of(name) for name in rollout.observations]
        of_policies = [(name, group.agents.start, len(group.agents)) for name, group in rollout.groups.items()]
        for one in of_policies:
            watched = [field.name for field in rollout.groups[one[0]].fields.values() if field.is_watched]
            self._places += [_Place(tensor, *one) for tensor in watched]
        self._places.append(_Place("reward", None, 0, self.num_agents))
        self._places += [self._place_of(name, FINAL) for name in rollout.observations]
        self._num_of_rollout = len(self._places)
        for one in of_policies:
            names = tuple(parameter for parameter, _ in rollout.groups[one[0]].policy.named_parameters())
            self._places += [_Place("loss", *one), _Place("gradient", one[0], 0, 0, names)]
            self._places.append(_Place("statistic", one[0], 0, 0, tuple(rollout.groups[one[0]].policy.statistics)))
        self.halted = torch.zeros(1, device=env.device)
        """[1] float32: 1 once anything was found."""
        self._flags = torch.zeros(len(of_policies), device=env.device)
        self._first = torch.full((len(self._places) + 1,), NOTHING_FOUND, dtype=torch.int64, device=env.device)
        """By place, the first row where something was found; the last is for what another rank found."""
        self._num_halted = torch.zeros(1, dtype=torch.int64, device=env.device)
        """Iterations begun since the one in which something was found."""
        self._one_block = LaunchShape(1, (64 if self.halted.is_cuda else 1, 1))
        self._kept: dict[tuple[str, str], tuple[torch.Tensor, Callable[[], None]]] = {}
        of_halting = {
            "first": self._first, "num_places": len(self._first), "halted": self.halted,
            "flags": self._flags, "num_policies": len(self._flags), "num_halted": self._num_halted,
        }  # fmt: skip
        self._looks = self._prepare_looks(of_halting)
        self._halt_all = self._functions.prepare("halt_all", self._one_block, begun=0, **of_halting)

    def check_rollout(self) -> None:
        """Looks at what came of this rollout: one pass over it, on the device. Call it once an iteration."""
        for look in self._looks:
            look()

    def check_loss(self, policy: str, losses: torch.Tensor, index: torch.Tensor) -> None:
        """Looks at the loss of each sample.

        Args:
            losses: [N].
            index: [N] rows of [T, E, agents of the policy], as in Samples.
        """
        losses = losses.detach()
        self._keep("loss", policy, torch.where(losses - losses == 0, NOTHING_FOUND, index).amin())

    def check_statistics(self, policy: str) -> None:
        """Looks at whether all that a policy's running statistics took in was finite."""
        if statistics := list(self.rollout.groups[policy].policy.statistics.values()):
            bad = ~torch.stack([one.is_finite for one in statistics])
            self._keep("statistic", policy, torch.where(bad.any(), bad.int().argmax(), NOTHING_FOUND))

    def also_watch(self, policy: str, names: Sequence[str]) -> int:
        """Parameters that learn with a policy and are none of its own, such as critics'.

        Returns:
            The number of the first of them, for `prepare_gradient`.
        """
        number = self._number_of("gradient", policy)
        place = self._places[number]
        self._places[number] = replace(place, names=(*place.names, *names))
        return len(place.names)

    def prepare_gradient(
        self, policy: str, num_parameters: int, stopped: torch.Tensor, max_norm: float, first: int = 0
    ) -> GradientCheck:
        """What looks at a gradient once a step, at each parameter's.

        Args:
            num_parameters: of the policy, in order; or of others that learn with it, the `first` as `also_watch` said.
            stopped: [1], not 0: no step may be made.
            max_norm: to which a longer gradient is shortened.
        """
        norms, norm, scale, skip = (self.halted.new_zeros(number) for number in (num_parameters, 1, 1, 1))
        look = self._functions.prepare(
            "keep_gradient", self._one_block, norms=norms, num_parameters=num_parameters, first_row=first,
            max_norm=max_norm, stopped=stopped, first=self.place_of("gradient", policy), flag=self.flag_of(policy),
            halted=self.halted, norm=norm, scale=scale, skip=skip,
        )  # fmt: skip
        return GradientCheck(norms, norm[0], scale[0], skip[0], look)

    def place_of(self, tensor: str, policy: str) -> torch.Tensor:
        """[1] int64, the first bad row of a policy's "loss" or "gradient", for kernels that look themselves.

        They write the smaller of what is there and what they find, while `flag_of(policy)` is 0, and then raise that
        and `halted`.
        """
        number = self._number_of(tensor, policy)
        return self._first[number : number + 1]

    def flag_of(self, policy: str) -> torch.Tensor:
        """[1] float32, a policy's own `halted`: as it was after the rollout, and 1 once it finds something itself.
        Policies may learn side by side, and what one of them finds must not stop another in the middle of a step.
        """
        number = list(self.rollout.groups).index(policy)
        return self._flags[number : number + 1]

    def has_found(self) -> torch.Tensor:
        """[1] float32, more than 0 if anything was found here, be the run halted yet or not."""
        return (self._first != NOTHING_FOUND).any().float().view(1)

    def take_over(self, halted: torch.Tensor) -> None:
        """[1], more than 0 if any rank is halted: then this one is, too."""
        self._first[-1:].copy_(torch.where(halted > 0, 0, NOTHING_FOUND))
        self._halt_all()

    def clear(self) -> None:
        """Forgets what was found: the run goes on from a checkpoint."""
        self.halted.zero_()
        self._flags.zero_()
        self._num_halted.zero_()
        self._first.fill_(NOTHING_FOUND)
        for group in self.rollout.groups.values():
            for statistic in group.policy.statistics.values():
                statistic.is_finite.fill_(True)

    def found(self) -> torch.Tensor:
        """[places + 2] int64 on the device: all that `raise_if_found` asks for, to be read when it suits the host."""
        return torch.cat([self._num_halted, self._first])

    @staticmethod
    def num_found(found: Sequence[float]) -> int:
        """Of `found`, read: in how many tensors there was a NaN or an infinity."""
        return sum(row != NOTHING_FOUND for row in found[1:])

    def raise_if_halted(self, iteration: int) -> None:
        """Waits for the device; see `raise_if_found`."""
        self.raise_if_found(self.found().tolist(), iteration)

    def raise_if_found(self, found: Sequence[float], iteration: int) -> None:
        """Ends the run if anything was found, on any rank.

        Args:
            found: what `found` held.
            iteration: iterations made by then, that under way included.
        Raises:
            NonFiniteError: names policy, tensor, env, agent and step; a gradient's names the parameter.
        """
        num_halted, *first, _ = (int(one) for one in found)
        steps = [(self._step_of(i, row), i) for i, row in enumerate(first) if row != NOTHING_FOUND]
        told = None
        if steps:
            step, number = min(steps)
            is_later = number >= self._num_of_rollout  # one rank's rollout can spoil what all ranks then learn
            place, row, before = self._places[number], first[number], iteration - 1 - num_halted
            told = (is_later, step, number), self._describe(place, row, before), self._where(place, row, before)
        if everywhere := [one for one in self.world.gather(told) if one is not None]:
            raise NonFiniteError(*min(everywhere, key=lambda one: one[0])[1:])

    def _step_of(self, number: int, row: int) -> int:
        place = self._places[number]
        return row // (self.num_envs * place.num_agents) if place.num_agents else 0

    def _describe(self, place: _Place, row: int, iteration: int) -> str:
        when = f"iteration {iteration + 1}"
        if place.tensor == "statistic":
            return (
                f"policy '{place.policy}': what {place.names[row]} takes in became a NaN or an infinity, or is too "
                f"large for float32, in {when}. Scale the env's numbers down."
            )
        if not place.num_agents:
            return (
                f"policy '{place.policy}': the gradient of '{place.names[row]}' became a NaN or an infinity in {when}. "
                "Lower its lr, or a coefficient of its loss that is very large."
            )
        found = self._where(place, row, iteration)
        step, env, agent, policy = (found[name] for name in ("step", "env", "agent", "policy"))
        whose, where = ("", "") if agent is None else (f"policy '{policy}': ", f", agent {agent}")
        way_out = "Mend the env's kernel: python -m warpdrive.testing shows what it does."
        if place.policy is not None:
            way_out = "Lower its lr, or normalize_observation if the env's numbers are large."
        return (
            f"{whose}{place.tensor} is a NaN or an infinity at env {env}{where}, step {step} of "
            f"{when} (step {iteration * self.rollout.num_steps + step} of the run). {way_out}"
        )

    def _where(self, place: _Place, row: int, iteration: int) -> dict[str, str | int | None]:
        """What `_describe` puts into words; None where a tensor has no such axis."""
        found = {"tensor": place.tensor, "policy": place.policy, "iteration": iteration + 1}
        if not place.num_agents:
            kind = "statistic" if place.tensor == "statistic" else "parameter"
            return found | {kind: place.names[row], "env": None, "agent": None, "step": None}
        step, rest = divmod(row, self.num_envs * place.num_agents)
        env, agent = divmod(rest, place.num_agents)
        found |= {"step": step, "env": env + self.rollout.env.first_env, "agent": agent + place.first_agent}
        if place.tensor.removeprefix(FINAL) == GLOBAL_STATE:  # it has no agent axis
            return found | {"agent": None}
        of_agents = (name for name, group in self.rollout.groups.items() if found["agent"] in group.agents)
        return found | {"policy": place.policy or next(of_agents, "none")}

    def _place_of(self, observation: str, prefix: str = "") -> _Place:
        """Where the rows of an observation array belong; of `final_<name>` they are told as rows of steps."""
        if observation == GLOBAL_STATE:
            return _Place(prefix + observation, None, 0, 1)
        num_agents = self.rollout.env.layout.observations[observation].num_agents
        return _Place(prefix + observation, None, self.rollout.first_agent(observation), num_agents)

    def _prepare_looks(self, of_halting: Mapping[str, Any]) -> list[Callable[[], None]]:
        """The search of all that a rollout holds, which ends by halting."""
        searched = []
        for number, place in enumerate(self._places[: self._num_of_rollout]):
            is_final = place.tensor.startswith(FINAL)
            if place.policy is not None:
                values = getattr(self.rollout.groups[place.policy], place.tensor)
            else:
                values = (self.rollout.env if is_final else self.rollout).data[place.tensor]
            if values.dtype in KERNELS:
                searched.append((number, values, is_final * place.num_agents))
        if sum(values.nbytes for _, values, _ in searched) <= FEW_BYTES:
            return [self._prepare_look(searched, of_halting)]
        halt = self._functions.prepare("halt_all", self._one_block, begun=1, **of_halting)
        return [*(self._prepare_search(*one) for one in searched), halt]

    def _prepare_look(
        self, searched: Sequence[tuple[int, torch.Tensor, int]], of_halting: Mapping[str, Any]
    ) -> Callable[[], None]:
        """All of it in one launch."""
        threads = SEARCH_THREADS if self.halted.is_cuda else 1
        blocks_each = max(-(-values.nbytes // (16 * threads)) for _, values, _ in searched)
        table = []
        for number, values, num_agents in searched:
            assert values.is_contiguous(), self._places[number]
            sizes = self._num_rows_and_width(number, values)
            table.append((number, values.data_ptr(), *sizes, values.dtype == torch.float64, num_agents))
        return self._functions.prepare(
            "look_at_rollout",
            LaunchShape((blocks_each if self.halted.is_cuda else 1) * len(searched), (threads, 1)),
            searched=torch.tensor(table, dtype=torch.int64, device=self.halted.device),
            num_searched=len(searched),
            num_steps=self.rollout.num_steps,
            arrivals=torch.zeros(1, dtype=torch.uint64, device=self.halted.device),
            **of_halting,
        )

    def _prepare_search(self, number: int, values: torch.Tensor, num_agents: int) -> Callable[[], None]:
        """One array; `num_agents` see it, of what truncated episodes saw last, else 0."""
        num_rows, width = self._num_rows_and_width(number, values)
        sizes = {"num_rows": num_rows, "width": width}
        if num_agents:
            sizes |= {"num_agents": num_agents, "num_steps": self.rollout.num_steps}
        kernel = (FINAL_KERNELS if num_agents else KERNELS)[values.dtype]
        launch_shape = None
        if values.is_cuda:  # 16 bytes a thread, and no more threads than keep the memory busy
            num_blocks = -(-values.nbytes // (16 * SEARCH_THREADS))
            launch_shape = LaunchShape(min(num_blocks, MAX_SEARCH_BLOCKS), (SEARCH_THREADS, 1))
        first = self._first[number : number + 1]
        return self._functions.prepare(kernel, launch_shape, values=values, halted=self.halted, first=first, **sizes)

    def _num_rows_and_width(self, number: int, values: torch.Tensor) -> tuple[int, int]:
        num_rows = values.shape[0] * self.num_envs * self._places[number].num_agents
        return num_rows, values.numel() // num_rows

    def _number_of(self, tensor: str, policy: str) -> int:
        return next(i for i, one in enumerate(self._places) if (one.tensor, one.policy) == (tensor, policy))

    def _keep(self, tensor: str, policy: str, row: torch.Tensor) -> None:
        if (tensor, policy) not in self._kept:
            place = torch.zeros(1, dtype=torch.int64, device=self.halted.device)
            first, flag = self.place_of(tensor, policy), self.flag_of(policy)
            found = {"row": place, "first": first, "flag": flag, "halted": self.halted}
            self._kept[tensor, policy] = place, self._functions.prepare("keep_row", self._one_block, **found)
        place, keep = self._kept[tensor, policy]
        place.copy_(row)
        keep()
