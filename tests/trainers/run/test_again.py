"""A run that failed is started again from where it stood, as often as was asked for."""

import os
from pathlib import Path

import pytest
import yaml

from trainers.cli import main
from trainers.learning.heartbeat import LAUNCH_FOLDER
from trainers.run.again import RUN, newest_run_of, tell_launcher, with_restarts
from trainers.settings.read_config import read_config


def starts(codes: list[int], max_restarts: int, run: Path, said: list[str]) -> list[Path | None]:
    """What each start of a run goes on from, if they end with these codes; it is told where it trains at each start."""
    began: list[Path | None] = []

    def start(resume: Path | None, folder: Path) -> int:
        began.append(resume)
        (folder / RUN).write_text(str(run))
        return codes[len(began) - 1]

    assert with_restarts(start, max_restarts, None, said.append) == codes[len(began) - 1]
    return began


def test_it_goes_on_from_its_checkpoint_once_there_is_one_and_says_so(tmp_path):
    said = []
    assert starts([3, 0], 2, tmp_path, said) == [None, None]
    assert said == ["exit code 3: restart 1 of 2, from the beginning, in a new folder: there is no checkpoint yet"]
    (tmp_path / "checkpoints" / "step_000000000008").mkdir(parents=True)
    assert starts([1, 1, 1, 0], 2, tmp_path, said) == [None, tmp_path, tmp_path]
    assert said[1:] == [f"exit code 1: restart {n} of 2, from what {tmp_path} holds" for n in (1, 2)]


def test_the_name_of_its_folder_may_be_any_bytes(tmp_path, monkeypatch):
    run = tmp_path / os.fsdecode(b"\xff")
    (run / "checkpoints" / "step_000000000008").mkdir(parents=True)
    began: list[Path | None] = []

    def start(resume: Path | None, folder: Path) -> int:
        began.append(resume)
        monkeypatch.setenv(LAUNCH_FOLDER, str(folder))
        tell_launcher(run)
        return 2 - len(began)

    assert with_restarts(start, 1, None, lambda line: None) == 0
    assert began == [None, run]


@pytest.mark.parametrize("code", [0, 2, 4, 130, 143])
def test_what_would_end_likewise_or_was_asked_to_end_is_not_started_again(code, tmp_path):
    assert starts([code], 5, tmp_path, []) == [None]


def test_restarts_that_make_no_sense_are_one_line(monkeypatch, capsys):
    assert main(["train", "--config", "tag.yaml", "--max-restarts=-1"]) == 2
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["train", "--config", "tag.yaml", "--max-restarts=1"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first == "error: command line: --max-restarts: expected a number from 0, got -1."
    assert second.endswith("--max-restarts: torchrun restarts its ranks. Tell it, and say --resume auto.")


@pytest.mark.parametrize(
    "asks_for",
    [
        {"name": "theirs:Env"},
        {"policy": {"shared": {"algorithm": "theirs:Algorithm"}}},
        {"policy": {"shared": {"model": {"type": "theirs:Network"}}}},
        {"callbacks": ["theirs:Callback"]},
        {"callbacks": [{"theirs:Callback": {"key": 1}}]},
    ],
    ids=["env", "algorithm", "network", "callback", "callback with keys"],
)
def test_the_newest_run_is_looked_for_without_importing_what_only_others_name(tmp_path, monkeypatch, asks_for):
    """Who allows an import allows what the config names, not what lies beside its runs."""
    (tmp_path / "theirs.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    ours = {"name": "cartpole", "trainer": {"total_timesteps": 1000}, "saving": {"basedir": str(tmp_path / "runs")}}
    folder = tmp_path / "runs" / "a"
    (folder / "checkpoints" / "step_000000000008").mkdir(parents=True)
    resolved = folder / "config.resolved.yaml"
    resolved.write_text(yaml.safe_dump(ours))
    config = read_config(ours)
    assert newest_run_of(config, allow_import=True) == folder
    resolved.write_text(yaml.safe_dump(ours | asks_for))
    assert newest_run_of(config, allow_import=True) is None
