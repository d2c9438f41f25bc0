"""Windows from rank to rank, timed: benchmarks/handover.py."""

import handover


def test_windows_are_handed_over_alone_and_beside_a_learner(run, monkeypatch):
    """By two processes; the figures are of the bytes that the window has."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    code, results = run(handover, "--device", "cpu", "--smaller", 1024, "--calls", 2)
    assert code == 0
    assert list(results) == list(handover.SIZES)
    found = results["CartPole, 32 steps x 65,536 envs"]
    num_envs, num_steps, floats = 64, 32, 4
    of_step = floats * 4 + 4 + 4 + 2  # what is seen, done and earned, and whether that ended the episode
    assert found["bytes"] == num_envs * (num_steps * of_step + 2 * floats * 4)
    for one in results.values():
        assert one["alone_us"] > 0 and one["together_us"] > 0
        assert one["times_the_learner"] > 0
