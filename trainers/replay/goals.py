"""Which agents are told a goal that another could take the place of. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gymnasium import spaces

if TYPE_CHECKING:
    from trainers.experience.spec import GroupSpec

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
"""Keys of what such an agent observes: what it has come to, and what it is to come to."""


def why_no_goals(spec: GroupSpec) -> str | None:
    """Why nothing of a group's can be judged by another goal, as the end of a sentence with a way out; None if it
    can."""
    way_out = "Leave hindsight out."
    space = spec.observation_space
    if not isinstance(space, spaces.Dict) or not {ACHIEVED, DESIRED} <= set(space.spaces):
        return f"judges steps by other goals, and the agents observe no Dict with {ACHIEVED} and {DESIRED}. {way_out}"
    achieved, desired = space[ACHIEVED], space[DESIRED]
    if achieved.shape != desired.shape or achieved.dtype != desired.dtype:
        return f"judges steps by other goals, and {ACHIEVED} is of another shape or dtype than {DESIRED}. {way_out}"
    if spec.episode_length is None:
        return f"judges steps by what an episode comes to, and the env says no episode_length. {way_out}"
    return None
