"""profile=True: a trace and a table of a few iterations."""

import json

import pytest

from trainers.trainer import Trainer


@pytest.mark.parametrize(("num_iterations", "num_traced"), [(2, 2), (9, 3)])
def test_a_run_leaves_a_trace_and_its_costliest_kernels(tiny, num_iterations, num_traced, capsys):
    trainer = Trainer(tiny(trainer__total_timesteps=60 * num_iterations), profile=True)
    calls = trainer.rollout.calls
    trainer.train()
    folder = trainer.run.path / "profile"
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    names = [event.get("name") for event in events]
    if trainer.env.device.type == "cpu":
        assert names.count("kernels of tag_gridworld") == num_traced * 2 * 10  # step and reset of each of 10 steps
    head, *rows = (folder / "top.txt").read_text().splitlines()
    assert head.endswith(f"(of one iteration, mean of {num_traced})")
    assert len(rows) == 10
    costs = [float(row.split()[0].replace(",", "")) for row in rows]
    assert costs == sorted(costs, reverse=True) and costs[-1] > 0
    assert trainer.rollout.calls is calls, "the rest of the run is as it was"
    assert f"profile of {num_traced} iterations: {folder}" in capsys.readouterr().out


def test_a_trace_that_cannot_be_written_does_not_end_the_run(tiny, capsys):
    trainer = Trainer(tiny(), profile=True)
    (trainer.run.path / "profile").write_text("no folder")
    trainer.train()
    assert trainer.iteration == trainer.num_iterations
    told = f"warning: {trainer.run.path / 'profile'}: not written: File exists. Training goes on."
    assert told in capsys.readouterr().out
