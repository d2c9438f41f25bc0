import pytest
import replay


def test_every_row_is_timed_beside_torch_which_gives_the_same(run):
    """`check` compares every batch; a smaller store, few calls. R2 and R3 are R1 with more items."""
    rows = ["R1", "R4", "R5", "R6", "R7", "R8"]
    words = ("--device", "cpu", "--smaller", 4096, "--num-calls", 1, "--repeats", 1)
    code, results = run(replay, *words, "--rows", *rows)
    assert code == 0 and list(results) == rows
    peers = results["R1"].pop("peers")
    assert list(results["R1"]) == ["256", "4096", "65536"]
    for row in results["R1"].values():
        assert abs(row["times"] - row["dense_us"] / row["ours_us"]) < 0.01 and min(row.values()) > 0
    for row in (*results["R5"].values(), results["R7"]):
        assert abs(row["times"] - row["torch_us"] / row["ours_us"]) < 0.01
    assert results["R5"]["n = 3"]["bytes"] == 8 * (4 + 3 + 8) * 84 * 84
    for row in results["R6"].values():
        assert 0 < row["share_percent"] < 100
        assert row["trainer"]["path"] == "torch" and row["trainer"]["whole_us"] > row["trainer"]["cycle_us"] > 0
    limit_us = results["R8"]["bytes"] / 4.3e6
    assert results["R8"]["times_the_limit"] == pytest.approx(results["R8"]["ours_us"] / limit_us, rel=0.01)
    for by_batch in peers.values():  # a figure, or why there is none
        assert all(one["us"] or one["why"] for one in by_batch.values())
