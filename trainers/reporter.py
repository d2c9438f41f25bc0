"""Reporter: what a run says of itself: how it starts, how it goes, and what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trainers.checkpoint import LAST

if TYPE_CHECKING:
    from trainers.trainer import Trainer


class Reporter:
    """Tells of a run, on the screen and in its folder.

    Args:
        trainer: whose run it is.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.config = trainer.config
        self.run = trainer.run
        self.env = trainer.env

    def announce(self) -> None:
        """Before the first iteration: how much is done, and where it is kept."""
        trainer, settings = self.trainer, self.config.trainer
        self.run.say(
            f"{self.config.name}: {settings.num_envs:,} envs x {self.env.num_agents} agents, "
            f"{settings.num_steps} steps an iteration, {trainer.num_iterations} iterations"
        )
        if settings.precision == "bf16":
            for name, group in trainer.rollout.groups.items():
                why = group.why_not_fused
                self.run.say(f"policy {name}: fused kernels" if why is None else f"policy {name}: torch, because {why}")
        if trainer.world.size > 1:
            self.run.say(f"{trainer.world.size} ranks, each with {self.env.num_envs:,} of the envs")
        self.run.say(f"run folder: {self.run.path}")

    def report(self, metrics: dict[str, float], seconds: float, num_iterations: int) -> None:
        """Logs the metrics of the iterations since the last report, and tells the most important in a line."""
        trainer = self.trainer
        steps = num_iterations * self.config.trainer.train_batch_size
        metrics = {
            "time/total_timesteps": trainer.env_steps,
            "time/iterations": trainer.iteration,
            "time/fps": steps / seconds,
            "time/agent_steps_per_s": steps * self.env.num_agents / seconds,
            **metrics,
        }
        if self.env.device.type == "cuda":
            metrics["health/gpu_mem_mb"] = torch.cuda.max_memory_allocated(self.env.device) / 2**20
        self.run.log(metrics)
        returns = "".join(
            f"  {name} {metrics[f'rollout/{name}/ep_rew_mean']:+8.3f}"
            for name in trainer.metrics.groups
            if f"rollout/{name}/ep_rew_mean" in metrics
        )
        length = f"  length {metrics['rollout/ep_len_mean']:6.1f}" if "rollout/ep_len_mean" in metrics else ""
        score = f"  eval {metrics['eval/mean_reward']:+.3f}" if "eval/mean_reward" in metrics else ""
        self.run.say(
            f"env steps {trainer.env_steps:12,}{returns}{length}  {metrics['time/fps']:12,.0f} env steps/s{score}"
        )
        if dropped := metrics["health/dropped_truncations"]:
            self.run.say(
                f"warning: {dropped:,.0f} truncations counted as having no future, for lack of room: episodes are "
                f"truncated before the episode_length of {self.env.env.episode_length} that env '{self.config.name}' "
                "gives. Mend its episode_length.",
                style="yellow",
            )

    def conclude(self, seconds: float, num_iterations: int) -> None:
        """After the last iteration: what came of the run."""
        env_steps = num_iterations * self.config.trainer.train_batch_size  # a restored run made the others before
        self.run.say(f"trained {env_steps:,} env steps in {seconds:.1f} s ({env_steps / seconds:,.0f} env steps/s)")
        for name, (first, last) in self.run.first_and_last_returns().items():
            if name:
                self.run.say(f"mean return of {name}: {first:.3f} at first, {last:.3f} at last", style="bold green")
        self.run.draw_learning_curve()
        self.run.say(f"checkpoint: {self.run.checkpoints / LAST}")
