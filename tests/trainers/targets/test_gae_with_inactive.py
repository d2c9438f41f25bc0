"""`gae_with_inactive` against the definition in kernels/gae.cu, summed step by step in plain Python."""

import math
from dataclasses import dataclass

import pytest
import torch

from trainers.targets.gae import SOURCE
from warpdrive.data_manager import DataManager
from warpdrive.function_manager import FunctionManager

DISCOUNT, LAMBDA = 0.97, 0.9


@dataclass
class Played:
    """What a rollout holds; `next_value` [T, E, A] is that of what was seen after a step, before any reset."""

    reward: torch.Tensor
    value: torch.Tensor
    next_value: torch.Tensor
    terminated: torch.Tensor
    truncated: torch.Tensor
    active: torch.Tensor
    survived: torch.Tensor
    value_moments: tuple[float, float] = (0.0, 1.0)
    reward_scale: float = 1.0
    reward_clip: float = math.inf


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
        if truncated and played.truncated[:t, env].sum() >= max_truncations:
            next_value = 0.0  # there was no room to keep what it saw last
        if terminated or not played.survived[t, env, agent]:
            next_value = 0.0
        goes_on = played.survived[t, env, agent].item() and not terminated and not truncated
        return reward + DISCOUNT * next_value - value, goes_on

    for t in range(num_steps):
        for env in range(num_envs):
            for agent in range(num_agents):
                if not played.active[t, env, agent]:
                    continue
                for later in range(t, num_steps):
                    surprise, goes_on = surprise_and_whether_it_goes_on(later, env, agent)
                    advantage[t, env, agent] += (DISCOUNT * LAMBDA) ** (later - t) * surprise
                    if not goes_on:
                        break
    return advantage


def by_kernel(played: Played, backend, max_truncations: int, agents: range) -> torch.Tensor:
    """[T, E, agents of the group]."""
    num_steps, num_envs, num_agents = played.reward.shape
    columns = slice(agents.start, agents.stop)
    data = DataManager(backend.device)
    for name in ("reward", "terminated", "truncated", "active", "survived"):
        data.push(name, getattr(played, name))
    data.push("value", torch.cat([played.value, played.next_value[-1:]])[:, :, columns].contiguous())
    final_value = torch.full((max_truncations, num_envs, num_agents), torch.nan)
    num_truncated = torch.zeros(num_envs, dtype=torch.int32)
    for t in range(num_steps):
        for env in range(num_envs):
            if played.truncated[t, env]:
                if num_truncated[env] < max_truncations:
                    final_value[num_truncated[env], env] = played.next_value[t, env]
                num_truncated[env] += 1
    data.push("final_value", final_value[:, :, columns].contiguous())
    data.push("num_truncated", num_truncated)
    data.push("value_moments", torch.tensor(played.value_moments))
    data.push("reward_scale", torch.tensor([played.reward_scale]))
    advantage = data.push("advantage", torch.full((num_steps, num_envs, len(agents)), torch.nan))
    functions = FunctionManager(data, SOURCE, num_envs=num_envs, num_agents=num_agents, backend=backend)
    functions.launch(
        "gae_with_inactive",
        reward_clip=min(played.reward_clip, torch.finfo(torch.float32).max),
        discount=DISCOUNT,
        gae_lambda=LAMBDA,
        group_start=agents.start,
        group_size=len(agents),
        num_steps=num_steps,
        max_truncations=max_truncations,
    )
    return advantage.cpu()


def random_rollout(seed: int, num_steps: int = 17, num_envs: int = 9, num_agents: int = 4, comes_back: float = 0.0):
    """Random numbers and flags. Agents leave at random; a reset brings all back, as `comes_back` does now and then."""
    generator = torch.Generator().manual_seed(seed)
    shape = (num_steps, num_envs, num_agents)

    def happens(probability: float, *of: int) -> torch.Tensor:
        return torch.rand(of, generator=generator) < probability

    reward, value, next_value = (torch.randn(shape, generator=generator) for _ in range(3))
    terminated, truncated = happens(0.1, *shape[:2]), happens(0.15, *shape[:2])  # some steps are both
    ended = (terminated | truncated).unsqueeze(-1)
    next_value[:-1] = torch.where(ended[:-1], next_value[:-1], value[1:])
    active = torch.empty(num_steps + 1, num_envs, num_agents, dtype=torch.bool)
    survived = torch.empty(shape, dtype=torch.bool)
    active[0] = happens(0.8, num_envs, num_agents)  # some left before this rollout
    for t in range(num_steps):
        stays, back = happens(0.85, num_envs, num_agents), happens(comes_back, num_envs, num_agents)
        survived[t] = (active[t] & stays) | (~active[t] & back)
        active[t + 1] = survived[t] | ended[t]
    return Played(reward, value, next_value, terminated, truncated, active, survived)


@pytest.mark.parametrize("comes_back", [0.0, 0.2])
@pytest.mark.parametrize("seed", range(5))
def test_kernel_is_the_sum_of_the_definition(seed, comes_back, backend):
    played = random_rollout(seed, comes_back=comes_back)
    assert (played.active[:-1] & ~played.survived).any() and (~played.active[:-1]).any()
    expected = by_hand(played, max_truncations=17)
    found = by_kernel(played, backend, 17, range(4))
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_units_scale_clip_and_lack_of_room_are_those_of_the_definition(seed, backend):
    played = random_rollout(seed)
    played.value_moments, played.reward_scale, played.reward_clip = (1.5, 0.5), 2.0, 1.25
    assert (played.truncated.sum(0) > 2).any(), "some have no room for what they saw last"
    expected = by_hand(played, max_truncations=2)
    found = by_kernel(played, backend, 2, range(4))
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_it_fills_only_its_group(backend):
    played = random_rollout(seed=1)
    everyone, group = (by_kernel(played, backend, 17, agents) for agents in (range(4), range(1, 3)))
    assert torch.equal(group, everyone[:, :, 1:3])


def test_an_agent_that_leaves_by_hand(backend):
    """Paid 1, 2 and 4 with discount 0.97; it leaves in the second step, and is paid for that. Then comes a reset."""
    played = random_rollout(seed=0, num_steps=3, num_envs=1, num_agents=1)
    played.reward = torch.tensor([1.0, 2.0, 4.0]).view(3, 1, 1)
    played.value, played.next_value = torch.zeros(3, 1, 1), torch.full((3, 1, 1), 100.0)
    played.next_value[0] = 0.0
    played.terminated = torch.zeros(3, 1, dtype=torch.bool)
    played.truncated = torch.tensor([[False], [False], [True]])
    played.active = torch.tensor([True, True, False, True]).view(4, 1, 1)
    played.survived = torch.tensor([True, False, False]).view(3, 1, 1)
    found = by_kernel(played, backend, 1, range(1)).flatten().tolist()
    assert found == pytest.approx([1.0 + DISCOUNT * LAMBDA * 2.0, 2.0, 0.0])
