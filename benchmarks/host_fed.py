"""What residence is worth: the same envs, networks and updates, with the envs on the CPU and the policies on the GPU.

python benchmarks/host_fed.py --device cuda     # continuous Tag, 2,000 x 100; some two minutes

Host-fed: the CPU backend steps the envs on all cores; every step, what agents see goes to the device and what they do
comes back, by plain copies; the rollout stays on the device, where torch learns from it, launch by launch. It is the
loop that one writes around a CPU simulator. Resident: the trainer as it is. Both in this process, one after the other.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from report import time_calls, write_report
from throughput import measure, open_trainer

from trainers.algorithms.a2c import A2CConfig, a2c_loss
from trainers.algorithms.on_policy import MAX_SAMPLES
from trainers.heads import CategoricalHeads, split_heads
from trainers.networks.policy import Policy, make_policy
from trainers.report.throughput import column_of
from trainers.trainer import Trainer
from warpdrive.backends import choose_backend
from warpdrive.config import value_at
from warpdrive.env import load_env
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.errors import EnvError, WarpDriveError
from warpdrive.layout import ACTIVE, OBSERVATION

WORKLOAD = [
    "env.num_taggers=10", "env.num_runners=90", "trainer.num_envs=2000", "trainer.train_batch_size=100000",
]  # fmt: skip
"""Of tag_continuous.yaml: 2,000 x 100, 50 steps an iteration."""


class Group:
    """One policy on the device, its optimiser, and what its agents did: action, value, next_value, [T, E, A, ...]."""

    def __init__(self, policy: Policy, agents: range, config: A2CConfig, rows: tuple[int, int]) -> None:
        self.policy, self.config = policy, config
        self.columns = slice(agents.start, agents.stop)
        device = next(policy.parameters()).device
        shape = (*rows, len(agents))
        self.action = torch.zeros(*shape, len(policy.head.head_sizes), dtype=torch.int32, device=device)
        self.value, self.next_value = (torch.zeros(shape, device=device) for _ in range(2))
        self.optimizer = torch.optim.Adam(policy.parameters(), lr=value_at(config.lr, 0), eps=1e-5, fused=True)

    def values_of(self, observation: torch.Tensor) -> torch.Tensor:
        """[E, A] of [E, all agents, F]."""
        rows = observation[:, self.columns]
        return self.policy(rows.flatten(0, 1))[1].view(rows.shape[:2])


class HostFed:
    """Envs on the CPU that play with, and teach, copies of a trainer's policies on its device.

    Args:
        trainer: whose config, policies and device.
    Raises:
        EnvError: this loop is too plain for the config: it knows A2C, categorical actions and one observation for all.
    """

    def __init__(self, trainer: Trainer) -> None:
        settings, self.device = trainer.config.trainer, trainer.backend.device
        env = load_env(trainer.config.name, trainer.config.env)
        self.env = EnvWrapper(env, settings.num_envs, backend=choose_backend("cpu"), seed=settings.seed)
        self.rows = (settings.num_steps, settings.num_envs)
        generator = torch.Generator().manual_seed(settings.seed)
        self.groups = {}
        for name, group in trainer.rollout.groups.items():
            config = trainer.config.policy[name]
            policy = make_policy(env, name, config, generator).to(self.device)
            self._check(name, policy, config)
            self.groups[name] = Group(policy, group.agents, config, self.rows)
        shape, seen = (*self.rows, env.num_agents), self.env.data[OBSERVATION].shape

        def new(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=self.device)

        self.observation, self.reward = new(self.rows[0] + 1, *seen), new(*shape)
        self.is_playing, self.stays = (new(*shape, dtype=torch.bool) for _ in range(2))
        self.terminated, self.truncated = (new(*self.rows, dtype=torch.bool) for _ in range(2))
        self.stays_now = torch.ones(shape[1:], dtype=torch.bool)
        self.env.after_step.append(self._see_who_stays)
        self.seconds_in_env = 0.0
        observation, _ = self.env.reset()
        self.observation[-1].copy_(observation)

    def _check(self, name: str, policy: Policy, config: Any) -> None:
        is_a2c = isinstance(config, A2CConfig) and not config.normalize_advantage
        is_plain = isinstance(policy.head, CategoricalHeads) and not policy.memory_size
        sees_alone = not policy.has_central_critic and OBSERVATION in self.env.data
        if not (is_a2c and is_plain and sees_alone):
            raise EnvError(
                f"policy '{name}' cannot be host-fed here. Give a config of A2C without normalize_advantage, discrete "
                "actions, a network without memory, and agents that all see alike, such as tag_continuous.yaml."
            )

    def _see_who_stays(self) -> None:
        if ACTIVE in self.env.data:
            self.stays_now.copy_(self.env.data[ACTIVE])

    @torch.no_grad()
    def collect(self) -> None:
        """Plays T steps; every one crosses the bus both ways."""
        data = self.env.data
        self.observation[0].copy_(self.observation[-1])
        for t in range(self.rows[0]):
            for group in self.groups.values():
                rows = self.observation[t][:, group.columns]
                outputs, value = group.policy(rows.flatten(0, 1))
                group.value[t] = value.view(rows.shape[:2])
                group.action[t] = draw(outputs, group.policy.head).view(group.action[t].shape)
            self.is_playing[t] = data[ACTIVE].to(self.device) if ACTIVE in data else True
            action = torch.cat([group.action[t] for group in self.groups.values()], dim=1)
            action = action.view(data["action"].shape).cpu()
            start = time.perf_counter()
            observation, reward, terminated, truncated, info = self.env.step(action)
            self.seconds_in_env += time.perf_counter() - start
            for array, values in (
                (self.observation[t + 1], observation),
                (self.reward[t], reward),
                (self.terminated[t], terminated),
                (self.truncated[t], truncated),
                (self.stays[t], self.stays_now),
            ):
                array.copy_(values)
            if truncated.any():  # on the host, which has these anyway
                final = info["final_observation"].to(self.device)
                for group in self.groups.values():
                    group.next_value[t] = group.values_of(final)
        for group in self.groups.values():
            value = torch.cat([group.value[1:], group.values_of(self.observation[-1]).unsqueeze(0)])
            group.next_value.copy_(torch.where(self.truncated.unsqueeze(-1), group.next_value, value))

    def learn(self) -> None:
        """One A2C update of each policy."""
        for group in self.groups.values():
            self._learn(group)

    def _learn(self, group: Group) -> None:
        config, columns = group.config, group.columns
        is_playing = self.is_playing[:, :, columns]
        # Agents end by themselves: who leaves the game has no future in it. So each counts as an env.
        ended = self.terminated.unsqueeze(-1) | (is_playing & ~self.stays[:, :, columns])
        truncated = self.truncated.unsqueeze(-1).expand_as(ended)
        advantage = advantages(
            self.reward[:, :, columns].flatten(1),
            group.value.flatten(1),
            group.next_value.flatten(1),
            ended.flatten(1),
            truncated.flatten(1),
            config.gamma,
            config.gae_lambda,
        ).view_as(group.value)
        target = advantage + group.value
        weight = is_playing.float()
        number = weight.sum().clamp_min(1)
        num_steps = max(1, MAX_SAMPLES[self.device.type] // weight[0].numel())
        group.optimizer.zero_grad()
        for first in range(0, self.rows[0], num_steps):
            part = slice(first, min(first + num_steps, self.rows[0]))
            outputs, value = group.policy(self.observation[part, :, columns].flatten(0, 2))
            action = group.action[part].flatten(0, 2)
            log_prob, entropy = group.policy.head.log_prob_and_entropy(outputs, action)
            policy_loss, value_loss = a2c_loss(log_prob, value, advantage[part].flatten(), target[part].flatten())
            losses = policy_loss + value_at(config.vf_loss_coeff, 0) * value_loss
            losses = losses - value_at(config.entropy_coeff, 0) * entropy
            ((losses * weight[part].flatten()).sum() / number).backward()
        if config.clip_grad_norm:
            torch.nn.utils.clip_grad_norm_(group.policy.parameters(), config.max_grad_norm)
        group.optimizer.step()

    def iterate(self) -> None:
        """A rollout and an update."""
        self.collect()
        self.learn()


def advantages(
    reward: torch.Tensor,
    value: torch.Tensor,
    next_value: torch.Tensor,
    ended: torch.Tensor,
    truncated: torch.Tensor,
    discount: float,
    gae_lambda: float,
) -> torch.Tensor:
    """Generalised advantage estimation, [T, E] as what it is given; `next_value` is of what was seen before a reset.

    Source: Schulman et al. 2016, arXiv:1506.02438, section 3.
    """
    found = reward + discount * next_value * (~ended).float() - value
    goes_on = (~(ended | truncated)).float()
    for t in reversed(range(len(found) - 1)):
        found[t] += discount * gae_lambda * goes_on[t] * found[t + 1]
    return found


def draw(outputs: torch.Tensor, head: CategoricalHeads) -> torch.Tensor:
    """[N, heads] int32 actions, drawn by torch."""
    heads = split_heads(outputs, head.head_sizes)
    return torch.cat([torch.multinomial(torch.softmax(logits, -1), 1) for logits in heads], dim=-1).int()


def compare(trainer: Trainer, repeats: int) -> dict[str, Any]:
    """Columns of both, and how many times as fast the resident one is."""
    resident = measure(trainer, repeats)
    host = HostFed(trainer)
    host_fed: dict[str, Any] = {}
    num_steps = host.rows[0]
    for column, call in (("rollout", host.collect), ("train", host.iterate)):
        host.seconds_in_env = 0.0
        us = time_calls(trainer.backend, call, 1, repeats)
        host_fed[column] = column_of([one / num_steps for one in us], trainer)
        host_fed["env_us_a_step"] = round(host.seconds_in_env / (repeats + 1) / num_steps * 1e6, 3)
    faster = {
        column: round(host_fed[column]["us_a_step"] / resident[column]["us_a_step"], 2)
        for column in ("rollout", "train")
    }
    return {"times_faster": faster, "resident": resident, "host_fed": host_fed}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto", help="of the policies and of the resident run")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="folder of the JSON")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="of tag_continuous.yaml")
    arguments = parser.parse_args()
    if arguments.repeats < 1:
        parser.error(f"--repeats must be at least 1, got {arguments.repeats}")
    overrides = [*WORKLOAD, *arguments.overrides]
    try:
        with open_trainer("tag_continuous.yaml", overrides, arguments.device) as (trainer, _):
            found = compare(trainer, arguments.repeats)
            settings, backend = trainer.config.trainer, trainer.backend
    except WarpDriveError as error:
        raise SystemExit(str(error)) from None
    results = {
        "config": "tag_continuous.yaml",
        "overrides": overrides,
        "num_envs": settings.num_envs,
        "num_agents": trainer.env.num_agents,
        "num_steps": settings.num_steps,
        "precision": trainer.precision,
        "cpu_cores": os.cpu_count(),
        **found,
    }
    write_report(f"host_fed_{backend.name}", backend, results, arguments.out)
    faster = found["times_faster"]
    print(f"resident is {faster['rollout']} times as fast without a learner, {faster['train']} times with it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
