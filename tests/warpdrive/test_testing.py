"""The conformance kit finds what it is for: each env here has one mistake planted in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from gymnasium import spaces

from warpdrive.env import Env, Group
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.errors import EnvError
from warpdrive.testing import check_env

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
