"""The conformance kit plays what is legal, to the end, and tells apart what differs; bugs: test_planted_bugs.py."""

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from adapter_cases import CLIMBERS
from planted_env import Planted, Pooled, planted

from warpdrive import testing
from warpdrive.backends import choose_backend
from warpdrive.backends.cpu import CpuBackend
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.errors import BackendError, ConfigError, EnvError, KernelError
from warpdrive.testing import SKIPPED, Play, __main__, check_env, checks, compare_backends, compare_traces, processes
from warpdrive.testing.play import Player

FEW = Play(num_steps=20)


class Masked(Planted):
    """Only the action that the mask allows may be taken. Agent 2 may do nothing."""

    def arrays(self) -> dict[str, Any]:
        mask = np.zeros((3, 3), bool)
        mask[:2, 1] = True
        return {**super().arrays(), "action_mask": mask, "observation": np.zeros((3, 2), np.float32)}


class Leaving(Planted):
    """Who is not active is left alone by the kernel."""

    def arrays(self) -> dict[str, Any]:
        return {**super().arrays(), "active": np.ones(3, bool), "observation": np.zeros((3, 2), np.float32)}


class ChangedBackend(CpuBackend):
    """Compiles another text than it is given, as a GPU rounds otherwise."""

    def __init__(self, old: str, new: str, name: str = "cpu") -> None:
        super().__init__()
        self.old, self.new, self.name = old, new, name

    def compile(self, source):
        return super().compile(replace(source, text=source.text.replace(self.old, self.new)))


@pytest.mark.parametrize(
    ("old", "new", "array"),
    [
        ("place[i] + 0.01f", "place[i] + 0.0101f", "place"),
        ("reward[i] = 1.0f", "reward[i] = NAN", "reward"),
        ("time_step[env] = time;", "time_step[env] = time + (time == 7 && env == 5);", "time_step"),
        ("time >= 10", "time >= 11", "place|truncated"),
        ("0.5f * Random", "0.50002f * Random", "place"),
    ],
)
def test_a_backend_that_does_something_else_is_found(tmp_path, old, new, array):
    line = rf"^env 'planted', cuda against cpu, each step from .*: array '({array})' of env \d differs from step \d+ on"
    with pytest.raises(EnvError, match=line):
        compare_backends(planted(tmp_path), ChangedBackend(old, new, name="cuda"), CpuBackend())


def test_backends_that_round_otherwise_agree_however_long_they_play(tmp_path):
    """5e-6 a step is allowed; after a few steps of its own the state would differ by more than 1e-5."""
    rounds = ChangedBackend("fminf(place[i] + 0.01f", "fminf(place[i] + 5e-6f + 0.01f")
    compare_backends(planted(tmp_path), rounds, CpuBackend())
    ours, theirs = (testing.run_trace(planted(tmp_path), backend) for backend in (rounds, CpuBackend()))
    with pytest.raises(EnvError, match="array 'place' of env . differs"):
        compare_traces("each on its own", ours, theirs, testing.TOLERANCE)


def test_without_a_mistake_nothing_is_found_and_without_a_gpu_cpu_against_gpu_is_left_out(device, tmp_path):
    (line,) = (line for line in check_env(planted(tmp_path), device) if "CPU against GPU" in line)
    if torch.cuda.is_available():
        assert line.startswith("CPU against GPU: a step from the same state gives equal integers")
    else:
        assert line == "skipped: CPU against GPU, as torch sees no GPU here"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_check_takes_a_gpu_and_the_cpu_for_its_sides_or_says_why_it_cannot(monkeypatch, tmp_path, device):
    gpu = ChangedBackend("time_step[env] + 1", "time_step[env] + 2", name="cuda")
    backends = {"cpu": CpuBackend(), "cuda": gpu}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(checks, "choose_backend", backends.__getitem__)
    with pytest.raises(EnvError, match="cuda against cpu, .* 'time_step' of env 0 .* step 1 on .2 against 1."):
        checks.check_cpu_against_gpu(planted(tmp_path), backends[device], FEW)
    gpu.new = gpu.old
    assert not checks.check_cpu_against_gpu(planted(tmp_path), backends[device], FEW).startswith(SKIPPED)

    def refuse(kind):
        raise BackendError("no driver.")

    monkeypatch.setattr(checks, "choose_backend", refuse)
    line = checks.check_cpu_against_gpu(planted(tmp_path), backends[device], FEW)
    assert line == "skipped: CPU against GPU: no driver."


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_the_last_line_says_what_was_left_out(capsys):
    assert __main__.main(["pendulum", "--steps", "20", "episode_length=15"]) == 0
    first, *lines, last = capsys.readouterr().out.splitlines()
    assert first == "ok      pendulum on cpu: 11 checks"
    assert len(lines) == 12 and lines[-1] == "        skipped: CPU against GPU, as torch sees no GPU here"
    assert last == "1 passed, 0 failed (1 envs on cpu); skipped: CPU against GPU, as torch sees no GPU here"


def test_a_class_is_checked_with_the_config_that_is_given_and_an_env_with_its_own():
    from cuda_envs.pendulum.pendulum import Pendulum, PendulumConfig

    with pytest.raises(ConfigError, match="env.length: expected a number from 1e-06 to 1,000,000, got -1.0"):
        check_env(Pendulum, length=-1.0)
    with pytest.raises(EnvError, match="^length: give these with the name of an env; an Env has its config already.$"):
        check_env(Pendulum(PendulumConfig()), length=2.0)


def test_steps_and_envs_are_the_callers(monkeypatch):
    asked = []
    monkeypatch.setattr(__main__, "check_env", lambda *given: asked.append(given[3:]) or [])
    assert __main__.main(["pendulum", "--device", "cpu", "--steps", "12", "--envs", "5"]) == 0
    assert __main__.main(["pendulum", "--device", "cpu"]) == 0
    assert asked == [(12, 5), (100, 7)]
    with pytest.raises(SystemExit):
        __main__.main(["pendulum", "--steps", "0"])


def test_what_is_looked_at_reaches_over_the_end_of_an_episode(tmp_path):
    """40 steps: the first 20, then from 10 before the end on to 10 after it."""
    play = Play(num_steps=40)
    env = planted(tmp_path, ("time >= 10", "time >= 300"), episode_length=300)
    trace = testing.run_trace(env, CpuBackend(), 2, 40, skip=play.skip(env))
    assert trace.steps == [*range(20), *range(290, 311)]
    assert [step for step, ended in zip(trace.steps, trace["truncated"], strict=True) if ended.all()] == [300]
    assert not play.skip(planted(tmp_path))


def test_only_what_a_mask_allows_is_done_and_0_where_it_allows_nothing():
    env = EnvWrapper(CLIMBERS, 4, "cpu")
    env.reset()
    env.data["action_mask"][:, 2] = False
    may, player = env.data.pull("action_mask"), Player(env, 20)
    played, at_random = (
        np.stack([step["action"].numpy() for step in steps])
        for steps in ([player.next() for _ in range(20)], testing.random_actions(env.env, 4, 20))
    )
    is_allowed = [np.take_along_axis(may[None], one[..., None], -1)[:, :, :2].all() for one in (played, at_random)]
    assert is_allowed == [True, False] and (played[:, :, 2] == 0).all()


def test_an_agent_that_may_do_nothing_is_found_unless_it_has_left_the_game(device, tmp_path):
    env, backend = planted(tmp_path, kind=Masked), choose_backend(device=device)
    with pytest.raises(EnvError, match="'action_mask' forbids every action of agent 2 of env 0 in step 0; it takes ac"):
        checks.check_spaces(env, backend, FEW)
    env.arrays = lambda: {**Masked.arrays(env), "active": np.array([True, True, False])}
    assert checks.check_spaces(env, backend, FEW)


def test_of_who_has_left_the_game_the_reward_alone_need_be_written(device, tmp_path):
    """It counts in returns. Each is paid for the step in which it leaves, and sees nothing from then on."""
    start = "        const int i = env * NUM_AGENTS + agent;\n"
    skips = f"{start}        if (!active[i]) continue;\n"
    leaves = f"{skips.removeprefix(start)}        active[i] = time < 4 + agent;\n"
    rules = [
        ("int* count,", "int* count, bool* active,"),
        (f"{start}        moved", f"{start}        reward[i] = 0.0f;\n{leaves}        moved"),
        (f"{start}        place", f"{skips}        place"),
    ]
    backend = choose_backend(device=device)
    assert checks.check_unwritten(planted(tmp_path, *rules, kind=Leaving), backend, FEW)
    too_soon = ("place[i] = moved[agent];", "if (time > 2) continue; place[i] = moved[agent];")
    for mistake, number, name in (too_soon, 3, "observation"), (("reward[i] = 0.0f;", ""), 5, "reward"):
        with pytest.raises(EnvError, match=f"in step {number} '{name}' of env 0, agent 0.* is left unwritten"):
            checks.check_unwritten(planted(tmp_path, *rules, mistake, kind=Leaving), backend, FEW)


@pytest.mark.parametrize("ends", [True, False])
def test_an_env_that_says_a_length_and_never_ends_is_told(tmp_path, ends):
    rules = [] if ends else [("truncated[env] = time >= 10", "truncated[env] = false")]
    said = checks.check_episode_length(planted(tmp_path, *rules), choose_backend("cpu"), FEW)
    never = "warning: env 'planted': no episode ended in 20 steps, though episode_length is 10: without ends there are"
    assert said.startswith("nothing is truncated before episode_length" if ends else never)


PAID, LAST = "reward[i] = 1.0f", "truncated[env] = time >= 10"
FARTHER = "step 10 truncates env 0 and pays agent {}, where steps that do not truncate pay {}. A truncated step counts"


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ([], None),
        ([(PAID, "reward[i] = time >= 10 ? 2.0f : 1.0f")], FARTHER.format("0 2", "1")),
        ([(PAID, "reward[i] = time >= 10 && agent == 2 ? -3.0f : time % 3")], FARTHER.format("2 -3", "from 0 to 2")),
        ([(PAID, "reward[i] = time >= 10"), (LAST, "truncated[env] = false"), ("= false", "= time >= 10")], None),
        ([(PAID, "reward[i] = time")], None),
        ([(LAST, "truncated[env] = true"), (PAID, "reward[i] = agent")], None),
    ],
    ids=["as ever", "a bonus", "a fine for one", "at an end for good", "more every step", "every step truncates"],
)
def test_a_reward_for_reaching_the_time_limit_is_a_warning(device, tmp_path, rules, words):
    line = checks.check_time_limit(planted(tmp_path, *rules), choose_backend(device=device), FEW)
    assert line.startswith(testing.WARNING) is (words is not None) and (words or "") in line


@pytest.mark.parametrize("name", ["pendulum", "simple_spread"])
def test_who_is_paid_in_every_step_alike_is_not_warned(device, name):
    line = checks.check_time_limit(testing.load_env(name), choose_backend(device=device), Play())
    assert line == "a step that truncates pays as others do"


def test_a_warning_is_printed_and_no_failure(monkeypatch, capsys):
    monkeypatch.setattr(__main__, "check_env", lambda *_: ["one", f"{testing.WARNING}two", f"{SKIPPED}three"])
    monkeypatch.setattr(__main__, "list_envs", lambda: ["pendulum"])
    assert __main__.main(["--device", "cpu"]) == 0
    first, second, last = capsys.readouterr().out.splitlines()
    assert (first, second) == ("ok      pendulum on cpu: 2 checks", "        warning: two")
    assert last == "1 passed, 0 failed (1 envs on cpu); skipped: three"


def test_what_ends_a_process_of_its_own_is_told(tmp_path):
    env = planted(tmp_path)

    def fail() -> str:
        raise KernelError("line 3 is wrong.")

    assert processes.in_a_child(env, [("slept", lambda: "one"), ("slept", lambda: "two")]) == ["one", "two"]
    with pytest.raises(EnvError, match="env 'planted': the process that checked it ended by SIGABRT while it fell"):
        processes.in_a_child(env, [("stood", lambda: "stands"), ("fell", os.abort)])
    with pytest.raises(KernelError, match="^line 3 is wrong.$"):
        processes.in_a_child(env, [("failed", fail)])
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        processes.in_a_child(env, [("divided", lambda: str(1 / 0))])


def test_traces_are_compared_by_their_bits():
    zero = {"x": np.zeros((1, 1), np.float32)}
    compare_traces("a", zero, {"x": np.zeros((1, 1), np.float32)})
    compare_traces("a", zero, {"x": -zero["x"]}, tolerance=1e-6)
    for other in (-0.0, np.nan):
        with pytest.raises(EnvError, match="^a: array 'x' of env 0 differs from step 0 on"):
            compare_traces("a", zero, {"x": np.full((1, 1), other, np.float32)})
    nobody = {"x": np.full((1, 1), np.nan, np.float32)}
    with pytest.raises(EnvError, match="^a: array 'x' of env 0 holds a NaN from step 0 on."):
        compare_traces("a", nobody, nobody)


def test_sanitizers_that_cannot_start_are_no_finding(monkeypatch):
    refused = {"LD_PRELOAD": "", "PYTHONHASHSEED": "none"}  # Python does not start so
    monkeypatch.setattr(processes, "sanitizer_environment", lambda kinds: refused)
    with pytest.raises(BackendError, match="^Python cannot start under this compiler's address sanitizer .*compiler.$"):
        testing.check_sanitizers(testing.load_env("pendulum"))


def test_an_env_with_a_pool_passes_the_kit_and_restarts_from_its_rows(device, tmp_path):
    assert check_env(planted(tmp_path, kind=Pooled), device, num_steps=40)
    env = EnvWrapper(planted(tmp_path, kind=Pooled), 200, device)
    observation, _ = env.reset()
    place = env.data.pull("place")
    assert set((10 * place[:, 0]).round().tolist()) == {1, 2, 3, 4, 5}
    assert (observation.cpu().numpy()[..., 0] == place).all(), "the observation belongs to the new state"
    assert (env.data.pull("time_step") == 0).all(), "what is in no pool restarts from its saved start"
