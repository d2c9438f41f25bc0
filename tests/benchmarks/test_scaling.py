import shutil

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
    of_envs = ["trainer.num_envs=2000", "trainer.train_batch_size=200000"]
    assert overrides_of("envs", 2000) == ("tag_gridworld.yaml", of_envs)
    for size, taggers, seen in ((5, 1, 4), (100, 10, 10), (1000, 100, 10)):
        of_agents = {"num_taggers": taggers, "num_runners": size - taggers, "num_other_agents_observed": seen}
        assert overrides_of("agents", size)[1][:3] == [f"env.{name}={number}" for name, number in of_agents.items()]


def test_peers_lie_on_their_axes(tmp_path, monkeypatch):
    shutil.copy(scaling.RESULTS / "peers.json", tmp_path)  # without what is measured anew now and then
    monkeypatch.setattr(scaling, "RESULTS", tmp_path)
    columns = ("env", "rollout", "train")
    points = peer_points("agents")
    assert [(one["size"], one["column"]) for one in points] == [(size, c) for size in (5, 100, 1000) for c in columns]
    assert (5, "train", [2615]) in [(one["size"], one["column"], one["us"]) for one in points]
    assert [(one["size"], one["column"]) for one in peer_points("envs")] == [(2000, c) for c in columns]


@pytest.mark.parametrize(
    ("error", "is_of_memory"),
    [(torch.OutOfMemoryError("CUDA out of memory."), True), (MemoryError(), True), (RuntimeError("illegal"), False)],
)
def test_size_that_does_not_fit_is_skipped_with_a_word_and_no_other_error_is_hidden(
    monkeypatch, capsys, error, is_of_memory
):
    def fail(*arguments):
        raise error

    monkeypatch.setattr(scaling, "open_trainer", fail)
    if not is_of_memory:
        with pytest.raises(RuntimeError, match="illegal"):
            point("agents", 2, 2, "cpu", [])
        return
    found = point("agents", 2, 2, "cpu", [])
    assert found == {"agents": 2, "skipped": "it does not fit into memory"}
    assert "2 agents: it does not fit into memory" in capsys.readouterr().out


def test_command_writes_both_axes_and_a_picture(tmp_path, monkeypatch, run):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(scaling, "overrides_of", with_one_policy)
    sizes = ["--envs", 3, "--agents", 2, "--envs-of-agents", 2]
    code, results = run(scaling, "--device", "cpu", *sizes, "policy.shared.model.fc_dims=[8]")
    (envs,), (agents,) = results["envs"], results["agents"]
    assert (envs["envs"], envs["num_agents"], agents["agents"], agents["num_envs"]) == (3, 5, 2, 2)
    assert code == 0 and all(one[column] > 0 for one in (envs, agents) for column in ("env", "rollout", "train"))
    assert (tmp_path / "out" / "scaling_cpu.png").read_bytes().startswith(b"\x89PNG")


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
