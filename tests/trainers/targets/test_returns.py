import pytest
import torch

from trainers.targets.gae import SOURCE, gae_reference
from warpdrive.data_manager import DataManager
from warpdrive.function_manager import FunctionManager


def steps(*values: float | bool) -> torch.Tensor:
    """One env with one agent: [T, 1, 1], or [T, 1] for flags."""
    tensor = torch.tensor(values)
    return tensor.view(-1, 1) if tensor.dtype == torch.bool else tensor.float().view(-1, 1, 1)


def by_hand(reward, value, next_value, terminated, truncated, discount, gae_lambda):
    """The definition: sum over l of (discount lambda)^l times the surprise of step t + l, up to the episode's end."""
    num_steps, num_envs = reward.shape[:2]
    advantage = torch.zeros_like(reward, dtype=torch.float64)
    for t in range(num_steps):
        for env in range(num_envs):
            for later in range(t, num_steps):
                future = 0.0 if terminated[later, env] else discount * next_value[later, env].double()
                surprise = reward[later, env].double() + future - value[later, env].double()
                advantage[t, env] += (discount * gae_lambda) ** (later - t) * surprise
                if terminated[later, env] or truncated[later, env]:
                    break
    return advantage


def by_kernel(
    reward,
    value,
    next_value,
    terminated,
    truncated,
    discount,
    gae_lambda,
    backend,
    agents=None,
    value_moments=(0.0, 1.0),
    reward_scale=1.0,
    reward_clip=1e30,
):
    """Lays `next_value` out as a rollout does, next to `value` and among the final values, and launches `gae`."""
    num_steps, num_envs, num_agents = reward.shape
    agents = agents or range(num_agents)
    data = DataManager(backend.device)
    data.push("reward", reward)
    data.push("terminated", terminated)
    data.push("truncated", truncated)
    columns = slice(agents.start, agents.stop)
    data.push("value", torch.cat([value, next_value[-1:]])[:, :, columns].contiguous())
    final_value = torch.full((num_steps, num_envs, num_agents), torch.nan)
    num_truncated = torch.zeros(num_envs, dtype=torch.int32)
    for t in range(num_steps):
        for env in range(num_envs):
            if truncated[t, env]:
                final_value[num_truncated[env], env] = next_value[t, env]
                num_truncated[env] += 1
    data.push("final_value", final_value[:, :, columns].contiguous())
    data.push("num_truncated", num_truncated)
    data.push("value_moments", torch.tensor(value_moments))
    data.push("reward_scale", torch.tensor([reward_scale]))
    advantage = data.push("advantage", torch.full((num_steps, num_envs, len(agents)), torch.nan))
    functions = FunctionManager(data, SOURCE, num_envs=num_envs, num_agents=num_agents, backend=backend)
    functions.launch(
        "gae",
        reward_clip=reward_clip,
        discount=discount,
        gae_lambda=gae_lambda,
        group_start=agents.start,
        group_size=len(agents),
        num_steps=num_steps,
        max_truncations=num_steps,
    )
    return advantage.cpu()


def random_rollout(seed: int, num_steps: int = 17, num_envs: int = 9, num_agents: int = 3):
    """Random numbers and flags; where no episode ends, what comes next is what the next step sees."""
    generator = torch.Generator().manual_seed(seed)
    shape = (num_steps, num_envs, num_agents)
    reward = torch.randn(shape, generator=generator)
    value = torch.randn(shape, generator=generator)
    terminated = torch.rand(shape[:2], generator=generator) < 0.15
    truncated = torch.rand(shape[:2], generator=generator) < 0.15  # some steps are both
    next_value = torch.randn(shape, generator=generator)
    goes_on = ~(terminated | truncated)[:-1].unsqueeze(-1).expand(num_steps - 1, num_envs, num_agents)
    next_value[:-1][goes_on] = value[1:][goes_on]
    return reward, value, next_value, terminated, truncated


@pytest.mark.parametrize("seed", range(5))
def test_kernel_is_the_sum_of_the_definition(seed, backend):
    rollout = random_rollout(seed)
    expected = by_hand(*rollout, 0.97, 0.9)
    torch.testing.assert_close(by_kernel(*rollout, 0.97, 0.9, backend).double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_reference_is_the_sum_of_the_definition(seed):
    rollout = random_rollout(seed)
    expected = by_hand(*rollout, 0.97, 0.9)
    torch.testing.assert_close(gae_reference(*rollout, 0.97, 0.9).double(), expected, rtol=1e-5, atol=1e-5)


def test_kernel_fills_only_its_group(backend):
    rollout = random_rollout(seed=1)
    everyone = by_kernel(*rollout, 0.97, 0.9, backend)
    group = by_kernel(*rollout, 0.97, 0.9, backend, agents=range(1, 3))
    assert torch.equal(group, everyone[:, :, 1:3])


def test_values_in_the_critics_unit_give_the_same_advantages(backend):
    reward, value, next_value, *flags = random_rollout(seed=2)
    expected = by_kernel(reward, value, next_value, *flags, 0.97, 0.9, backend)
    of_critic = ((one - 5.0) / 3.0 for one in (value, next_value))  # value * 3 + 5 is in rewards
    found = by_kernel(reward, *of_critic, *flags, 0.97, 0.9, backend, value_moments=(5.0, 3.0))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)


def test_rewards_are_scaled_and_then_clipped(backend):
    # 1 and 3 by 0.5 are 0.5 and 1.5, of which 1 is left. 0.5 + 0.5 * 1 = 1.
    arguments = (steps(1.0, 3.0), steps(0.0, 0.0), steps(0.0, 0.0), steps(False, False), steps(False, False), 0.5, 1.0)
    assert by_kernel(*arguments, backend, reward_scale=0.5, reward_clip=1.0).flatten().tolist() == [1.0, 1.0]


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
    # Values are 0, so that advantages are returns. 8 follows the last step; 6 is seen before the first step's reset.
    next_value = steps(6.0 if truncated[0] else 0.0, 8.0)
    arguments = (steps(1.0, 3.0), steps(0.0, 0.0), next_value, steps(*terminated), steps(*truncated), 0.5, 1.0)
    assert gae_reference(*arguments).flatten().tolist() == expected
    assert by_kernel(*arguments, backend).flatten().tolist() == expected


def test_lambda_zero_trusts_the_critic_alone(backend):
    # 1 + 0.5 * 4 - 2 = 1, and 3 + 0.5 * 8 - 4 = 3.
    arguments = (steps(1.0, 3.0), steps(2.0, 4.0), steps(4.0, 8.0), steps(False, False), steps(False, False), 0.5, 0.0)
    assert by_kernel(*arguments, backend).flatten().tolist() == [1.0, 3.0]
