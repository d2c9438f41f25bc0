"""Records what JaxMARL's SMAX makes of states drawn at random, in smax.npz, which the tests of the env compare with.

python -m venv jaxmarl && jaxmarl/bin/pip install jaxmarl==0.2.0 jax==0.10.2
jaxmarl/bin/python tests/oracles/record_smax.py

States are not in the file: `random_states` draws them again, by numpy's RandomState, whose numbers never change. Of
each there is one step: what the enemies chose, how much longer each weapon took after its shot, and what followed. A
state is left out if moving its units by a little changes the outcome by much, as then a float's last bit decides. What
agents see and the state of the whole are in the file for the first NUM_WHOLE states of a case; of all, there is one
weighted sum of each, which tells a wrong number as well.
"""

import sys
from pathlib import Path

import numpy as np

VERSION = "0.2.0"
"""Of jaxmarl."""
FILE = Path(__file__).with_name("smax.npz")
CASES = [
    ("3m", {}, 2800),
    ("2s3z", {}, 2400),
    ("5m_vs_6m", {}, 2000),
    ("3s5z", {}, 1800),
    ("smacv2_5_units", {}, 2500),
    ("2s3z", {"see_enemy_actions": False, "walls_cause_death": False, "attack_mode": "random"}, 1200),
    ("27m_vs_30m", {}, 200),
]
"""Scenario, what differs from the default config, number of states."""
NUM_WHOLE = 20
STOP, NUM_MOVES = 4, 5
MOVES = np.array([(0, 1), (1, 0), (0, -1), (-1, 0), (0, 0)])
"""North, east, south, west, stop."""
NUDGE, MOST_CHANGE = 1e-5, 6e-5
"""By so much units are moved, and by so much the outcome may differ then."""
ROUNDED = 2.0**-16
"""Of what is in the file: its floats are multiples."""


def random_states(rng, count, types, num_allies, max_health, cooldown):
    """`count` states, by name [state, ...]: units in a heap, in a fight or spread out, some dead, some at an edge.

    Args:
        rng: RandomState.
        types: [unit], of the scenario; None if they are to be drawn.
        max_health, cooldown: [type].
    """
    num_units = 2 * num_allies if types is None else len(types)
    num_enemies = num_units - num_allies
    shape, enemies = (count, num_units), (count, num_enemies)
    if types is None:
        allies = rng.randint(0, len(max_health), (count, num_allies))
        unit_type = np.concatenate([allies, allies], 1)
    else:
        unit_type = np.broadcast_to(np.asarray(types), shape)
    spread = rng.choice([0.6, 2.0, 5.0], (count, 1, 1))
    centre = np.where(rng.uniform(size=(count, 1, 1)) < 0.3, rng.choice([0.5, 31.5], (count, 1, 2)), 16.0)
    centre = np.where(rng.uniform(size=(count, 1, 2)) < 0.5, 16.0, centre)
    position = np.clip(centre + spread * rng.normal(size=(*shape, 2)), 0.02, 31.98).astype(np.float32)
    is_alive = rng.uniform(size=shape) < rng.choice([0.3, 0.7, 1.0], (count, 1))
    is_alive[np.arange(count), rng.randint(0, num_allies, count)] = True
    is_alive[np.arange(count), num_allies + rng.randint(0, num_enemies, count)] = True
    part = np.where(rng.uniform(size=shape) < 0.5, 1.0, rng.uniform(0.01, 0.4, shape))
    is_ready = rng.uniform(size=shape) < 0.6
    waits = np.where(is_ready, -rng.uniform(0, 2, shape), rng.uniform(0, 1, shape) * cooldown[unit_type])
    ally = np.arange(num_units) < num_allies
    num_actions = NUM_MOVES + np.where(ally, num_enemies, num_allies)
    shots = NUM_MOVES + rng.randint(0, 2**30, shape) % (num_actions - NUM_MOVES)
    chosen = np.where(rng.uniform(size=shape) < 0.7, shots, rng.randint(0, NUM_MOVES, shape))
    return {
        "x": position[..., 0],
        "y": position[..., 1],
        "health": (max_health[unit_type] * part * is_alive).astype(np.float32),
        "cooldown": waits.astype(np.float32),
        "unit_type": unit_type.astype(np.int32),
        "last_action": (rng.randint(0, 2**30, shape) % num_actions).astype(np.int32),
        "goal_x": rng.uniform(1, 31, enemies).astype(np.float32),
        "goal_y": rng.uniform(1, 31, enemies).astype(np.float32),
        "last_target": rng.randint(-1, num_allies, enemies).astype(np.int32),
        "time_step": rng.randint(0, 98, count).astype(np.int32),
        "action": chosen[:, :num_allies].astype(np.int32),
    }


def weighted_sum(values):
    """[state] of [state, ...]: a number that is wrong by 1e-3 anywhere changes it by 5e-4 at least."""
    flat = values.reshape(len(values), -1).astype(np.float64)
    return (flat @ np.random.RandomState(7).uniform(0.5, 1.5, flat.shape[1])).astype(np.float32)


class Peer:
    """JaxMARL's env of a case, a step from many states at once."""

    def __init__(self, scenario, config):
        from importlib.metadata import version

        import jax
        from jaxmarl.environments.smax import HeuristicEnemySMAX, map_name_to_scenario

        if version("jaxmarl") != VERSION:
            sys.exit(
                f"jaxmarl is {version('jaxmarl')}, the tests are held to {VERSION}. pip install jaxmarl=={VERSION}"
            )
        self.env = HeuristicEnemySMAX(scenario=map_name_to_scenario(scenario), **config)
        self.num_allies = self.env.num_allies
        self.types = None if self.env.smacv2_unit_type_generation else np.asarray(self.env.scenario)
        self.max_health = np.asarray(self.env.unit_type_health)
        self.cooldown = np.asarray(self.env.unit_type_weapon_cooldowns)
        self._steps = jax.jit(jax.vmap(self._step))

    def states(self, seed, count):
        return random_states(
            np.random.RandomState(seed), count, self.types, self.num_allies, self.max_health, self.cooldown
        )

    def step(self, states, seed):
        """What follows, by name [state, ...]: `enemy_action` and `delay` are what was chosen and drawn."""
        import jax

        keys = jax.random.split(jax.random.key(seed), len(states["x"]))
        found = self._steps(states, keys)
        found = {name: np.asarray(one) for name, one in found.items()}
        moves, shots = found.pop("moves"), found.pop("shots")
        walked = np.abs(moves[..., np.newaxis, :] - MOVES).sum(-1).argmin(-1)
        found["enemy_action"] = np.where(shots >= NUM_MOVES, shots, walked)[:, self.num_allies :]
        before, waits = states["cooldown"][:, np.newaxis], found.pop("waits")  # [state, world step, unit]
        rose = np.diff(np.concatenate([before, waits], 1), axis=1) > 0
        assert (rose.sum(1) <= 1).all(), "a weapon shot twice in a step"
        drawn = (waits * rose).sum(1) - self.cooldown[states["unit_type"]]
        found["delay"] = np.where(rose.any(1), drawn, 0.0).astype(np.float32)
        return found

    def _step(self, state, key):
        import jax.numpy as jnp
        from jaxmarl.environments.smax.heuristic_enemy import HeuristicPolicyState
        from jaxmarl.environments.smax.heuristic_enemy_smax_env import State
        from jaxmarl.environments.smax.smax_env import State as Units

        last = state["last_action"]
        units = Units(
            done=jnp.array(False),
            step=state["time_step"],
            unit_positions=jnp.stack([state["x"], state["y"]], -1),
            unit_alive=state["health"] > 0,
            unit_teams=(jnp.arange(len(last)) >= self.num_allies).astype(jnp.float32),
            unit_health=state["health"],
            unit_types=state["unit_type"].astype(jnp.uint8),
            unit_weapon_cooldowns=state["cooldown"],
            prev_movement_actions=jnp.asarray(MOVES, jnp.float32)[jnp.minimum(last, STOP)],
            prev_attack_actions=jnp.where(last >= NUM_MOVES, last, 0),
        )
        mind = HeuristicPolicyState(
            default_target=jnp.stack([state["goal_x"], state["goal_y"]], -1), last_attacked_enemy=state["last_target"]
        )
        action = {name: state["action"][i] for i, name in enumerate(self.env.agents)}
        whole = State(state=units, enemy_policy_state=mind)
        observation, after, reward, done, _ = self.env.step_env(key, whole, action)
        sequence = self.env.step_env(key, whole, action, True)
        mask = self.env.get_avail_actions(after)
        units, names = after.state, self.env.agents
        return {
            "x": units.unit_positions[:, 0],
            "y": units.unit_positions[:, 1],
            "health": units.unit_health,
            "cooldown": units.unit_weapon_cooldowns,
            "moves": units.prev_movement_actions,
            "shots": units.prev_attack_actions,
            "waits": sequence.unit_weapon_cooldowns,
            "last_target": after.enemy_policy_state.last_attacked_enemy,
            "observation": jnp.stack([observation[name] for name in names]),
            "global_state": observation["world_state"],
            "action_mask": jnp.stack([mask[name] for name in names]).astype(bool),
            "reward": jnp.stack([reward[name] for name in names]),
            "terminated": done["__all__"],
        }

    def steady(self, states, found, seed, others=4):
        """[state] bool: whether moving the units by a little changes the outcome by little."""
        rng, is_steady = np.random.RandomState(seed), np.ones(len(states["x"]), bool)
        for _ in range(others):
            nudged = {**states, **{axis: states[axis] + self._nudge(rng, states[axis].shape) for axis in "xy"}}
            other = self.step(nudged, seed)
            for name, one in found.items():
                rows = len(one), -1
                change = np.abs(one.astype(np.float64) - other[name]).reshape(rows).max(1)
                is_steady &= change <= MOST_CHANGE
        return is_steady

    @staticmethod
    def _nudge(rng, shape):
        return (NUDGE * rng.uniform(-1, 1, shape)).astype(np.float32)


def record(seed=0):
    """Every case: name of an array -> [state, ...], by `<case>/<name>`."""
    kept = {"version": np.array(VERSION)}
    for number, (scenario, config, count) in enumerate(CASES):
        peer = Peer(scenario, config)
        states = peer.states(seed + number, count)
        found = peer.step(states, seed + number)
        is_steady = peer.steady(states, found, seed + number)
        print(f"{scenario} {config}: {is_steady.sum()} of {count} states", file=sys.stderr)
        found = {name: one[is_steady] for name, one in found.items()}
        kept[f"{number}/is_steady"] = np.packbits(is_steady)
        for axis in "xy":
            kept[f"{number}/moved_{axis}"] = _rounded(found.pop(axis) - states[axis][is_steady])
        for name in ("observation", "global_state"):
            kept[f"{number}/{name}"] = _rounded(found[name][:NUM_WHOLE])
            kept[f"{number}/sum_of_{name}"] = weighted_sum(found.pop(name))
        kept[f"{number}/reward"] = found.pop("reward")[:, 0]  # that of all
        before = {name: states[name][is_steady] for name in ("health", "cooldown")}
        lost, shot = before["health"] - found["health"], found["delay"] != 0
        kept[f"{number}/lost"] = np.where(found.pop("health") > 0, np.round(lost), -1).astype(np.int16)
        since = found.pop("cooldown") - np.where(shot, found["delay"], before["cooldown"])
        kept[f"{number}/since_shot_or_start"] = _rounded(since)
        for name in ("enemy_action", "last_target"):
            kept[f"{number}/{name}"] = found.pop(name).astype(np.int8)
        kept[f"{number}/action_mask"] = np.packbits(found.pop("action_mask"))
        kept |= {f"{number}/{name}": one for name, one in found.items()}
    return kept


def expected_of(file, number, states):
    """What followed, by name [state, ...], from the open file: `states` are those of the case that it holds."""
    found = {name.partition("/")[2]: file[name] for name in file if name.startswith(f"{number}/")}
    num_states, num_allies = states["action"].shape
    lost, delay = found.pop("lost"), found["delay"]
    for axis in "xy":
        found[axis] = states[axis] + found.pop(f"moved_{axis}")
    found["health"] = np.where(lost < 0, 0.0, states["health"] - lost)
    found["cooldown"] = found.pop("since_shot_or_start") + np.where(delay != 0, delay, states["cooldown"])
    num_actions = NUM_MOVES + states["x"].shape[1] - num_allies
    mask = np.unpackbits(found["action_mask"], count=num_states * num_allies * num_actions).astype(bool)
    found["action_mask"] = mask.reshape(num_states, num_allies, num_actions)
    return found


def _rounded(values):
    return (np.round(values / ROUNDED) * ROUNDED).astype(np.float32)


if __name__ == "__main__":
    np.savez_compressed(FILE, **record())
    print(f"{FILE}: {FILE.stat().st_size:,} bytes")
