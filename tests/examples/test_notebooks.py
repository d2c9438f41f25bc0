"""The notebooks run as scripts, from top to bottom, and leave their pictures."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "examples" / "notebooks"
LEAST_PIXELS = 300
"""Of a colour; the keys of a legend alone have fewer."""


def test_drawing_an_episode_leaves_an_episode_and_a_learning_curve(tmp_path):
    plt = pytest.importorskip("matplotlib.pyplot", reason="needs matplotlib, the extra [plot]")
    python_path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": python_path, "ENV_STEPS": "100_000", "MPLBACKEND": "agg"}
    command = [sys.executable, NOTEBOOKS / "draw_an_episode.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "an episode of" in done.stdout
    blue, red = [42, 111, 187], [209, 73, 91]  # taggers and runner
    for name in ("episode.png", "returns.png"):
        picture = plt.imread(next(tmp_path.glob(f"runs/*/{name}")))[..., :3] * 255
        assert min(picture.shape[:2]) > 400
        for colour in (blue, red):
            num_pixels = (abs(picture - colour) < 1.5).all(-1).sum()
            assert num_pixels > LEAST_PIXELS, f"{name} shows too little in colour {colour}"


@pytest.mark.parametrize("notebook", sorted(NOTEBOOKS.glob("*.py")), ids=lambda path: path.stem)
def test_a_notebook_begins_with_a_title_and_has_cells_of_both_kinds(notebook):
    lines = notebook.read_text().splitlines()
    assert lines[0] == "# %% [markdown]" and lines[1].startswith("# # ")
    assert lines.count("# %%") >= 2
