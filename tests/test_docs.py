"""What the documentation says is so: links and files exist, commands parse, configs are read, programs run."""

import ast
import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from trainers.algorithms.a2c import A2CConfig
from trainers.cli import FLAGS
from trainers.commands import COMMANDS, find_command
from trainers.report.metrics import EXPLANATIONS
from trainers.settings.arguments import Parser, config_of, find_config, parse
from trainers.settings.config import ActorCriticConfig, EvaluationConfig, ModelConfig, SavingConfig, TrainerConfig
from trainers.settings.read_config import read_config
from warpdrive.env import load_env
from warpdrive.env_names import list_envs

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
OUTSIDE = ROOT / "tests" / "outside"
"""Where `my_package` of the pages is."""
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "benchmarks").glob("*.md")])
LANGUAGES = {"", "python", "yaml", "console", "cuda"}
RUN_ELSEWHERE = {"docs/coming_from_warpdrive.md", "docs/export.md"}
"""Pages whose programs have a test of their own."""
MADE_UP = {"boats/boats.yaml", "soccer_game/soccer_game.yaml", "reinforce.yaml", "pole.yaml"}
"""Configs that readers make on the way."""
KEYS = {"trainer": TrainerConfig, "saving": SavingConfig, "evaluation": EvaluationConfig, "model": ModelConfig}

everywhere = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its first line's number, its text."""

    language: str
    line: int
    text: str


def blocks_of(page: Path) -> list[Block]:
    found: list[Block] = []
    opened: tuple[str, int, list[str]] | None = None
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if not line.startswith("```"):
            if opened is not None:
                opened[2].append(line)
        elif opened is None:
            opened = (line[3:], number + 1, [])
        else:
            found.append(Block(opened[0], opened[1], "\n".join(opened[2]) + "\n"))
            opened = None
    assert opened is None, f"{page.name}:{opened[1]}: a block that is not closed"
    return found


def prose_of(page: Path) -> str:
    """The text without its blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def code_in(page: Path) -> list[str]:
    """What stands between backticks in the prose."""
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose_of(page))]


def anchors_of(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", prose_of(page), re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in plain}


@everywhere
def test_links_lead_somewhere(page):
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", prose_of(page))):
        file, _, anchor = target.partition("#")
        other = (page.parent / file).resolve() if file else page
        is_there = other.exists() and (not anchor or anchor in anchors_of(other))
        broken += [] if re.match(r"https?:", target) or is_there else [target]
    assert not broken


@everywhere
def test_files_that_are_named_are_there(page):
    """Paths of the project in backticks, `*` and `<...>` standing for anything."""
    folders = "trainers|warpdrive|cuda_envs|examples|tests|benchmarks|docs"
    named = [path for code in code_in(page) for path in re.findall(rf"(?:^|\s)((?:{folders})/[^\s`,:;()]*)", code)]
    assert not [path for path in named if not any(ROOT.glob(re.sub(r"<[^>]*>|\*+|\.\.\.", "*", path).rstrip("/")))]


def test_every_file_of_the_readmes_tree_is_there():
    tree = re.search(r"## The tree\n\n```\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL).group(1)
    folder, named = ROOT, []
    for line in filter(str.strip, tree.splitlines()):
        name = line.split()[0]
        named.append((folder if line.startswith(" ") else ROOT) / name)
        folder = folder if line.startswith(" ") else ROOT / name if name.endswith("/") else ROOT
    assert len(named) > 30 and not [path for path in named if not path.exists()]


def test_the_index_lists_every_page_and_every_extra_is_told_of():
    index = (ROOT / "docs" / "README.md").read_text()
    assert not [page.name for page in (ROOT / "docs").glob("*.md") if f"({page.name})" not in index + "(README.md)"]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    told = (ROOT / "docs" / "install.md").read_text()
    assert not [extra for extra in extras if f"`{extra}`" not in told]


@pytest.mark.parametrize("script", ["docs/make_reference.py", "benchmarks/tables.py"])
def test_what_is_written_from_the_code_and_from_results_is_up_to_date(script):
    done = subprocess.run([sys.executable, ROOT / script, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@everywhere
def test_keys_of_the_config_are_keys(page):
    unknown = []
    for code in code_in(page):
        for section, key in re.findall(r"(?<![\w./])(trainer|saving|evaluation|model)\.([a-z][\w-]*)", code):
            known = {field.name for field in dataclasses.fields(KEYS[section])}
            if key.replace("-", "_") not in known and not code.endswith((".py", ".cu")):
                unknown.append(code)
    assert not unknown


def test_a2cs_own_batches_are_told_beside_the_others():
    ours, others = A2CConfig, ActorCriticConfig
    sizes = f"{others.MINIBATCH} samples, {others.MAX_MINIBATCHES} at most"
    own_sizes = f"{ours.MINIBATCH} samples, {ours.MAX_MINIBATCHES} at most"
    steps = f"{others.MIN_BATCH:,}", f"{others.MIN_STEPS} of each env at least (A2C: {ours.MIN_STEPS})"
    pages = [" ".join((ROOT / "docs" / f"{name}.md").read_text().split()) for name in ("config", "algorithms")]
    for page in pages:
        assert f"minibatches of {sizes} (A2C: {own_sizes})" in page and all(one in page for one in steps)


def test_games_that_get_faster_are_those_that_have_the_key():
    """Of MinAtar's five: in the paragraph that explains it."""
    text = (ROOT / "docs" / "envs.md").read_text()
    (paragraph,) = [one for one in text.split("\n\n") if "difficulty_ramping" in one]
    games = [name for name in list_envs() if name.startswith("minatar_")]
    have_it = {name for name in games if hasattr(load_env(name).config, "difficulty_ramping")}
    assert {*re.findall(r"minatar_\w+", paragraph)} == have_it


@everywhere
def test_metrics_are_metrics(page):
    names = [code for code in code_in(page) if re.fullmatch(r"(rollout|time|train|eval|perf|health)/[\w<>/]*\w", code)]
    patterns = "|".join(re.sub("<[a-z]+>", "[^/]+", pattern) for pattern in EXPLANATIONS)
    assert not [name for name in names if not re.fullmatch(patterns, name)]


def commands_of(page: Path) -> Iterator[tuple[str, bool]]:
    """In blocks what stands behind `$ `, in the prose between backticks; each with whether it goes well.

    What does not is followed by `error: ...`. A block without a language is nothing but commands, or none.
    """
    for block in blocks_of(page):
        lines = block.text.splitlines() if block.language in ("", "console") else []
        for line, after in zip(lines, [*lines[1:], ""], strict=False):
            is_prompt = line.startswith("$ ")
            if is_prompt or (block.language == "" and re.match(r"(warpdrive|python|make|\.venv)\b", line)):
                yield line.removeprefix("$ ").partition(" #")[0].strip(), not after.startswith("error: ")
    for code in code_in(page):
        if re.match(r"(warpdrive|python|make) [a-z-]", code):
            yield code.replace("\\|", "|"), True


def is_whole(command: str) -> bool:
    """Not `warpdrive COMMAND --help`, and nothing left out."""
    return "..." not in command and not re.search(r"\b[A-Z]{3,}\b(?!=)", re.sub(r"'[^']*'", "", command))


def what_is_wrong_with(command: str) -> str | None:
    """None, or a line. Nothing is run: options are parsed, configs and their keys are read."""
    words = shlex.split(command.split(" | ")[0].split(" && ")[0], comments=True)
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        words = words[1:]
    words[0] = words[0].removeprefix(".venv/bin/")
    if words[:3] == ["python", "-m", "warpdrive"]:
        words = ["warpdrive", *words[3:]]
    if words[0] == "warpdrive":
        return _wrong_with_warpdrive(words[1:])
    if words[0] == "make":
        targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        wrong = [word for word in words[1:] if "=" not in word and word not in targets]
        return f"make has no target {wrong[0]}" if wrong else None
    if words[0] == "python" and words[1].endswith(".py"):
        return _wrong_with_script(words[1], words[2:])
    return None


def _wrong_with_warpdrive(words: list[str]) -> str | None:
    command, *words = words
    if command.startswith("-"):
        return None if command in ("--help", "--version", *FLAGS) else f"warpdrive has no {command}"
    if command not in COMMANDS:
        return f"there is no command {command}"
    if not words:
        return None  # its name alone
    module, parser = find_command(command), Parser(prog=f"warpdrive {command}", allow_abbrev=False)
    module.add_arguments(parser)
    for flag in FLAGS:
        parser.add_argument(flag, action="store_true")
    try:
        options, overrides = parse(parser, words)
        given = [getattr(options, "config", None), *getattr(options, "files", [])]
        if (command, words[0]) == ("list", "metrics"):
            given.append(options.of)
        files = [file for file in given if file]
        for file in files:
            if file not in MADE_UP:
                options.allow_import = True
                config_of(find_config(file.removeprefix("examples/"), EXAMPLES), options, overrides)
        if (env := getattr(options, "env", None)) is not None:
            load_env(env, {key.removeprefix("env."): ast.literal_eval(value) for key, value in overrides})
    except SystemExit:
        return None  # --help
    except Exception as error:
        return str(error)
    return None


def _wrong_with_script(script: str, words: list[str]) -> str | None:
    """Whether the script is there, and knows of the options."""
    places = [place for place in (ROOT / script, EXAMPLES / script) if place.exists()]
    if not places:
        return None if script == "play.py" else f"there is no {script}"
    if places[0] == EXAMPLES / "train.py":
        return _wrong_with_warpdrive(["train", *words])
    text = places[0].read_text()
    if "add_what_runs" in text:  # options that benchmarks share
        text += (ROOT / "benchmarks" / "throughput.py").read_text()
    unknown = [word for word in words if word.startswith("--") and f'"{word}"' not in text]
    return f"{script} knows no {unknown[0]}" if unknown else None


@everywhere
def test_commands_are_understood(page, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    for command, goes_well in commands_of(page):
        if is_whole(command):
            wrong = what_is_wrong_with(command)
            assert (wrong is None) == goes_well, f"{command}: {wrong}"


@everywhere
def test_a_run_that_a_block_trains_and_then_looks_at_has_its_name(page):
    """Without --run-name its folder is named by env, algorithm, seed and date."""
    for block in blocks_of(page):
        commands = re.findall(r"^\$ warpdrive (\w+)(.*)", block.text, re.MULTILINE)
        trained = " ".join(words for command, words in commands if command == "train")
        others = " ".join(words for command, words in commands if command != "train")
        if trained:
            named = re.findall(r"--run-name (\w+)", trained)
            assert {*re.findall(r"runs/(\w+)", others)} <= {*named}, f"{page.name}:{block.line}"


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("warpdrive trian", "there is no command trian"),
        ("warpdrive train --config tag.yaml --sede 3", "unknown option '--sede'"),
        ("warpdrive train --config tag.yaml trainer.num_env=3", "trainer.num_env: unknown key"),
        ("warpdrive train --config tig.yaml", "tig.yaml: no such file"),
        ("warpdrive list metrics examples/tig.yaml", "tig.yaml: no such file"),
        ("warpdrive eval runs/a --agianst runs/b", "unknown option '--agianst'"),
        ("python benchmarks/learn.py", "there is no benchmarks/learn.py"),
        ("python benchmarks/learning.py --sedes 3", "knows no --sedes"),
        ("make tests", "make has no target tests"),
    ],
)
def test_a_wrong_command_is_found(command, reason):
    assert reason in what_is_wrong_with(command)


@everywhere
def test_blocks_are_in_languages_that_can_be_checked_and_are_right(page, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.syspath_prepend(OUTSIDE)
    for block in blocks_of(page):
        assert block.language in LANGUAGES
        if block.language == "yaml":
            assert "name:" in block.text, f"{page.name}:{block.line}: a config begins with its env"
            file = tmp_path / f"{page.stem}.yaml"
            file.write_text(block.text)
            read_config(file, allow_import=True)
        elif block.language == "python":
            compile(block.text, f"{page.name}:{block.line}", "exec")


def programs_of(page: Path) -> list[tuple[str, str]]:
    """(place, text) of each that can be run as it stands."""
    blocks = [] if page.relative_to(ROOT).as_posix() in RUN_ELSEWHERE else blocks_of(page)
    programs = [block for block in blocks if block.language == "python" and re.match("import|from", block.text)]
    return [(f"{page.name}:{block.line}", block.text) for block in programs if ".learn(" not in block.text]


RUN = """
import json, sys
for place, program in json.loads(sys.argv[1]):
    exec(compile(program, place, "exec"), {"__name__": "__main__"})
"""


@pytest.mark.parametrize("page", [page for page in PAGES if programs_of(page)], ids=lambda page: page.stem)
def test_programs_run(page, tmp_path):
    """Each with names of its own; in one process, as importing torch takes longer than most."""
    programs = json.dumps(programs_of(page))
    for package in re.findall(r"warpdrive\.adapters\.(pettingzoo|torchrl)", programs):
        pytest.importorskip(package)
    path = os.pathsep.join([str(ROOT), str(EXAMPLES), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-c", RUN, programs]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
