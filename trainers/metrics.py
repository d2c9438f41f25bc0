"""Figures of a run: summed on the device, pulled once per report, written as JSON lines."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import torch

from trainers.distributed import world
from trainers.rollout import Rollout
from warpdrive.function_manager import FunctionManager

SOURCE = Path(__file__).parent / "kernels" / "episodes.cu"

Figures = Mapping[str, torch.Tensor | float]


class Metrics:
    """Returns and lengths of the episodes that ended since the last report, with the algorithms' figures.

    Its sums are arrays of `env.data`, so that a checkpoint holds them: episodes run on across rollouts.

    Args:
        rollout: what is summed.
        groups: name -> agents, whose mean return is reported as `rollout/<name>/ep_rew_mean`.
    """

    def __init__(self, rollout: Rollout, groups: Mapping[str, range]) -> None:
        env = rollout.env
        self.groups = dict(groups)
        self.num_agents = env.num_agents
        per_env, per_agent = (env.num_envs,), (env.num_envs, env.num_agents)
        arrays = {
            "running_return": torch.zeros(per_agent),
            "running_length": torch.zeros(per_env, dtype=torch.int32),
            "return_sum": torch.zeros(per_agent),
            "length_sum": torch.zeros(per_env, dtype=torch.int32),
            "num_ended": torch.zeros(per_env, dtype=torch.int32),
            "num_dropped": torch.zeros(per_env, dtype=torch.int32),
        }
        self.arrays = {name: env.data.push(name, array) for name, array in arrays.items()}
        functions = FunctionManager(
            rollout.data, SOURCE, num_envs=env.num_envs, num_agents=env.num_agents, backend=env.backend
        )
        self.add_rollout = functions.prepare(
            "episodes",
            num_truncated=env.data["num_truncated"],
            num_steps=rollout.num_steps,
            max_truncations=rollout.max_truncations,
            **self.arrays,
        )
        """Call it once for each rollout."""

    def report(self, figures: Mapping[str, Figures]) -> dict[str, float]:
        """Metrics since the last report, by name, over all ranks; starts the sums anew.

        One small tensor travels to the host; the host waits for it, and for nothing else.

        Args:
            figures: policy -> figure -> number or tensor on the device.
        """
        return_sum, *counts = (self.arrays[name] for name in ("return_sum", "length_sum", "num_ended", "num_dropped"))
        names = [(policy, name) for policy, ones in figures.items() for name in ones]
        waiting = [(policy, name) for policy, name in names if isinstance(figures[policy][name], torch.Tensor)]
        sums = [return_sum.sum(0).double(), *(array.sum().double().view(1) for array in counts)]
        sums = world().sum(*sums)
        pulled = torch.cat([*sums, *(figures[policy][name].detach().double().view(1) for policy, name in waiting)])
        values = pulled.tolist()
        for array in (return_sum, *counts):
            array.zero_()

        returns, (length, num_episodes, num_dropped), rest = (
            values[: self.num_agents],
            values[self.num_agents : self.num_agents + 3],
            values[self.num_agents + 3 :],
        )
        metrics = {"rollout/num_episodes": num_episodes, "health/dropped_truncations": num_dropped}
        if num_episodes:
            metrics["rollout/ep_rew_mean"] = sum(returns) / (num_episodes * self.num_agents)
            for group, agents in self.groups.items():
                mean_return = sum(returns[agent] for agent in agents) / (num_episodes * len(agents))
                metrics[f"rollout/{group}/ep_rew_mean"] = mean_return
            metrics["rollout/ep_len_mean"] = length / num_episodes
        found = dict(zip(waiting, rest, strict=True))
        for policy, name in names:
            metrics[f"train/{policy}/{name}"] = found.get((policy, name), figures[policy][name])
        return metrics


def append_jsonl(path: Path, metrics: Mapping[str, float]) -> None:
    """Adds one line; what is no number becomes null, as JSON has no NaN."""
    plain = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(plain) + "\n")
