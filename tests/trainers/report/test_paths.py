"""What is said of which code plays and learns."""

from types import MethodType, SimpleNamespace

import pytest
import torch

from trainers.acting.actor import Actor, Stage
from trainers.algorithms.algorithm import Algorithm
from trainers.algorithms.ddpg import DDPGConfig
from trainers.algorithms.td3 import TD3Config
from trainers.fused.plan import Limits
from trainers.fused.player import FusedPlayer
from trainers.fused.told import LearnsByKernels
from trainers.report.paths import path_of, told_paths
from trainers.settings.config import PolicyConfig, TrainerConfig


def actor_of(path: str, why: str | None) -> Actor:
    """One that says no more than that."""
    kind = FusedPlayer if path == "fused" else Actor
    actor = kind.__new__(kind)
    actor.path, actor.why = path, why
    actor.policy = SimpleNamespace(network=None, memory_size=0)
    return actor


def trainer_of(precision: str = "bf16", **actors: SimpleNamespace) -> SimpleNamespace:
    """Its runner is not trained."""
    for actor in actors.values():
        actor.stage = Stage(torch.device("cuda"), Limits.of_device("cuda"), precision)
    rollout = SimpleNamespace(groups={name: SimpleNamespace(actor=actor) for name, actor in actors.items()})
    who = {name: actor for name, actor in actors.items() if name != "runner"}
    algorithms = {name: SimpleNamespace(path=actor.path, by_kernels=None) for name, actor in who.items()}
    return SimpleNamespace(rollout=rollout, algorithms=algorithms, precision=precision)


FUSED = SimpleNamespace(path="fused", why=None)


def test_path_is_what_actors_and_algorithms_say():
    found = path_of(trainer_of(tagger=FUSED, runner=SimpleNamespace(path="torch")))
    assert found == {"policy": {"tagger": "fused", "runner": "torch"}, "learner": {"tagger": "fused"}}


@pytest.mark.parametrize(
    ("name", "path", "why", "precision", "line"),
    [
        ("a", "fused", None, "bf16", "policy a: fused kernels play and learn in bf16"),
        ("runner", "fused", None, "bf16", "policy runner: fused kernels play in bf16"),
        ("a", "fused", "less is faster", "bf16", "policy a: fused kernels play and learn in bf16: less is faster"),
        ("a", "torch", "it is wide", "bf16", "policy a: torch plays and learns in tf32: it is wide"),
        ("a", "torch", None, "fp32", "policy a: torch plays and learns in fp32"),
        ("a", "mine", None, "fp32", "policy a: mine plays and learns in fp32"),
    ],
)
def test_a_line_a_policy_says_who_plays_and_learns_and_why(name, path, why, precision, line):
    assert told_paths(trainer_of(precision, **{name: actor_of(path, why)})) == [line]


@pytest.mark.parametrize(
    ("plays", "learns", "line"),
    [
        ("torch", "fused", "policy a: torch plays in tf32, fused kernels learn in bf16"),
        ("fused", "torch", "policy a: fused kernels play in bf16, torch learns in tf32"),
    ],
)
def test_who_learns_is_told_beside_who_plays_where_it_is_another(plays, learns, line):
    trainer = trainer_of(a=actor_of(plays, None))
    one = trainer.algorithms["a"]
    one.path, kind = learns, LearnsByKernels if learns == "fused" else Algorithm
    one.learns_by, one.group, one.told = one, trainer.rollout.groups["a"], MethodType(kind.told, one)
    assert told_paths(trainer) == [line]


def test_what_kernels_do_for_torch_is_told_before_why_they_do_no_more():
    trainer = trainer_of(a=actor_of("torch", "it remembers"))
    trainer.algorithms["a"].by_kernels = "through sequences"
    line = "policy a: torch plays and learns in tf32, through sequences by fused kernels: it remembers"
    assert told_paths(trainer) == [line]


@pytest.mark.parametrize(
    ("given", "on_cpu", "on_gpu"), [("auto", "fp32", "bf16"), ("fp32", "fp32", "fp32"), ("bf16", "bf16", "bf16")]
)
def test_auto_is_bf16_on_a_gpu_and_fp32_on_a_cpu(given, on_cpu, on_gpu):
    settings = TrainerConfig(precision=given)
    assert (settings.precision_on("cpu"), settings.precision_on("cuda")) == (on_cpu, on_gpu)
    assert TrainerConfig().precision == "auto"


def test_auto_is_tf32_on_a_gpu_where_a_policy_learns_that_bf16_harms():
    picky, other, still = TD3Config(), PolicyConfig(), DDPGConfig(to_train=False)
    assert TrainerConfig().precision_on("cuda", [other, still]) == "bf16"
    assert TrainerConfig().precision_on("cuda", [other, picky]) == "tf32"
    assert TrainerConfig().precision_on("cpu", [picky]) == "fp32"
    assert TrainerConfig(precision="bf16").precision_on("cuda", [picky]) == "bf16"
