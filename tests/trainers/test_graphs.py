"""What a GPU replays is what it did without CUDA graphs."""

from __future__ import annotations

import pytest
import torch
from trainers_runs import RUNS, config_of

from trainers.graphs import WARM_UP, Replayed
from trainers.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.backends import choose_backend

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here to capture graphs on")


def parameters(run, folder, device, **settings):
    trainer = {"num_envs": 8, "train_batch_size": 80, "total_timesteps": 800, "device": device, **settings}
    trainer = Trainer(read_config(config_of(run, trainer, {"basedir": str(folder)})))
    trainer.train()
    captured = {name: one.replay.is_captured for name, one in trainer.algorithms.items()}
    captured["rollout"] = trainer._play.is_captured
    tensors = {name: policy.state_dict() for name, policy in trainer.policies.items()}
    return captured, {f"{policy}.{name}": one.cpu() for policy, ones in tensors.items() for name, one in ones.items()}


@needs_gpu
@pytest.mark.parametrize("run", RUNS)
def test_a_run_with_graphs_is_the_run_without_bit_for_bit(run, tmp_path):
    captured, with_graphs = parameters(run, tmp_path, "cuda")
    assert all(captured.values()), captured
    captured, without = parameters(run, tmp_path, "cuda", cuda_graphs=False)
    assert not any(captured.values())
    differing = [name for name in without if not torch.equal(without[name], with_graphs[name])]
    assert not differing


def test_on_a_cpu_the_call_runs_as_it_is(tmp_path):
    captured, _ = parameters("a2c", tmp_path, "cpu")
    assert not any(captured.values())


@needs_gpu
def test_warm_up_calls_and_replays_do_the_work_once_each():
    backend = choose_backend("cuda")
    count, number = torch.zeros(1, device=backend.device), [0]

    def call():
        number[0] += 1
        count.add_(1.0)
        return count

    replayed = Replayed(call, backend)
    for calls in range(1, 6):
        assert replayed().item() == calls
    assert number[0] == WARM_UP + 1  # and once to record it
    replayed.forget()
    assert replayed().item() == 6.0
    assert number[0] == WARM_UP + 2


@needs_gpu
def test_what_cannot_be_captured_is_said_and_goes_on():
    backend, lines = choose_backend("cuda"), []
    count = torch.zeros(1, device=backend.device)

    def call():
        count.add_(1.0)
        return count.item()  # waits for the device, which a graph cannot

    replayed = Replayed(call, backend, say=lines.append)
    assert [replayed() for _ in range(5)] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert len(lines) == 1
    assert lines[0].startswith("warning: no CUDA graph could be made (")


@needs_gpu
def test_minibatches_of_replays_are_shuffled_anew():
    """A generator goes on from replay to replay as it does from call to call."""
    backend = choose_backend("cuda")
    generators = [torch.Generator(backend.device).manual_seed(5) for _ in range(2)]
    calls = [lambda g=g: torch.randperm(1000, generator=g, device=backend.device) for g in generators]
    replayed = Replayed(calls[0], backend, [generators[0]])
    found = [replayed().clone() for _ in range(6)]
    assert all(torch.equal(one, calls[1]()) for one in found)
    assert not torch.equal(found[4], found[5])
