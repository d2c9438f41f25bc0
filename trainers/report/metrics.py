"""Figures of a run: summed on the device, pulled once per report, written as JSON lines."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from trainers.algorithms import ALGORITHMS, find_algorithm
from trainers.experience.rollout import Rollout
from trainers.learning.distributed import world
from trainers.settings.config import Config
from warpdrive.function_manager import FunctionManager

SOURCE = Path(__file__).parent / "episodes.cu"


def figures_of_algorithms() -> dict[str, str]:
    """What the algorithms say of their figures, by name; of a figure of several, what the first says."""
    found = {}
    for name in ALGORITHMS:
        algorithm = find_algorithm(name)[0]
        for figure, explanation in {**algorithm.FIGURES, **algorithm.FIGURES_OF_TIERS}.items():
            found.setdefault(f"train/<policy>/{figure}", explanation)
    return found


EXPLANATIONS = {
    "rollout/ep_rew_mean": "mean return of an agent in the episodes that ended since the last report",
    "rollout/<policy>/ep_rew_mean": "the same over the agents of one policy, or of one group of agents",
    "rollout/ep_len_mean": "mean length of those episodes, in steps",
    "rollout/<figure>": "mean over those episodes of what the env itself tells of each, such as whether it was won; "
    "`figures` of the env names them",
    "rollout/num_episodes": "how many they are, over all envs; those above are left out where it is 0",
    "time/fps": "env steps a second since the last report, over all envs; evaluation is not counted",
    "time/agent_steps_per_s": "the same times the agents of an env",
    "time/total_timesteps": "env steps made so far, over all envs: the x axis of all curves",
    "time/iterations": "iterations made so far, each a rollout and an update of each policy",
    **figures_of_algorithms(),
    "eval/mean_reward": "mean return of an agent in the evaluation's episodes; only in reports that evaluate",
    "eval/std_reward": "standard deviation over those episodes of their agents' mean return",
    "eval/mean_ep_length": "mean length of those episodes, in steps",
    "eval/<group>/mean_reward": "mean return over the agents of one group",
    "eval/<figure>": "mean over those episodes of what the env itself tells of each",
    "perf/env_ms": "device time an iteration in the env's step and reset kernels: their part of the rollout, as "
    "found in a few rollouts with marks, times what rollouts take; null before the first of them, and where envs and "
    "agents make their steps in one launch",
    "perf/policy_ms": "the rest of the rollout: networks, samplers, checks and sums; all of it, in such a launch",
    "perf/learn_ms": "device time an iteration in the updates of all policies",
    "perf/log_ms": "host time an iteration in reporting, since the line before; a GPU works on meanwhile",
    "health/nonfinite": "tensors in which a NaN or an infinity was found; more than 0 ends the run",
    "health/invalid_actions": "actions out of their space since the last report, which the env took as the nearest "
    "in it; samplers draw none",
    "health/dropped_truncations": "truncated episodes that counted as having no future, as the env truncates more "
    "often than its episode_length says",
    "health/gpu_mem_mb": "most memory that torch held on the GPU so far, MiB; 0 on a CPU",
}
"""What each metric is, by name. The documentation is made of it."""
FIGURE_SUM = "figure_sum_"
"""How the names of the sums of an env's figures begin."""

Figures = Mapping[str, torch.Tensor | float]


def metrics_of(config: Config, groups: Iterable[str], figures: Iterable[str] = ()) -> dict[str, str]:
    """EXPLANATIONS of one run, by the names that its metrics have.

    Args:
        groups, figures: of the env.
    """
    groups, found = list(groups), {}
    words = {"<policy>": dict.fromkeys([*config.policy, *groups]), "<group>": groups, "<figure>": figures}
    trained = {name: find_algorithm(one.algorithm)[0] for name, one in config.policy.items() if one.to_train}
    of_training = {}
    for policy, algorithm in trained.items():
        told = {**algorithm.FIGURES, **(algorithm.FIGURES_OF_TIERS if config.policy[policy].tiers else {})}
        of_training |= {f"train/{policy}/{figure}": explanation for figure, explanation in told.items()}
    for pattern, explanation in EXPLANATIONS.items():
        section = pattern.partition("/")[0]
        if section == "train":
            found |= of_training
        elif section != "eval" or config.evaluation.eval_freq:
            word = next((word for word in words if word in pattern), "")
            found |= {pattern.replace(word, name): explanation for name in words.get(word, [""])}
    return found


def new_sums(
    num_envs: int, num_agents: int, device: str = "cpu", figures: Iterable[str] = ()
) -> dict[str, torch.Tensor]:
    """What is summed up in each env, all of it zeros."""
    per_agent = {name: torch.zeros(num_envs, num_agents, device=device) for name in ("running_return", "return_sum")}
    words = ("running_length", "length_sum", "num_ended", "num_dropped")
    of_figures = {f"{FIGURE_SUM}{name}": torch.zeros(num_envs, device=device) for name in figures}
    counts = {name: torch.zeros(num_envs, dtype=torch.int64, device=device) for name in words}
    return per_agent | counts | of_figures


class Metrics:
    """Returns and lengths of the episodes that ended since the last report, with the algorithms' figures.

    Its sums are arrays of `env.data`, so that a checkpoint holds them: episodes run on across rollouts.

    Args:
        rollout: what is summed.
        groups: name -> agents, whose mean return is reported as `rollout/<name>/ep_rew_mean`.
    """

    def __init__(self, rollout: Rollout, groups: Mapping[str, range]) -> None:
        env = rollout.env
        self.env = env
        self.groups = dict(groups)
        self.num_agents = env.num_agents
        self.figures = list(env.env.figures)
        arrays = new_sums(env.num_envs, env.num_agents, figures=self.figures)
        self.arrays = {name: env.data.push(name, array) for name, array in arrays.items()}
        functions = FunctionManager(
            rollout.data, SOURCE, num_envs=env.num_envs, num_agents=env.num_agents, backend=env.backend
        )
        self._calls = [
            functions.prepare(
                "episodes",
                num_truncated=env.data["num_truncated"],
                num_steps=rollout.num_steps,
                max_truncations=rollout.max_truncations,
                **{name: array for name, array in self.arrays.items() if not name.startswith(FIGURE_SUM)},
            )
        ]
        for name in self.figures:
            sums = {"figure": rollout.data[name], "figure_sum": self.arrays[f"{FIGURE_SUM}{name}"]}
            self._calls.append(functions.prepare("episode_figure", num_steps=rollout.num_steps, **sums))

    def add_rollout(self) -> None:
        """Call it once for each rollout."""
        for call in self._calls:
            call()

    def begin_report(self, figures: Mapping[str, Figures], also: torch.Tensor | None = None) -> PendingReport:
        """Sends the metrics since the last report, over all ranks, on their way; starts the sums anew.

        One small tensor travels to the host, and nobody waits for it.

        Args:
            figures: policy -> figure -> number or tensor on the device.
            also: [N], to travel with them.
        """
        return_sum, *counts = (self.arrays[name] for name in ("return_sum", "length_sum", "num_ended", "num_dropped"))
        of_figures = [self.arrays[f"{FIGURE_SUM}{name}"] for name in self.figures]
        known = {f"train/{policy}/{name}": one for policy, ones in figures.items() for name, one in ones.items()}
        waiting = {name: one for name, one in known.items() if isinstance(one, torch.Tensor)}
        invalid = self.env.num_invalid_actions
        by_env = (*counts, invalid, *of_figures)
        sums = world().sum(return_sum.sum(0).double(), *(array.sum().double().view(1) for array in by_env))
        parts = [*sums, *(one.detach().double().view(1) for one in waiting.values())]
        parts += [] if also is None else [also.double()]
        pending = PendingReport(self, torch.cat(parts), {**known, **dict.fromkeys(waiting)})
        for array in (return_sum, *by_env):
            array.zero_()
        return pending


class PendingReport:
    """Figures on their way to the host.

    Args:
        values: on the device: returns by agent, four counts, the env's figures, the figures that were there, and what
            else travels.
        figures: by metric; None of those that were there.
    """

    def __init__(self, metrics: Metrics, values: torch.Tensor, figures: Mapping[str, float | None]) -> None:
        self.groups, self.num_agents, self._of_env = metrics.groups, metrics.num_agents, metrics.figures
        self._figures, self._waiting = figures, [name for name, one in figures.items() if one is None]
        self._arrived: torch.cuda.Event | None = None
        self._values = values
        if values.is_cuda:  # pinned: to other memory the copy would make the host wait
            self._values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()

    @property
    def is_at_once(self) -> bool:
        """Whether there is no way to go: on a CPU."""
        return self._arrived is None

    @property
    def has_arrived(self) -> bool:
        return self._arrived is None or self._arrived.query()

    def read(self) -> tuple[dict[str, float], list[float]]:
        """Metrics by name, and what travelled with them; waits until they have arrived."""
        if self._arrived is not None:
            self._arrived.synchronize()
        values = self._values.tolist()
        returns, values = values[: self.num_agents], values[self.num_agents :]
        (length, num_episodes, num_dropped, num_invalid), values = values[:4], values[4:]
        of_env, values = values[: len(self._of_env)], values[len(self._of_env) :]
        found, also = values[: len(self._waiting)], values[len(self._waiting) :]
        metrics = {
            "rollout/num_episodes": num_episodes,
            "health/dropped_truncations": num_dropped,
            "health/invalid_actions": num_invalid,
        }
        if num_episodes:
            metrics["rollout/ep_rew_mean"] = sum(returns) / (num_episodes * self.num_agents)
            for group, agents in self.groups.items():
                mean_return = sum(returns[agent] for agent in agents) / (num_episodes * len(agents))
                metrics[f"rollout/{group}/ep_rew_mean"] = mean_return
            metrics["rollout/ep_len_mean"] = length / num_episodes
            metrics |= {f"rollout/{name}": one / num_episodes for name, one in zip(self._of_env, of_env, strict=True)}
        return {**metrics, **self._figures, **dict(zip(self._waiting, found, strict=True))}, also


def line_of(metrics: Mapping[str, float]) -> str:
    """Of metrics.jsonl; what is no number becomes null, as JSON has no NaN."""
    return json.dumps({name: value if math.isfinite(value) else None for name, value in metrics.items()})
