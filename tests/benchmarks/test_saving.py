"""What a save costs is measured while training goes on."""

import saving


def test_a_save_is_measured_against_iterations_without_one(run, tiny, monkeypatch):
    monkeypatch.setattr(saving, "NUM_ITERATIONS", 2)
    code, found = run(saving, "--config", tiny, "--device", "cpu", "--repeats", 2)
    assert code == 0
    assert found["checkpoint_mb"] > 0
    assert len(found["lost_s_of_each"]) == 2
    assert 0 < found["until_training_goes_on_s"] <= found["until_it_is_whole_s"]
    median = sum(found["lost_s_of_each"]) / 2
    assert abs(found["share_at_one_a_minute"] - median / 60) < 1e-4
    assert found["peak_memory_during_a_save"]["host_mb"] > 10
