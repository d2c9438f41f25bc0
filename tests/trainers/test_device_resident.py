"""Nothing of a rollout crosses the bus, and the host waits for nothing between two reports."""

from __future__ import annotations

import pytest
import torch

from trainers.read_config import read_config
from trainers.trainer import Trainer

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: there is no bus to cross here")


def make_trainer(tmp_path, device: str, policies: tuple[str, ...]) -> Trainer:
    return Trainer(
        read_config(
            {
                "name": "tag_gridworld",
                "env": {"num_taggers": 4, "grid_length": 5, "episode_length": 7},
                "trainer": {"num_envs": 64, "train_batch_size": 64 * 20, "total_timesteps": 10**6, "device": device},
                "policy": {name: {} for name in policies},
                "saving": {"basedir": str(tmp_path)},
            }
        )
    )


@needs_gpu
@pytest.mark.parametrize("policies", [("shared",), ("tagger", "runner")])
def test_an_iteration_never_waits_for_the_device(tmp_path, policies):
    trainer = make_trainer(tmp_path, "cuda", policies)
    trainer.iterate()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            trainer.iterate()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    trainer.backend.synchronize()


@needs_gpu
@pytest.mark.parametrize("policies", [("shared",), ("tagger", "runner")])
def test_a_trace_shows_no_copy_between_host_and_device(tmp_path, policies):
    trainer = make_trainer(tmp_path, "cuda", policies)
    trainer.iterate()
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(3):
            trainer.iterate()
        torch.cuda.synchronize()
    names = [event.name for event in profile.events()]
    assert any("tag_gridworld_step" in name for name in names), "the trace saw no kernel of ours: it proves nothing"
    crossing = [name for name in names if "HtoD" in name or "DtoH" in name]
    assert crossing == []


def test_the_tensor_torch_reads_has_the_address_the_kernel_writes(tmp_path, device):
    trainer = make_trainer(tmp_path, device, ("shared",))
    rollout = trainer.rollout
    for t in (0, 7, 19):
        view = rollout.groups["shared"].observation[t + 1]
        assert view.data_ptr() == rollout.observation[t + 1].data_ptr()
        assert view.is_contiguous()
    before = rollout.observation.data_ptr()
    trainer.iterate()
    assert rollout.observation.data_ptr() == before
    assert rollout.observation[1:].abs().sum() > 0
