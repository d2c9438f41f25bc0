"""The kernel `gae`, of every kind of group, and the reference, against the definition, summed step by step in plain
Python."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from oracles.targets import gae_reference

from trainers.targets.gae import SOURCE
from warpdrive.data_manager import DataManager
from warpdrive.function_manager import FunctionManager

LEAVING = {
    "gae": (None, False),
    "inactive": (0.0, False),
    "inactive, and back": (0.2, False),
    "team": (0.0, True),
    "team, and back": (0.2, True),
}
"""How often agents come back, None where none leave; whether the team is their credit."""
KERNELS = pytest.mark.parametrize("leaving", LEAVING.values(), ids=LEAVING)


@dataclass
class Played:
    """What a rollout holds; `next_value` [T, E, A] is that of what was seen after a step, before any reset."""

    reward: torch.Tensor
    value: torch.Tensor
    next_value: torch.Tensor
    terminated: torch.Tensor
    truncated: torch.Tensor
    active: torch.Tensor | None = None
    survived: torch.Tensor | None = None
    """None where nobody leaves the game before its end."""
    credits_team: bool = False
    value_moments: tuple[float, float] = (0.0, 1.0)
    reward_scale: float = 1.0
    reward_clip: float = math.inf
    discount: float = 0.97
    gae_lambda: float = 0.9

    def by_reference(self) -> torch.Tensor:
        steps = (self.reward, self.value, self.next_value, self.terminated, self.truncated)
        return gae_reference(*steps, self.discount, self.gae_lambda, self.active[:-1] if self.credits_team else None)


def by_hand(played: Played, max_truncations: int) -> torch.Tensor:
    """For every step of an agent in the game, and of others that their team pays: what later steps surprise with, up to
    where its future ends."""
    num_steps, num_envs, num_agents = played.reward.shape
    mean, deviation = played.value_moments
    advantage = torch.zeros(played.reward.shape, dtype=torch.float64)

    def paid(t: int, env: int, agent: int) -> float:
        if played.credits_team and not played.active[t, env, agent]:
            team = [paid(t, env, other) for other in range(num_agents) if played.active[t, env, other]]
            return sum(team) / len(team) if team else 0.0
        reward = played.reward[t, env, agent].item() * played.reward_scale
        return min(max(reward, -played.reward_clip), played.reward_clip)

    def surprise_and_whether_it_goes_on(t: int, env: int, agent: int) -> tuple[float, bool]:
        reward = paid(t, env, agent)
        value = played.value[t, env, agent].item() * deviation + mean
        next_value = played.next_value[t, env, agent].item() * deviation + mean
        terminated, truncated = played.terminated[t, env].item(), played.truncated[t, env].item()
        survived = played.survived is None or played.credits_team or played.survived[t, env, agent].item()
        if truncated and played.truncated[:t, env].sum() >= max_truncations:
            next_value = 0.0  # there was no room to keep what it saw last
        if terminated or not survived:
            next_value = 0.0
        return reward + played.discount * next_value - value, survived and not terminated and not truncated

    for t in range(num_steps):
        for env in range(num_envs):
            for agent in range(num_agents):
                if played.active is not None and not (played.credits_team or played.active[t, env, agent]):
                    continue
                for later in range(t, num_steps):
                    surprise, goes_on = surprise_and_whether_it_goes_on(later, env, agent)
                    advantage[t, env, agent] += (played.discount * played.gae_lambda) ** (later - t) * surprise
                    if not goes_on:
                        break
    return advantage


def by_kernel(played: Played, backend, max_truncations: int = 17, agents: range | None = None) -> torch.Tensor:
    """[T, E, agents of the group]. `next_value` is laid out as in a rollout, by `value` and among the final values."""
    num_steps, num_envs, num_agents = played.reward.shape
    agents = agents or range(num_agents)
    columns = slice(agents.start, agents.stop)
    data = DataManager(backend.device)
    for name in ("reward", "terminated", "truncated", "active", "survived"):
        one = getattr(played, name)
        data.push(name, torch.zeros(1, dtype=torch.bool) if one is None else one)
    data.push("value", torch.cat([played.value, played.next_value[-1:]])[:, :, columns].contiguous())
    final_value = torch.full((max_truncations, num_envs, num_agents), torch.nan)
    num_truncated = torch.zeros(num_envs, dtype=torch.int32)
    for t, env in played.truncated.nonzero().tolist():
        if num_truncated[env] < max_truncations:
            final_value[num_truncated[env], env] = played.next_value[t, env]
        num_truncated[env] += 1
    data.push("final_value", final_value[:, :, columns].contiguous())
    data.push("num_truncated", num_truncated)
    data.push("value_moments", torch.tensor(played.value_moments))
    data.push("reward_scale", torch.tensor([played.reward_scale]))
    advantage = data.push("advantage", torch.full((num_steps, num_envs, len(agents)), torch.nan))
    constants = {"HAS_ACTIVE": played.active is not None, "CREDITS_TEAM": played.credits_team}
    functions = FunctionManager(data, SOURCE, constants, num_envs, num_agents, backend)
    pay = {"group_start": agents.start, "group_size": len(agents), "num_steps": num_steps}
    pay["reward_clip"] = min(played.reward_clip, torch.finfo(torch.float32).max)
    data.push("team_reward", torch.full((num_steps, num_envs), torch.nan))
    if played.credits_team:
        functions.launch("team_rewards", **pay)
    functions.launch(
        "gae",
        discount=played.discount, gae_lambda=played.gae_lambda, max_truncations=max_truncations, **pay,
    )  # fmt: skip
    return advantage.cpu()


def random_rollout(
    seed: int, comes_back: float | None, credits_team: bool, num_steps: int = 17, num_envs: int = 9, num_agents: int = 4
) -> Played:
    """Random numbers and flags. Agents leave at random, unless `comes_back` is None; a reset brings all back, as
    `comes_back` does now and then."""
    generator = torch.Generator().manual_seed(seed)
    shape = (num_steps, num_envs, num_agents)

    def happens(probability: float, *of: int) -> torch.Tensor:
        return torch.rand(of, generator=generator) < probability

    reward, value, next_value = (torch.randn(shape, generator=generator) for _ in range(3))
    terminated, truncated = happens(0.1, *shape[:2]), happens(0.15, *shape[:2])  # some steps are both
    ended = (terminated | truncated).unsqueeze(-1)
    next_value[:-1] = torch.where(ended[:-1], next_value[:-1], value[1:])
    if comes_back is None:
        return Played(reward, value, next_value, terminated, truncated)
    active = torch.empty(num_steps + 1, num_envs, num_agents, dtype=torch.bool)
    survived = torch.empty(shape, dtype=torch.bool)
    active[0] = happens(0.8, num_envs, num_agents)  # some left before this rollout
    for t in range(num_steps):
        stays, back = happens(0.85, num_envs, num_agents), happens(comes_back, num_envs, num_agents)
        survived[t] = (active[t] & stays) | (~active[t] & back)
        active[t + 1] = survived[t] | ended[t]
    return Played(reward, value, next_value, terminated, truncated, active, survived, credits_team)


@KERNELS
@pytest.mark.parametrize("seed", range(5))
def test_kernel_and_reference_are_the_sum_of_the_definition(seed, leaving, backend):
    played = random_rollout(seed, *leaving)
    expected = by_hand(played, max_truncations=17)
    torch.testing.assert_close(by_kernel(played, backend).double(), expected, rtol=1e-5, atol=1e-5)
    if played.active is None or played.credits_team:
        torch.testing.assert_close(played.by_reference().double(), expected, rtol=1e-5, atol=1e-5)
    if played.active is not None:
        assert (played.active[:-1] & ~played.survived).any() and (~played.active[:-1]).any()


@KERNELS
@pytest.mark.parametrize("seed", range(3))
def test_units_scale_clip_and_lack_of_room_are_those_of_the_definition(seed, leaving, backend):
    played = random_rollout(seed, *leaving)
    played.value_moments, played.reward_scale, played.reward_clip = (1.5, 0.5), 2.0, 1.25
    assert (played.truncated.sum(0) > 2).any(), "some have no room for what they saw last"
    expected = by_hand(played, max_truncations=2)
    torch.testing.assert_close(by_kernel(played, backend, 2).double(), expected, rtol=1e-5, atol=1e-5)


@KERNELS
def test_kernel_fills_only_its_group(leaving, backend):
    played = random_rollout(1, *leaving)
    of_group = ("reward", "value", "next_value", *(() if played.active is None else ("active", "survived")))
    alone = replace(played, **{name: getattr(played, name)[:, :, 1:3].contiguous() for name in of_group})
    assert torch.equal(by_kernel(played, backend, agents=range(1, 3)), by_kernel(alone, backend))


def steps(*values: float | bool) -> torch.Tensor:
    """One env with one agent: [T, 1, 1], or [T, 1] for flags."""
    tensor = torch.tensor(values)
    return tensor.view(-1, 1) if tensor.dtype == torch.bool else tensor.float().view(-1, 1, 1)


CASES = {
    # Nothing ends: 1 + 0.5 * 3 + 0.25 * 8 = 4.5; the last step: 3 + 0.5 * 8 = 7 is no less counted.
    "nothing ends": ((False, False), (False, False), [1.0 + 0.5 * 7.0, 7.0]),
    "terminated step ignores next value": ((True, False), (False, False), [1.0, 7.0]),
    "truncated step bootstraps from before the reset": ((False, False), (True, False), [1.0 + 0.5 * 6.0, 7.0]),
    "terminated last step has no future": ((False, True), (False, False), [1.0 + 0.5 * 3.0, 3.0]),
    "truncated last step has one": ((False, False), (False, True), [1.0 + 0.5 * 7.0, 7.0]),
    "a step that is both has no future": ((True, False), (True, False), [1.0, 7.0]),
    # The second step takes the second kept value, 8; the first must then find its own, 6.
    "a step that is both counts what was kept": ((False, True), (True, True), [1.0 + 0.5 * 6.0, 3.0]),
}


@pytest.mark.parametrize("case", CASES)
def test_two_steps_by_hand(case, backend):
    terminated, truncated, expected = CASES[case]
    # Paid 1 and 3. Values are 0, so that advantages are returns. 8 follows the last step; 6 is seen before the first
    # step's reset.
    next_value = steps(6.0 if truncated[0] else 0.0, 8.0)
    ends = steps(*terminated), steps(*truncated)
    played = Played(steps(1.0, 3.0), steps(0.0, 0.0), next_value, *ends, discount=0.5, gae_lambda=1.0)
    assert played.by_reference().flatten().tolist() == by_kernel(played, backend).flatten().tolist() == expected


def test_an_agent_that_leaves_by_hand(backend):
    """Paid 1, 2 and 4 with discount 0.97; it leaves in the second step, and is paid for that. Then comes a reset."""
    played = Played(
        steps(1.0, 2.0, 4.0), steps(0.0, 0.0, 0.0), steps(0.0, 100.0, 100.0),
        terminated=steps(False, False, False), truncated=steps(False, False, True),
        active=steps(True, True, False, True).unsqueeze(-1), survived=steps(True, False, False).unsqueeze(-1),
    )  # fmt: skip
    found = by_kernel(played, backend, 1).flatten().tolist()
    assert found == pytest.approx([1.0 + 0.97 * 0.9 * 2.0, 2.0, 0.0])


@pytest.mark.parametrize(
    ("ends", "final", "leaver", "other"),
    [("terminated", (0.0, 0.0), [1.3125, 1.25, 1.0, 4.0], [2.875, 3.5, 6.0, 8.0]),
     ("truncated", (8.0, 16.0), [1.375, 1.5, 2.0, 8.0], [3.0, 4.0, 8.0, 16.0])],
)  # fmt: skip
def test_an_agent_that_leaves_for_its_team_by_hand(ends, final, leaver, other, backend):
    """Discount and lambda are 1/2. One agent leaves in the second step; from then on it is paid 4 and 8, as the other,
    and nobody reads its own rewards. It surprises with 8 - 4 = 4, or 8 + 8/2 - 4 = 8 before a truncation; before that
    with 4 + 4/2 - 6 = 0, 0 + 6/2 - 2 = 1 and 1 + 2/2 - 1 = 1; each advantage adds a quarter of the next.
    """
    value = torch.tensor([[1.0, 0.0], [2.0, 0.0], [6.0, 0.0], [4.0, 0.0]]).unsqueeze(1)
    at_end = steps(False, False, False, True)
    played = Played(
        reward=torch.tensor([[1.0, 2.0], [0.0, 2.0], [99.0, 4.0], [99.0, 8.0]]).unsqueeze(1), value=value,
        next_value=torch.cat([value[1:], torch.tensor([[final]])]),
        terminated=at_end & (ends == "terminated"), truncated=at_end & (ends == "truncated"),
        active=torch.tensor([[True, True], [True, True], [False, True], [False, True], [True, True]]).unsqueeze(1),
        survived=torch.tensor([[True, True], [False, True], [False, True], [False, True]]).unsqueeze(1),
        credits_team=True, discount=0.5, gae_lambda=0.5,
    )  # fmt: skip
    expected = torch.tensor([leaver, other]).T.unsqueeze(1)
    assert torch.equal(by_kernel(played, backend, 1), expected)
    assert torch.equal(played.by_reference(), expected)
