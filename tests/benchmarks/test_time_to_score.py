import time

import pytest
import time_to_score

SMALL = ["trainer.num_envs=16", "trainer.train_batch_size=512", "trainer.total_timesteps=1024"]
SEED = ["--device", "cpu", "--seeds", 1]


@pytest.fixture(autouse=True)
def own_bytecode(monkeypatch):
    """That of the tests, which is there already."""
    monkeypatch.setattr(time_to_score, "BYTECODE", {})


@pytest.mark.parametrize("words", [[], ["--greedy", "evaluation.num_episodes=1"]])
def test_clock_runs_from_the_start_of_the_process_to_the_score(words, run):
    code, results = run(time_to_score, *SEED, "--score", 5, *words, *SMALL)  # who does nothing stays up for 8 steps
    assert code == 0 and results["greedy"] is bool(words)
    (one,) = results["runs"]
    assert (one["best"] == int(one["best"])) is bool(words)  # the return of one episode, or the mean of all that ended
    marks = list(one["seconds"].values())
    assert list(one["seconds"]) == ["python", "imported", "made", "reached"]
    assert marks == sorted(marks) and 0 < marks[0] < marks[-1] <= one["seconds_to_score"] + 0.1
    assert results["seconds"] == one["seconds_to_score"]
    assert (one["iterations"], one["env_steps"], one["is_reached"]) == (1, 512, True)


def test_run_that_never_reaches_the_score_has_no_figure(run, monkeypatch, capsys):
    def in_this_process(given, seed, overrides):
        what = (given.device, given.config, given.metric, given.score, given.greedy)
        return {**time_to_score.train(time.time(), *what, seed, overrides), "seconds_to_score": 1.0}

    monkeypatch.setattr(time_to_score, "time_child", in_this_process)
    code, results = run(time_to_score, *SEED, "--score", 499, *SMALL)
    assert code == 1 and results["seconds"] is None and results["num_reached"] == 0
    assert results["runs"][0]["env_steps"] == 1024
    assert "1 of 1 runs never reached 499" in capsys.readouterr().err


def test_a_run_that_fails_is_told_by_its_seed_and_without_a_traceback(run, capfd):
    with pytest.raises(SystemExit, match="seed 1: the run failed with exit code 1; see above."):
        run(time_to_score, *SEED, "trainer.num_env=3")
    told = capfd.readouterr().err
    assert "command line: trainer.num_env: unknown key. Did you mean 'num_envs'?" in told and "Traceback" not in told
