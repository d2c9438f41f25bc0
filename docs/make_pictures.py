"""Pictures of the worlds for docs/envs.md: a moment of an episode of each, played at random.

python docs/make_pictures.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from PIL import Image

from trainers.cli import main

PICTURES = Path(__file__).parent / "pictures"
SIDE = 300
"""Pixels of the longer side of an episode's moment."""
WORLDS = {
    "bsuite": {"catch": 5, "deep_sea": 6},
    "minatar": {f"minatar_{name}": 60 for name in ("breakout", "asterix", "space_invaders", "freeway", "seaquest")},
    "overcooked": {"overcooked": 60},
    "smax": {"smax": 12},
}
"""Family -> env -> how far into the episode, in frames, or its end if it ends before."""


def moment(env: str, frame: int, folder: Path) -> Image.Image:
    path = folder / f"{env}.gif"
    if main(["render", "--env", env, "--policy", "random", "--seed", "3", "--device", "cpu", "--output", str(path)]):
        raise SystemExit(f"{env} was not drawn")
    with Image.open(path) as episode:
        episode.seek(min(frame, episode.n_frames - 1))
        picture = episode.convert("RGB")
    picture.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    return picture


def write(family: str) -> Path:
    """The family's envs side by side."""
    with tempfile.TemporaryDirectory() as folder:
        found = [moment(env, frame, Path(folder)) for env, frame in WORLDS[family].items()]
    gap = 12
    width = sum(one.width for one in found) + gap * (len(found) - 1)
    whole = Image.new("RGB", (width, max(one.height for one in found)), "white")
    left = 0
    for one in found:
        whole.paste(one, (left, 0))
        left += one.width + gap
    path = PICTURES / f"{family}.png"
    whole.quantize(64).save(path, optimize=True)
    return path


if __name__ == "__main__":
    for family in WORLDS:
        print(write(family))
