"""What is forgotten between a step of the envs and their reset: by the kernel as by torch."""

from types import SimpleNamespace

import pytest
import torch

from trainers.acting.memory import KernelMemory, Memory

NUM_ENVS, ALL_AGENTS, SIZE, NUM_TRUNCATIONS = 50, 5, 37, 2
AGENTS = range(2, 5)
"""Of the group; the env's others come first."""


class Data(dict):
    def push(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        self[name] = tensor.to(self["num_truncated"].device)
        return self[name]


def made(kind, backend, leaves: bool, credits_team: bool) -> Memory:
    """Random flags and numbers, the same each time."""
    generator = torch.Generator().manual_seed(11)

    def flags(*shape: int, part: float) -> torch.Tensor:
        return (torch.rand(shape, generator=generator) < part).to(backend.device)

    data = Data(num_truncated=torch.randint(0, 4, (NUM_ENVS,), generator=generator).int().to(backend.device))
    rollout = SimpleNamespace(
        num_envs=NUM_ENVS, num_steps=1, env=SimpleNamespace(data=data, backend=backend),
        terminated=flags(1, NUM_ENVS, part=0.2), truncated=flags(1, NUM_ENVS, part=0.4),
        active=flags(1, NUM_ENVS, ALL_AGENTS, part=0.8) if leaves else None,
        survived=flags(1, NUM_ENVS, ALL_AGENTS, part=0.8) if leaves else None,
    )  # fmt: skip
    active, survived = (None if one is None else one[..., list(AGENTS)] for one in (rollout.active, rollout.survived))

    def forgets(t: int) -> torch.Tensor:
        ended = (rollout.terminated[t] | rollout.truncated[t]).unsqueeze(-1)
        return ended if active is None else ended | ~(active[t] & survived[t])

    final = torch.randn(NUM_TRUNCATIONS, NUM_ENVS, len(AGENTS), SIZE, generator=generator).to(backend.device)
    group = SimpleNamespace(
        rollout=rollout, agents=AGENTS, policy=SimpleNamespace(memory_size=SIZE), final_memory=final, active=active,
        survived=survived, forgets=forgets, credits_team=credits_team,
        spec=SimpleNamespace(num_agents=len(AGENTS), array=lambda name: name),
    )  # fmt: skip
    memory = kind(group)
    memory.now.copy_(torch.randn(memory.now.shape, generator=generator))
    return memory


@pytest.mark.parametrize(("leaves", "credits_team"), [(False, False), (True, False), (True, True)])
def test_the_kernel_forgets_what_torch_does(backend, leaves, credits_team):
    by_kernel, by_torch = (made(kind, backend, leaves, credits_team) for kind in (KernelMemory, Memory))
    before = by_torch.now.clone()
    for memory in (by_kernel, by_torch):
        for call in memory.prepare_forget(0):
            call()
    assert torch.equal(by_kernel.now, by_torch.now) and not torch.equal(by_torch.now, before)
    assert torch.equal(by_kernel.group.final_memory, by_torch.group.final_memory)
    assert (by_torch.now != 0).any()
