"""Who plays in `eval`, `play` and `render`: the policies of a run, or such as have learned nothing."""

from __future__ import annotations

import argparse
import contextlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainers.errors import MemoryShortError, is_shortage
from trainers.run.manifest import RESOLVED_CONFIG
from trainers.run.reading import STEP_NAME, list_checkpoints, members_in, no_such_run
from trainers.settings.arguments import add_allow_import, find_config
from trainers.settings.config import SHARED, EvaluationConfig, PolicyConfig
from trainers.settings.outside import check_allowed
from warpdrive.config import did_you_mean, shown, to_section
from warpdrive.errors import CheckpointError, ConfigError, printable

if TYPE_CHECKING:  # a command's help loads no torch
    from trainers.evaluation import Score
    from trainers.networks.policy import Policy
    from warpdrive.backends.base import Backend
    from warpdrive.env import Env

RANDOM, ZERO = "random", "zero"


@dataclass(frozen=True)
class Players:
    """An env and who plays in it."""

    env: Env
    policies: Mapping[str, Policy]
    """By group, or one named "shared"."""
    settings: EvaluationConfig
    """Episodes, seed and greediness, unless the command line says otherwise."""
    checkpoint: Path | None = None
    """Where the policies come from; None: they have learned nothing."""
    untrained: Mapping[str, str] | None = None
    """group -> "random" or "zero", of those that have learned nothing."""

    @property
    def run(self) -> Path | None:
        return None if self.checkpoint is None else self.checkpoint.parent.parent

    @property
    def saved_at(self) -> str:
        """Such as "step 1000000", in env steps; or what the checkpoint is called."""
        step = STEP_NAME.fullmatch(self.checkpoint.name)
        return f"step {int(step.group(1))}" if step else self.checkpoint.name

    @property
    def title(self) -> str:
        """Such as "tag_gridworld, tag__seed1, step 1000000, random runner"."""
        words = [self.env.name]
        if self.checkpoint is not None:
            words += [self.run.name, self.saved_at]
        kinds = set((self.untrained or {}).values())
        if len(kinds) == 1 and len(self.untrained) == len(self.env.groups):
            words.append(f"{kinds.pop()} policy")
        else:
            words += [f"{kind} {group}" for group, kind in (self.untrained or {}).items()]
        return ", ".join(words)

    def greedy(self, chosen: bool | None) -> list[str]:
        """Names of the policies that take their likeliest action. A random one draws, the zero one never does."""
        untrained = self.untrained or {}
        is_greedy = self.settings.greedy if chosen is None else chosen
        return [name for name in self.policies if (untrained[name] == ZERO if name in untrained else is_greedy)]

    def how(self, greedy: Sequence[str]) -> str:
        """In words, what `greedy` returned."""
        trained = [name for name in self.policies if name not in (self.untrained or {})]
        return ("greedy" if set(trained) <= set(greedy) else "stochastic") if trained else "nothing learned"


def add_playing_arguments(parser: argparse.ArgumentParser) -> None:
    """Options that `eval`, `play` and `render` share."""
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--greedy", action="store_true", default=None, help="policies take their likeliest action")
    how.add_argument("--stochastic", dest="greedy", action="store_false", help="policies draw their actions")
    parser.add_argument("--episodes", type=int, metavar="N", help="how many, one an env")
    parser.add_argument("--seed", type=int, metavar="N", help="of the episodes (evaluation.seed)")
    parser.add_argument("--device", default="auto", metavar="DEVICE", help="auto, cpu, cuda or cuda:N")
    add_allow_import(parser)


def add_source_arguments(parser: argparse.ArgumentParser) -> None:
    """Options that say who plays, where it need not be a run."""
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run folder, or one of its checkpoints")
    parser.add_argument("--config", metavar="FILE", help="instead of a run: the env of a config file")
    parser.add_argument("--env", metavar="NAME", help="instead of a run: an env")
    parser.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="[GROUP=]KIND",
        help="random or zero: who has learned nothing, in place of all of a run's policies or of one group's",
    )


def find_players(
    options: argparse.Namespace, overrides: Sequence[tuple[str, str]], folder: Path | None, backend: Backend
) -> Players:
    """Who plays, as `add_source_arguments` was answered.

    Raises:
        ConfigError: it is not said, or said twice, or of a group that the env does not have.
        CheckpointError: the run holds no policies.
    """
    given = [name for name in ("run", "config", "env") if getattr(options, name) is not None]
    if len(given) != 1:
        raise ConfigError("command line: who plays? Give one of RUN, --config FILE and --env NAME.")
    if options.run is not None:
        if overrides:
            raise ConfigError(
                f"command line: {overrides[0][0]}: a run plays in the env that it was made with. With --config or "
                "--env, env.<key>=value changes the env."
            )
        players = players_of(Path(options.run), backend, options.allow_import)
    else:
        players = _nobody(options, overrides, folder)
    untrained = _untrained(options.policy, players.env)
    if players.policies and not untrained:
        return players
    if not players.policies and (missing := [group for group in players.env.groups if group not in untrained]):
        raise ConfigError(f"command line: who plays {', '.join(missing)}? Give --policy random or zero, or a run.")
    trained = by_group(players) if len(untrained) < len(players.env.groups) else {}
    policies = {
        group: untrained_policy(players.env, group, untrained[group]).to(backend.device)
        if group in untrained
        else trained[group]
        for group in players.env.groups
    }
    return Players(players.env, policies, players.settings, players.checkpoint if trained else None, untrained)


def players_of(run: Path, backend: Backend, allow_import: bool = False) -> Players:
    """The policies of a run folder, or of one of its checkpoints.

    Raises:
        CheckpointError: there is no run, or nothing of it was saved.
    """
    from trainers.evaluation import load_policies
    from trainers.run.checkpoint import candidates, run_folder_of
    from trainers.settings.read_config import read_config

    if not run.exists():
        raise CheckpointError(no_such_run(run))
    if (run / RESOLVED_CONFIG).exists() and not members_in(run) and not list_checkpoints(run / "checkpoints"):
        raise CheckpointError(
            f"{run}: holds no checkpoint, so there are no policies to play. A run saves one at its end, and before if "
            "saving.model_params_save_freq says so."
        )
    resolved = run_folder_of(run) / RESOLVED_CONFIG
    settings = read_config(resolved, allow_import=allow_import, to_play=True).evaluation
    saved = candidates(run)[0]  # asked for once: a run that still trains may save another meanwhile
    env, policies = load_policies(saved, backend, allow_import)
    return Players(env, policies, settings, saved)


def by_group(players: Players) -> dict[str, Policy]:
    """A policy for each group: a shared one plays for every group, if it can do without the others.

    Raises:
        ConfigError: the shared policy's network reads which of all agents it acts for.
    """
    if SHARED not in players.policies:
        return dict(players.policies)
    policy = players.policies[SHARED]
    if len(players.env.groups) > 1 and (policy.sees_agent_id or policy.has_central_critic):
        raise ConfigError(
            f"{players.run}: its one policy was made for all agents together (agent_id or central_critic), and cannot "
            f"play for one of {', '.join(players.env.groups)} alone. Train a policy for each group."
        )
    return {group: policy for group in players.env.groups}


def check_same_game(ours: Players, theirs: Players) -> None:
    """Raises ConfigError where the policies of two runs cannot play each other."""
    for name in ("name", "groups"):
        if getattr(ours.env, name) != getattr(theirs.env, name):
            what = "another env" if name == "name" else "other agents, or they see or act otherwise,"
            raise ConfigError(f"command line: --against {theirs.run}: has {what} than {ours.run}.")
    if len(ours.env.groups) == 1:
        raise ConfigError(
            f"command line: --against: all agents of '{ours.env.name}' are on one side. Compare the runs: eval RUN RUN."
        )
    if ours.checkpoint.resolve() == theirs.checkpoint.resolve():
        raise ConfigError(f"command line: --against {theirs.run}: is the very same checkpoint. Take another.")


def tell_apart(ours: Players, theirs: Players) -> list[str]:
    """A name for each, the shortest that differ."""
    forms = [[one.run.name, f"{one.run.name}/{one.checkpoint.name}", str(one.checkpoint)] for one in (ours, theirs)]
    return next([a, b] for a, b in zip(*forms, strict=True) if a != b)


def untrained_policy(env: Env, group: str, kind: str) -> Policy:
    """A policy that looks at nothing. "random": every action alike, and over all of a Box; "zero": action 0."""
    import torch
    from torch import nn

    from trainers.heads import GaussianHead, make_head
    from trainers.networks.policy import Policy
    from warpdrive.gaussian_sampler import LARGEST_END

    class Constant(nn.Module):
        """The same outputs whatever is seen; judges nothing."""

        sees, memory_size = "rows", 0

        def __init__(self, outputs: torch.Tensor) -> None:
            super().__init__()
            self.heads = {"policy": len(outputs), "value": 1}
            self.register_buffer("outputs", outputs)

        def forward(self, observation, critic_input=None):
            count = len(observation)
            return {"policy": self.outputs.expand(count, -1), "value": observation.new_zeros(count, 1)}

    head = make_head(env.groups[group].action_space)
    outputs = torch.zeros(head.num_outputs)
    if isinstance(head, GaussianHead) and kind == ZERO:
        outputs = -head.centre / head.scale
    elif isinstance(head, GaussianHead):
        with torch.no_grad():
            has_end = torch.as_tensor(abs(head.space.low)) < LARGEST_END
            has_end &= torch.as_tensor(abs(head.space.high)) < LARGEST_END
            head.log_std.copy_(torch.where(has_end, 0.0, math.log(10.0)))  # as wide as the Box, or as -10 to 10
    return Policy(Constant(outputs), head, PolicyConfig(), 0, None)


def check_at_least(least: int, name: str, number: int) -> int:
    """The number, or a ConfigError that names the option."""
    if number < least:
        raise ConfigError(f"command line: {name}: expected a whole number of at least {least}, got {number}.")
    return number


def check_seed(seed: int) -> int:
    """What --seed says, or a ConfigError: it has the bounds of a config's seed."""
    if not 0 <= seed < 2**63:
        line = f"command line: --seed: expected a whole number from 0 to {2**63 - 1}, got {shown(seed)}."
        raise ConfigError(line)
    return seed


@contextlib.contextmanager
def explained_shortage(env: Env, num_episodes: int) -> Iterator[None]:
    """Where torch or numpy find no memory for so many episodes, MemoryShortError says so."""
    try:
        yield
    except Exception as error:
        if isinstance(error, MemoryShortError) or not is_shortage(error):
            raise
        way_out = "Free memory for it."
        if num_episodes > 1:
            way_out = f"Play fewer, such as --episodes {num_episodes // 2}."
        line = f"memory ran out: {num_episodes:,} episodes of '{env.name}' at once do not fit. {way_out}"
        raise MemoryShortError(line) from error


def score_as_json(score: Score) -> dict:
    """A Score as JSON takes it; None where one episode has no spread."""

    def number(value: float) -> float | None:
        return value if math.isfinite(value) else None

    has_spread = len(score.lengths) > 1
    groups = {
        name: {
            "mean_reward": number(score.mean_of(name)),
            "standard_error": number(score.standard_error_of(name)) if has_spread else None,
        }
        for name in score.groups
    }
    return {
        "mean_reward": number(score.mean_reward),
        "std_reward": number(score.std_reward) if has_spread else None,
        "mean_ep_length": number(score.mean_ep_length),
        "figures": {name: number(figure) for name, figure in score.mean_figures().items()},
        "groups": groups,
    }


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows in columns, the first row being their names; numbers stand to the right."""
    plain = [[printable(word) for word in row] for row in rows]
    widths = [max(len(row[i]) for row in plain) for i in range(len(plain[0]))]
    is_number = [all(re.match(r"[-+]?(\d|nan|$)", row[i]) for row in plain[1:]) for i in range(len(widths))]
    lines = [
        "  ".join(word.rjust(width) if right else word.ljust(width) for word, width, right in columns).rstrip()
        for columns in (zip(row, widths, is_number, strict=True) for row in plain)
    ]
    return "\n".join(lines)


def score_rows(score: Score) -> list[list[str]]:
    """Of each group: its name, mean return, standard error, and the episodes' mean length; see COLUMNS."""
    rows = []
    for name in score.groups:
        error = f"{score.standard_error_of(name):.3f}" if len(score.lengths) > 1 else "-"
        rows.append([name, f"{score.mean_of(name):+.3f}", error, f"{score.mean_ep_length:.1f}"])
    return rows


COLUMNS = ["agents", "mean return", "standard error", "episode length"]


def _nobody(options: argparse.Namespace, overrides: Sequence[tuple[str, str]], folder: Path | None) -> Players:
    """The env of a config file or of a name, without policies."""
    from trainers.settings.read_config import read_config
    from warpdrive.config_file import override
    from warpdrive.env import load_env

    if options.config is not None:
        config = read_config(find_config(options.config, folder), overrides, allow_import=options.allow_import)
        return Players(load_env(config.name, config.env), {}, config.evaluation)
    if other := next((key for key, _ in overrides if not key.startswith("env.")), None):
        raise ConfigError(f"command line: {other}: with --env, only env.<key>=value can be given.")
    check_allowed(options.env, options.allow_import, "command line: --env: ")
    section = to_section({"env": {}})
    for key, text in overrides:
        override(section, key, text, "command line")
    return Players(load_env(options.env, section["env"]), {}, EvaluationConfig())


def _untrained(words: Sequence[str], env: Env) -> dict[str, str]:
    """group -> kind, of what --policy said."""
    kinds = {}
    for word in words:
        group, equals, kind = word.rpartition("=")
        if kind not in (RANDOM, ZERO):
            raise ConfigError(f"command line: --policy: expected random or zero, got '{kind}'.")
        if equals and group not in env.groups:
            hint = did_you_mean(group, env.groups)
            groups = ", ".join(env.groups)
            raise ConfigError(f"command line: --policy: '{env.name}' has no agents '{group}' ({groups}).{hint}")
        kinds |= {group: kind} if equals else dict.fromkeys(env.groups, kind)
    return kinds
