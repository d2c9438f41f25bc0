"""Every shipped env's step in vectorised numpy, by the same rules: what one CPU core does without kernels.

`STEPS[name](env, num_envs)` makes the step of an Env: a function of the state and an action to all that a step changes,
by the kernel's own names. Written to be fast in numpy: float32, no loop over envs, and the env axis last, so that
numpy's inner loops run over many envs and not over the few agents of one. Observations alone have the env axis first,
[E, A, F], in memory too: that is how a policy reads them. They are the same array in every step, as the kernels' are.
Not so Tag's: they are the oracles of the tests (ORACLES), some half as fast as numpy can be.
"""

from __future__ import annotations

from collections.abc import Callable

from warpdrive.env import Env

from .arrays import Arrays, Step
from .classic_control import acrobot, cartpole, continuous_mountain_car, mountain_car, pendulum
from .particles import simple_spread, simple_tag
from .tag import tag_continuous, tag_gridworld

__all__ = ["ORACLES", "STEPS", "Arrays", "Step"]

ORACLES = ("tag_gridworld", "tag_continuous")
"""Envs whose step here was written to be read."""

STEPS: dict[str, Callable[[Env, int], Step]] = {
    make.__name__: make
    for make in (
        cartpole,
        mountain_car,
        continuous_mountain_car,
        pendulum,
        acrobot,
        simple_spread,
        simple_tag,
        tag_gridworld,
        tag_continuous,
    )
}
