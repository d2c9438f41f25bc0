"""Networks of one layer as algorithms with critics take them, and TorchRL's losses on the same numbers."""

import torch
from torch import nn

from trainers.replay.of_group import Samples

SMALL = {"buffer_size": 200, "batch_size": 16, "learning_starts": 16, "replay_ratio": 0.25, "model": {"fc_dims": [8]}}


class ToyPolicy(nn.Module):
    """One layer, and a head."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head
        self.layer = nn.Linear(4, head.num_outputs)
        self.double()

    def normalised(self, observation: torch.Tensor) -> torch.Tensor:
        return observation

    def heads(self, observation: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"policy": self.layer(observation)}


class ToyCritic(nn.Module):
    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__()
        self.layer = nn.Linear(num_in, num_out).double()

    def forward(self, *seen: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.cat(seen, dim=-1))


class ToyCritics(nn.Module):
    """As Critics gives Q-values, of one layer each."""

    def __init__(self, num_in: int, num_out: int = 1, number: int = 2) -> None:
        super().__init__()
        self.networks = nn.ModuleList(ToyCritic(num_in, num_out) for _ in range(number))

    def forward(self, observation: torch.Tensor, action: torch.Tensor | None = None) -> torch.Tensor:
        found = torch.stack([one(*(x for x in (observation, action) if x is not None)) for one in self.networks])
        return found if action is None else found.squeeze(-1)


def batch_of(action: torch.Tensor, gamma: float = 0.5) -> Samples:
    """32 transitions, of which some end an episode."""
    seen, after = (torch.randn(32, 4, dtype=torch.float64) for _ in range(2))
    reward, ended = torch.randn(32, dtype=torch.float64), torch.rand(32) < 0.3
    return Samples(seen, action, None, reward, gamma * (~ended).double(), after, None, torch.ones(32))


def as_tensordict(batch: Samples, gamma: float = 0.5):
    from tensordict import TensorDict

    ended = (batch.discount == 0).unsqueeze(-1)
    after = {"observation": batch.next_observation, "reward": batch.reward.unsqueeze(-1)}
    after |= {"done": ended, "terminated": ended}
    return TensorDict({"observation": batch.observation, "action": batch.action, "next": after}, [32])


def take_over(params, networks: nn.ModuleList) -> None:
    """Gives TorchRL's stacked parameters our networks' values."""
    ours = [torch.stack([p.detach() for p in ps]) for ps in zip(*(n.parameters() for n in networks), strict=True)]
    by_shape = {tuple(one.shape): one for one in ours}
    for one in params.flatten_keys().values():
        one.data.copy_(by_shape[tuple(one.shape)])


def gradients(params) -> dict[tuple[int, ...], torch.Tensor]:
    return {tuple(one.grad.shape): one.grad.clone() for one in params.flatten_keys().values() if one.grad is not None}


def assert_same_gradients(loss: torch.Tensor, networks: list[nn.Module], expected: dict) -> None:
    found = torch.autograd.grad(loss, [p for network in networks for p in network.parameters()])
    num = len(list(networks[0].parameters()))
    for i in range(num):
        ours = torch.stack(found[i::num]) if len(networks) > 1 else found[i]
        torch.testing.assert_close(ours, expected[tuple(ours.shape)], rtol=0, atol=1e-6)
