"""SMAX: a team of units learns to beat another, whose units follow rules, as StarCraft's do in SMAC.

Units walk in four directions or shoot at one of the other team, see so far and shoot so far, and must wait between
two shots. Who has no health left is dead and leaves the game. A team that is dead has lost: `terminated`; after
`episode_length` steps the episode is `truncated`.

Source: Rutherford et al. 2023, arXiv:2311.10090; the rules and numbers are those of jaxmarl 0.2.0 against its heuristic
enemy, with discrete actions and each unit's features in a list, and these differences: the time limit truncates, there
being no clock in what is seen; a dead ally leaves the game; and a weapon's chance is drawn by this framework's numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from gymnasium import spaces

from warpdrive.config import Amount, Between, Steps
from warpdrive.drawing import GREY, PALETTE, Drawing, Shapes, circles, outline, rectangles, segments, texts
from warpdrive.env import Env, Group

NUM_MOVES = 5
"""Actions that are no shots: north, east, south, west and stop."""
STOP = 4
MIN_WIDTH, MIN_HEIGHT, MAX_SIDE = 16.0, 8.0, 10_000.0
"""Of a map. Units are drawn at least 2 from the walls of the smallest one, and are pushed less far than that."""
MOST_SHARED = 16
"""Units, up to which each has a thread of a block that envs share."""


@dataclass(frozen=True)
class UnitType:
    letter: str
    """In pictures."""
    speed: float
    """Of the map's units a second."""
    damage: int
    """Of a shot."""
    attack_range: float
    sight_range: float
    radius: float
    health: float
    cooldown: float
    """Seconds between two shots, but for chance."""


UNIT_TYPES = {
    "marine": UnitType("m", 3.15, 9, 5.0, 9.0, 0.375, 45.0, 0.61),
    "marauder": UnitType("M", 2.25, 10, 6.0, 10.0, 0.5625, 125.0, 1.07),
    "stalker": UnitType("s", 4.13, 13, 6.0, 10.0, 0.625, 160.0, 1.87),
    "zealot": UnitType("Z", 3.15, 8, 2.0, 9.0, 0.5, 150.0, 0.86),
    "zergling": UnitType("z", 4.13, 5, 2.0, 8.0, 0.375, 35.0, 0.5),
    "hydralisk": UnitType("h", 3.15, 12, 5.0, 9.0, 0.625, 80.0, 0.59),
}
"""In the order in which observations count them."""


@dataclass(frozen=True)
class Scenario:
    allies: str
    """A letter a unit."""
    enemies: str
    units_are_random: bool = False
    """Types are drawn, the same for both teams, and so are places, as in SMACv2."""


SCENARIOS = {
    "3m": Scenario("m" * 3, "m" * 3),
    "8m": Scenario("m" * 8, "m" * 8),
    "25m": Scenario("m" * 25, "m" * 25),
    "5m_vs_6m": Scenario("m" * 5, "m" * 6),
    "10m_vs_11m": Scenario("m" * 10, "m" * 11),
    "27m_vs_30m": Scenario("m" * 27, "m" * 30),
    "2s3z": Scenario("ssZZZ", "ssZZZ"),
    "3s5z": Scenario("sssZZZZZ", "sssZZZZZ"),
    "3s5z_vs_3s6z": Scenario("sssZZZZZ", "sssZZZZZZ"),
    "3s_vs_5z": Scenario("sss", "ZZZZZ"),
    "6h_vs_8z": Scenario("hhhhhh", "ZZZZZZZZ"),
    "smacv2_5_units": Scenario("m" * 5, "m" * 5, units_are_random=True),
    "smacv2_10_units": Scenario("m" * 10, "m" * 10, units_are_random=True),
    "smacv2_20_units": Scenario("m" * 20, "m" * 20, units_are_random=True),
}


@dataclass(frozen=True)
class SmaxConfig:
    scenario: Literal[*SCENARIOS] = "3m"
    """Who fights; smacv2: at random."""
    see_enemy_actions: bool = True
    """Whether allies see what enemies did last."""
    walls_cause_death: bool = True
    """Whether who touches the map's edge dies."""
    attack_mode: Literal["closest", "random"] = "closest"
    """Whom enemies shoot at, until that one is dead or gone: the closest, or any of those they can."""
    enemy_shoots: bool = True
    won_battle_bonus: Amount = 1.0
    """Paid to each ally for the victory, on top of the health that enemies lost."""
    episode_length: Steps = 100
    """Steps."""
    num_world_steps: Annotated[int, Between(1, 1_000)] = 8
    """Short steps of the world in each step."""
    seconds_a_world_step: Annotated[float, Between(1e-6, 60)] = 1 / 16
    map_width: Annotated[float, Between(MIN_WIDTH, MAX_SIDE)] = 32.0
    """Teams start within 2 of a quarter and of three quarters of it, at half of the height, and overlaps push them.
    On a smaller map some would start at a wall, or behind it."""
    map_height: Annotated[float, Between(MIN_HEIGHT, MAX_SIDE)] = 32.0


class Smax(Env):
    """One group, `ally`.

    Observation: of each other unit, allies first, its health, place from oneself in sight ranges, last move, whom it
    shot at last, cooldown, and a flag a type; zeros of who is dead or out of sight. Then one's own health, place on the
    map, cooldown and type. Parts of 1 where they have a most.

    Reward, the same for every ally: the health that enemies lost as a part of all they had; more for the victory.

    Figure `won`: 1 of an episode that was won, so its mean is the win rate.
    """

    Config = SmaxConfig
    config: SmaxConfig
    figures = {"won": "part of the episodes that the allies won"}

    def __init__(self, config: SmaxConfig | None = None) -> None:
        super().__init__(config)
        self.scenario = SCENARIOS[self.config.scenario]
        self.num_agents, self.num_enemies = len(self.scenario.allies), len(self.scenario.enemies)
        self.num_units = self.num_agents + self.num_enemies
        if self.num_units <= MOST_SHARED:
            self.threads = 1 << (self.num_units - 1).bit_length()
        self.episode_length = self.config.episode_length
        letters = [one.letter for one in UNIT_TYPES.values()]
        self.start_type = [letters.index(one) for one in self.scenario.allies + self.scenario.enemies]
        num_own = 4 + len(UNIT_TYPES)
        num_features = (self.num_units - 1) * (7 + len(UNIT_TYPES)) + num_own
        # Who is pushed may come to stand outside the map, where it dies in the next step.
        seen = spaces.Box(-1.0, 2.0, (num_features,), np.float32)
        self.groups = {"ally": Group(range(self.num_agents), seen, spaces.Discrete(NUM_MOVES + self.num_enemies))}
        self.global_state_space = spaces.Box(-np.inf, np.inf, (self.num_units * (num_own + 2),), np.float32)

    def arrays(self) -> dict[str, np.ndarray]:
        units, enemies = np.zeros(self.num_units, np.float32), np.zeros(self.num_enemies, np.float32)
        return {
            "x": units,
            "y": units,
            "health": units,
            "cooldown": units,
            "unit_type": np.array(self.start_type, np.int32),
            "last_action": np.full(self.num_units, STOP, np.int32),
            "goal_x": enemies,
            "goal_y": enemies,
            "last_target": np.full(self.num_enemies, -1, np.int32),
            "time_step": np.zeros((), np.int32),
            "active": np.ones(self.num_agents, np.bool_),
            "action_mask": np.ones((self.num_agents, NUM_MOVES + self.num_enemies), np.bool_),
            "won": np.zeros((), np.float32),
        }

    @property
    def bounds(self) -> dict[str, tuple[int, int]]:
        return {"unit_type": (0, len(UNIT_TYPES) - 1), "last_target": (-1, self.num_agents - 1)}

    def constants(self) -> dict[str, Any]:
        config, types = self.config, list(UNIT_TYPES.values())
        return {
            "NUM_ENEMIES": self.num_enemies,
            "NUM_TYPES": len(types),
            "UNITS_ARE_RANDOM": self.scenario.units_are_random,
            "START_TYPE": self.start_type,
            "SPEED": [one.speed for one in types],
            "DAMAGE": [one.damage for one in types],
            "ATTACK_RANGE": [one.attack_range for one in types],
            "SIGHT_RANGE": [one.sight_range for one in types],
            "RADIUS": [one.radius for one in types],
            "MAX_HEALTH": [one.health for one in types],
            "COOLDOWN": [one.cooldown for one in types],
            "PER_SIGHT": [1 / one.sight_range for one in types],  # a product is much cheaper than a division
            "PER_HEALTH": [1 / one.health for one in types],
            "PER_COOLDOWN": [1 / one.cooldown for one in types],
            "SEE_ENEMY_ACTIONS": config.see_enemy_actions,
            "WALLS_KILL": config.walls_cause_death,
            "SHOOTS_AT_ANY": config.attack_mode == "random",
            "ENEMIES_SHOOT": config.enemy_shoots,
            "WON_BATTLE_BONUS": float(config.won_battle_bonus),
            "EPISODE_LENGTH": config.episode_length,
            "NUM_WORLD_STEPS": config.num_world_steps,
            "SECONDS": float(config.seconds_a_world_step),
            "MAP_WIDTH": float(config.map_width),
            "MAP_HEIGHT": float(config.map_height),
        }

    def drawing(self, episode: Mapping[str, np.ndarray]) -> Drawing:
        """Discs of the units' size with their letters; above them a bar of health, below it one of the cooldown."""
        config, types = self.config, list(UNIT_TYPES.values())
        x, y, alive = episode["x"], episode["y"], episode["health"] > 0
        of_unit = [types[int(number)] for number in episode["unit_type"][0]]
        radius, most, wait = (
            np.array([getattr(u, name) for u in of_unit]) for name in ("radius", "health", "cooldown")
        )
        shapes = [outline(0, 0, config.map_width, config.map_height, width=0.1), self._shots(episode)]
        for is_ally, look in ((True, {"group": "ally"}), (False, {"colour": PALETTE[1], "label": "enemy"})):
            for size in sorted(set(radius)):
                units = (radius == size) & ((np.arange(self.num_units) < self.num_agents) == is_ally)
                if units.any():
                    shapes.append(circles(x[:, units], y[:, units], size, active=alive[:, units], **look))
                    look = {**look, "label": ""} if "colour" in look else look
        shapes.append(texts(x, y, [one.letter for one in of_unit], 0.5, colour="#ffffff", active=alive))
        left, top = x - radius, y + radius + 0.1
        part, rest = episode["health"] / most, (episode["cooldown"] / wait).clip(0, 1) * alive
        shapes.append(
            rectangles(left, top + 0.15, left + 2 * radius * part, top + 0.35, colour="#009E73", label="health")
        )
        shapes.append(rectangles(left, top, left + 2 * radius * rest, top + 0.1, colour="#E69F00", label="cooldown"))
        return Drawing(shapes, bounds=(-1.5, -1.5, config.map_width + 1.5, config.map_height + 1.5))

    def _shots(self, episode: Mapping[str, np.ndarray]) -> Shapes:
        """A line from each unit that shoots at another to that one."""
        number = episode["last_action"] - NUM_MOVES
        unit = np.arange(self.num_units)
        is_ally, shoots = unit < self.num_agents, (number >= 0) & (episode["health"] > 0)
        target = np.where(is_ally, self.num_agents + number, self.num_agents - 1 - number)
        target = np.where(shoots, target, unit)
        ends = [np.stack([one, np.take_along_axis(one, target, 1)], -1) for one in (episode["x"], episode["y"])]
        return segments(*ends, 0.05, colour=GREY)
