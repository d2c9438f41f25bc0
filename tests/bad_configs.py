"""Configs that are wrong, each with the lines that must come; test_bad_inputs.py tries them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from good_config import GOOD

NUMBER = "tag.yaml:5: trainer.num_envs: expected a whole number of at least 1, got "
RATE = "tag.yaml:10: policy.tagger.lr: "
TAGGER = "lr: 1e-3\n    model:\n      fc_dims: [32]"
PPO = "algorithm: PPO\n    num_minibatches: "


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
            "policy, saving, evaluation, population, callbacks)\ntag.yaml:1: trainer.total_timesteps: is missing: how "
            "long to train, in env steps (or num_episodes, in episodes)."),
    changed("num_env", "num_envs:", "num_env:",
            "tag.yaml:5: trainer.num_env: unknown key. Did you mean 'num_envs'? (known: num_envs, "
            "train_batch_size, num_episodes, total_timesteps, env_backend, device, seed, precision, "
            "cuda_graphs, compile, deterministic, num_gpus, multiprocessors, rank_timeout)"),
    *[changed(f"{place}{word}", old, f"{word}:", f"tag.yaml:{place}{word}: unknown key. Did you mean '{meant}'?")
      for old, place, word, meant in [
          ("num_taggers:", "3: env.", "num_envs", "trainer.num_envs"),
          ("num_envs:", "5: trainer.", "n_envs", "num_envs"),
          ("lr:", "10: policy.tagger.", "learning_rate", "lr"),
          ("lr:", "10: policy.tagger.", "num_envs", "trainer.num_envs"),
          ("lr:", "10: policy.tagger.", "ent_coef", "entropy_coeff"),
          ("lr:", "10: policy.tagger.", "vf_coef", "vf_loss_coeff"),
          ("fc_dims:", "12: policy.tagger.model.", "hidden_sizes", "fc_dims"),
          ("basedir:", "16: saving.", "save_freq", "model_params_save_freq"),
      ]],
    changed("num_tagers", "num_taggers", "num_tagers",
            "tag.yaml:3: env.num_tagers: unknown key. Did you mean 'num_taggers'? (known: {keys})"),
    changed("clip_range", "lr: 1e-3", "clip_range: 0.1",
            "tag.yaml:10: policy.tagger.clip_range: unknown key, here 'clip_param': it is MAPPO's, OFFPPO's and "
            "PPO's, and the algorithm is A2C. Leave it out, or change that."),
    changed("num_epochs", "lr: 1e-3", "num_epochs: 4",
            "tag.yaml:10: policy.tagger.num_epochs: unknown key: it is MAPPO's, OFFPPO's, PPO's and "
            "PQN's, and the algorithm is A2C. Leave it out, or change that."),
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
    *[changed(new, old, new, f"tag.yaml:{told}") for old, new, told in [
          ("tag_gridworld", "3", "1: name: expected the env's name, got 3"),
          ("num_taggers: 3", "num_taggers: 0", "3: env.num_taggers: expected a whole number from 1 to 8000, got 0"),
          ("num_taggers: 3", "num_taggers: x", "3: env.num_taggers: expected a whole number from 1 to 8000, got 'x'"),
          ("lr: 1e-3", "gamma: 1.5", "10: policy.tagger.gamma: expected a number from 0 to 1, got 1.5"),
          ("lr: 1e-3", "max_grad_norm: 0", "10: policy.tagger.max_grad_norm: expected a number above 0, got 0"),
          ("fc_dims: [32]", "type: mpl",
           "12: policy.tagger.model.type: unknown network 'mpl'. Did you mean 'mlp'? (cnn, gru, lstm, mlp)"),
      ]],
    changed("seed: -1", "1e6", "1e6\n  seed: -1",
            "tag.yaml:8: trainer.seed: expected a whole number from 0 to 9223372036854775807, got -1"),
    changed("no name", "name: tag_gridworld\n", "", "tag.yaml:1: name: is missing: the env's name."),
    changed("no length", "total_timesteps: 1e6", "seed: 1",
            "tag.yaml:4: trainer.total_timesteps: is missing: how long to train, in env steps (or num_episodes, in "
            "episodes)."),
    changed("two lengths", "1e6", "1\n  num_episodes: 1",
            "tag.yaml:8: trainer.num_episodes: given beside total_timesteps: both say how long to train. Give one."),
    changed("3 GPUs", "1e6", "1e6\n  num_gpus: 3",
            "tag.yaml:5: trainer.num_envs: 100 envs cannot be shared out evenly over num_gpus: 3. The nearest that "
            "can: 99 and 102."),
    changed("one of 2 GPUs", "1e6", "1e6\n  num_gpus: 2\n  device: cuda:1",
            "tag.yaml:9: trainer.device: names one GPU beside num_gpus: 2. Each process takes its own: say cuda."),
    changed("PP0", "A2C", "PP0",
        "tag.yaml:14: policy.runner.algorithm: unknown algorithm 'PP0'. Did you mean 'PPO'? (A2C, AGENT57, C51, DDPG, "
        "DQN, IMPALA, IQN, MAPPO, MASAC, NGU, OFFPPO, PPO, PQN, QMIX, QRDQN, R2D2, R2D3, SAC, TD3, VDN)"),
    changed("schedule", "1e-3", "[[1000, 1e-3], [500, 1e-4]]",
            RATE + "schedule steps must increase, but 500 follows 1000."),
    changed("25001", "25000", "25001",
            "tag.yaml:6: trainer.train_batch_size: 25001 is no multiple of num_envs (100). The nearest "
            "that are: 25000 and 25100."),
    changed("small buffer", "algorithm: A2C", "algorithm: DQN\n    buffer_size: 100",
            "tag.yaml:15: policy.runner.buffer_size: 100 transitions are fewer than the 128 of an update (batch_size). "
            "Keep more, or learn from fewer."),
    changed("few sequences", "algorithm: A2C", "algorithm: R2D2\n    batch_size: 5000\n    buffer_size: 5000",
            "tag.yaml:15: policy.runner.batch_size: 5000 sequences are more than the 2100 that there are with "
            "buffer_size: 5000, as one begins every 10 steps. Learn from fewer, or set buffer_size: 50000."),
    changed("sequences of a team", "algorithm: A2C",
            "algorithm: VDN\n    batch_size: 5000\n    buffer_size: 5000\n    model: {type: gru}",
            "tag.yaml:15: policy.runner.batch_size: 5000 sequences are more than the 2200 that there are with "
            "buffer_size: 5000, as one begins every 10 steps. Learn from fewer, or set buffer_size: 50000."),
    changed("replay ratio", "algorithm: A2C", "algorithm: SAC\n    replay_ratio: 1e4",
            "tag.yaml:15: policy.runner.replay_ratio: 10000 asks for 250,000,000 updates of an iteration (25,000 env "
            "steps), and at most 1,000,000 can be planned. Lower it, or train_batch_size."),
    changed("n_step", "algorithm: A2C", "algorithm: DQN\n    n_step: 100_000",
            "tag.yaml:15: policy.runner.n_step: expected a whole number from 1 to 1000, got 100000"),
    changed("conv of an mlp", "fc_dims: [32]", "conv: nature",
            "tag.yaml:12: policy.tagger.model.conv: type: mlp does not read it. Leave it out, or take another type."),
    changed("cnn of a row", "fc_dims: [32]", "type: cnn",
            "tag.yaml:12: policy.tagger.model.type: a cnn needs an image, [height, width] or [height, width, "
            "channels], and these agents observe [17]. Take mlp, gru or lstm."),
    changed("batch of 7", "25000", "7",
            "tag.yaml:6: trainer.train_batch_size: 7 is no multiple of num_envs (100). The nearest that are: 100."),
    changed("samples", TAGGER, f"{PPO}7",
            "tag.yaml:11: policy.tagger.num_minibatches: 7 do not divide the 75000 samples (train_batch_size x agents) "
            "of an iteration. The nearest that do: 6 and 8."),
    changed("sequences", TAGGER, f"{PPO}3\n    model: {{type: gru, sequence_length: 50}}",
            "tag.yaml:11: policy.tagger.num_minibatches: 3 do not divide the 500 sequences (each of one env) of an "
            "iteration. The nearest that do: 2 and 4."),
    changed("steps of a sequence", TAGGER, f"{PPO}4\n    model: {{type: gru, sequence_length: 60}}",
            "tag.yaml:12: policy.tagger.model.sequence_length: 60 does not divide the 250 steps of an iteration. The "
            "nearest that do: 50 and 125."),
    Bad("samples of a rank",  # 8 divide the 75,000 samples, and not the 37,500 of each of two ranks
        "tag.yaml:12: policy.tagger.num_minibatches: 8 do not divide the 37500 samples (train_batch_size x agents) of "
        "an iteration on each GPU. The nearest that do: 6 and 10.",
        GOOD.replace("1e6", "1e6\n  num_gpus: 2").replace(TAGGER, f"{PPO}8")),
    Bad("prime",  # what divides it is not searched for without end
        "tag.yaml:11: policy.tagger.num_minibatches: 10000 do not divide the 3000000021 samples (train_batch_size x "
        "agents) of an iteration. The nearest that do: 3 and 3000000021.",
        GOOD.replace("25000", "1_000_000_007").replace("100\n", "1\n").replace(TAGGER, f"{PPO}10_000")),
    *[changed(key, old, new, f"tag.yaml:{key}: the critic shares its hidden layers with the actor. Set "
              "model.shared_trunk: false, or leave this out.") for key, old, new in [
          ("12: policy.tagger.model.critic_fc_dims", "fc_dims: [32]", "critic_fc_dims: [8]\n      shared_trunk: true"),
          ("10: policy.tagger.critic_lr", "lr: 1e-3\n    model:",
           "critic_lr: 1e-4\n    model:\n      shared_trunk: true"),
      ]],
    changed("no runner", "  runner:\n    algorithm: A2C\n", "",
        "tag.yaml:8: policy: no policy covers agents 'runner' (1 agent). Add policy.runner, or one for all, shared."),
    changed("taggers", "tagger:", "taggers:",
            "tag.yaml:9: policy.taggers: no agents are called 'taggers'. Did you mean 'tagger'? "
            "(tagger, runner, shared)\ntag.yaml:8: policy: no policy covers agents 'tagger' (3 "
            "agents). Add policy.tagger, or one for all, shared."),
    changed("a key beside policies", "  tagger:", "  lr: 1e-3\n  tagger:",
            "tag.yaml:9: policy.lr: is a key of each policy. Write policy.tagger.lr."),
    changed("shared", "tagger:", "shared:",
            "tag.yaml:9: policy.shared: covers all agents: there can be no other policy beside it. There is "
            "policy.runner: change that."),
    Bad("all sections",
        "tag.yaml:3: env.num_taggers: expected a whole number from 1 to 8000, got 'x'\n" + NUMBER + "'x'\n"
        + RATE + "expected a number or a schedule of at least 0, got 'y'",
        GOOD.replace("num_taggers: 3", "num_taggers: x").replace("100", "x").replace("1e-3", "y")),
    changed("too many taggers", "num_taggers: 3", "num_taggers: 1e9",
            "tag.yaml:3: env.num_taggers: expected a whole number from 1 to 8000, got 1000000000.0"),
    changed("tag leaves", "basedir: runs", "tag: ../../etc",
        "tag.yaml:16: saving.tag: expected a name of at most 100 letters, digits, '_', '-' and '.', got '../../etc'"),
    changed("no env", "tag_gridworld", "tag_gridwrld",
            "tag.yaml:1: name: unknown env 'tag_gridwrld'. Did you mean 'tag_gridworld'? An env of "
            "your own is 'my_package.my_env:MyEnv'."),
    changed("outside", "tag_gridworld", "os:system",
            "tag.yaml:1: name: 'os:system' imports code from outside. Allow it with --allow-import (in Python, "
            "allow_import=True)."),
]  # fmt: skip
