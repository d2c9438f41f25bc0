"""The kernels `gae` and `gae_with_inactive`, and the reference, against the definition, summed step by step in plain
Python."""

import math
from dataclasses import dataclass

import pytest
import torch

from trainers.targets.gae import SOURCE, gae_reference
from warpdrive.data_manager import DataManager
from warpdrive.function_manager import FunctionManager

KERNELS = pytest.mark.parametrize("comes_back", [None, 0.0, 0.2], ids=["gae", "inactive", "inactive, and back"])


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
    """None where nobody leaves the game before its end, which is what `gae` is for."""
    value_moments: tuple[float, float] = (0.0, 1.0)
    reward_scale: float = 1.0
    reward_clip: float = math.inf
    discount: float = 0.97
    gae_lambda: float = 0.9

    def by_reference(self) -> torch.Tensor:
        steps = (self.reward, self.value, self.next_value, self.terminated, self.truncated)
        return gae_reference(*steps, self.discount, self.gae_lambda)


def by_hand(played: Played, max_truncations: int) -> torch.Tensor:
    """For every step of an agent in the game: what later steps surprise with, up to where its future ends."""
    num_steps, num_envs, num_agents = played.reward.shape
    mean, deviation = played.value_moments
    advantage = torch.zeros(played.reward.shape, dtype=torch.float64)

    def surprise_and_whether_it_goes_on(t: int, env: int, agent: int) -> tuple[float, bool]:
        reward = played.reward[t, env, agent].item() * played.reward_scale
        reward = min(max(reward, -played.reward_clip), played.reward_clip)
        value = played.value[t, env, agent].item() * deviation + mean
        next_value = played.next_value[t, env, agent].item() * deviation + mean
        terminated, truncated = played.terminated[t, env].item(), played.truncated[t, env].item()
        survived = played.survived is None or played.survived[t, env, agent].item()
        if truncated and played.truncated[:t, env].sum() >= max_truncations:
            next_value = 0.0  # there was no room to keep what it saw last
        if terminated or not survived:
            next_value = 0.0
        return reward + played.discount * next_value - value, survived and not terminated and not truncated

    for t in range(num_steps):
        for env in range(num_envs):
            for agent in range(num_agents):
                if played.active is not None and not played.active[t, env, agent]:
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
    for name in ("reward", "terminated", "truncated", *(() if played.active is None else ("active", "survived"))):
        data.push(name, getattr(played, name))
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
    functions = FunctionManager(data, SOURCE, num_envs=num_envs, num_agents=num_agents, backend=backend)
    sizes = {"group_start": agents.start, "group_size": len(agents), "num_steps": num_steps}
    functions.launch(
        "gae" if played.active is None else "gae_with_inactive",
        reward_clip=min(played.reward_clip, torch.finfo(torch.float32).max),
        discount=played.discount, gae_lambda=played.gae_lambda, max_truncations=max_truncations, **sizes,
    )  # fmt: skip
    return advantage.cpu()


def random_rollout(seed: int, comes_back: float | None, num_steps: int = 17, num_envs: int = 9, num_agents: int = 4):
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
    return Played(reward, value, next_value, terminated, truncated, active, survived)


@KERNELS
@pytest.mark.parametrize("seed", range(5))
def test_kernel_and_reference_are_the_sum_of_the_definition(seed, comes_back, backend):
    played = random_rollout(seed, comes_back)
    expected = by_hand(played, max_truncations=17)
    torch.testing.assert_close(by_kernel(played, backend).double(), expected, rtol=1e-5, atol=1e-5)
    if comes_back is None:
        torch.testing.assert_close(played.by_reference().double(), expected, rtol=1e-5, atol=1e-5)
    else:
        assert (played.active[:-1] & ~played.survived).any() and (~played.active[:-1]).any()


@KERNELS
@pytest.mark.parametrize("seed", range(3))
def test_units_scale_clip_and_lack_of_room_are_those_of_the_definition(seed, comes_back, backend):
    played = random_rollout(seed, comes_back)
    played.value_moments, played.reward_scale, played.reward_clip = (1.5, 0.5), 2.0, 1.25
    assert (played.truncated.sum(0) > 2).any(), "some have no room for what they saw last"
    expected = by_hand(played, max_truncations=2)
    torch.testing.assert_close(by_kernel(played, backend, 2).double(), expected, rtol=1e-5, atol=1e-5)


@KERNELS
def test_kernel_fills_only_its_group(comes_back, backend):
    played = random_rollout(1, comes_back)
    everyone, group = (by_kernel(played, backend, agents=agents) for agents in (range(4), range(1, 3)))
    assert torch.equal(group, everyone[:, :, 1:3])


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
