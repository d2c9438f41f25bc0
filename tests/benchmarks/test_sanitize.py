import sys

import pytest
import sanitize

from trainers.fused import plan


def run(monkeypatch, *words: str) -> None:
    monkeypatch.setattr(plan, "RUNS_ON_CPU", plan.RUNS_ON_CPU)  # what it sets is taken back
    monkeypatch.setattr(sys, "argv", ["sanitize.py", *words])
    sanitize.main()


@pytest.mark.parametrize("part", ["gru", "sources"])
def test_a_part_trains_by_the_fused_kernels(part, monkeypatch, capsys):
    run(monkeypatch, "--device", "cpu", part)
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == f"done: {part}"
    assert [line for line in said if ": fused" in line] and not [line for line in said if ": torch" in line]


def test_a_part_that_there_is_not_is_named_with_those_that_there_are(monkeypatch, capsys):
    with pytest.raises(SystemExit):
        run(monkeypatch, "--device", "cpu", "nobody")
    assert "there is no part 'nobody': envs, sampler, continuous actions" in capsys.readouterr().err
