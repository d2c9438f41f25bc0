"""Random policies by the fused kernels in full precision: they play and learn as torch does in float64.

A few here; 300 with WARPDRIVE_LONG_TESTS=1, in an hour. A seed that fails is a policy to be drawn again.
"""

from __future__ import annotations

import os
import random
from dataclasses import fields

import numpy as np
import pytest
from fused_cases import EVEN, FULL, MIXED, Case, Step, assert_is_torchs, box
from fused_rollouts import COEFFICIENTS, MadeUp, assert_learns_as_torch, make_learner

from trainers.algorithms.a2c import A2CConfig
from trainers.algorithms.ppo import PPOConfig
from trainers.settings.config import ActorCriticConfig

SEEDS = range(300 if os.environ.get("WARPDRIVE_LONG_TESTS") else 3)
WIDTHS = (1, 3, 8, 16, 17, 24, 33, 40, 64, 65)
FEW_WIDE = (130, 257)
"""Most go through memory, and take a CPU long."""


def random_case(chance: random.Random) -> Case:
    """Of any kind that the kernels serve."""

    def widths(fewest: int) -> tuple[int, ...]:
        found = [chance.choice(WIDTHS) for _ in range(chance.randint(fewest, 4))]
        if found and chance.random() < 0.15:
            found[chance.randrange(len(found))] = chance.choice(FEW_WIDE)
        return tuple(found)

    layer_norm = chance.choice((False, False, True, "hidden", "all"))
    num_agents = chance.randint(1, 5)
    first = chance.randrange(num_agents)
    agents = range(first, chance.randint(first + 1, num_agents))
    space = chance.choice((None, None, MIXED, EVEN, box(np.uint8, 7, 3)))
    central = chance.choice((None, None, "observations", "global_state"))
    has_own_critic = central is not None or chance.random() < 0.5
    is_of_box = chance.random() < 0.35
    head_sizes = () if is_of_box else tuple(chance.randint(2, 7) for _ in range(chance.randint(1, 3)))
    norms_input = layer_norm in (True, "all")
    return Case(
        num_features=chance.choice((1, 6, 16, 21, 47, 150)) if space is None else 0,
        widths=widths(1),
        head_sizes=head_sizes,
        critic_widths=widths(1 if norms_input else 0) if has_own_critic else None,
        activation=chance.choice(("relu", "tanh")),
        normalises=chance.random() < 0.4,
        has_mask=not is_of_box and chance.random() < 0.5,
        agents=agents,
        num_agents=num_agents,
        has_own_arrays=central is None and chance.random() < 0.3,
        num_envs=-(-chance.randint(10, 30) // len(agents)),
        layer_norm=layer_norm,
        space=space,
        sees_agent_id=chance.random() < 0.3,
        central=central,
        num_numbers=chance.choice((1, 2, 3, 7, 17)) if is_of_box else 0,
        squashes=is_of_box and chance.random() < 0.4,
    )


def random_config(chance: random.Random, case: Case) -> ActorCriticConfig:
    """Of A2C or PPO, with whatever else changes the loss."""
    settings = {"agent_id": case.sees_agent_id, "normalize_observation": case.normalises}
    settings |= {"normalize_advantage": chance.random() < 0.7, "num_minibatches": chance.randint(1, 2)}
    if case.central is None and chance.random() < 0.4:
        return A2CConfig(**COEFFICIENTS, **settings)
    if case.central is not None:
        settings |= {"central_critic": True, "credit_after_leaving": chance.choice((False, "team"))}
    settings |= {"clip_value": chance.random() < 0.5, "huber_delta": chance.choice((None, 0.7))}
    return PPOConfig(**COEFFICIENTS, num_epochs=1, **settings)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_policy_plays_and_learns_as_torch(seed, backend):
    chance = random.Random(seed)
    case = random_case(chance)
    step = Step(case, backend, FULL)
    assert_is_torchs(step)
    step.assert_nothing_else_was_written()
    config, leaves = random_config(chance, case), chance.random() < 0.5
    learner = make_learner(MadeUp(case, config, backend, FULL, leaves=leaves, seed=seed), config)
    assert_learns_as_torch(learner, FULL)


def test_the_drawn_policies_are_of_every_kind():
    drawn = [random_case(random.Random(seed)) for seed in range(300)]
    assert {len(one.widths) for one in drawn} == {1, 2, 3, 4}
    assert {len(one.critic_widths) for one in drawn if one.critic_widths is not None} == {0, 1, 2, 3, 4}
    for name in {one.name for one in fields(Case)} - {"by_groups", "leaves", "num_envs", "agents", "head_sizes"}:
        assert len({str(getattr(one, name)) for one in drawn}) > 1, name
