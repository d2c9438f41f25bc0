"""my_env: runners race for a flag on a field; whoever reaches it is paid, and it is put somewhere else.

This file says what there is, my_env.cu what happens.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from gymnasium import spaces

from warpdrive.config import Between, Steps
from warpdrive.env import Env, Group

NUM_FEATURES = 4
"""Numbers that an agent sees: see `observe` in my_env.cu."""


@dataclass(frozen=True)
class MyEnvConfig:
    """What `env:` in a YAML file may set, and within which bounds: all that is wrong is told at once."""

    num_runners: Annotated[int, Between(1, 10_000)] = 3
    field_size: Annotated[int, Between(2, 10_000)] = 8
    """Cells along a side."""
    episode_length: Steps = 40
    """Steps."""


class MyEnv(Env):
    """All runners are one group, so one policy learns from all of them."""

    Config = MyEnvConfig

    def __init__(self, config=None):
        super().__init__(config)
        self.num_agents = self.config.num_runners
        self.episode_length = self.config.episode_length
        seen = spaces.Box(-1.0, 1.0, (NUM_FEATURES,), np.float32)  # of one agent
        moves = spaces.Discrete(5)
        self.groups = {"runner": Group(range(self.num_agents), seen, moves)}

    def arrays(self):
        """Of one copy of the env: [agent] or a single number. my_env_reset draws where everything starts."""
        cells = np.zeros(self.num_agents, np.int32)
        number = np.zeros((), np.int32)
        return {"x": cells, "y": cells, "flag_x": number, "flag_y": number, "time_step": number}

    def constants(self):
        """Numbers for the kernels, beside NUM_ENVS and NUM_AGENTS."""
        return {
            "FIELD_SIZE": self.config.field_size,
            "EPISODE_LENGTH": self.episode_length,
            "NUM_FEATURES": NUM_FEATURES,
        }
