"""benchmarks/replay_tree.py at a small size: every row is there."""

from replay_tree import measure

from warpdrive.backends import choose_backend


def test_rows_are_measured_at_a_small_size():
    found = measure(256, [32], 1, choose_backend(device="cpu"))
    rows = {"cycle", "draw", "set", "set_any_order", "cumsum_cycle"}
    assert set(found) == {"leaves", "num_envs", "row_us", *(f"{row}_32_us" for row in rows)}
    assert found["num_envs"] == 16 and min(found[f"{row}_32_us"] for row in rows) > 0
