"""Whether an env's steps write all that a rollout keeps: looked at once, in a run's first iteration."""

from __future__ import annotations

import torch

from trainers.experience.rollout import Rollout
from warpdrive.errors import EnvError
from warpdrive.layout import GLOBAL_STATE
from warpdrive.unwritten import RULE, fill, first_unwritten


def prepare_look(rollout: Rollout) -> None:
    """Before the rollout is collected: its slots hold what no env writes by itself. Waits for nothing."""
    fill(_slots(rollout), as_nan=rollout.active is None)


def check_written(rollout: Rollout) -> None:
    """Looks at what was collected since `prepare_look`; waits for the device.

    Raises:
        EnvError: names the first number that no step wrote: array, step, env, agent, feature.
    """
    slots, exempt = _slots(rollout), {}
    if rollout.active is not None:  # of agents that are out of the game nothing need be written
        exempt = {name: _left(rollout, name) for name in slots if name != GLOBAL_STATE}
    found = first_unwritten(slots, exempt)
    if found is None:
        return
    name, (step, env, *rest) = found
    words = [f"env {env + rollout.env.first_env}"]
    if name != GLOBAL_STATE:
        agent, *rest = rest
        words.append(f"agent {agent + rollout.first_agent(name)}")
    words += [f"feature {', '.join(map(str, rest))}"] if rest else []
    raise EnvError(f"env '{rollout.env.env.name}': step {step} left '{name}' unwritten of {', '.join(words)}. {RULE}")


def _slots(rollout: Rollout) -> dict[str, torch.Tensor]:
    """What steps write, but for the last observation, which the first of a rollout is copied from."""
    return {name: rollout.data[name][1:-1] for name in rollout.observations} | {"reward": rollout.reward}


def _left(rollout: Rollout, name: str) -> torch.Tensor:
    """[T, E, columns] bool: who is out of the game when a slot is written."""
    active = rollout.active[:-1] if name == "reward" else rollout.active[1:-1]
    first, count = rollout.first_agent(name), rollout.data[name].shape[2]
    return ~active[:, :, first : first + count]
