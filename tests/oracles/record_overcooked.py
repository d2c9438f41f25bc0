"""Writes overcooked.npz: what JaxMARL's Overcooked made of states drawn at random.

pip install jaxmarl==0.2.0 && python tests/oracles/record_overcooked.py [--seed 1 --out FILE]

Without arguments it writes the file that the tests compare with; with another seed, one to compare with it once. Of
what is seen, the file has the first views of each layout, and of all others a digest.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import warnings
from pathlib import Path

import numpy as np

JAXMARL = "0.2.0"
HERE = Path(__file__).parent
NUM_TRANSITIONS = 2_100
"""Of each layout."""
NUM_SEEN = 100
"""Of which the file has the views as they are."""
HELD = np.array([1, 3, 5, 9])
"""Their numbers of nothing, an onion, a plate, a soup."""
STEPS = (0, 150, 358, 359, 360, 361, 397, 398, 399)
TURNS = np.array([(0, -1), (0, 1), (1, 0), (-1, 0)])


def draw(layout: dict, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """States and actions in which much happens: cooks who face something, and who interact in half of their steps."""
    height, width = layout["height"], layout["width"]
    walls = np.zeros(height * width, bool)
    walls[np.array(layout["wall_idx"])] = True
    stands = np.concatenate([np.array(layout[f"{key}_idx"]) for key in ("goal", "onion_pile", "plate_pile", "pot")])
    is_counter = walls.copy()
    is_counter[stands] = False
    found = {key: [] for key in ("cell", "heading", "holds", "lies", "pot", "time_step", "action")}
    for _ in range(NUM_TRANSITIONS):
        cell = rng.choice(np.flatnonzero(~walls), 2, replace=False)
        heading = rng.integers(4, size=2)
        for cook in range(2):
            faced = [turn for turn in range(4) if walls[cell[cook] + TURNS[turn] @ (1, width)]]
            if faced and rng.random() < 0.7:
                heading[cook] = rng.choice(faced)
        lies = np.where(is_counter & (rng.random(len(walls)) < rng.choice([0, 0.1, 0.4])), rng.integers(1, 4), 0)
        pot = rng.choice([0, 1, 2, 10, 18, 19, 20, 21, 22, 23], len(layout["pot_idx"]))
        action = np.where(rng.random(2) < 0.5, 5, rng.integers(6, size=2))
        state = (cell, heading, rng.integers(4, size=2), lies, pot, rng.choice(STEPS), action)
        for values, value in zip(found.values(), state, strict=True):
            values.append(value)
    return {key: np.stack(values).astype(np.int16) for key, values in found.items()}


def step_theirs(env, drawn: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What follows from each of these states."""
    import jax
    import jax.numpy as jnp
    from jaxmarl.environments.overcooked.common import OBJECT_INDEX_TO_VEC

    _, start = env.reset(jax.random.PRNGKey(0))
    width, edge = env.width, env.agent_view_size - 1
    pots = np.array(env.layout["pot_idx"])
    maze = np.repeat(np.array(start.maze_map)[np.newaxis], NUM_TRANSITIONS, 0)
    every = np.arange(NUM_TRANSITIONS)

    def put(rows, cells, vectors):
        maze[rows, edge + cells // width, edge + cells % width] = vectors

    for cell in np.array(start.agent_pos) @ (1, width):
        put(every, np.full(NUM_TRANSITIONS, cell), (1, 0, 0))
    for number, pot in enumerate(pots):
        put(every, np.full(NUM_TRANSITIONS, pot), np.stack([np.full(NUM_TRANSITIONS, 8), np.full(NUM_TRANSITIONS, 7),
                                                            drawn["pot"][:, number]], -1))  # fmt: skip
    rows, cells = np.nonzero(drawn["lies"])
    put(rows, cells, np.array(OBJECT_INDEX_TO_VEC)[HELD[drawn["lies"][rows, cells]]])
    for cook in range(2):
        looks = [np.full(NUM_TRANSITIONS, 10), np.full(NUM_TRANSITIONS, 2 * cook), drawn["heading"][:, cook]]
        put(every, drawn["cell"][:, cook], np.stack(looks, -1))

    def repeated(value):
        return jnp.repeat(jnp.asarray(value)[jnp.newaxis], NUM_TRANSITIONS, 0)

    states = jax.tree.map(repeated, start).replace(
        agent_pos=jnp.stack([drawn["cell"] % width, drawn["cell"] // width], -1).astype(jnp.uint32),
        agent_dir_idx=jnp.asarray(drawn["heading"], start.agent_dir_idx.dtype),
        agent_dir=jnp.asarray(TURNS, start.agent_dir.dtype)[drawn["heading"]],
        agent_inv=jnp.asarray(HELD[drawn["holds"]], start.agent_inv.dtype),
        maze_map=jnp.asarray(maze, start.maze_map.dtype),
        step=jnp.asarray(drawn["time_step"], start.step.dtype),
    )
    actions = {f"agent_{cook}": jnp.asarray(drawn["action"][:, cook], jnp.uint32) for cook in range(2)}
    keys = jax.random.split(jax.random.PRNGKey(1), NUM_TRANSITIONS)
    views, after, reward, done, info = jax.jit(jax.vmap(env.step_env))(keys, states, actions)
    kitchen = np.array(after.maze_map)[:, edge:-edge, edge:-edge].reshape(NUM_TRANSITIONS, -1, 3)
    lies = np.zeros(kitchen.shape[:2], np.int16)
    for ours, theirs in enumerate(HELD[1:], 1):
        lies[kitchen[..., 0] == theirs] = ours
    return {
        "after_cell": np.array(after.agent_pos, np.int16) @ np.array([1, width], np.int16),
        "after_heading": np.array(after.agent_dir_idx, np.int16),
        "after_holds": np.searchsorted(HELD, np.array(after.agent_inv)).astype(np.int16),
        "after_lies": lies,
        "after_pot": kitchen[:, pots, 2].astype(np.int16),
        "after_time_step": np.array(after.step, np.int16),
        "reward": np.stack([np.array(reward[f"agent_{cook}"], np.float32) for cook in range(2)], -1),
        "shaped": np.stack([np.array(info["shaped_reward"][f"agent_{cook}"], np.float32) for cook in range(2)], -1),
        "ended": np.array(done["__all__"]),
        "observation": np.stack([np.array(views[f"agent_{cook}"], np.uint8) for cook in range(2)], 1),
    }


def digest(view: np.ndarray) -> bytes:
    """Of what both cooks see: [agent, row, column, channel] uint8."""
    return hashlib.blake2b(np.ascontiguousarray(view).tobytes(), digest_size=8).digest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=HERE / "overcooked.npz")
    options = parser.parse_args()
    version = importlib.metadata.version("jaxmarl")
    if version != JAXMARL:
        raise SystemExit(f"jaxmarl {version} is installed, {JAXMARL} is what the tests compare with. Install that.")
    warnings.simplefilter("ignore")
    from jaxmarl.environments.overcooked.layouts import overcooked_layouts
    from jaxmarl.environments.overcooked.overcooked import Overcooked

    rng, arrays = np.random.default_rng(options.seed), {}
    for name, layout in overcooked_layouts.items():
        drawn = draw(layout, rng)
        followed = step_theirs(Overcooked(layout=layout), drawn)
        views = followed.pop("observation")
        followed["digest"] = np.frombuffer(b"".join(map(digest, views)), np.uint8).reshape(-1, 8)
        followed["observation"] = views[:NUM_SEEN]
        arrays |= {f"{name}.{key}": value for key, value in {**drawn, **followed}.items()}
    told = json.dumps({"jaxmarl": version, "layouts": list(overcooked_layouts)})
    np.savez_compressed(options.out, told=np.frombuffer(told.encode(), np.uint8), **arrays)
    num_transitions = NUM_TRANSITIONS * len(overcooked_layouts)
    print(f"{options.out}: {num_transitions:,} transitions, {options.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
