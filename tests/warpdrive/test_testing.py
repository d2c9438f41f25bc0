"""The conformance kit finds what it is for: each env here has one mistake planted in it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces

from warpdrive import testing
from warpdrive.backends.cpu import CpuBackend
from warpdrive.env import Env, Group
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.errors import BackendError, EnvError
from warpdrive.testing import SKIPPED, check_env, compare_backends, compare_traces, main

KERNELS = """
#include "warpdrive.cuh"
#include "random.cuh"
extern "C" __global__ void planted_step(const int* action, float* place, int* time_step, float* observation,
                                        float* reward, bool* terminated, bool* truncated)
{
    const int env = env_index();
    if (env >= NUM_ENVS) return;
    const int time = time_step[env] + 1;
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        const int i = env * NUM_AGENTS + agent;
        place[i] = fminf(place[i] + 0.01f * action[i], 1.0f);
        observation[i] = place[i] OBSERVED;
        reward[i] = 1.0f;
    }
    env_sync();  // everyone has read the time
    if (first_agent() == 0) {
        time_step[env] = time;
        terminated[env] = TERMINATED;
        truncated[env] = time >= 10;
    }
}
extern "C" __global__ void planted_reset(const bool* terminated, const bool* truncated, const unsigned* seed,
                                         const int* env_step, float* place, int* time_step, float* observation)
{
    const int env = env_index();
    if (env >= NUM_ENVS || !(ENDED)) return;
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        const int i = env * NUM_AGENTS + agent;
        place[i] = 0.5f * Random(seed, DRAWN_BY, agent, env_step[env], STREAM_RESET).uniform();
        observation[i] = place[i];
    }
    if (first_agent() == 0 && RESTARTS_TIME) time_step[env] = 0;
}
"""

RIGHT = {
    "OBSERVED": "", "TERMINATED": "false", "ENDED": "terminated[env] || truncated[env]", "DRAWN_BY": "env",
    "RESTARTS_TIME": "true",
}  # fmt: skip


@dataclass(frozen=True)
class PlantedConfig:
    pass


class Planted(Env):
    Config = PlantedConfig
    num_agents = 3
    episode_length = 10
    groups: ClassVar = {"walker": Group(range(3), spaces.Box(0, 1, (1,), np.float32), spaces.Discrete(3))}
    name = "planted"
    source = None

    def arrays(self):
        return {"place": np.zeros(3, np.float32), "time_step": np.zeros((), np.int32)}


def planted(tmp_path, **mistake: str) -> Planted:
    text = KERNELS
    for word, code in {**RIGHT, **mistake}.items():
        text = text.replace(word, code)
    env = Planted()
    env.source = tmp_path / "planted.cu"
    env.source.write_text(text)
    return env


def test_without_a_mistake_all_checks_pass(device, tmp_path):
    assert check_env(planted(tmp_path), device)


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ({"OBSERVED": "+ 2.0f"}, "observation.* is .*outside its space"),
        ({"OBSERVED": "/ 0.0f"}, "outside its space"),
        ({"TERMINATED": "time >= 10"}, "both terminated and truncated"),
        ({"ENDED": "true"}, "wrote 'time_step' of env 1, which had not ended|wrote 'place' of env 1"),
        ({"RESTARTS_TIME": "false"}, "after a reset 'time_step' of env"),
        ({"DRAWN_BY": "NUM_ENVS + env"}, "7 envs against 70"),
        ({"time >= 10": "time >= 4"}, "truncated after 4 steps, but episode_length is 10"),
    ],
)
def test_a_planted_mistake_is_named(device, tmp_path, mistake, words):
    with pytest.raises(EnvError, match=words):
        check_env(planted(tmp_path, **mistake), device)


class ChangedBackend(CpuBackend):
    """Compiles another text than it is given, as a GPU rounds otherwise."""

    def __init__(self, old: str, new: str, name: str = "cpu") -> None:
        super().__init__()
        self.old, self.new, self.name = old, new, name

    def compile(self, source):
        return super().compile(replace(source, text=source.text.replace(self.old, self.new)))


def test_two_backends_that_do_the_same_agree(tmp_path):
    compare_backends(planted(tmp_path), CpuBackend(num_threads=2), CpuBackend(debug=True))
    compare_backends(pooled(tmp_path), CpuBackend(), CpuBackend(debug=True))


@pytest.mark.parametrize(
    ("old", "new", "array"),
    [
        ("place[i] + 0.01f", "place[i] + 0.0101f", "place"),
        ("reward[i] = 1.0f", "reward[i] = 1.0001f", "reward"),
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


def test_cpu_against_gpu_is_checked_where_there_is_a_gpu_and_else_left_out_with_the_reason(device, tmp_path):
    (line,) = (line for line in check_env(planted(tmp_path), device) if "CPU against GPU" in line)
    if torch.cuda.is_available():
        assert line.startswith("CPU against GPU: a step from the same state gives equal integers")
    else:
        assert line == "skipped: CPU against GPU, as torch sees no GPU here"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_check_takes_a_gpu_for_one_side_and_the_cpu_for_the_other(monkeypatch, tmp_path, device):
    gpu = ChangedBackend("time_step[env] + 1", "time_step[env] + 2", name="cuda")
    backends = {"cpu": CpuBackend(), "cuda": gpu}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(testing, "choose_backend", backends.__getitem__)
    with pytest.raises(EnvError, match="cuda against cpu, .* 'time_step' of env 0 .* step 1 on .2 against 1."):
        testing._check_cpu_against_gpu(planted(tmp_path), backends[device])
    gpu.new = gpu.old
    assert not testing._check_cpu_against_gpu(planted(tmp_path), backends[device]).startswith(SKIPPED)


def test_a_gpu_that_cannot_be_used_is_the_reason(monkeypatch, tmp_path):
    def refuse(kind):
        raise BackendError("no driver.")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(testing, "choose_backend", refuse)
    line = testing._check_cpu_against_gpu(planted(tmp_path), CpuBackend())
    assert line == "skipped: CPU against GPU: no driver."


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_the_last_line_says_what_was_left_out(capsys):
    assert main(["pendulum", "episode_length=9"]) == 0
    first, *checks, last = capsys.readouterr().out.splitlines()
    assert first == "ok      pendulum on cpu: 9 checks"
    assert len(checks) == 10 and checks[-1] == "        skipped: CPU against GPU, as torch sees no GPU here"
    assert last == "1 passed, 0 failed (1 envs on cpu); skipped: CPU against GPU, as torch sees no GPU here"


def test_a_class_is_checked_with_the_config_that_is_given_and_an_env_with_its_own():
    from cuda_envs.pendulum.pendulum import Pendulum, PendulumConfig

    with pytest.raises(EnvError, match="env.length must be above 0"):
        check_env(Pendulum, length=-1.0)
    with pytest.raises(EnvError, match="^length: give these with the name of an env; an Env has its config already.$"):
        check_env(Pendulum(PendulumConfig()), length=2.0)


def test_traces_are_compared_by_their_bits():
    zero = {"x": np.zeros((1, 1), np.float32)}
    compare_traces("a", zero, {"x": np.zeros((1, 1), np.float32)})
    compare_traces("a", zero, {"x": -zero["x"]}, tolerance=1e-6)
    for other in (-0.0, np.nan):
        with pytest.raises(EnvError, match="^a: array 'x' of env 0 differs from step 0 on"):
            compare_traces("a", zero, {"x": np.full((1, 1), other, np.float32)})


def test_sanitizers_that_cannot_start_are_no_finding(monkeypatch):
    refused = {"LD_PRELOAD": "", "PYTHONHASHSEED": "none"}  # Python does not start so
    monkeypatch.setattr("warpdrive.backends.cpu_sanitize.sanitizer_environment", lambda kinds: refused)
    with pytest.raises(BackendError, match="^Python cannot start under this compiler's address sanitizer .*compiler.$"):
        testing.check_sanitizers(testing.load_env("pendulum"))


def test_what_a_sanitizer_finds_is_shown(monkeypatch, tmp_path):
    """An index out of range, in an env that a process of its own can import."""
    text = KERNELS
    for word, code in {**RIGHT, "OBSERVED": "+ place[NUM_ENVS * NUM_AGENTS + 5]"}.items():
        text = text.replace(word, code)
    (tmp_path / "planted.cu").write_text(text)
    (tmp_path / "planted.py").write_text(
        "from dataclasses import dataclass\nimport numpy as np\nfrom gymnasium import spaces\n"
        "from warpdrive.env import Env, Group\n\n@dataclass\nclass PlantedConfig:\n    pass\n\n\n"
        "class Planted(Env):\n    Config, num_agents, episode_length = PlantedConfig, 3, 10\n"
        "    groups = {'walker': Group(range(3), spaces.Box(0, 1, (1,), np.float32), spaces.Discrete(3))}\n\n"
        "    def arrays(self):\n"
        "        return {'place': np.zeros(3, np.float32), 'time_step': np.zeros((), np.int32)}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        testing.check_sanitizers(testing.load_env("planted:Planted"))
    except BackendError as error:
        pytest.skip(str(error))
    except EnvError as error:
        assert "env 'planted': the address sanitizer reports:" in str(error)
        assert "heap-buffer-overflow" in str(error) and "planted.cu:13" in str(error)
    else:
        pytest.fail("the mistake went unseen")


class Pooled(Planted):
    """No reset kernel: it restarts from rows of a pool."""

    def pool(self):
        rows = np.arange(1, 6, dtype=np.float32)[:, None].repeat(3, 1) / 10
        return {"place": rows, "observation": rows[..., None]}


def pooled(tmp_path, kind=Pooled) -> Pooled:
    env = kind()
    env.source = tmp_path / "planted.cu"
    text = KERNELS[: KERNELS.index('extern "C" __global__ void planted_reset')]
    for word, code in RIGHT.items():
        text = text.replace(word, code)
    env.source.write_text(text)
    return env


def test_an_env_with_a_pool_restarts_from_its_rows(device, tmp_path):
    env = EnvWrapper(pooled(tmp_path), 200, device)
    observation, _ = env.reset()
    place = env.data.pull("place")
    assert set((10 * place[:, 0]).round().tolist()) == {1, 2, 3, 4, 5}
    assert (observation.cpu().numpy()[..., 0] == place).all(), "the observation belongs to the new state"
    assert (env.data.pull("time_step") == 0).all(), "what is in no pool restarts from its saved start"


def test_an_env_with_a_pool_passes_the_kit(device, tmp_path):
    assert check_env(pooled(tmp_path), device)


def test_a_start_without_an_observation_is_refused(tmp_path):
    with pytest.raises(EnvError, match="no kernel 'planted_reset'.*add 'observation'"):
        EnvWrapper(pooled(tmp_path, Planted), 2, "cpu")


@pytest.mark.parametrize("name", ["seed", "start_place", "pool_x", "final_y", "env_step"])
def test_a_name_that_is_taken_is_refused(tmp_path, name):
    env = planted(tmp_path)
    env.arrays = lambda: {**Planted.arrays(env), name: np.zeros(3, np.float32)}
    with pytest.raises(EnvError, match=f"array '{name}' has a name that is taken"):
        EnvWrapper(env, 2, "cpu")


def test_a_reset_over_elements_of_all_envs_is_refused(tmp_path):
    env = planted(tmp_path)
    text = env.source.read_text()
    start = text.index("{", text.index("void planted_reset"))
    body = "{ for (long long i = global_thread(); i < NUM_ENVS * NUM_AGENTS; i += num_global_threads()) place[i] = 0; }"
    env.source.write_text(text[:start] + body)
    with pytest.raises(EnvError, match="'planted_reset' loops over elements of all envs"):
        EnvWrapper(env, 2, "cpu")
