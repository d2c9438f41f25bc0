"""Writes docs/config.md from the config's dataclasses, and the metrics' table of docs/algorithms.md from EXPLANATIONS.

`python docs/make_reference.py --check` writes nothing and exits 1 if they say anything else.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import json
import operator
import re
import sys
import textwrap
import types
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # so that it also runs without an installation

from trainers.algorithms import ALGORITHMS, find_algorithm  # noqa: E402
from trainers.algorithms.actor_critic import ActorAndCriticsConfig  # noqa: E402
from trainers.algorithms.off_policy import OffPolicyConfig  # noqa: E402
from trainers.algorithms.q_replay import QReplayConfig  # noqa: E402
from trainers.algorithms.q_sequences import QSequencesConfig  # noqa: E402
from trainers.algorithms.team_replay import TeamReplayConfig  # noqa: E402
from trainers.networks import NETWORKS  # noqa: E402
from trainers.replay.tiers import TiersConfig  # noqa: E402
from trainers.settings.config import (  # noqa: E402
    SENTENCES,
    SYNONYMS,
    ActorCriticConfig,
    EvaluationConfig,
    ModelConfig,
    PolicyConfig,
    PopulationConfig,
    SavingConfig,
    TrainerConfig,
)
from warpdrive.config_values import Checked, Matching, Schedule, WrongValue, convert, shown  # noqa: E402
from warpdrive.env import list_envs, load_env  # noqa: E402

INTRODUCTION = """\
# Config reference

<!-- written by docs/make_reference.py from the dataclasses beside the code: change those, not this page -->

A run is a YAML file. It holds what differs from the defaults below; `warpdrive config show FILE` prints it with all of
them, `warpdrive config check FILE ...` names everything that is wrong with it. Any key can be given on the command line
as well: `trainer.num_envs=64`, `--trainer.num-envs 64`, `--env.num-taggers 8`.

```yaml
name: tag_gridworld
env: {num_taggers: 4}
trainer: {num_envs: 500, train_batch_size: 10_000, total_timesteps: 6_000_000}
policy:
  tagger: {algorithm: PPO, lr: [[0, 2e-3], [6_000_000, 2e-4]], model: {fc_dims: [64, 64]}}
  runner: {algorithm: A2C}
```

At the top stand `name`, which is the env, a shipped one or `"my_package.soccer:Soccer"`; `env`, its own config; the
sections `trainer`, `policy`, `saving`, `evaluation` and `population`; and `callbacks`, a list of
[your own](callbacks.md).

A *schedule* is a list of points, `[[step, value], ...]`: the number goes in straight lines from one to the next, by env
steps over all envs, and stays as it is before the first and after the last. An empty default: nothing is given.
"""

SECTIONS = (
    ("trainer", TrainerConfig, ""),
    ("policy.<name>", PolicyConfig, "Of every algorithm. `<name>` is `shared`, or each group of the env's agents."),
    ("saving", SavingConfig, "What is written, and how often; [runs.md](runs.md) tells what it is."),
    ("evaluation", EvaluationConfig, ""),
    ("population", PopulationConfig, ""),
)
SHARED_CONFIGS = {
    ActorCriticConfig: "A2C, PPO and MAPPO",
    OffPolicyConfig: "Algorithms that replay",
    QReplayConfig: "DQN, C51, QRDQN, IQN, R2D2, R2D3, NGU, AGENT57, VDN and QMIX",
    QSequencesConfig: "R2D2, R2D3, NGU, AGENT57, VDN and QMIX",
    TeamReplayConfig: "VDN, QMIX and MASAC",
    ActorAndCriticsConfig: "SAC, MASAC, TD3 and DDPG",
}
"""What several algorithms' configs derive from, and whose it is."""
MODEL = "policy.<name>.model"
DETAILS = '"The 37 implementation details of PPO"'
CHOICES = {(PolicyConfig, "algorithm"): ALGORITHMS, (ModelConfig, "type"): NETWORKS}
"""What is named after files, and so stands in no annotation."""
MARKS = ("<!-- metrics: written by docs/make_reference.py -->", "<!-- end of metrics -->")


# -------------------------------------------------------------------------------------------- what a field says


def own_docstrings(cls: type) -> dict[str, str]:
    """The text under each field that this class itself writes."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    found = {}
    for line, after in zip(body.body, [*body.body[1:], None], strict=True):
        if isinstance(line, ast.AnnAssign):
            text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            found[line.target.id] = " ".join(str(text).split())
    return found


def docstrings(cls: type) -> dict[str, str]:
    """The same with those that it inherits."""
    found: dict[str, str] = {}
    for one in reversed(cls.__mro__):
        if dataclasses.is_dataclass(one):
            found |= own_docstrings(one)
    return found


def expected(annotation: Any) -> str:
    """What a value may be, in the words of the error that a wrong one gets."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (types.UnionType, typing.Union) and type(None) in arguments:
        return expected(functools.reduce(operator.or_, (one for one in arguments if one is not type(None))))
    if origin is Literal:
        return ", ".join(f"`{one if isinstance(one, str) else shown(one)}`" for one in arguments)
    if origin is Annotated and any(isinstance(one, Matching | Checked) for one in arguments):
        return next(one.means for one in arguments if isinstance(one, Matching | Checked))
    try:
        convert(annotation, object())
    except WrongValue as wrong:
        return re.fullmatch(r"expected (.*), got .*", str(wrong), re.DOTALL).group(1)
    return "anything"


def in_yaml(value: Any) -> str:
    """A default, as YAML has it."""
    if value is None or value is dataclasses.MISSING:
        return ""
    if isinstance(value, Schedule):
        value = [list(point) for point in value.points]
    if isinstance(value, float):
        return f"`{value:.7g}`"
    return f"`{value}`" if isinstance(value, str) else f"`{json.dumps(value)}`"


def table(cls: type, names: Iterable[str] | None = None) -> str:
    """A line a field; nested dataclasses are left out."""
    hints, texts = typing.get_type_hints(cls, include_extras=True), docstrings(cls)
    lines = ["| key | value | default | |", "|---|---|---|---|"]
    for field in dataclasses.fields(cls):
        if dataclasses.is_dataclass(hints[field.name]) or (names is not None and field.name not in names):
            continue
        named = CHOICES.get((cls, field.name))
        value = expected(hints[field.name]) if named is None else ", ".join(f"`{one}`" for one in named)
        lines.append(row(f"`{field.name}`", value, in_yaml(field.default), texts.get(field.name, "")))
    return "\n".join(lines)


def row(*cells: str) -> str:
    """A line of a table; names such as <group> are no HTML."""
    return "| " + " | ".join(re.sub(r"[|<](?=[^`]*(`[^`]*`[^`]*)*$)", r"\\\g<0>", cell) for cell in cells) + " |"


# --------------------------------------------------------------------------------------------------- the pages


def config_page() -> str:
    parts = [INTRODUCTION]
    for title, cls, note in SECTIONS:
        about = cls.__doc__.partition(":` ")[2]
        parts.append(f"## `{title}`\n\n{note or about[:1].upper() + about[1:]}\n\n{table(cls)}\n")
        if cls is PolicyConfig:
            parts += [*algorithm_sections(), model_section()]
    return "\n".join([*parts, env_sections(), other_names()])


def algorithm_sections() -> list[str]:
    parts = []
    for base, whose in SHARED_CONFIGS.items():
        keys = table(base, own_docstrings(base))
        parts.append(f"### {whose}\n\nWhat they share:\n\n{keys}\n{keys_of_model(base)}")
        if base is OffPolicyConfig:
            about = "And in their `tiers`, where transitions are kept ([replay.md](replay.md#tiers)):"
            parts[-1] += f"\n{about}\n\n{table(TiersConfig)}\n"
    configs = {name: find_algorithm(name)[1] for name in ALGORITHMS}
    for name, cls in sorted(configs.items(), key=lambda item: len(item[1].__mro__)):  # first what others derive from
        base, keys = cls.__mro__[1], table(cls, own_docstrings(cls))
        above = f"As `{base.__name__.removesuffix('Config')}`, but for these:"
        if base is PolicyConfig or base in SHARED_CONFIGS:
            above = "Besides:"
        if re.search(r"\(\d+\)", keys):
            above = f"{above[:-1]}. Numbers in brackets are those of Huang et al. 2022, {DETAILS}:"
        parts.append(f"### `algorithm: {name}`\n\n{above}\n\n{keys}\n{keys_of_model(cls)}")
    return parts


def keys_of_model(cls: type) -> str:
    """What differs in the `model` of a config that has one of its own."""
    model = typing.get_type_hints(cls)["model"]
    if model is ModelConfig or "model" not in own_docstrings(cls):
        return ""
    return f"\nAnd in its `model`:\n\n{table(model, own_docstrings(model))}\n"


def model_section() -> str:
    note = "The network, `type: mlp`, `gru`, `lstm` or `cnn`. `memory_size` and `sequence_length` are of `gru` and "
    note += "`lstm`, `conv` and `dense_dim` of `cnn`."
    return f"## `{MODEL}`\n\n{note}\n\n{table(ModelConfig)}\n"


def env_sections() -> str:
    parts = ["## `env`\n\nOf the shipped envs; an env of your own has the fields of its `Config`.\n"]
    for name in list_envs():
        env = load_env(name)
        groups = ", ".join(f"`{group}`" for group in env.groups)
        parts.append(f"### `name: {name}`\n\nGroups: {groups}.\n\n{table(type(env.config))}\n")
    return "\n".join(parts)


def other_names() -> str:
    lines = ["## Other libraries' names", "", "Each is refused with the name that it has here.", "", "| there | here |"]
    lines += ["|---|---|", *(f"| `{there}` | `{here}` |" for there, here in SYNONYMS.items())]
    for name in SENTENCES:
        here = "`train_batch_size`: env steps of an iteration, over all envs; DQN's `batch_size` is that of an update"
        lines.append(f"| `{name}` | {here if name == 'batch_size' else '`train_batch_size` / `num_envs`'} |")
    return "\n".join(lines) + "\n"


def metrics_table() -> str:
    from trainers.report.metrics import EXPLANATIONS  # loads torch

    return "\n".join(["| metric | |", "|---|---|", *(row(f"`{name}`", text) for name, text in EXPLANATIONS.items())])


def pages() -> dict[Path, str]:
    """What each file must say."""
    algorithms = HERE / "algorithms.md"
    before, _, rest = algorithms.read_text(encoding="utf-8").partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    return {
        HERE / "config.md": config_page(),
        algorithms: f"{before}{MARKS[0]}\n{metrics_table()}\n{MARKS[1]}{after}",
    }


def main() -> int:
    is_stale = False
    for path, text in pages().items():
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            print(f"docs/{path.name} says something else than the code. Run python docs/make_reference.py.")
            is_stale = True
    return int(is_stale)


if __name__ == "__main__":
    sys.exit(main())
