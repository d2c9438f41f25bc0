"""What a GPU replays is what it did without CUDA graphs."""

from __future__ import annotations

import contextlib
import gc
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from trainers_runs import NORMALISED, RUNS, config_of

from trainers.learning.graphs import WARM_UP, Graphed, SideBySide
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.backends import choose_backend

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here to capture graphs on")


def parameters(run, folder, device, **settings):
    trainer = {"num_envs": 8, "train_batch_size": 80, "total_timesteps": 800, "device": device, **settings}
    trainer = Trainer(read_config(config_of(run, trainer, {"basedir": str(folder)})))
    trainer.train()
    captured = {name: phases["learn"].is_captured for name, phases in trainer.phases.items()}
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

    replayed = Graphed(call, backend)
    for calls in range(1, 6):
        assert replayed().item() == calls
    assert number[0] == WARM_UP + 1  # and once to record it
    replayed.forget()
    assert replayed().item() == 6.0
    assert number[0] == WARM_UP + 2


@needs_gpu
@pytest.mark.parametrize("draws", [True, False])
def test_a_generator_that_nothing_is_drawn_from_costs_no_launch(draws):
    backend = choose_backend("cuda")
    generator, number = torch.Generator(backend.device).manual_seed(5), torch.zeros(8, device=backend.device)
    call = partial(number.uniform_, generator=generator) if draws else partial(number.add_, 1.0)
    replayed = Graphed(call, backend, [generator])
    drawn = [replayed().tolist() for _ in range(WARM_UP + 3)]
    assert len({tuple(one) for one in drawn}) == WARM_UP + 3
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as trace:
        replayed()
        backend.synchronize()
    launches = [event for event in trace.events() if event.device_type.name == "CUDA"]
    assert len(launches) == (3 if draws else 1)  # the generator's seed and place, and the call's own


@needs_gpu
def test_what_draws_only_later_is_captured_too():
    backend, lines, number = choose_backend("cuda"), [], torch.zeros(8, device="cuda")
    generator, calls = torch.Generator(backend.device).manual_seed(5), []

    def call():
        calls.append(None)
        return number.uniform_(generator=generator) if len(calls) > WARM_UP else number

    replayed = Graphed(call, backend, [generator], lines.append)
    other = torch.zeros(8, device="cuda")
    before = Graphed(partial(other.uniform_, generator=generator), backend, [generator])  # is captured first
    found = [before().tolist() for _ in range(WARM_UP + 1)]
    for _ in range(WARM_UP + 3):
        drawn = replayed().tolist()
        found += [drawn] if len(calls) > WARM_UP else []
        found.append(before().tolist())
    assert replayed.is_captured and lines == [] and len({tuple(one) for one in found}) == len(found)
    again = torch.Generator(backend.device).manual_seed(5)
    assert found == [number.uniform_(generator=again).tolist() for _ in found]


@needs_gpu
def test_what_cannot_be_captured_is_said_and_goes_on():
    backend, lines = choose_backend("cuda"), []
    count = torch.zeros(1, device=backend.device)

    def call():
        count.add_(1.0)
        return count.item()  # waits for the device, which a graph cannot

    replayed = Graphed(call, backend, say=lines.append)
    assert [replayed() for _ in range(5)] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert len(lines) == 1
    assert lines[0].startswith("warning: no CUDA graph could be made (")


@needs_gpu
def test_what_cannot_be_captured_draws_on_as_without_a_graph():
    backend = choose_backend("cuda")
    drawn = torch.zeros(4, device=backend.device)

    def draws(**how):
        generator = torch.Generator(backend.device).manual_seed(7)

        def call():
            drawn.normal_(generator=generator)
            return drawn.tolist()

        replayed = Graphed(call, backend, [generator], say=lambda line: None, **how)
        return [replayed() for _ in range(5)]

    assert draws() == draws(is_enabled=False)


@needs_gpu
def test_garbage_waits_for_the_end_of_a_capture():
    backend, lines = choose_backend("cuda"), []
    count, collected = torch.zeros(1, device=backend.device), []

    class Waits:
        """As kernels that are unloaded: an end that no capture lives through."""

        def __del__(self):
            collected.append(torch.cuda.is_current_stream_capturing())
            torch.cuda.synchronize()

    def call():
        circle = [Waits()]
        circle.append(circle)
        del circle
        for _ in range(2000):  # as many containers as start a collection
            held.append([])
        count.add_(1.0)

    held: list[list] = []
    replayed = Graphed(call, backend, say=lines.append)
    for _ in range(5):
        replayed()
    gc.collect()
    assert lines == [] and replayed.is_captured and collected and not any(collected)


@needs_gpu
def test_minibatches_of_replays_are_shuffled_anew():
    """A generator goes on from replay to replay as it does from call to call."""
    backend = choose_backend("cuda")
    generators = [torch.Generator(backend.device).manual_seed(5) for _ in range(2)]
    calls = [lambda g=g: torch.randperm(1000, generator=g, device=backend.device) for g in generators]
    replayed = Graphed(calls[0], backend, [generators[0]])
    found = [replayed().clone() for _ in range(6)]
    assert all(torch.equal(one, calls[1]()) for one in found)
    assert not torch.equal(found[4], found[5])


TWO_FUSED = {
    "name": "tag_continuous",
    "env": {"num_taggers": 2, "num_runners": 3, "episode_length": 17, "tagging_distance": 0.2},
    "trainer": {"precision": "bf16", "num_envs": 64, "train_batch_size": 640, "total_timesteps": 6400},
    "policy": {
        "tagger": {"algorithm": "PPO", "num_epochs": 2, "num_minibatches": 4, **NORMALISED},
        "runner": {"algorithm": "A2C", "model": {"fc_dims": [128, 128]}},
    },
}


def test_on_a_cpu_calls_are_made_one_after_the_other():
    backend, made = choose_backend("cpu"), []
    graphs = [Graphed(lambda: None, backend) for _ in range(3)]
    side_by_side = SideBySide([[one] for one in graphs], backend)
    assert side_by_side([lambda i=i: made.append(i) or i for i in range(3)]) == [0, 1, 2] == made
    assert not side_by_side.is_at_once
    assert SideBySide([], backend)([]) == []


class Stream:
    """Notes who waits for whom."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name, self.notes = name, notes

    def wait_event(self, event: Event) -> None:
        self.notes.append(f"{self.name} waits for {event.of}")


class Event:
    """Knows what it was recorded on."""

    def record(self, stream: Stream) -> None:
        self.of = stream.name


@pytest.mark.parametrize("is_stopped", [False, True])
def test_streams_part_and_meet_again_even_where_a_call_is_stopped(monkeypatch, is_stopped):
    notes: list[str] = []
    backend = SimpleNamespace(name="cuda", device=None, stream=Stream("ours", notes))
    names = iter(["a", "b"])
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream(next(names), notes))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: backend.stream)
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: notes.append(f"on {stream.name}"))

    def stop() -> None:
        raise KeyboardInterrupt

    side_by_side = SideBySide([[SimpleNamespace(is_captured=True)]] * 3, backend)
    calls = [lambda: 1, stop if is_stopped else lambda: 2, lambda: 3]
    with pytest.raises(KeyboardInterrupt) if is_stopped else contextlib.nullcontext():
        assert side_by_side(calls) == [1, 2, 3]
    parted = ["a waits for ours", "on a", "b waits for ours", "on b", *([] if is_stopped else ["on ours"])]
    assert notes == [*parted, "on ours", "ours waits for a", "ours waits for b"]


@needs_gpu
def test_graphs_at_once_see_what_was_before_and_are_seen_by_what_comes_after():
    backend = choose_backend("cuda")
    given = torch.zeros(1, device=backend.device)
    wide = torch.ones(1 << 24, device=backend.device)
    sums = [torch.zeros(1, device=backend.device) for _ in range(3)]

    def prepare(own):
        def call():
            own.copy_((wide * given).sum() / wide.numel())  # long enough to be overtaken, where nobody waits
            return own

        return Graphed(call, backend)

    graphs = [prepare(own) for own in sums]
    side_by_side, was_at_once = SideBySide([[one] for one in graphs], backend), []
    for number in range(20):
        given.fill_(number)
        was_at_once.append(side_by_side.is_at_once)
        found = [one.clone() for one in side_by_side(graphs)]
        given.fill_(-1.0)
        assert [one.item() for one in found] == [number] * 3
    assert was_at_once == [False] * (WARM_UP + 1) + [True] * (20 - WARM_UP - 1)


@needs_gpu
def test_policies_that_learn_at_once_learn_the_same_bit_for_bit(tmp_path):
    if not choose_backend("cuda").has_warpgroups:
        pytest.skip("here cuBLAS multiplies what the wider network recorded")
    found, config = [], {**TWO_FUSED, "saving": {"basedir": str(tmp_path)}}
    for is_enabled in (True, True, False):
        trainer = Trainer(read_config(config, [("trainer.device", "cuda")]))
        assert trainer.side_by_side.is_enabled
        trainer.side_by_side.is_enabled = is_enabled
        trainer.train()
        assert trainer.side_by_side.is_at_once == is_enabled
        found.append([one.cpu() for policy in trainer.policies.values() for one in policy.state_dict().values()])
    for other in found[1:]:
        assert all(torch.equal(one, same) for one, same in zip(found[0], other, strict=True))


@needs_gpu
def test_what_shares_a_matrix_library_does_not_run_at_once(tmp_path):
    """cuBLAS has one workspace a stream, and all graphs are captured on one."""
    config = {**TWO_FUSED, "saving": {"basedir": str(tmp_path)}}
    trainer = Trainer(read_config(config, [("trainer.device", "cuda"), ("trainer.precision", "tf32")]))
    assert not trainer.side_by_side.is_enabled
