import json

import defaults
import pytest
import tables


def test_a_row_is_trained_by_every_algorithm_at_default_keys_and_told(run, monkeypatch, tmp_path):
    rows = {"cartpole": defaults.Row("cartpole", ("PPO", "A2C"), 400, 1000, (4,))}
    monkeypatch.setattr(defaults, "ROWS", rows)
    sizes = ("trainer.train_batch_size=80", "policy.num_minibatches=2")
    code, results = run(defaults, "--seeds", 2, "--first-seed", 3, "--device", "cpu", *sizes)
    assert code == 1  # nobody stands for 1,000 steps
    assert list(results) == [", ".join([f"cartpole {one}", "4 envs", *sizes]) for one in ("PPO", "A2C")]
    for one in results.values():
        assert one["missed"].startswith("0 of 2 seeds reached 1000, expected 2 (seed 3: ")
        assert len(one["runs"]) == 2 and all(1 < found["agent"] <= 500 for found in one["runs"])
    monkeypatch.setattr(tables, "RESULTS", tmp_path / "out")
    lines = tables.defaults().splitlines()
    told = "4 envs, `trainer.train_batch_size: 80`, `num_minibatches: 2`"
    assert [line.split(" | ")[0] for line in lines[-2:]] == [f"| cartpole {one}, {told}" for one in ("A2C", "PPO")]
    assert all(line.endswith("| 1000 | no |") for line in lines[-2:])


def test_rows_that_are_done_outlive_a_run_that_is_stopped(run, monkeypatch, tmp_path):
    rows = {"cartpole": defaults.Row("cartpole", ("PPO", "A2C"), 400, 1000, (4,))}
    monkeypatch.setattr(defaults, "ROWS", rows)

    def one_run(work):
        if work[1] == "A2C":
            raise KeyboardInterrupt
        return {"seed": work[3], "seconds": 1.0, "score": {"agent": 7.0}}

    monkeypatch.setattr(defaults, "one_run", one_run)
    with pytest.raises(KeyboardInterrupt):
        run(defaults, "--seeds", 1, "--device", "cpu", "--name", "stopped")
    (report,) = (tmp_path / "out").glob("*.json")
    assert json.loads(report.read_text())["results"]["cartpole PPO, 4 envs"]["runs"] == [{"agent": 7.0}]
