"""Envs for other libraries: Gymnasium, PettingZoo, TorchRL and Stable-Baselines3 (docs/adapters.md).

Importing this package makes every shipped env known to Gymnasium, as "warpdrive/<name>":
`gymnasium.make("warpdrive.adapters:warpdrive/cartpole")` does both.
"""

import gymnasium

from warpdrive.env import list_envs

NAMESPACE = "warpdrive"


def register_envs() -> None:
    """Registers "warpdrive/<name>" for every shipped env, for `gymnasium.make` and `gymnasium.make_vec`."""
    for name in list_envs():
        if f"{NAMESPACE}/{name}" not in gymnasium.registry:
            gymnasium.register(
                f"{NAMESPACE}/{name}",
                entry_point="warpdrive.adapters.gymnasium_env:GymnasiumEnv",
                vector_entry_point="warpdrive.adapters.gymnasium_vector:GymnasiumVectorEnv",
                kwargs={"env": name},
            )


register_envs()
