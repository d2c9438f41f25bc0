"""What a run reports, and that nobody waits for it."""

import itertools
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from programs import ROOT, run_python
from trainers_runs import reports_of

from trainers.algorithms import find_algorithm
from trainers.cli import exit_code
from trainers.errors import NonFiniteError, describe_device_fault, is_device_fault
from trainers.report import timing
from trainers.report.metrics import EXPLANATIONS, Metrics, PendingReport, metrics_of
from trainers.report.timing import Clock
from trainers.run import checkpoint
from trainers.trainer import Trainer
from warpdrive.errors import KernelError

HERE = Path(__file__).parents[1]


def pattern(name: str) -> str:
    """A metric's name as the documentation has it."""
    words = name.split("/")
    if len(words) == 3:
        words[1] = "<group>" if words[0] == "eval" else "<policy>"
    return "/".join(words)


@pytest.mark.parametrize("algorithm", ["A2C", "PPO", "MAPPO"])
def test_every_metric_is_documented_and_every_documented_one_is_there(tiny, algorithm):
    """Of each policy; none is left out, and those of evaluations are where there was one."""
    policy, evaluation = {"algorithm": algorithm}, {"eval_freq": 2, "num_episodes": 4}
    policies = {"tagger": policy, "runner": policy}
    trainer = Trainer(tiny(trainer__total_timesteps=60 * 6, policy=policies, evaluation=evaluation))
    trainer.train()  # long enough for a GPU's graphs to be made and its rollout to be timed in parts
    lines = reports_of(trainer.run.path)
    names = [{pattern(name) for name in line} for line in lines]
    explained = {name for name in EXPLANATIONS if "<figure>" not in name}  # the env tells nothing of its own
    of_evaluations = {name for name in explained if name.startswith("eval/")}
    assert [found & of_evaluations for found in names] == [of_evaluations if i % 2 else set() for i in range(6)]
    figures = {f"train/<policy>/{name}" for name in find_algorithm(algorithm)[0].FIGURES}
    assert set.union(*names) == {name for name in explained if not name.startswith("train/")} | figures
    last = lines[-1]
    for one in policies:
        assert {pattern(name) for name in last if name.startswith(f"train/{one}/")} == figures
    unknown = {f"train/{one}/explained_variance_of_returns" for one in policies}  # where no episode ended for good
    assert {key for key, value in last.items() if value is None} <= unknown
    assert last["perf/env_ms"] > 0 and last["perf/policy_ms"] > 0 and last["perf/learn_ms"] > 0 < last["perf/log_ms"]
    assert last["health/nonfinite"] == last["health/invalid_actions"] == 0
    if algorithm == "A2C":
        assert last["train/tagger/approx_kl"] == last["train/tagger/clip_fraction"] == 0


def test_a_metric_is_explained_by_the_name_it_has_in_a_run(tiny):
    found = metrics_of(tiny(evaluation={"eval_freq": 2}), ["tagger", "runner"])
    assert found["train/tagger/entropy"] == EXPLANATIONS["train/<policy>/entropy"]
    assert found["eval/runner/mean_reward"] == EXPLANATIONS["eval/<group>/mean_reward"]


def test_the_parts_of_an_iteration_are_no_longer_than_the_run(tiny, monkeypatch):
    """A millisecond passes from each look at the clock to the next."""
    looks = itertools.count()
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(looks) / 1e3)
    trainer = Trainer(tiny(trainer__total_timesteps=600, trainer__device="cpu", saving__metrics_log_freq=5))
    trainer.train()
    for line in reports_of(trainer.run.path):
        parts = [line[f"perf/{name}_ms"] for name in ("env", "policy", "learn")]
        assert 0 < sum(parts) / 1e3 <= 60 / line["time/fps"]


def test_what_a_report_reads_the_device_has_passed(tiny, monkeypatch):
    """On a GPU a mark that was set after the report's copy may be still to come when the copy has arrived."""
    order, passed = itertools.count(), [-1]
    begin_report, read = Metrics.begin_report, PendingReport.read

    def ms(self, first, second):
        assert first <= second <= passed[0]
        return float(second - first)

    def begin(self, *arguments):
        pending = begin_report(self, *arguments)
        pending.sent = next(order)
        return pending

    def arrive(self):
        passed[0] = self.sent
        return read(self)

    monkeypatch.setattr(Clock, "mark", lambda self: next(order))
    monkeypatch.setattr(Clock, "ms", ms)
    monkeypatch.setattr(Metrics, "begin_report", begin)
    monkeypatch.setattr(PendingReport, "read", arrive)
    trainer = Trainer(tiny())
    trainer.train()
    assert len(reports_of(trainer.run.path)) > 1


def test_a_run_in_which_no_episode_ended_says_so_once_at_its_end(tiny, capsys):
    pendulum = {"name": "pendulum", "env": {"episode_length": 25}, "policy": {"agent": {}}}
    trainer = Trainer(tiny(**pendulum, trainer__total_timesteps=120))  # 20 steps of each of 6 envs
    trainer.train()
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "no episode ended" in line)
    assert line == (
        "warning: no episode ended in 120 env steps, 20 of each env, so that there is no return: look at the env's "
        "terminated and truncated and at its episode_length (25), or train longer"
    )
    again = Trainer(trainer.config, resume=trainer.run.path)
    again.train()  # nothing
    longer = Trainer(tiny(**pendulum, trainer__total_timesteps=240), resume=trainer.run.path)
    longer.train()  # episodes end in step 25, and none in the last iteration
    assert "rollout/ep_rew_mean" not in longer.run.metrics[-1]
    assert "no episode ended" not in capsys.readouterr().out


@pytest.fixture
def late(monkeypatch) -> list[bool]:
    """Figures are on their way, as a GPU's are, until the first of the list is true."""
    has_arrived = [False]
    monkeypatch.setattr(PendingReport, "is_at_once", property(lambda self: False))
    monkeypatch.setattr(PendingReport, "has_arrived", property(lambda self: has_arrived[0]))
    return has_arrived


def before_each_iteration(trainer: Trainer, do: Callable[[], None]) -> None:
    iterate = trainer.iterate
    trainer.iterate = lambda: do() or iterate()


def watch(trainer: Trainer) -> list[tuple[str, int]]:
    """What happens, as it happens: iterations, lines written, checkpoints."""
    events, iterate, log, save = [], trainer.iterate, trainer.run.log, trainer.save

    def iterate_and_note():
        figures = iterate()
        events.append(("iteration", trainer.iteration))
        return figures

    def log_and_note(metrics):
        events.append(("line of", metrics["time/iterations"]))
        log(metrics)

    def save_and_note():
        events.append(("checkpoint", trainer.iteration))
        return save()

    trainer.iterate, trainer.run.log, trainer.save = iterate_and_note, log_and_note, save_and_note
    return events


def test_a_line_is_written_when_the_next_report_begins_and_before_a_checkpoint_and_the_end(tiny, late):
    trainer = Trainer(tiny(saving__metrics_log_freq=1, saving__model_params_save_freq=3, trainer__total_timesteps=240))
    events = watch(trainer)
    trainer.train()
    assert events == [
        ("iteration", 1),
        ("iteration", 2), ("line of", 1),
        ("iteration", 3), ("line of", 2), ("line of", 3), ("checkpoint", 3),
        ("iteration", 4), ("line of", 4), ("checkpoint", 4),
    ]  # fmt: skip


def test_a_line_is_written_as_soon_as_its_figures_are_there(tiny, late):
    trainer = Trainer(tiny(trainer__total_timesteps=60 * 6, saving__metrics_log_freq=4))
    events = watch(trainer)

    def arrive():
        late[0] = trainer.iteration == 4  # while the fifth runs

    before_each_iteration(trainer, arrive)
    trainer.train()
    assert events.index(("line of", 4)) == events.index(("iteration", 5)) + 1


def test_late_figures_are_those_of_their_own_iterations(tiny, late):
    clocks = ("time/fps", "time/agent", "perf/", "health/gpu_mem")  # of the second run, too
    reports = []
    for late[0] in (True, False):
        trainer = Trainer(tiny())
        trainer.train()
        lines = reports_of(trainer.run.path)
        reports.append([{k: v for k, v in line.items() if not k.startswith(clocks)} for line in lines])
    assert reports[0] == reports[1]


@pytest.mark.parametrize("save_freq", [0, 1])
def test_what_the_guard_finds_stops_the_run_before_anything_of_it_is_saved(tiny, late, save_freq):
    trainer = Trainer(tiny(trainer__total_timesteps=60 * 8, saving__model_params_save_freq=save_freq))
    events = watch(trainer)

    def spoil():
        if trainer.iteration == 2:
            trainer.policies["tagger"].network.value_head.bias.data.fill_(float("nan"))

    before_each_iteration(trainer, spoil)
    with pytest.raises(NonFiniteError, match="policy 'tagger': value is a NaN"):
        trainer.train()
    assert [at for what, at in events if what == "checkpoint"] == ([1, 2] if save_freq else [])
    assert trainer.iteration == (3 if save_freq else 4)  # the checkpoint, or the report after it
    last = reports_of(trainer.run.path)[-1]
    assert (last["time/iterations"], last["health/nonfinite"] > 0) == (3, True)


TORCH = "CUDA error: an illegal memory access was encountered\nSearch for `cudaErrorIllegalAddress'\nCUDA kernel errors"
START = "kernel 'tag_step' could not be launched: "
BINDINGS = START + "an illegal memory access was encountered. Run it on the CPU in debug mode."


LogicError = type("LogicError", (Exception,), {"__module__": "pycuda._driver"})


@pytest.mark.parametrize(
    ("error", "is_fault"),
    [
        (RuntimeError(TORCH), True),
        (torch.AcceleratorError(TORCH, 700) if hasattr(torch, "AcceleratorError") else RuntimeError(TORCH), True),
        (KernelError(BINDINGS), True),
        (KernelError("a kernel failed on the GPU: unspecified launch failure. Run it on the CPU in debug mode."), True),
        (LogicError("cuStreamSynchronize failed: an illegal memory access was encountered"), True),
        (RuntimeError("CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`"), True),
        (RuntimeError("CUDA error: out of memory"), False),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), False),
        (RuntimeError("shape '[3]' is invalid"), False),
        (KernelError("tag.cu:12: kernel 'tag_step': index 7 is out of range of 'x'"), False),
    ],
)
def test_what_a_gpu_does_not_recover_from_is_told_from_the_rest(error, is_fault):
    assert is_device_fault(error) == is_fault


@pytest.mark.parametrize("error", [RuntimeError(TORCH), KernelError(BINDINGS)])
def test_a_fault_is_one_line_with_the_last_good_step_and_the_last_checkpoint(tiny, error):
    every_second = {"saving__metrics_log_freq": 2, "saving__model_params_save_freq": 2}
    trainer = Trainer(tiny(trainer__total_timesteps=60 * 8, **every_second))

    def fail():
        if trainer.iteration == 5:
            raise error

    before_each_iteration(trainer, fail)
    with pytest.raises(KernelError) as caught:
        trainer.train()
    line = str(caught.value)
    assert exit_code(caught.value) == 1
    assert "\n" not in line
    start = START if isinstance(error, KernelError) else ""
    place = checkpoint.list_checkpoints(trainer.run.checkpoints)[-1]
    assert line.startswith(
        f"the GPU failed: {start}an illegal memory access was encountered. All was well up to env step 240 "
        f"(iteration 4), and 5 were asked for; the last good checkpoint is {place}. "
    )
    assert "CUDA_LAUNCH_BLOCKING=1 with trainer.cuda_graphs=false" in line
    assert checkpoint.load_checkpoint(place).progress["iteration"] == 4
    Trainer(tiny(trainer__total_timesteps=60 * 8), resume=trainer.run.path).train()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here to lose")
@pytest.mark.parametrize("cuda_graphs", ["true", "false"])
def test_a_gpu_that_is_lost_ends_a_run_with_that_line_and_nothing_else(tmp_path, cuda_graphs):
    """Torch aborts where it frees what lies on such a GPU. In iteration 9 of 20; the checkpoint can be gone on from."""
    config = {"name": "faulty:Faulty", "env": {"where": "memory", "env": 3, "agent": 1, "step": 85},
        "trainer": {"device": "cuda", "num_envs": 6, "train_batch_size": 60, "total_timesteps": 1200},
        "saving": {"basedir": str(tmp_path), "metrics_log_freq": 2, "model_params_save_freq": 2}}  # fmt: skip
    (tmp_path / "faulty.json").write_text(json.dumps(config))
    words = ["--config", "faulty.json", "--allow-import", "--run-name", "r", f"trainer.cuda_graphs={cuda_graphs}"]
    places = os.pathsep.join([str(ROOT), str(HERE / "envs"), os.environ.get("PYTHONPATH", "")])
    done = run_python("-m", "warpdrive", "train", *words, cwd=tmp_path, variables={"PYTHONPATH": places})
    assert done.returncode == 1
    assert re.fullmatch(r"error: the GPU failed: .*the last good checkpoint is .*step_000000000480\. .*\n", done.stderr)
    assert checkpoint.load_checkpoint(tmp_path / "r" / "checkpoints" / "step_000000000480").progress["iteration"] == 8


def test_before_any_checkpoint_there_is_none_to_name():
    line = describe_device_fault(RuntimeError(TORCH), "All was well up to env step 0", "and there is no older one")
    assert re.match("the GPU failed: an illegal [a-z ]+. All was well up to env step 0; and there is no older", line)
