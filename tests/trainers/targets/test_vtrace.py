"""V-trace: the kernel and the reference against the paper's sum, against TorchRL's, and against GAE's where nothing is
clipped; however many warps share the steps."""

import math

import pytest
import torch
from oracles.targets import gae_reference, vtrace_reference

from trainers.targets.vtrace import SOURCE
from warpdrive.backends.base import LaunchShape
from warpdrive.data_manager import DataManager
from warpdrive.function_manager import FunctionManager

NAMES = ("reward", "value", "next_value", "log_ratio", "terminated", "truncated")
DISCOUNT, LAMBDA, MAX_RHO, MAX_C = 0.97, 0.9, 1.3, 0.8


def rollout(seed: int, num_steps: int = 17, num_envs: int = 9, num_agents: int = 4) -> dict[str, torch.Tensor]:
    """Random numbers and flags, [T, E, A] and [T, E]; what was seen after a step is what is seen before the next."""
    generator = torch.Generator().manual_seed(seed)
    shape = (num_steps, num_envs, num_agents)
    found = {name: torch.randn(shape, generator=generator) for name in NAMES[:4]}
    found["terminated"], found["truncated"] = (torch.rand(shape[:2], generator=generator) < p for p in (0.1, 0.15))
    ended = (found["terminated"] | found["truncated"]).unsqueeze(-1)
    found["next_value"][:-1] = torch.where(ended[:-1], found["next_value"][:-1], found["value"][1:])
    return found


def by_definition(played: dict[str, torch.Tensor], left: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum of the paper's remark 1, in float64; `left` [T, E, A]: after the step an agent is out."""
    reward, value, next_value, log_ratio = (played[name].double() for name in NAMES[:4])
    terminated, truncated = played["terminated"], played["truncated"]
    target, advantage = torch.zeros_like(value), torch.zeros_like(value)
    num_steps, num_envs, num_agents = value.shape
    for env in range(num_envs):
        for agent in range(num_agents):
            of_env = lambda one: one[:, env, agent].tolist()  # noqa: B023, E731
            r, v, v_next, ratio = of_env(reward), of_env(value), of_env(next_value), of_env(log_ratio.exp())
            for t in range(num_steps):
                weight, goes_on = 1.0, True
                target[t, env, agent] = v[t]
                for later in range(t, num_steps):
                    ends = bool(terminated[later, env]) or bool(left[later, env, agent])
                    goes_on = not ends and not truncated[later, env]
                    future = 0.0 if ends else DISCOUNT * v_next[later]
                    rho, c = min(ratio[later], MAX_RHO), min(ratio[later], MAX_C)
                    target[t, env, agent] += weight * rho * (r[later] + future - v[later])
                    weight *= DISCOUNT * LAMBDA * c
                    if not goes_on:
                        break
            for t in range(num_steps):
                ends = bool(terminated[t, env]) or bool(left[t, env, agent])
                future = 0.0 if ends else v_next[t]
                if not ends and not truncated[t, env] and t + 1 < num_steps:
                    future = float(target[t + 1, env, agent])
                advantage[t, env, agent] = min(ratio[t], MAX_RHO) * (r[t] + DISCOUNT * future - v[t])
    return advantage, target


def by_kernel(
    played: dict[str, torch.Tensor], backend, num_segments: int, survived: torch.Tensor | None = None, **bounds: float
) -> tuple[torch.Tensor, torch.Tensor]:
    num_steps, num_envs, num_agents = played["value"].shape
    data = DataManager(backend.device)
    for name in ("reward", "terminated", "truncated", "log_ratio"):
        data.push(name, played[name])
    nothing = torch.zeros(1, dtype=torch.bool)
    data.push("survived", nothing if survived is None else survived)
    data.push("active", nothing if survived is None else torch.ones(num_steps + 1, num_envs, num_agents).bool())
    data.push("value", torch.cat([played["value"], played["next_value"][-1:]]))
    final_value, number = torch.full((num_steps, num_envs, num_agents), torch.nan), [0] * num_envs
    for t, env in played["truncated"].nonzero().tolist():
        final_value[number[env], env] = played["next_value"][t, env]
        number[env] += 1
    data.push("final_value", final_value)
    data.push("value_moments", torch.tensor([0.0, 1.0]))
    data.push("reward_scale", torch.ones(1))
    found = [data.push(name, torch.full_like(played["value"], torch.nan)) for name in ("advantage", "target")]
    constants = {"HAS_ACTIVE": survived is not None, "NUM_SEGMENTS": num_segments}
    constants["SEGMENT"] = -(-num_steps // num_segments)
    functions = FunctionManager(data, SOURCE, constants, backend=backend)
    given = {"discount": DISCOUNT, "trace_lambda": LAMBDA, "max_rho": MAX_RHO, "max_c": MAX_C, **bounds}
    shape = LaunchShape(-(-num_envs * num_agents // 32), (32 * num_segments, 1))
    functions.prepare(
        "vtrace", shape, reward_clip=1e30, group_start=0, group_size=num_agents, num_steps=num_steps,
        max_truncations=num_steps, num_envs=num_envs, num_agents=num_agents, **given,
    )()  # fmt: skip
    return tuple(one.cpu() for one in found)


@pytest.mark.parametrize("num_segments", [1, 2, 5, 17, 32])
def test_kernel_and_reference_are_the_sum_of_the_definition(num_segments, backend):
    played = rollout(num_segments)
    nobody = torch.zeros_like(played["value"], dtype=torch.bool)
    for found, expected in zip(by_kernel(played, backend, num_segments), by_definition(played, nobody), strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    reference = vtrace_reference(*(played[name].double() if i < 4 else played[name] for i, name in enumerate(NAMES)),
                                 DISCOUNT, LAMBDA, MAX_RHO, MAX_C)  # fmt: skip
    for found, expected in zip(reference, by_definition(played, nobody), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_who_leaves_the_game_has_no_future(backend):
    played = rollout(3)
    left = torch.rand(played["value"].shape, generator=torch.Generator().manual_seed(1)) < 0.2
    for found, expected in zip(by_kernel(played, backend, 3, ~left), by_definition(played, left), strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_of_the_policy_that_played_it_is_gae(backend):
    """Every ratio is 1, and no bound below it: the target is GAE's, and with lambda 1 the advantage, too."""
    played = rollout(4) | {"log_ratio": torch.zeros(17, 9, 4)}
    steps = [played[name] for name in ("reward", "value", "next_value", "terminated", "truncated")]
    for trace_lambda in (0.9, 1.0):
        bounds = {"trace_lambda": trace_lambda, "max_rho": 1.0, "max_c": 1.0}
        advantage, target = by_kernel(played, backend, 4, **bounds)
        expected = gae_reference(*steps, DISCOUNT, trace_lambda)
        torch.testing.assert_close(target, expected + played["value"], rtol=1e-5, atol=1e-5)
        if trace_lambda == 1.0:
            torch.testing.assert_close(advantage, expected, rtol=1e-5, atol=1e-5)


def test_reference_is_torchrls():
    """On rollouts without truncations, with lambda 1, which it does not have; it holds the bounds in float32."""
    pytest.importorskip("torchrl")
    from torchrl.objectives.value.functional import vtrace_advantage_estimate

    played = {name: one.double() if one.is_floating_point() else one for name, one in rollout(5).items()}
    played["truncated"] = torch.zeros_like(played["truncated"])
    ended = played["terminated"].unsqueeze(-1)
    played["next_value"][:-1] = torch.where(ended[:-1], played["next_value"][:-1], played["value"][1:])
    ours = vtrace_reference(*(played[name] for name in NAMES), DISCOUNT, 1.0, 1.3, 0.8)
    num_envs, num_agents = played["value"].shape[1:]
    for env in range(num_envs):
        for agent in range(num_agents):
            value, next_value, reward, ratio = (
                played[name][:, env, agent, None] for name in ("value", "next_value", "reward", "log_ratio")
            )
            ends = played["terminated"][:, env, None]
            advantage, target = vtrace_advantage_estimate(
                DISCOUNT, ratio, torch.zeros_like(ratio), value, next_value, reward, ends, ends, 1.3, 0.8
            )
            torch.testing.assert_close(ours[0][:, env, agent], advantage[:, 0], rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(ours[1][:, env, agent], target[:, 0], rtol=1e-5, atol=1e-5)


def test_two_steps_by_hand():
    """Paid 1 and 2, values 0 and 4, discount 1/2, then the end. The second action became twice as likely, and counts
    once: d is 2 - 4 = -2. The first, half as likely, counts half: d is (1 + 4/2)/2 - (1/2)(1/2) 2 = 1."""
    of = lambda *numbers: torch.tensor(numbers).view(-1, 1, 1)  # noqa: E731
    ends, never = torch.tensor([[False], [True]]), torch.tensor([[False], [False]])
    given = (of(1.0, 2.0), of(0.0, 4.0), of(4.0, 9.0), of(math.log(0.5), math.log(2.0)), ends, never)
    advantage, target = vtrace_reference(*given, 0.5, 1.0, 1.0, 1.0)
    assert target.flatten().tolist() == [1.0, 2.0]
    assert advantage.flatten().tolist() == [0.5 * (1.0 + 0.5 * 2.0), -2.0]
