"""Writes bsuite.npz: what bsuite's own games did, and how it scores.

pip install bsuite==0.3.6 && python tests/oracles/record_bsuite.py [--seed 1 --out FILE]

Without arguments it writes the file that the tests compare with; with another seed, one to compare with it once.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

BSUITE = "0.3.6"
HERE = Path(__file__).parent
GAMES = [
    ("memory_len", {"memory_length": 10}, 1500),
    ("memory_len", {"memory_length": 1, "num_bits": 3}, 500),
    ("memory_len", {"memory_length": 7, "num_bits": 5}, 1000),
    ("deep_sea", {"size": 10}, 2000),
    ("deep_sea", {"size": 13, "mapping_seed": 7}, 1000),
    ("deep_sea", {"size": 6, "randomize_actions": False, "unscaled_move_cost": 0.3}, 1000),
    ("catch", {}, 2000),
    ("catch", {"rows": 5, "columns": 7}, 1000),
    ("umbrella_length", {"chain_length": 10}, 1000),
    ("umbrella_length", {"chain_length": 1, "num_distractors": 0}, 200),
    ("umbrella_length", {"chain_length": 7, "num_distractors": 3}, 800),
]
"""Env here, what differs from its defaults, transitions."""
THEIR_NAMES = {"num_distractors": "n_distractor"}
STATES = {
    "memory_len": {"context": "_context", "query": "_query", "time_step": "_timestep"},
    "deep_sea": {"row": "_row", "column": "_column", "strayed": "_bad_episode"},
    "catch": {"ball_x": "_ball_x", "ball_y": "_ball_y", "paddle_x": "_paddle_x"},
    "umbrella_length": {"needs": "_need_umbrella", "has": "_has_umbrella", "time_step": "_timestep"},
}
"""Array here -> attribute there."""


def make(name: str, config: dict[str, Any], seed: int):
    from bsuite.environments import catch, deep_sea, memory_chain, umbrella_chain

    kinds = {
        "memory_len": (memory_chain.MemoryChain, {"num_bits": 1}),
        "deep_sea": (deep_sea.DeepSea, {"mapping_seed": 42}),
        "catch": (catch.Catch, {}),
        "umbrella_length": (umbrella_chain.UmbrellaChain, {"n_distractor": 20}),
    }
    kind, usual = kinds[name]
    return kind(**{**usual, **{THEIR_NAMES.get(key, key): value for key, value in config.items()}, "seed": seed})


def play(name: str, config: dict[str, Any], num_transitions: int, seed: int) -> dict[str, np.ndarray]:
    """Transitions of episodes under an actor that is right more often than chance."""
    env, rng = make(name, config, seed), np.random.default_rng(seed)
    found: dict[str, list] = {}

    def note(**values: Any) -> None:
        for key, value in values.items():
            found.setdefault(key, []).append(np.array(value))

    step, totals = env.reset(), env.bsuite_info()
    keeps_right = True
    for _ in range(num_transitions):
        if step.last():
            step, keeps_right = env.reset(), rng.random() < 0.3
        state = {key: getattr(env, attribute) for key, attribute in STATES[name].items()}
        action = int(rng.integers(env.action_spec().num_values))
        if name == "deep_sea" and keeps_right:
            action = int(env._action_mapping[env._row, env._column])
        note(action=action, **{f"before_{key}": value for key, value in state.items()})
        step, before = env.step(action), totals
        totals = env.bsuite_info()
        note(reward=step.reward, last=step.last(), observation=step.observation)
        note(**{f"after_{key}": getattr(env, attribute) for key, attribute in STATES[name].items()})
        note(**{f"counted_{key}": totals[key] - before[key] for key in totals})
    arrays = {key: np.stack(values) for key, values in found.items()}
    arrays["reward"] = arrays["reward"].astype(np.float32)
    if name in ("deep_sea", "catch"):
        arrays["observation"] = arrays["observation"].astype(np.uint8)
    return {key: value.astype(np.int16) if value.dtype == np.int64 else value for key, value in arrays.items()}


def scores(seed: int) -> list[dict[str, Any]]:
    """What bsuite's analysis says of made-up experiments, with one setting each."""
    from bsuite.experiments.catch import analysis as catch
    from bsuite.experiments.deep_sea import analysis as deep_sea
    from bsuite.experiments.memory_len import analysis as memory_len
    from bsuite.experiments.umbrella_length import analysis as umbrella_length

    pd.Series.append = lambda self, other: pd.concat([self, other])  # which pandas 2 left out, and bsuite calls
    rng, found = np.random.default_rng(seed), []
    cases = {
        "memory_len": (memory_len, {"memory_length": 10}, "total_perfect", 1),
        "deep_sea": (deep_sea, {"size": 10}, "total_bad_episodes", 1),
        "catch": (catch, {}, "total_regret", 2),
        "umbrella_length": (umbrella_length, {"chain_length": 10}, "total_regret", 2),
    }
    for name, (analysis, setting, total, unit) in cases.items():
        for num_episodes in (100, 1000, 10_000, 20_000):
            for share in (0.02, 0.2, 0.3, 0.6, 0.7, 0.88, 1.0):
                hits = rng.random(num_episodes) < share
                if name == "deep_sea":  # good ones come late
                    hits |= np.arange(num_episodes) < num_episodes * rng.random()
                counted = unit * hits.cumsum()
                rows = [{"episode": one, total: int(counted[one - 1])} for one in logged(num_episodes)]
                score = float(analysis.score(pd.DataFrame([{**row, **setting} for row in rows])))
                found.append({"name": name, "rows": rows, "score": score})
    return found


def logged(num_episodes: int) -> list[int]:
    """The episodes after which bsuite writes a row."""
    from bsuite.utils.wrappers import _logarithmic_logging

    return [one for one in range(1, num_episodes + 1) if _logarithmic_logging(one)]


def experiment(seed: int) -> dict[str, Any]:
    """A short experiment of random play, and the file that bsuite made of it."""
    from bsuite.logging.csv_logging import wrap_environment

    with tempfile.TemporaryDirectory() as folder:
        env = wrap_environment(make("memory_len", {"memory_length": 3}, seed), "memory_len/2", folder)
        rng, perfect = np.random.default_rng(seed), []
        while len(perfect) < 150:
            step = env.reset()
            while not step.last():
                step = env.step(int(rng.integers(2)))
            perfect.append(int(step.reward > 0))
        (file,) = Path(folder).iterdir()
        return {"file": file.name, "text": file.read_text(), "perfect": perfect}


def settings() -> dict[str, dict[str, Any]]:
    """bsuite_id -> what its sweep sets."""
    from bsuite import sweep

    shared = ("memory_len", "memory_size", "deep_sea", "deep_sea_stochastic", "umbrella_length", "umbrella_distract")
    return {key: dict(value) for key, value in sweep.SETTINGS.items() if key.split("/")[0] in shared}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=HERE / "bsuite.npz")
    options = parser.parse_args()
    version = importlib.metadata.version("bsuite")
    if version != BSUITE:
        raise SystemExit(f"bsuite {version} is installed, {BSUITE} is what the tests compare with. Install that.")
    warnings.simplefilter("ignore")
    arrays = {}
    for number, (name, config, num_transitions) in enumerate(GAMES):
        for key, value in play(name, config, num_transitions, options.seed).items():
            arrays[f"{number}_{key}"] = value
    told = {
        "bsuite": version,
        "games": [(name, config) for name, config, _ in GAMES],
        "scores": scores(options.seed),
        "experiment": experiment(options.seed),
        "settings": settings(),
    }
    np.savez_compressed(options.out, told=np.frombuffer(json.dumps(told).encode(), np.uint8), **arrays)
    print(f"{options.out}: {sum(n for *_, n in GAMES):,} transitions, {options.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
