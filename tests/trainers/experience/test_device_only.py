"""What can be shown on a GPU alone; that an iteration stays on the device is in test_device_resident.py."""

import pytest
import torch

from trainers.trainer import Trainer


@pytest.fixture
def gpu_only(device):
    if device != "cuda":
        pytest.skip("a GPU's question")


def test_a_report_pulls_one_tensor(tiny, gpu_only):
    trainer = Trainer(tiny())
    figures = trainer.iterate()
    trainer.metrics.report(figures)
    figures = trainer.iterate()
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        trainer.metrics.report(figures)
    copies = [event.name for event in profile.events() if "HtoD" in event.name or "DtoH" in event.name]
    assert len(copies) == 1
    assert "DtoH" in copies[0]


def test_both_devices_start_from_the_same_networks(tiny, gpu_only):
    on_gpu = Trainer(tiny()).policies["tagger"].state_dict()
    on_cpu = Trainer(tiny(trainer__device="cpu")).policies["tagger"].state_dict()
    assert all(torch.equal(tensor.cpu(), on_cpu[name]) for name, tensor in on_gpu.items())
