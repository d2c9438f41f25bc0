import replay


def test_every_row_is_timed_beside_torch_which_gives_the_same(run):
    """`check` compares every batch; a smaller store, few calls."""
    code, results = run(replay, "--device", "cpu", "--smaller", 4096, "--num-calls", 1, "--repeats", 1)
    assert code == 0 and list(results) == ["R1", "R5", "R7", "R8"]
    assert list(results["R1"]) == ["256", "4096", "65536"]
    for row in (*results["R1"].values(), *results["R5"].values(), results["R7"]):
        assert abs(row["times"] - row["torch_us"] / row["ours_us"]) < 0.01
    assert results["R5"]["n = 3"]["bytes"] == 8 * (4 + 3 + 8) * 84 * 84
