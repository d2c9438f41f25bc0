import json

import pytest
import read_results
import tables


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a report into the folder that tables are made of, which has no other."""
    for module in (tables, read_results):
        monkeypatch.setattr(module, "RESULTS", tmp_path)

    def call(name: str, **results: object) -> None:
        report = {"benchmark": name, "device": "a GPU", "commit": "abc", "command": "c"}
        (tmp_path / f"{name}.json").write_text(json.dumps({**report, "results": {"env_steps": 2_000, **results}}))

    return call


def test_scores_are_a_line_for_each_task_that_was_measured(write):
    assert tables.scores() == ""
    runs = [{"seconds": 2.0}, {"seconds": 4.0}]
    score = {"agent": {"iqm": 499.96, "low": 498.0, "high": 500.0}}
    write("learning_cartpole_cuda", runs=runs, score=score, at_least=495, missed=None)
    gains = {"tagger": 12.34, "runner": 5.0}
    write("learning_tag_gridworld_cuda", runs=runs, standard_errors=gains, at_least=5, missed=None)
    write("learning_tag_cuda", runs=runs)  # a config alone: there is no score
    assert tables.scores().splitlines()[-2:] == [
        "| cartpole | 2 | 2,000 | 3 | 500.0 (498.0 to 500.0) | 495 |",
        "| tag_gridworld | 2 | 2,000 | 3 | tagger 12.3, runner 5.0 | 5 |",
    ]


def test_kernels_are_added_up_by_part(write):
    kernels = {"step_and_restart": 40.0, "learn": 1_000.0, "adam_step": 6.0, "add_up_gradient": 4.0, "gae": 3.0}
    listed = [{"name": name, "us": us} for name, us in kernels.items()]
    for name in tables.PROFILED:
        write(f"profile_{name}_cuda", precision="bf16", num_steps=10, kernels=listed, us_of_all_kernels=1_055.0,
              us_an_iteration=1_100.0)  # fmt: skip
    rows = [line.split(" | ")[1] for line in tables.training().splitlines()[4:]]
    assert rows == ["4.0", "-", "100", "-", "1.0", "-", "0.5", "106", "110"]
