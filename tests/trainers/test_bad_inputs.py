"""Sixty bad inputs and more, each with the line that must come and its exit code; no traceback, and no torch needed.

All of them run in this process; some, and with WARPDRIVE_ALL_BAD_INPUTS=1 all, as programs, whose CPU time is told.
"""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from good_config import GOOD
from safetensors.torch import save_file

from trainers import cli
from warpdrive.config_file import MAX_FILE_BYTES

ROOT = Path(__file__).parents[2]
ALL_AS_PROGRAMS = "WARPDRIVE_ALL_BAD_INPUTS"
MAX_SECONDS = 0.5
"""Of CPU time, on a quiet machine, until a config is refused; twice that for one of 10,000 values."""

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


def typed(name: str, *words: str, line: str, **more: object) -> Bad:
    """The good config with words behind it."""
    return Bad(name, line, words=("--config", "tag.yaml", *words), **more)


def write_policy(path: Path, **shapes: tuple[int, ...]) -> None:
    save_file({name: torch.zeros(shape) for name, shape in shapes.items()}, path)


def make_big(folder: Path) -> None:
    with (folder / "tag.yaml").open("wb") as file:
        file.truncate(50 << 20)


def make_socket(folder: Path) -> None:
    place = os.getcwd()
    os.chdir(folder)  # a socket's path must be short
    try:
        socket.socket(socket.AF_UNIX).bind("tag.yaml")
    finally:
        os.chdir(place)


CONFIGS = [
    Bad("empty", "tag.yaml: is empty. A config has at least `name: <env>`.", ""),
    Bad("list", "tag.yaml:1: expected `key: value` lines at the top, got ['a']", "- a\n"),
    Bad("tab", "tag.yaml:2: a tab. YAML is indented by spaces.", "trainer:\n\tnum_envs: 3\n"),
    changed("bracket", "[32]", "[32", "tag.yaml:12: the bracket '[' is not closed."),
    changed("closing", "lr: 1e-3", "lr: }", "tag.yaml:10: a '}' too many, or out of place."),
    changed("quote", "basedir: runs", "basedir: 'runs", "tag.yaml:16: the quote is not closed."),
    changed(
        "indentation",
        "    lr:",
        "   lr:",
        "tag.yaml:11: a ':' where no key can be. Is this line, or the one above, indented wrongly or without its ':'?",
    ),
    changed(
        "no colon",
        "  num_envs: 100",
        "  num_envs 100",
        "tag.yaml:6: a ':' where no key can be. Is this line, or the one above, indented wrongly or without its ':'?",
    ),
    changed(
        "list's end",
        "[32]",
        "- 32",
        "tag.yaml:12: a list's '-' must be on a line of its own; or write the list in brackets, [1, 2].",
    ),
    changed("dedent", "  total", " total", "tag.yaml:7: does not fit the lines above it. Is it indented as they are?"),
    changed("last line", "basedir: runs", "basedir", "tag.yaml:15: saving: expected keys and values, got 'basedir'"),
    changed("at sign", "runs", "@runs", "tag.yaml:16: a value cannot start with '@'. Quote it."),
    changed(
        "two documents",
        "saving:",
        "---\nsaving:",
        "tag.yaml:15: a second document starts here; a config is one document.",
    ),
    Bad(
        "directive",
        "tag.yaml:1: a line that begins with '%' is a directive, which no config needs.",
        "%YAML 1.2\n---\n",
    ),
    Bad("latin", "tag.yaml:2: not UTF-8 (byte 0xe9). Save it as UTF-8.", "name: a\ntag: \u00e9\n".encode("latin-1")),
    Bad("utf-16", "tag.yaml:1: UTF-16, not UTF-8 (byte 0xff). Save it as UTF-8.", GOOD.encode("utf-16")),
    Bad("binary", "tag.yaml:1: not UTF-8 (byte 0x80). Save it as UTF-8.", b"\x7fELF\x02\x01\x01\0\x80\xff"),
    Bad("nul", "tag.yaml:1: holds the character U+0000, which YAML does not allow", "name: a\0"),
    Bad("BOM, CRLF", NUMBER + "'ten'", b"\xef\xbb\xbf" + GOOD.replace("100", "ten").replace("\n", "\r\n").encode()),
    changed(
        "escape in a key",
        "lr: 1e-3",
        '"\\e[31mlr": 1',
        "tag.yaml:10: policy.tagger.\\x1b[31mlr: unknown key. (known: {keys})",
    ),
    changed(
        "lr twice", "lr: 1e-3", "lr: 1e-3\n    lr: 2", "tag.yaml:11: policy.tagger.lr: given twice (first on line 10)."
    ),
    changed(
        "tag",
        "lr: 1e-3",
        "lr: !!python/object/apply:os.system ['true']",
        "tag.yaml:10: the tag 'tag:yaml.org,2002:python/object/apply:os.system' is not allowed: a "
        "tag can run code. Write a plain value.",
    ),
    changed(
        "alias",
        "lr: 1e-3",
        "lr: *a",
        "tag.yaml:10: '*a' is not allowed: a short file of aliases can grow without end. Write the value out.",
    ),
    changed("nested", "[32]", "[" * 2000, "tag.yaml:12: nested more than 32 deep, which no config needs."),
    changed(
        "many",
        "[32]",
        f"[{'1, ' * 10_000}]",
        "tag.yaml:12: holds more than 10,000 keys and values, which no config needs. Is it the right file?",
    ),
    Bad("50 MB", "tag.yaml: has 50.0 MiB; a config has at most 1 MiB. Is it the right file?", None, make=make_big),
    changed(
        "traner",
        "trainer:",
        "traner:",
        "tag.yaml:4: traner: unknown key. Did you mean 'trainer'? (known: name, env, trainer, "
        "policy, saving, evaluation)\ntag.yaml:1: trainer.total_timesteps: is missing: how long to "
        "train, in env steps (or num_episodes, in episodes).",
    ),
    changed(
        "num_env",
        "num_envs:",
        "num_env:",
        "tag.yaml:5: trainer.num_env: unknown key. Did you mean 'num_envs'? (known: num_envs, "
        "train_batch_size, num_episodes, total_timesteps, env_backend, device, seed, precision, "
        "cuda_graphs, deterministic, num_gpus)",
    ),
    changed(
        "learning_rate",
        "lr:",
        "learning_rate:",
        "tag.yaml:10: policy.tagger.learning_rate: unknown key. Did you mean 'lr'?",
    ),
    changed(
        "env.num_envs",
        "num_taggers",
        "num_envs",
        "tag.yaml:3: env.num_envs: unknown key. Did you mean 'trainer.num_envs'?",
    ),
    changed(
        "batch_size",
        "train_batch_size",
        "batch_size",
        "tag.yaml:6: trainer.batch_size: unknown key: it means the minibatch in one library and "
        "the whole batch in another. Did you mean 'trainer.train_batch_size' (env steps of an "
        "iteration, over all envs)?",
    ),
    changed(
        "n_steps",
        "train_batch_size",
        "n_steps",
        "tag.yaml:6: trainer.n_steps: unknown key. The steps of an iteration are "
        "trainer.train_batch_size / trainer.num_envs: give those.",
    ),
    *[
        changed(f"num_envs: {text}", "100", text, NUMBER + got)
        for text, got in {
            "ten": "'ten'",
            "2000.5": "2000.5",
            "yes": "'yes'",
            "-5": "-5",
            ".inf": ".inf",
            "~": "nothing",
            "0x10": "'0x10'. Write 16.",
            "0o10": "'0o10'. Write 8.",
            "1,000": "'1,000'. Write 1_000.",
            "1_000.5": "1000.5",
            "'100'": "'100' as text. Write 100 without quotes.",
            "\u0661\u0660": "'\u0661\u0660'",
            "2026-11-21": "'2026-11-21'",
            "true": "true",
        }.items()
    ],
    changed(
        "octal",
        "100",
        "010",
        "tag.yaml:5: trainer.num_envs: '010' is 8-based in one YAML and 10-based in another. Write 10, or quote it.",
    ),
    changed(
        "sexagesimal",
        "100",
        "1:30",
        "tag.yaml:5: trainer.num_envs: '1:30' is a number to the base 60 in one YAML and text in another. Quote it.",
    ),
    changed("huge", "100", "1e400", "tag.yaml:5: trainer.num_envs: '1e400' is too large for a number."),
    changed(
        "65 bits",
        "100",
        "9" * 20,
        f"tag.yaml:5: trainer.num_envs: {'9' * 20} is too large: a whole number has at most 64 bits.",
    ),
    changed("lr: .nan", "1e-3", ".nan", RATE + "expected a number or a schedule of at least 0, got .nan"),
    changed(
        "to_train",
        "lr: 1e-3",
        'to_train: "False"',
        "tag.yaml:10: policy.tagger.to_train: expected true or false, got 'False' as text. Write false without quotes.",
    ),
    changed(
        "on",
        "lr: 1e-3",
        "to_train: on",
        "tag.yaml:10: policy.tagger.to_train: expected true or false, got 'on'. Write true.",
    ),
    changed(
        "gamma", "lr: 1e-3", "gamma: 1.5", "tag.yaml:10: policy.tagger.gamma: expected a number from 0 to 1, got 1.5"
    ),
    changed(
        "PP0",
        "A2C",
        "PP0",
        "tag.yaml:14: policy.runner.algorithm: unknown algorithm 'PP0'. Did you mean 'PPO'? (A2C, MAPPO, PPO)",
    ),
    changed(
        "schedule", "1e-3", "[[1000, 1e-3], [500, 1e-4]]", RATE + "schedule steps must increase, but 500 follows 1000."
    ),
    changed(
        "25001",
        "25000",
        "25001",
        "tag.yaml:6: trainer.train_batch_size: 25001 is no multiple of num_envs (100). The nearest "
        "that are: 25000 and 25100.",
    ),
    changed(
        "minibatches",
        "algorithm: A2C",
        "algorithm: PPO\n    num_minibatches: 7",
        "tag.yaml:15: policy.runner.num_minibatches: 7 do not divide the 25000 samples "
        "(train_batch_size x agents) of an iteration. The nearest that do: 5 and 8.",
    ),
    changed(
        "no runner",
        "  runner:\n    algorithm: A2C\n",
        "",
        "tag.yaml:8: policy: no policy covers agents 'runner' (1 agent). Add policy.runner, or one for all, shared.",
    ),
    changed(
        "taggers",
        "tagger:",
        "taggers:",
        "tag.yaml:9: policy.taggers: no agents are called 'taggers'. Did you mean 'tagger'? "
        "(tagger, runner, shared)\ntag.yaml:8: policy: no policy covers agents 'tagger' (3 "
        "agents). Add policy.tagger, or one for all, shared.",
    ),
    changed(
        "too many taggers",
        "num_taggers: 3",
        "num_taggers: 1e9",
        "tag.yaml:3: env.num_taggers: expected a whole number of at most 1,000,000, got 1000000000",
    ),
    changed(
        "tag leaves",
        "basedir: runs",
        "tag: ../../etc",
        "tag.yaml:16: saving.tag: expected a name of at most 100 letters, digits, '_', '-' and '.', got '../../etc'",
    ),
    changed(
        "no env",
        "tag_gridworld",
        "tag_gridwrld",
        "tag.yaml:1: name: unknown env 'tag_gridwrld'. Did you mean 'tag_gridworld'? An env of "
        "your own is 'my_package.my_env:MyEnv'.",
    ),
    changed(
        "outside",
        "tag_gridworld",
        "os:system",
        "tag.yaml:1: name: 'os:system' imports code from outside. Allow it with --allow-import.",
    ),
]


def make_wrong_shape(folder: Path) -> None:
    write_policy(folder / "a.safetensors", **{"network.trunk.0.weight": (2, 2)})


def closed_folder(folder: Path) -> None:
    (folder / "file").touch()


STARTED = "policy.tagger.model.model_ckpt_filepath=a.safetensors"
START = {"code": 4, "needs_torch": True}
OTHERS = [
    Bad(
        "missing",
        "tag_gridwrld.yaml: no such file. Did you mean 'tag_gridworld.yaml'?",
        words=("--config", "tag_gridwrld.yaml"),
        make=lambda folder: (folder / "tag_gridworld.yaml").touch(),
    ),
    Bad(
        "folder",
        "tag.yaml: is a folder. Name the YAML file in it.",
        None,
        make=lambda folder: (folder / "tag.yaml").mkdir(),
    ),
    Bad(
        "FIFO",
        "tag.yaml: cannot be read: it is a FIFO, not a regular file.",
        None,
        make=lambda folder: os.mkfifo(folder / "tag.yaml"),
    ),
    Bad("socket", "tag.yaml: cannot be read: No such device or address.", None, make=make_socket),
    Bad("/dev/zero", "/dev/zero: cannot be read: it is a device, not a regular file.", words=("--config", "/dev/zero")),
    Bad(
        "link to a device",
        "tag.yaml: cannot be read: it is a device, not a regular file.",
        None,
        make=lambda folder: (folder / "tag.yaml").symlink_to("/dev/full"),
    ),
    Bad("long name", f"{'x' * 300}/a: no such file.", words=("--config", f"{'x' * 300}/a")),
    Bad(
        "link to nothing",
        "tag.yaml: no such file.",
        None,
        make=lambda folder: (folder / "tag.yaml").symlink_to("nowhere"),
    ),
    Bad(
        "unreadable", "tag.yaml: cannot be read: Permission denied.", make=lambda folder: (folder / "tag.yaml").chmod(0)
    ),
    typed(
        "typed ten",
        "trainer.num_envs=ten",
        line="command line: trainer.num_envs: expected a whole number of at least 1, got 'ten'",
    ),
    typed(
        "typed seed",
        "--seed",
        "x",
        line="command line: trainer.seed: expected a whole number from 0 to 9223372036854775807, got 'x'",
    ),
    typed(
        "typed device",
        "--device",
        "gpu",
        line="command line: trainer.device: expected auto, cpu, cuda or cuda:N, got 'gpu'",
    ),
    typed(
        "typed bracket",
        "policy.tagger.model.fc_dims=[32",
        line="command line: policy.tagger.model.fc_dims: the bracket '[' is not closed.",
    ),
    typed(
        "typed through a value",
        "trainer.num_envs.x=1",
        line="command line: trainer.num_envs.x: 'num_envs' is 100, which holds no keys.",
    ),
    typed(
        "typed two dots",
        "trainer..seed=1",
        line="command line: 'trainer..seed': expected words with a dot between them, as trainer.num_envs.",
    ),
    typed(
        "typed python",
        "name=../../x:Y",
        line="command line: name: '../../x:Y' imports code from outside. Allow it with --allow-import.",
    ),
    typed(
        "imported path",
        "name=../../x:Y",
        "--allow-import",
        line="command line: name: env '../../x:Y': expected a module and a class of it with one colon "
        "between, 'my_package.my_env:MyEnv'.",
    ),
    typed(
        "imported function",
        "name=os:system",
        "--allow-import",
        line="command line: name: env 'os:system': os has no Env named 'system'.",
    ),
    typed("option", "--nonsense", "1", line="command line: {unknown option}"),
    typed("word", "nonsense", line="command line: expected key=value, such as trainer.num_envs=64, got 'nonsense'"),
    Bad(
        "two runs",
        "command line: --run-name names a new run, but --resume goes on in its own folder. Give one.",
        words=("--resume", "runs", "--run-name", "a"),
    ),
    Bad(
        "resume nothing",
        "{folder}/runs: no run folder. Give one, such as runs/<name>, or a checkpoint "
        "in it; a policy alone is taken over by policy.<name>.model.model_ckpt_filepath.",
        words=("--resume", "runs"),
        **START,
    ),
    typed(
        "run name",
        "--run-name",
        "../x",
        line="--run-name: expected a name of at most 100 letters, digits, '_', '-' and '.', got '../x'",
        needs_torch=True,
    ),
    typed(
        "basedir in a file",
        "saving.basedir=file/runs",
        line="saving.basedir: no run folder can be made in 'file/runs' (Not a directory). Name a folder "
        "that can be written.",
        make=closed_folder,
        code=3,
        needs_torch=True,
    ),
    typed(
        "no memory",
        "trainer.num_envs=1e12",
        "trainer.train_batch_size=1e13",
        line="'tag_gridworld' needs {memory}",
        code=3,
        needs_torch=True,
    ),
    typed("no policy", STARTED, line="a.safetensors: no such file.", **START),
    typed(
        "pickle",
        STARTED,
        line="a.safetensors: a pickle, which can run code when it is read. Only safetensors are.",
        make=lambda folder: torch.save({}, folder / "a.safetensors"),
        **START,
    ),
    typed(
        "torn",
        STARTED,
        line="a.safetensors: no complete safetensors file (Error while deserializing: header too small).",
        make=lambda folder: (folder / "a.safetensors").write_bytes(b"\x09\0\0"),
        **START,
    ),
    typed(
        "text",
        STARTED,
        line="a.safetensors: no complete safetensors file (Error while deserializing: header too large).",
        make=lambda folder: (folder / "a.safetensors").write_text("root:x:0:0\n" * 9),
        **START,
    ),
    typed(
        "other shape",
        STARTED,
        line="a.safetensors: lacks network.trunk.0.bias, network.policy_head.weight, "
        "network.policy_head.bias. It was saved by another kind of run.",
        make=make_wrong_shape,
        **START,
    ),
    typed(
        "FIFO of a policy",
        STARTED,
        line="a.safetensors: no plain file.",
        make=lambda folder: os.mkfifo(folder / "a.safetensors"),
        **START,
    ),
]
ALL = [*CONFIGS, *OTHERS]


def test_there_are_sixty_and_more():
    assert len({one.name for one in ALL}) == len(ALL) >= 60
    assert len(CONFIGS) >= 40
    assert len(OTHERS) >= 20


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Bad], None]:
    def prepare(bad: Bad) -> None:
        monkeypatch.chdir(tmp_path)
        if bad.config is not None:
            content = bad.config if isinstance(bad.config, bytes) else bad.config.encode()
            (tmp_path / "tag.yaml").write_bytes(content)
        if bad.make is not None:
            bad.make(tmp_path)
        if bad.name == "unreadable" and os.access(tmp_path / "tag.yaml", os.R_OK):
            pytest.skip("this user may read anything")

    return prepare


def check(bad: Bad, code: int, printed: str, errors: str, folder: Path) -> None:
    assert "Traceback" not in errors
    expected = [f"error: {line.replace('{folder}', str(folder))}" for line in bad.lines.splitlines()]
    found = errors.splitlines()
    assert len(found) == len(expected), errors
    for line, whole in zip(found, expected, strict=True):
        start, mark, _ = whole.partition("{")  # what follows is another's to test
        assert line.startswith(start) if mark else line == whole
    assert (code, printed) == (bad.code, "")
    assert not list(folder.glob("runs*"))


@pytest.mark.parametrize("bad", ALL, ids=lambda bad: bad.name)
def test_bad_input_is_told_in_its_line(bad, prepared, tmp_path, monkeypatch, capfd):
    prepared(bad)
    if not bad.needs_torch:
        monkeypatch.setitem(sys.modules, "torch", None)  # importing it fails
        monkeypatch.setitem(sys.modules, "trainers.trainer", None)
    code = cli.main(list(bad.words), command="train")
    printed, errors = capfd.readouterr()
    check(bad, code, printed, errors, tmp_path)


PROGRAM = """
import sys
from trainers.cli import main
code = main(sys.argv[1:], command="train")
print(*[name for name in ("torch", "matplotlib", "rich") if name in sys.modules])
sys.exit(code)
"""
AS_PROGRAMS = ["50 MB", "taggers", "FIFO", "typed ten", "pickle"]


@pytest.mark.parametrize(
    "bad",
    [one for one in ALL if one.name in AS_PROGRAMS or os.environ.get(ALL_AS_PROGRAMS)],
    ids=lambda bad: bad.name,
)
def test_bad_input_ends_a_program_before_torch_is_loaded(bad, prepared, tmp_path, record_property):
    prepared(bad)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-c", PROGRAM, *bad.words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    loaded = done.stdout.split()
    check(bad, done.returncode, "", done.stderr, tmp_path)
    assert bad.needs_torch or loaded == []
    if os.environ.get(ALL_AS_PROGRAMS):
        print(f"{seconds:.2f} s of CPU time: {bad.name}")
        assert bad.needs_torch or seconds <= MAX_SECONDS * (2 if bad.name == "many" else 1)


def test_a_file_of_the_largest_size_is_still_read(tmp_path):
    """The size counts what is read, not what the file says that it has."""
    path = tmp_path / "tag.yaml"
    path.write_text(GOOD + "#" * (MAX_FILE_BYTES - len(GOOD)))
    from trainers.read_config import read_config

    assert read_config(path).trainer.num_envs == 100
