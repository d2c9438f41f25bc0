"""The short form of benchmarks/replay_tiers.py."""

import replay_tiers

from trainers.replay import store


def test_an_eighth_on_the_device_gives_the_same_losses_and_files_are_written_once(backend, tmp_path, monkeypatch):
    monkeypatch.setattr(store, "CHUNK_BYTES", 1 << 14)
    found = replay_tiers.measure(backend, 16, 8, 32, 60_000, 2, tmp_path, ("device", "file"))
    for kind, result in found.items():
        assert result["same_losses"] and result["num_losses"] > 40
        assert kind == "device" or result["data_over_device"] >= 8
    assert 1.0 <= found["file"]["bytes_ratio"] <= 1.05
