"""Where an iteration's time goes: on a CPU by the clock, on a GPU by events that nobody waits for."""

import math

import pytest
import torch

from trainers.report import timing as timing_module
from trainers.report.timing import MAX_TIMED, Timing
from trainers.trainer import Trainer


class Device:
    """A device whose time passes as it is told: what marks see of it."""

    def __init__(self) -> None:
        self.now = 0.0

    def work(self, ms: float) -> None:
        self.now += ms / 1e3


@pytest.fixture
def slow(monkeypatch) -> Device:
    device = Device()
    monkeypatch.setattr(timing_module.time, "perf_counter", lambda: device.now)
    return device


def timing_of(device: Device, where: str = "cpu") -> Timing:
    def collect(mark) -> None:
        for _ in range(4):  # steps: 2 ms of the policy, 1 of the env; and 4 at the end
            device.work(2)
            mark()
            device.work(1)
            mark()
        device.work(4)

    return Timing(torch.device(where), collect)


def iterate(timing: Timing, device: Device, rollout: float = 16.0, learn: float = 5.0) -> bool:
    timing.begin_iteration()
    in_parts = timing.asks_for_parts()
    if in_parts:
        timing.collect_in_parts()
    else:
        device.work(rollout)
    timing.end_rollout()
    device.work(learn)
    timing.end_iteration()
    return in_parts


@pytest.mark.parametrize(("num_iterations", "env", "policy"), [(3, 8.0, 24.0), (1, 4.0, 12.0)])
def test_parts_are_those_of_a_rollout_with_marks(slow, num_iterations, env, policy):
    """Of its 16 ms 4 were the env's; rollouts without marks took 32 ms. Alone, it stands for itself."""
    timing = timing_of(slow)
    timing.begin_interval()
    in_parts = [iterate(timing, slow, rollout=32.0) for _ in range(num_iterations)]
    assert in_parts == [True, False, False][:num_iterations]
    read = timing.read(timing.begin_interval())
    assert read == pytest.approx({"perf/env_ms": env, "perf/policy_ms": policy, "perf/learn_ms": 5.0})


def test_a_rollout_without_parts_is_the_policys(slow):
    timing = Timing(torch.device("cpu"), lambda mark: None, is_whole=True)
    timing.begin_interval()
    timing.begin_iteration()
    slow.work(7.0)
    timing.end_rollout()
    slow.work(5.0)
    timing.end_iteration()
    read = timing.read(timing.begin_interval())
    assert math.isnan(read["perf/env_ms"])
    assert (read["perf/policy_ms"], read["perf/learn_ms"]) == pytest.approx((7.0, 5.0))


def test_marks_are_set_ever_more_seldom(slow):
    timing = timing_of(slow)
    timing.begin_interval()
    assert [i for i in range(100) if iterate(timing, slow)] == [0, 3, 6, 12, 24, 48, 96]


def test_on_a_gpu_they_wait_until_the_graphs_are_made(slow, monkeypatch):
    monkeypatch.setattr(timing_module.Clock, "mark", lambda self: slow.now)
    monkeypatch.setattr(timing_module.Clock, "ms", lambda self, first, second: (second - first) * 1e3)
    timing = timing_of(slow, "cuda")
    timing.begin_interval()
    assert [i for i in range(13) if iterate(timing, slow)] == [3, 6, 12]
    timing = timing_of(slow, "cuda")
    timing.begin_interval()
    iterate(timing, slow)
    assert math.isnan(timing.read(timing.begin_interval())["perf/env_ms"])


def test_only_so_many_iterations_are_timed_and_none_outside_an_interval_and_all_seconds_count(slow):
    timing = timing_of(slow)
    assert not iterate(timing, slow)
    assert timing._interval is None
    timing.begin_interval()
    for _ in range(MAX_TIMED):
        iterate(timing, slow, rollout=10.0)
    for _ in range(1000):
        iterate(timing, slow, rollout=110.0)
    interval = timing.begin_interval()
    assert len(interval.iterations) == MAX_TIMED
    assert timing.read(interval)["perf/policy_ms"] == pytest.approx(7.5)
    assert timing.seconds(interval) > 100.0
    timing.end()
    assert not iterate(timing, slow)


def test_marks_change_nothing_of_a_run(tiny):
    """An iteration whose rollout has marks does what one without does, bit for bit."""
    with_marks, without = Trainer(tiny()), Trainer(tiny())
    with_marks.timing.begin_interval()
    for _ in range(4):
        with_marks.iterate()
        without.iterate()
    assert with_marks.timing._env_share == with_marks.timing._env_share or with_marks.timing._parts
    for name, policy in with_marks.policies.items():
        for key, tensor in policy.state_dict().items():
            assert torch.equal(tensor, without.policies[name].state_dict()[key])


def test_a_rollout_marks_the_env_once_a_step(tiny):
    trainer = Trainer(tiny())
    marks = []
    trainer.rollout.collect(lambda: marks.append(None))
    assert len(marks) == 2 * trainer.rollout.num_steps
    launches = len(trainer.env.prepare_step_and_reset())  # a step and a restart, which a GPU makes in one
    assert launches == (1 if trainer.env.backend.name == "cuda" else 2)
    assert sum(trainer.rollout.is_env) == launches * trainer.rollout.num_steps
