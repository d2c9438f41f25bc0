"""Configs that are wrong, each with the lines that must come; test_bad_inputs.py tries them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from good_config import GOOD

NUMBER = "tag.yaml:5: trainer.num_envs: expected a whole number of at least 1, got "
RATE = "tag.yaml:10: policy.tagger.lr: "


@dataclass(frozen=True)
class Bad:
    """An input, and what must come of it."""

    name: str
    lines: str
    """After "error: ", one a line; {folder} is the test's."""
    config: str | bytes | None = GOOD
    words: tuple[str, ...] = ("--config", "tag.yaml")
    code: int = 2
    needs_torch: bool = False
    make: Callable[[Path], object] | None = None
    """Makes what else there must be, in the test's folder."""


def changed(name: str, old: str, new: str, line: str) -> Bad:
    """The good config with one change."""
    assert GOOD.count(old) >= 1, old
    return Bad(name, line, GOOD.replace(old, new, 1))


def make_big(folder: Path) -> None:
    with (folder / "tag.yaml").open("wb") as file:
        file.truncate(50 << 20)


CONFIGS = [
    Bad("empty", "tag.yaml: is empty. A config has at least `name: <env>`.", ""),
    Bad("list", "tag.yaml:1: expected `key: value` lines at the top, got ['a']", "- a\n"),
    Bad("tab", "tag.yaml:2: a tab. YAML is indented by spaces.", "trainer:\n\tnum_envs: 3\n"),
    changed("bracket", "[32]", "[32", "tag.yaml:12: the bracket '[' is not closed."),
    changed("closing", "lr: 1e-3", "lr: }", "tag.yaml:10: a '}' too many, or out of place."),
    changed("quote", "basedir: runs", "basedir: 'runs", "tag.yaml:16: the quote is not closed."),
    changed("indentation", "    lr:", "   lr:",
        "tag.yaml:11: a ':' where no key can be. Is this line, or the one above, indented wrongly or without its ':'?"),
    changed("no colon", "  num_envs: 100", "  num_envs 100",
        "tag.yaml:6: a ':' where no key can be. Is this line, or the one above, indented wrongly or without its ':'?"),
    changed("list's end", "[32]", "- 32",
            "tag.yaml:12: a list's '-' must be on a line of its own; or write the list in brackets, [1, 2]."),
    changed("dedent", "  total", " total", "tag.yaml:7: does not fit the lines above it. Is it indented as they are?"),
    changed("last line", "basedir: runs", "basedir", "tag.yaml:15: saving: expected keys and values, got 'basedir'"),
    changed("at sign", "runs", "@runs", "tag.yaml:16: a value cannot start with '@'. Quote it."),
    changed("two documents", "saving:", "---\nsaving:",
            "tag.yaml:15: a second document starts here; a config is one document."),
    Bad("directive", "tag.yaml:1: a line that begins with '%' is a directive, which no config needs.",
        "%YAML 1.2\n---\n"),
    Bad("latin", "tag.yaml:2: not UTF-8 (byte 0xe9). Save it as UTF-8.", "name: a\ntag: \u00e9\n".encode("latin-1")),
    Bad("utf-16", "tag.yaml:1: UTF-16, not UTF-8 (byte 0xff). Save it as UTF-8.", GOOD.encode("utf-16")),
    Bad("binary", "tag.yaml:1: not UTF-8 (byte 0x80). Save it as UTF-8.", b"\x7fELF\x02\x01\x01\0\x80\xff"),
    Bad("nul", "tag.yaml:1: holds the character U+0000, which YAML does not allow", "name: a\0"),
    Bad("BOM, CRLF", NUMBER + "'ten'", b"\xef\xbb\xbf" + GOOD.replace("100", "ten").replace("\n", "\r\n").encode()),
    changed("escape in a key", "lr: 1e-3", '"\\e[31mlr": 1',
            "tag.yaml:10: policy.tagger.\\x1b[31mlr: unknown key. (known: {keys})"),
    changed("lr twice", "lr: 1e-3", "lr: 1e-3\n    lr: 2",
            "tag.yaml:11: policy.tagger.lr: given twice (first on line 10)."),
    changed("tag", "lr: 1e-3", "lr: !!python/object/apply:os.system ['true']",
            "tag.yaml:10: the tag 'tag:yaml.org,2002:python/object/apply:os.system' is not allowed: a "
            "tag can run code. Write a plain value."),
    changed("alias", "lr: 1e-3", "lr: *a",
            "tag.yaml:10: '*a' is not allowed: a short file of aliases can grow without end. Write the value out."),
    changed("nested", "[32]", "[" * 2000, "tag.yaml:12: nested more than 32 deep, which no config needs."),
    changed("many", "[32]", f"[{'1, ' * 10_000}]",
            "tag.yaml:12: holds more than 10,000 keys and values, which no config needs. Is it the right file?"),
    Bad("50 MB", "tag.yaml: has 50.0 MiB; a config has at most 1 MiB. Is it the right file?", None, make=make_big),
    changed("traner", "trainer:", "traner:",
            "tag.yaml:4: traner: unknown key. Did you mean 'trainer'? (known: name, env, trainer, "
            "policy, saving, evaluation, callbacks)\ntag.yaml:1: trainer.total_timesteps: is missing: how long to "
            "train, in env steps (or num_episodes, in episodes)."),
    changed("num_env", "num_envs:", "num_env:",
            "tag.yaml:5: trainer.num_env: unknown key. Did you mean 'num_envs'? (known: num_envs, "
            "train_batch_size, num_episodes, total_timesteps, env_backend, device, seed, precision, "
            "cuda_graphs, deterministic, num_gpus)"),
    changed("learning_rate", "lr:", "learning_rate:",
            "tag.yaml:10: policy.tagger.learning_rate: unknown key. Did you mean 'lr'?"),
    changed("env.num_envs", "num_taggers", "num_envs",
            "tag.yaml:3: env.num_envs: unknown key. Did you mean 'trainer.num_envs'?"),
    changed("batch_size", "train_batch_size", "batch_size",
            "tag.yaml:6: trainer.batch_size: unknown key: it means the minibatch in one library and "
            "the whole batch in another. Did you mean 'trainer.train_batch_size' (env steps of an "
            "iteration, over all envs)?"),
    changed("n_steps", "train_batch_size", "n_steps",
            "tag.yaml:6: trainer.n_steps: unknown key. The steps of an iteration are "
            "trainer.train_batch_size / trainer.num_envs: give those."),
    *[changed(f"num_envs: {text}", "100", text, NUMBER + got) for text, got in {"ten": "'ten'", "2000.5": "2000.5",
          "yes": "'yes'", "-5": "-5", ".inf": ".inf", "~": "nothing", "0x10": "'0x10'. Write 16.",
          "0o10": "'0o10'. Write 8.", "1,000": "'1,000'. Write 1_000.", "1_000.5": "1000.5",
          "'100'": "'100' as text. Write 100 without quotes.", "\u0661\u0660": "'\u0661\u0660'",
          "2026-11-21": "'2026-11-21'", "true": "true"}.items()],
    changed("octal", "100", "010",
        "tag.yaml:5: trainer.num_envs: '010' is 8-based in one YAML and 10-based in another. Write 10, or quote it."),
    changed("sexagesimal", "100", "1:30",
        "tag.yaml:5: trainer.num_envs: '1:30' is a number to the base 60 in one YAML and text in another. Quote it, "
        "or write the number out."),
    changed("huge", "100", "1e400", "tag.yaml:5: trainer.num_envs: '1e400' is too large for a number."),
    changed("65 bits", "100", "9" * 20,
            f"tag.yaml:5: trainer.num_envs: {'9' * 20} is too large: a whole number has at most 64 bits."),
    changed("lr: .nan", "1e-3", ".nan", RATE + "expected a number or a schedule of at least 0, got .nan"),
    changed("to_train", "lr: 1e-3", 'to_train: "False"',
        "tag.yaml:10: policy.tagger.to_train: expected true or false, got 'False' as text. Write false without quotes.",
    ),
    changed("on", "lr: 1e-3", "to_train: on",
            "tag.yaml:10: policy.tagger.to_train: expected true or false, got 'on'. Write true."),
    changed("gamma", "lr: 1e-3", "gamma: 1.5",
            "tag.yaml:10: policy.tagger.gamma: expected a number from 0 to 1, got 1.5"),
    changed("PP0", "A2C", "PP0",
        "tag.yaml:14: policy.runner.algorithm: unknown algorithm 'PP0'. Did you mean 'PPO'? (A2C, DQN, MAPPO, PPO)"),
    changed("schedule", "1e-3", "[[1000, 1e-3], [500, 1e-4]]",
            RATE + "schedule steps must increase, but 500 follows 1000."),
    changed("25001", "25000", "25001",
            "tag.yaml:6: trainer.train_batch_size: 25001 is no multiple of num_envs (100). The nearest "
            "that are: 25000 and 25100."),
    changed("minibatches", "algorithm: A2C", "algorithm: PPO\n    num_minibatches: 7",
            "tag.yaml:15: policy.runner.num_minibatches: 7 do not divide the 25000 samples "
            "(train_batch_size x agents) of an iteration. The nearest that do: 5 and 8."),
    changed("small buffer", "algorithm: A2C", "algorithm: DQN\n    buffer_size: 100",
            "tag.yaml:15: policy.runner.buffer_size: 100 transitions are fewer than the 128 of an update (batch_size). "
            "Keep more, or learn from fewer."),
    changed("conv of an mlp", "fc_dims: [32]", "conv: nature",
            "tag.yaml:12: policy.tagger.model.conv: type: mlp does not read it. Leave it out, or take another type."),
    changed("cnn of a row", "fc_dims: [32]", "type: cnn",
            "tag.yaml:12: policy.tagger.model.type: a cnn needs an image, [height, width] or [height, width, "
            "channels], and these agents observe [17]. Take mlp or gru."),
    changed("no runner", "  runner:\n    algorithm: A2C\n", "",
        "tag.yaml:8: policy: no policy covers agents 'runner' (1 agent). Add policy.runner, or one for all, shared."),
    changed("taggers", "tagger:", "taggers:",
            "tag.yaml:9: policy.taggers: no agents are called 'taggers'. Did you mean 'tagger'? "
            "(tagger, runner, shared)\ntag.yaml:8: policy: no policy covers agents 'tagger' (3 "
            "agents). Add policy.tagger, or one for all, shared."),
    changed("too many taggers", "num_taggers: 3", "num_taggers: 1e9",
            "tag.yaml:3: env.num_taggers: expected a whole number of at most 1,000,000, got 1000000000"),
    changed("tag leaves", "basedir: runs", "tag: ../../etc",
        "tag.yaml:16: saving.tag: expected a name of at most 100 letters, digits, '_', '-' and '.', got '../../etc'"),
    changed("no env", "tag_gridworld", "tag_gridwrld",
            "tag.yaml:1: name: unknown env 'tag_gridwrld'. Did you mean 'tag_gridworld'? An env of "
            "your own is 'my_package.my_env:MyEnv'."),
    changed("outside", "tag_gridworld", "os:system",
            "tag.yaml:1: name: 'os:system' imports code from outside. Allow it with --allow-import (in Python, "
            "allow_import=True)."),
]  # fmt: skip
