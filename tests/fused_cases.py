"""Policies of odd sizes, and steps and rollouts made of random numbers, for the tests of the fused kernels.

No env has to be compiled, and what other agents see is a NaN.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import torch
from gymnasium import spaces

from trainers.experience.spec import GroupSpec
from trainers.fused.actor import FusedPlayers
from trainers.fused.packed import PackedPolicy, pack
from trainers.fused.plan import FULL_PRECISION, Limits, Request, plan
from trainers.fused.seen import Seen
from trainers.heads import CategoricalHeads, GaussianHead, Head
from trainers.networks.features import CentralFeatures, Features, Inputs, central_features, torch_dtype
from trainers.networks.mlp import MLP
from trainers.networks.policy import Policy
from trainers.settings.config import ModelConfig, PolicyConfig
from warpdrive.backends.base import Backend
from warpdrive.data_manager import DataManager
from warpdrive.env import Group
from warpdrive.layout import GLOBAL_STATE, Layout, Place
from warpdrive.sampler import seed_words

FULL, BF16 = FULL_PRECISION, "bf16"
UNTOUCHED = -7
"""What is written nowhere holds it."""
GPUS = {
    "sm_80": Limits((8, 0), 163 << 10, 108),
    "sm_86": Limits((8, 6), 99 << 10, 84),
    "sm_89": Limits((8, 9), 99 << 10, 128),
    "sm_90": Limits((9, 0), 227 << 10, 132, has_warpgroups=True),
}


def box(dtype: type, *shape: int) -> spaces.Box:
    """Of all that a dtype can hold, or of any float."""
    if np.dtype(dtype).kind == "f":
        return spaces.Box(-np.inf, np.inf, shape, dtype)
    low, high = (0, 1) if dtype is np.bool_ else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return spaces.Box(low, high, shape, dtype)


MIXED = spaces.Dict({"image": box(np.uint8, 5, 5, 3), "near": box(np.float32, 4), "open": box(np.bool_, 3)})
"""From the second part on, columns begin at odd numbers."""
EVEN = spaces.Dict(
    {
        "a": box(np.int8, 2, 4),
        "b": box(np.int32, 6),
        "c": box(np.bool_, 2),
        "d": box(np.int16, 4),
        "e": box(np.uint8, 6),
    }
)
"""Pairs of neighbours lie side by side in memory."""


@dataclass(frozen=True)
class Case:
    """A policy group: its network, and where its agents see and act."""

    num_features: int
    widths: tuple[int, ...]
    head_sizes: tuple[int, ...]
    critic_widths: tuple[int, ...] | None = None
    """None: the trunk is shared."""
    activation: str = "relu"
    normalises: bool = False
    has_mask: bool = False
    agents: range = range(1)
    num_agents: int = 1
    """Of the env."""
    has_own_arrays: bool = False
    """Whether the group sees and acts in arrays of its own, not in those of all agents."""
    num_envs: int = 5
    layer_norm: bool | str = False
    by_groups: bool = False
    """Whether its layers go through memory as whole warpgroups bring them, on a CPU, too."""
    space: spaces.Space | None = None
    """What an agent observes; None: one row of `num_features` floats."""
    sees_agent_id: bool = False
    central: str | None = None
    """What a central critic sees: the "global_state", or all "observations"."""
    leaves: bool = False
    """Whether agents may leave the game."""
    num_numbers: int = 0
    """Of an action in a Box, which has no heads."""
    squashes: bool = False

    @property
    def num_heads(self) -> int:
        return self.num_numbers or len(self.head_sizes)

    @property
    def box(self) -> spaces.Box:
        """Of three numbers or more, the third has no upper end, unless it squashes."""
        low = np.linspace(-2.0, 1.0, self.num_numbers, dtype=np.float32)
        high = low + np.linspace(0.5, 4.0, self.num_numbers, dtype=np.float32)
        if not self.squashes:
            high[2:3] = np.inf
        return spaces.Box(low, high)

    @property
    def head(self) -> Head:
        if not self.num_numbers:
            return CategoricalHeads(self.head_sizes)
        head = GaussianHead(self.box, 0.0, self.squashes)
        torch.nn.init.uniform_(head.log_std, -1.0, 0.5, generator=torch.Generator().manual_seed(5))
        return head

    @property
    def columns(self) -> slice:
        return slice(0, len(self.agents)) if self.has_own_arrays else slice(self.agents.start, self.agents.stop)

    @property
    def num_columns(self) -> int:
        return len(self.agents) if self.has_own_arrays else self.num_agents

    @property
    def layout(self) -> Layout:
        """Of an env where agents before and behind the group see as it does, or something else."""
        mine = self.space or spaces.Box(-np.inf, np.inf, (self.num_features,), np.float32)
        others = spaces.Box(-np.inf, np.inf, (2,), np.float32) if self.has_own_arrays else mine
        parts = {"a": range(self.agents.start), "group": self.agents, "z": range(self.agents.stop, self.num_agents)}
        action = spaces.Discrete(2)
        groups = {
            name: Group(agents, mine if name == "group" else others, action) for name, agents in parts.items() if agents
        }
        state = spaces.Box(-np.inf, np.inf, (7,), np.float32) if self.central == GLOBAL_STATE else None
        return Layout(groups, state)

    @property
    def spec(self) -> GroupSpec:
        layout = self.layout
        seen, acts = tuple(layout.observation["group"].values()), Place("action", self.columns)
        space = self.space or spaces.Box(-np.inf, np.inf, (self.num_features,), np.float32)
        return GroupSpec(
            "group", self.agents, layout, seen, acts, None, space, spaces.MultiDiscrete(self.head_sizes), self.leaves
        )

    @property
    def features(self) -> Features:
        """What agents see, as torch's path has it."""
        spec = self.spec
        return Features(spec.layout, spec.seen, spec.observation_space, len(self.agents) * self.sees_agent_id)

    @property
    def central_features(self) -> CentralFeatures | None:
        return None if self.central is None else central_features(self.layout, len(self.agents))


class Shown:
    """What an env shows in some steps, made of random numbers; what other agents see is a NaN, if nobody reads it.

    arrays [*steps, E, ...] by name, as the env has them; rows [*steps, E, A, features] and critic_rows, as torch's path
    makes them of these.

    Args:
        active: [*steps, E, all agents] bool, or None.
    """

    def __init__(
        self, case: Case, steps: tuple[int, ...], active: torch.Tensor | None, generator: torch.Generator
    ) -> None:
        layout, features, central = case.layout, case.features, case.central_features
        self.arrays, shape = {}, (*steps, case.num_envs)
        mine = {place.array: place.columns for place in features.places}
        for name, array in layout.observations.items():
            columns = mine.get(name, slice(0, 0))
            if central is not None:
                columns = slice(None)  # the critic sees them all
            dtype = torch_dtype(array.dtype)
            self.arrays[name] = torch.full((*shape, array.num_agents, *array.shape), NOBODYS[dtype], dtype=dtype)
            part = self.arrays[name].movedim(len(shape), 0)[columns].movedim(0, len(shape))
            part.copy_(_random(part.shape, dtype, generator))
        if case.central == GLOBAL_STATE:
            self.arrays[GLOBAL_STATE] = torch.randn(*shape, 7, generator=generator)
        flat = {name: array.flatten(0, len(steps)) for name, array in self.arrays.items()}
        self.rows = features.of_step(flat).unflatten(0, shape)
        self.critic_rows = None
        if central is not None:
            if active is not None:
                active = active[..., case.agents.start : case.agents.stop].flatten(0, len(steps))
            self.critic_rows = central.of_step(flat, active).unflatten(0, shape)


NOBODYS = {
    torch.float32: float("nan"), torch.float64: float("nan"), torch.int32: 10**6, torch.int16: 10**4, torch.int8: 127,
    torch.uint8: 255, torch.bool: True,
}  # fmt: skip
"""What nobody may read."""


def _random(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    low, high = {torch.bool: (0, 2), torch.uint8: (0, 256), torch.int8: (-128, 128)}.get(dtype, (-3, 4))
    return torch.randint(low, high, shape, generator=generator).to(dtype)


def chi_square(counts: torch.Tensor, expected: torch.Tensor) -> float:
    """Of counts against what they should be."""
    return ((counts - expected).square() / expected).sum().item()


def bound_of_chi_square(num_cells: int) -> float:
    """What it exceeds once in 100,000 times (Wilson and Hilferty 1931)."""
    freedom = num_cells - 1
    return freedom * (1 - 2 / (9 * freedom) + 4.27 * (2 / (9 * freedom)) ** 0.5) ** 3


def make_policy(case: Case, config: PolicyConfig | None = None) -> Policy:
    """On the CPU. Biases are not 0, and actions not about as likely as each other, as they are where a run starts."""
    generator = torch.Generator().manual_seed(11)
    model = ModelConfig(
        fc_dims=case.widths,
        shared_trunk=case.critic_widths is None,
        critic_fc_dims=case.critic_widths,
        activation=case.activation,
        layer_norm=case.layer_norm,
    )
    head, num_features, central = case.head, case.features.num_features, case.central_features
    num_critic_features = None if central is None else central.num_features
    inputs = Inputs(num_features, num_critic_features)
    network = MLP(model, inputs, {"policy": head.num_outputs, "value": 1}, generator)
    if config is None:
        config = PolicyConfig(normalize_observation=case.normalises)
    policy = Policy(network, head, config, num_features, num_critic_features)
    with torch.no_grad():
        network.policy_head.weight.mul_(20.0 if case.num_numbers else 100.0)
        for name, parameter in policy.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0.0, 0.3, generator=generator)
        for layer in network.modules():
            if isinstance(layer, torch.nn.LayerNorm):
                layer.weight.uniform_(0.5, 1.5, generator=generator)
        for norm in (policy.observation_norm, policy.critic_norm):
            if norm is not None:
                norm.mean.normal_(0.0, 0.5, generator=generator)
                norm.variance.uniform_(0.3, 3.0, generator=generator)
    return policy


def make_packed(case: Case, policy: Policy, backend: Backend, precision: str) -> PackedPolicy:
    seen, spec = Seen.by_actor(case.spec, case.sees_agent_id), case.spec
    request = Request(seen.num_features, case.widths, case.head_sizes, case.critic_widths, activation=case.activation)
    request = replace(request, normalises=policy.observation_norm is not None, seen=seen, num_numbers=case.num_numbers)
    request = replace(request, norms_input=case.layer_norm in (True, "all"))
    request = replace(request, norms_hidden=case.layer_norm in ("hidden", "all"))
    if case.central is not None:
        request = replace(request, critic_seen=Seen.by_central_critic(spec))
    limits = Limits.of(backend)
    if case.by_groups and limits.capability is None:
        limits = replace(limits, has_warpgroups=True, num_multiprocessors=1)  # whose block has more rows than at once
    return pack(policy, plan(request, limits, precision), backend)


def make_mask(case: Case, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """[*shape, outputs]: three of four actions may be taken; one head in eight allows none."""
    parts = []
    for size in case.head_sizes:
        part = torch.rand(*shape, size, generator=generator) < 0.75
        parts.append(part & (torch.rand(*shape, 1, generator=generator) > 0.125))
    return torch.cat(parts, dim=-1)


def with_rounded_factors(policy: Policy) -> Policy:
    """A copy that multiplies bfloat16 by bfloat16; sums and biases stay as they are. Gain and shift of a LayerNorm of
    the input are part of the layer behind it."""
    policy = copy.deepcopy(policy)
    for trunk in (policy.network.trunk, policy.network.critic_trunk or ()):
        if len(trunk) > 1 and isinstance(trunk[0], torch.nn.LayerNorm):
            norm, layer = trunk[:2]
            layer.bias.data += layer.weight.data @ norm.bias.data
            layer.weight.data *= norm.weight.data
            norm.weight.data.fill_(1.0)
            norm.bias.data.zero_()
    for layer in policy.network.modules():
        if isinstance(layer, torch.nn.Linear):
            layer.weight.data = layer.weight.to(torch.bfloat16).to(layer.weight.dtype)
            layer.register_forward_pre_hook(lambda _, given: (given[0].to(torch.bfloat16).to(given[0].dtype),))
    return policy


class Players(FusedPlayers):
    """Compiles what judges only if it is asked to."""

    def _compile(self, networks: list, draws: bool) -> object:
        return super()._compile(networks, draws) if draws else None

    def prepare_end(self) -> list[Callable[[], None]]:
        self._judge = super()._compile(self._judging, draws=False)
        return super().prepare_end()


class Step:
    """One step of a group that acts by the fused kernels.

    policy is float64, on the CPU; action [E, A, heads], log_prob, value [E, A], observation [E, A, F] and mask are what
    the kernels wrote and read. drawn [E, A, numbers] is what the action of a Box was before it was clipped.
    """

    def __init__(self, case: Case, backend: Backend, precision: str, greedy: bool = False) -> None:
        generator = torch.Generator().manual_seed(23)
        num_envs = case.num_envs * (40 if backend.name == "cuda" else 1)
        case, shape = replace(case, num_envs=num_envs), (num_envs, len(case.agents))
        policy = make_policy(case)
        self.case = case
        self.policy = copy.deepcopy(policy).double()
        self.backend = backend
        device = backend.device
        self.packed = make_packed(case, policy.to(device), backend, precision)
        active = torch.rand(num_envs, case.num_agents, generator=generator) < 0.7 if case.leaves else None
        shown = Shown(case, (), active, generator)
        self.observation, self.critic_input = shown.rows, shown.critic_rows
        self.mask = make_mask(case, shape, generator).to(device) if case.has_mask else None
        data = DataManager(device)
        data.push("seed", seed_words(77, first_env=5))
        data.push("env_step", np.arange(num_envs) * 3)
        for name, array in shown.arrays.items():
            data.push(name, array)
        heads = () if len(case.head_sizes) == 1 else (case.num_heads,)
        dtype = torch.float32 if case.num_numbers else torch.int32
        self.all_actions = data.push("action", torch.full((num_envs, case.num_columns, *heads), UNTOUCHED, dtype=dtype))
        self.env = SimpleNamespace(
            num_envs=num_envs, num_agents=case.num_agents, device=device, data=data, backend=backend
        )
        # A row more than there is: nobody may write it.
        self._written = torch.full((3, num_envs + 1, shape[1]), float(UNTOUCHED), device=device)
        self.log_prob, self.value, self._judged = (one[:-1] for one in self._written)
        self._drawn = torch.full((num_envs + 1, shape[1], case.num_numbers), float(UNTOUCHED), device=device)
        self.drawn = self._drawn[:-1]
        group = SimpleNamespace(
            name="group",
            policy=policy,
            agents=case.agents,
            spec=case.spec,
            mask=None if self.mask is None else self.mask.unsqueeze(0),
            seen_array=data[case.features.places[0].array].unsqueeze(0),
            credits_team=False,
            action_array=self.all_actions.unsqueeze(0),
            action=self.drawn.unsqueeze(0),
            log_prob=self.log_prob.unsqueeze(0),
            value=self._written[1:, :-1],
            rollout=SimpleNamespace(
                env=self.env,
                max_truncations=0,
                active=None if active is None else active.expand(2, -1, -1).contiguous().to(device),
                seen=lambda t: {name: data[name] for name in shown.arrays},
            ),
        )
        stage = SimpleNamespace(greedy=["group"] if greedy else [])
        self.players = Players([SimpleNamespace(group=group, stage=stage)])
        self._calls = self.players.prepare_step(0)
        self.packed.pack()
        self.act()

    def act(self) -> None:
        for call in self._calls:
            call()

    def judge(self) -> torch.Tensor:
        """The values alone, [E, A]."""
        for call in self.players.prepare_end():
            call()
        return self._judged

    @property
    def action(self) -> torch.Tensor:
        mine = self.all_actions[:, self.case.columns]
        return mine.reshape(*mine.shape[:2], self.case.num_heads)

    def expect(self, rounds: bool = False) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Outputs [N, outputs], log_prob [N] of the drawn actions, and value [N], by torch in float64.

        If `rounds`, what tensor cores multiply is rounded to bfloat16 before: weights and what goes into each layer.
        """
        policy = with_rounded_factors(self.policy) if rounds else self.policy
        with torch.no_grad():
            critic_input = None if self.critic_input is None else self.critic_input.flatten(0, 1).double()
            outputs, value = policy(self.observation.flatten(0, 1).double(), critic_input)
            mask = None if self.mask is None else self.mask.flatten(0, 1).cpu()
            taken = self.drawn.double() if self.case.num_numbers else self.action
            log_prob, _ = self.policy.head.log_prob_and_entropy(outputs, taken.flatten(0, 1).cpu(), mask)
        return outputs, log_prob, value

    def assert_nothing_else_was_written(self) -> None:
        others = torch.ones(self.case.num_columns, dtype=torch.bool)
        others[self.case.columns] = False
        assert (self.all_actions[:, others.to(self.all_actions.device)] == UNTOUCHED).all()
        assert (self._written[:, -1] == UNTOUCHED).all() and (self._drawn[-1] == UNTOUCHED).all()


def assert_close(found: torch.Tensor, expected: torch.Tensor, precision: str, rms: float = 1e-2) -> None:
    """To 1e-5 of the largest; in bfloat16, which keeps 8 bits, to 1e-2, and to `rms` in the mean."""
    found, largest = found.flatten().double().cpu(), expected.abs().max().clamp_min(1.0)
    assert torch.isfinite(found).all()
    error = (found - expected).abs()
    assert error.max() <= (1e-5 if precision == FULL else 1e-2) * largest
    assert error.square().mean().sqrt() <= (1e-6 if precision == FULL else rms) * expected.square().mean().sqrt()


def assert_is_torchs(step: Step, precision: str = FULL, rms: float = 1e-2) -> None:
    """In bfloat16, what differs from torch comes from rounding what is multiplied, and from nothing else."""
    _, log_prob, value = step.expect()
    assert_close(step.log_prob, log_prob, precision)
    assert_close(step.value, value, precision, rms)
    if precision == FULL:
        return
    _, log_prob, value = step.expect(rounds=True)
    for found, expected in ((step.log_prob, log_prob), (step.value, value)):
        error = found.flatten().double().cpu() - expected
        assert error.square().mean().sqrt() <= 1e-3 * expected.square().mean().sqrt()
