"""How well policies play: whole episodes with seeds of their own, which never disturb a training run."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from trainers.acting.actor import make_actors
from trainers.errors import MemoryShortError
from trainers.experience.rollout import Rollout
from trainers.networks.policy import Policy, make_policy
from trainers.run import checkpoint
from trainers.run.checks import check_finite
from trainers.run.estimate import actors_of, of_rollout, printed_size
from trainers.run.free_memory import free_bytes
from trainers.run.identity import other_sources
from trainers.run.tensor_file import num_bytes_of
from trainers.settings.config import SHARED
from trainers.settings.read_config import read_config
from warpdrive.backends.base import Backend
from warpdrive.drawing import arrays_to_draw
from warpdrive.env import Env, load_env
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.errors import EnvError, check_kind, tell
from warpdrive.recorder import EpisodeRecorder

NUM_STEPS = 25
"""Steps between two looks at whether all episodes are over."""
MAX_STEPS = 100_000
"""Of an episode: what has not ended by then counts as far as it came. An env's episode_length is the least that its
episodes are cut off after, and not the most."""
MAX_FRAMES = 10_000
"""Of an episode that is recorded: later steps are played and counted, but not kept."""

_NOT_FINITE = "Such a policy plays nothing that means anything: name an older checkpoint of the run, or train anew."


@dataclass(frozen=True)
class Score:
    """What came of whole episodes, one an env.

    returns: [episodes, agents] float32, on the CPU: sum of each agent's rewards.
    lengths: [episodes] int64, in steps.
    figures: name -> [episodes] float32, what the env itself says of each; of one that did not end, 0.
    """

    returns: torch.Tensor
    lengths: torch.Tensor
    groups: Mapping[str, range]
    figures: Mapping[str, torch.Tensor] = field(default_factory=dict)

    @property
    def mean_reward(self) -> float:
        """Mean return of an agent in an episode."""
        return self.returns.mean().item()

    @property
    def std_reward(self) -> float:
        """Standard deviation, over episodes, of the mean return of their agents."""
        return self.returns.mean(1).std(correction=0).item()

    @property
    def mean_ep_length(self) -> float:
        return self.lengths.float().mean().item()

    def mean_figures(self) -> dict[str, float]:
        """By name, the mean over the episodes."""
        return {name: figure.mean().item() for name, figure in self.figures.items()}

    def mean_of(self, group: str) -> float:
        """Mean return of an agent of this group."""
        return self.of(group).mean().item()

    def of(self, group: str) -> torch.Tensor:
        """[episodes]: mean return of the agents of this group in each episode."""
        agents = self.groups[group]
        return self.returns[:, agents.start : agents.stop].mean(1)

    def standard_error_of(self, group: str) -> float:
        """Of `mean_of`."""
        return self.of(group).std().item() / len(self.returns) ** 0.5


class Evaluation:
    """Envs of their own in which policies play.

    evaluation = Evaluation(env, policies, num_episodes=100, seed=7, backend=backend)
    evaluation.play().mean_of("tagger")

    The policies are read as they are at each `play`; nothing of them changes, and no generator is drawn from that
    training draws from. Each call plays the same starts and draws, so that two scores differ by the policies alone.

    Args:
        env: an Env, with its config.
        policies: by group, or one for all agents named "shared". From other runs too: cross-play.
        num_episodes: one in each of as many envs, so that short episodes do not count more than long ones.
        seed: of the envs and of what policies draw.
        greedy: policies take their likeliest action instead of drawing: all, none, or those named.
        record: numbers of the envs whose episodes `play` leaves in `recorded`, to be drawn.
        backend: as the policies' device.
    Raises:
        MemoryShortError: so many episodes at once do not fit.
    """

    def __init__(
        self,
        env: Env,
        policies: Mapping[str, Policy],
        num_episodes: int,
        seed: int,
        backend: Backend,
        greedy: bool | Collection[str] = True,
        record: Sequence[int] = (),
    ) -> None:
        check_kind(env, Env, "Evaluation: env", "load_env makes one by its name, load_policies that of a run.")
        check_kind(policies, Mapping, "Evaluation: policies", "Give one by group, as load_policies does.")
        for name, one in policies.items():
            check_kind(one, Policy, f"Evaluation: policies['{name}']", "load_policies gives those of a run.")
        if sorted(policies) not in (sorted(env.groups), [SHARED]):
            raise EnvError(
                f"policies are for {', '.join(policies)}, but the agents of '{env.name}' are {', '.join(env.groups)}. "
                f"Give one for each, or one named '{SHARED}'."
            )
        self.seed = seed
        num_steps = min(NUM_STEPS, env.episode_length or NUM_STEPS)
        _check_memory(env, policies, num_episodes, num_steps, len(record), backend.device)
        self.env = EnvWrapper(env, num_episodes, seed=seed, backend=backend, final_observations=1)
        chosen = (policies if greedy else ()) if isinstance(greedy, bool) else greedy
        names = arrays_to_draw(env)
        self._recorders = [EpisodeRecorder(self.env, names, one, MAX_FRAMES) for one in record]
        for recorder in self._recorders:
            recorder.start()  # before the rollout packs its calls, which then record
        self.recorded: list[dict[str, np.ndarray]] = []
        """For each env to record, what EpisodeRecorder pulls of the env's own arrays, and of its reward and flags."""
        actors = make_actors(self.env, policies, greedy=chosen)
        self.rollout = Rollout(self.env, actors, num_steps)

    def play(self) -> Score:
        """One episode in each env. Waits for the device."""
        rollout, env = self.rollout, self.env
        env.reset(self.seed)
        rollout.forget()
        rollout.begin()
        for recorder in self._recorders:
            recorder.start()
        kept: dict[str, list[torch.Tensor]] = {"reward": [], "terminated": [], "truncated": []}
        returns = torch.zeros(env.num_envs, env.num_agents, device=env.device)
        lengths = torch.zeros(env.num_envs, dtype=torch.int64, device=env.device)
        is_over = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
        figures = {name: torch.zeros(env.num_envs, device=env.device) for name in env.env.figures}
        for _ in range(0, MAX_STEPS, rollout.num_steps):
            rollout.collect()
            ended = rollout.terminated | rollout.truncated
            over_before = is_over | ((ended.cumsum(0) - ended.int()) > 0)  # [T, E]: before this step
            returns += rollout.reward.masked_fill(over_before.unsqueeze(-1), 0.0).sum(0)
            lengths += (~over_before).sum(0)
            for name, figure in figures.items():
                figure += rollout.data[name].masked_fill(over_before | ~ended, 0.0).sum(0)
            is_over |= ended.any(0)
            for name in kept if self._recorders else ():
                kept[name].append(rollout.data[name][:, [one.env_index for one in self._recorders]].cpu())
            over = is_over.cpu()
            for recorder in self._recorders:
                if over[recorder.env_index]:
                    recorder.stop()
            if over.all():
                break
        groups = {name: group.agents for name, group in env.groups.items()}
        score = Score(returns.cpu(), lengths.cpu(), groups, {name: one.cpu() for name, one in figures.items()})
        self.recorded = [self._pull(i, score, kept) for i in range(len(self._recorders))]
        return score

    def _pull(self, i: int, score: Score, kept: Mapping[str, Sequence[torch.Tensor]]) -> dict[str, np.ndarray]:
        """One recorded episode up to its end. Reward and flags lie in the rollout's slots, not in the env's arrays."""
        recorder = self._recorders[i]
        num_steps = min(int(score.lengths[recorder.env_index]), recorder.max_steps)
        episode = {name: frames[: num_steps + 1] for name, frames in recorder.pull().items()}
        for name, steps in kept.items():
            of_steps = torch.cat(steps)[:num_steps, i].numpy()
            episode[name] = np.concatenate([np.zeros_like(of_steps[:1]), of_steps])
        return episode


def _check_memory(
    env: Env,
    policies: Mapping[str, Policy],
    num_episodes: int,
    num_steps: int,
    num_recorded: int,
    device: torch.device,
) -> None:
    """Raises MemoryShortError where an evaluation cannot fit: the kernel would end the process without a word."""
    actors = actors_of(env, {name: one.config for name, one in policies.items()}, device.type)
    needed = of_rollout(env, actors, num_episodes, num_steps, num_truncations=1).total
    if num_recorded:
        arrays = env.arrays()
        frame = sum(np.asarray(arrays[name]).nbytes for name in arrays_to_draw(env))
        needed += num_recorded * (min(env.episode_length or MAX_STEPS, MAX_FRAMES) + 1) * frame
    free = free_bytes(device)
    if free is not None and needed > free:
        raise MemoryShortError(
            f"{num_episodes:,} episodes of '{env.name}' at once need {printed_size(needed)} of memory, and "
            f"{printed_size(free)} can be had. Play fewer, such as {max(1, int(0.9 * num_episodes * free / needed))}."
        )


def load_policies(
    run: Path, backend: Backend | None = None, allow_import: bool = False
) -> tuple[Env, dict[str, Policy]]:
    """The env of a run and its policies as they were saved, to evaluate or to let them play those of another run.
    Sources that are others by now are told.

    Args:
        run: a run folder, or one of its checkpoints.
        backend: where the policies are to act; None if they are only to be read, on the CPU.
        allow_import: whether the run's config may name what is imported from outside, "my_package.soccer:Soccer".
    Raises:
        CheckpointError: there is none, it is damaged, or a policy holds a NaN or an infinity.
    """
    resolved = checkpoint.run_folder_of(run) / checkpoint.RESOLVED_CONFIG
    config = read_config(resolved, allow_import=allow_import, to_play=True)
    env = load_env(config.name, config.env)
    policies = {}
    for name, one in config.policy.items():
        policies[name] = make_policy(env, name, one, torch.Generator().manual_seed(0))
    needed = {f"policy.{name}.safetensors": num_bytes_of(one.state_dict()) for name, one in policies.items()}
    saved = checkpoint.load_checkpoint(checkpoint.candidates(run)[0], lambda told: needed)
    for line in other_sources(saved.progress, config, env):
        tell(f"warning: {run}: {line} since its policies learned", file=sys.stderr)
    for name in policies:
        file = saved.path / f"policy.{name}.safetensors"
        check_finite({str(file): saved.tensors.get(file.stem, {})}, _NOT_FINITE)
        checkpoint.restore_tensors(policies[name].state_dict(), saved.tensors.get(file.stem, {}), file)
        if backend is not None:
            policies[name].to(backend.device)
    return env, policies


def cross_play(
    env: Env,
    candidates: Mapping[str, Mapping[str, Policy]],
    num_episodes: int,
    seed: int,
    backend: Backend,
    greedy: bool | Collection[str] = False,
) -> dict[tuple[str, ...], Score]:
    """Every combination of policies against every other.

    Args:
        candidates: group -> word -> policy, such as {"tagger": {"trained": a, "random": b}, "runner": {...}}.
    Returns:
        (word of the first group, word of the second, ...) -> Score, all on the same starts.
    Raises:
        EnvError: candidates are of other groups than the env's.
    """
    check_kind(env, Env, "cross_play: env", "load_env makes one by its name, load_policies that of a run.")
    if sorted(candidates) != sorted(env.groups):
        given = ", ".join(candidates) or "none"
        message = f"candidates are for {given}, but the agents of '{env.name}' are {', '.join(env.groups)}"
        raise EnvError(f"{message}. Give some for each: {{group: {{word: policy}}}}.")
    for group, of_group in candidates.items():
        check_kind(of_group, Mapping, f"cross_play: candidates['{group}']", "Give {word: policy}.")
    scores = {}
    for words in itertools.product(*(candidates[group] for group in env.groups)):
        policies = {group: candidates[group][word] for group, word in zip(env.groups, words, strict=True)}
        scores[words] = Evaluation(env, policies, num_episodes, seed, backend, greedy).play()
    return scores
