"""A run's first iteration finds what an env's steps leave unwritten, before anything is learned from it."""

from __future__ import annotations

import pytest
import torch
from planted_env import SECOND_BYTE, SMALL, Bytes, Few, Planted, Yes, of_kind, planted

from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.errors import EnvError

PAID = "        reward[i] = 1.0f;\n"
SECOND_FEATURE = "        observation[2 * i + 1] = moved[(agent + 1) % NUM_AGENTS];\n"


def trainer_of(folder, device: str, kind: type[Planted] = Planted, **settings: object) -> Trainer:
    trainer = {"num_envs": 4, "train_batch_size": 24, "total_timesteps": 48, "device": device, **settings}
    config = {"name": f"{kind.__module__}:{kind.__name__}", "env": {"folder": str(folder)}, "trainer": trainer}
    return Trainer(read_config({**config, "saving": {"basedir": str(folder)}}, allow_import=True))


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ((PAID, "        if (time == 5) reward[i] = 1.0f;\n"), "step 0 left 'reward' unwritten of env 0, agent 0."),
        ((SECOND_FEATURE, ""), "step 0 left 'observation' unwritten of env 0, agent 0, feature 1. A step"),
        (
            (PAID, PAID.replace("reward", "if (env != 2 || agent != 1 || time < 3) reward")),
            "step 2 left 'reward' unwritten of env 2, agent 1. ",
        ),
        (("        terminated[env] = false;\n", ""), "step 0 left 'terminated' unwritten of env 0. A step"),
        (
            ("truncated[env] = time >= 10", "if (time >= 10) truncated[env] = true"),
            "step 0 left 'truncated' unwritten of",
        ),
    ],
)
def test_what_a_step_leaves_unwritten_ends_the_run_before_anything_is_learned(tmp_path, device, mistake, words):
    planted(tmp_path, mistake)
    trainer = trainer_of(tmp_path, device)
    before = [parameter.clone() for parameter in trainer.policies["shared"].parameters()]
    with pytest.raises(EnvError, match=f"^env 'planted': {words}"):
        trainer.iterate()
    assert all(torch.equal(*both) for both in zip(before, trainer.policies["shared"].parameters(), strict=True))


def test_an_end_that_is_both_ends_the_run(tmp_path, device):
    """In the second iteration of six steps, where time is up."""
    planted(tmp_path, ("terminated[env] = false", "terminated[env] = env == 2 && time >= 10"))
    trainer = trainer_of(tmp_path, device)
    trainer.iterate()
    with pytest.raises(EnvError, match="^env 'planted': step 3 says both terminated and truncated of env 2. Say term"):
        trainer.iterate()


def test_an_env_that_writes_everything_trains_on_what_it_wrote(tmp_path, device):
    planted(tmp_path)
    trainer = trainer_of(tmp_path, device)
    trainer.train()
    assert trainer.rollout.reward.eq(1.0).all()
    assert trainer.rollout.observation.isfinite().all()


@pytest.mark.parametrize("kind", SMALL)
def test_a_feature_of_a_byte_that_is_left_ends_the_run(tmp_path, device, kind):
    planted(tmp_path, *of_kind(kind, (SECOND_BYTE, "")))
    words = "step 0 left 'observation' unwritten of env 0, agent 0, feature 1. A step"
    with pytest.raises(EnvError, match=f"^env 'planted': {words}"):
        trainer_of(tmp_path, device, kind).iterate()


@pytest.mark.parametrize("kind", [Yes, Few])
def test_a_slot_of_a_byte_that_is_left_is_named(tmp_path, device, kind):
    """A single one of them, which what is outside the space tells of."""
    left = (SECOND_BYTE, SECOND_BYTE.replace("obs", "if (env != 3 || agent != 2 || time != 4) obs"))
    planted(tmp_path, *of_kind(kind, left))
    with pytest.raises(EnvError, match="step 3 left 'observation' unwritten of env 3, agent 2, feature 1. "):
        trainer_of(tmp_path, device, kind).iterate()


def test_a_feature_of_a_byte_is_told_of_few_envs_too(tmp_path, device):
    """2 envs, and 5 steps whose slots are not what the next rollout begins with: the second iteration has enough."""
    planted(tmp_path, *of_kind(Bytes, (SECOND_BYTE, "")))
    trainer = trainer_of(tmp_path, device, Bytes, num_envs=2, train_batch_size=12)
    trainer.iterate()
    words = "step 0 left 'observation' unwritten of env 0, agent 0, feature 1, in iteration 2. "
    with pytest.raises(EnvError, match=words):
        trainer.iterate()


@pytest.mark.parametrize("shown", ["SHOWN", "0xA5", "time % 3 == 0 ? 0xA5 : 0", "0x5A", "37 * time + 101 * env", "255"])
@pytest.mark.parametrize("kind", SMALL)
def test_an_env_that_writes_its_bytes_trains_whatever_they_are(tmp_path, device, kind, shown):
    planted(tmp_path, *of_kind(kind, *([] if shown == "SHOWN" else [(SECOND_BYTE, f"        SHOW({shown});\n")])))
    limits = {Yes: "({}) & 1", Few: "({}) & 1"}
    header = f"#define SHOW(x) observation[2 * i + 1] = {limits.get(kind, '{}').format('x')}\n"
    path = tmp_path / "planted.cu"
    path.write_text(header + path.read_text())
    trainer = trainer_of(tmp_path, device, kind, total_timesteps=96)
    trainer.train()
    assert trainer.iteration == 4


@pytest.mark.parametrize(("paid", "iteration"), [("time < 7", 2), ("time < 10", 2), ("time != 3", 1)])
def test_what_is_left_late_in_an_episode_is_found_where_episodes_first_end(tmp_path, device, paid, iteration):
    """6 steps an iteration, and 10 an episode."""
    planted(tmp_path, (PAID, PAID.replace("reward", f"if ({paid}) reward")))
    trainer = trainer_of(tmp_path, device)
    for _ in range(iteration - 1):
        trainer.iterate()
    with pytest.raises(EnvError, match=r"left 'reward' unwritten of env 0, agent 0[.,]") as caught:
        trainer.iterate()
    assert (", in iteration 2. A step" in str(caught.value)) is (iteration == 2)


def test_other_iterations_are_not_looked_at(tmp_path, device):
    """Nothing is filled in them, and nothing waited for."""
    planted(tmp_path)
    trainer = trainer_of(tmp_path, device, total_timesteps=240)
    looks = []
    for _ in range(5):
        looks.append(trainer._look.is_due)
        trainer.iterate()
    assert looks == [True, True, False, False, False] and trainer._look.is_over
