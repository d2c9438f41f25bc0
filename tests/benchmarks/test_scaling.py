import json
import shutil
import sys

import pytest
import scaling
import torch
from scaling import LEAST_STEPS, MOST_STEPS, draw, overrides_of, peer_points, point, steps_of


@pytest.mark.parametrize(
    ("num_envs", "num_agents", "steps"),
    [(10, 5, MOST_STEPS), (100_000, 5, 40), (2_000, 100, 100), (2_000, 1_000, 10), (1_000_000, 5, LEAST_STEPS)],
)
def test_iterations_have_fewer_steps_where_there_is_more_in_one(num_envs, num_agents, steps):
    assert steps_of(num_envs, num_agents) == steps  # 20 M samples at most, 4 steps at least


def test_sizes_of_the_peers_are_those_that_they_played():
    assert overrides_of("envs", 2000) == (
        "tag_gridworld.yaml",
        ["trainer.num_envs=2000", "trainer.train_batch_size=200000"],
    )
    for size, taggers, seen in ((5, 1, 4), (100, 10, 10), (1000, 100, 10)):
        _, found = overrides_of("agents", size)
        assert found[:3] == [
            f"env.num_taggers={taggers}",
            f"env.num_runners={size - taggers}",
            f"env.num_other_agents_observed={seen}",
        ]


def test_peers_lie_on_their_axes(tmp_path, monkeypatch):
    shutil.copy(scaling.RESULTS / "peers.json", tmp_path)  # without what is measured anew now and then
    monkeypatch.setattr(scaling, "RESULTS", tmp_path)
    columns = ("env", "rollout", "train")
    points = peer_points("agents")
    assert [(one["size"], one["column"]) for one in points] == [(size, c) for size in (5, 100, 1000) for c in columns]
    assert (5, "train", [2615]) in [(one["size"], one["column"], one["us"]) for one in points]
    assert [(one["size"], one["column"]) for one in peer_points("envs")] == [(2000, c) for c in columns]


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory."), MemoryError()])
def test_size_that_does_not_fit_is_skipped_with_a_word(monkeypatch, capsys, error):
    def fail(*arguments):
        raise error

    monkeypatch.setattr(scaling, "measure", fail)
    found = point("agents", 2, 2, "cpu", ["trainer.train_batch_size=8"])
    assert found == {"agents": 2, "skipped": "it does not fit into memory"}
    assert "2 agents: it does not fit into memory" in capsys.readouterr().out


def test_error_that_is_not_of_memory_is_not_hidden(monkeypatch):
    def fail(*arguments):
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(scaling, "measure", fail)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        point("agents", 2, 2, "cpu", ["trainer.train_batch_size=8"])


def test_command_writes_both_axes_and_a_picture(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    argv = ["scaling.py", "--device", "cpu", "--envs", "3", "--agents", "2", "--envs-of-agents", "2"]
    monkeypatch.setattr(sys, "argv", [*argv, "--out", str(tmp_path), "policy.shared.model.fc_dims=[8]"])
    monkeypatch.setattr(scaling, "overrides_of", with_one_policy)
    assert scaling.main() == 0
    results = json.loads((tmp_path / "scaling_cpu.json").read_text())["results"]
    (envs,), (agents,) = results["envs"], results["agents"]
    assert (envs["envs"], envs["num_agents"], agents["agents"], agents["num_envs"]) == (3, 5, 2, 2)
    assert 0 < envs["env"] < envs["rollout"] < envs["train"]
    assert (tmp_path / "scaling_cpu.png").read_bytes().startswith(b"\x89PNG")


def with_one_policy(axis: str, size: int, num_envs: int) -> tuple[str, list[str]]:
    """Grid-world Tag on both axes: of the configs, the one with a policy for all."""
    num_envs, num_agents = (size, 5) if axis == "envs" else (num_envs, size)
    sizes = [f"trainer.num_envs={num_envs}", f"trainer.train_batch_size={4 * num_envs}"]
    return "tag_gridworld.yaml", [f"env.num_taggers={num_agents - 1}", *sizes]


def test_skipped_sizes_leave_a_gap_in_the_picture(tmp_path):
    pytest.importorskip("matplotlib")
    one = {"env": 1.0, "rollout": 2.0, "train": 3.0}
    axes = {axis: [{axis: 10, **one}, {axis: 100, "skipped": "no"}] for axis in ("envs", "agents")}
    results = {**axes, "envs_of_agents": 2000, "peers": {"envs": peer_points("envs"), "agents": []}}
    assert draw(results, "a title", tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_tag_needs_two(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["scaling.py", "--agents", "1,2"])
    with pytest.raises(SystemExit):
        scaling.main()
    assert "--agents: it takes a tagger and a runner to play" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--envs", "0,10"], ["--envs-of-agents", "0"]])
def test_a_size_of_none_is_refused(monkeypatch, capsys, words):
    monkeypatch.setattr(sys, "argv", ["scaling.py", "--device", "cpu", *words])
    with pytest.raises(SystemExit):
        scaling.main()
    assert "--envs, --envs-of-agents: give at least 1" in capsys.readouterr().err
