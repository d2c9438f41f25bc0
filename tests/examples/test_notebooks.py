"""The notebooks run from top to bottom, as Jupyter runs them and as scripts, and leave what they promise."""

from pathlib import Path

import pytest
from programs import ROOT, run_python, variables_of

NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.py"))
CORE, WRITE_AN_ENV, DRAW_AN_EPISODE, REPLAY = NOTEBOOKS
LEAST_PIXELS = 300
"""Of a colour; the keys of a legend alone have fewer."""


@pytest.fixture(autouse=True)
def short_and_without_a_screen(monkeypatch) -> None:
    for name, value in variables_of(ENV_STEPS="100_000", MPLBACKEND="agg").items():
        monkeypatch.setenv(name, value)


def run_in_jupyter(notebook: Path, folder: Path) -> str:
    """Runs every cell in a kernel, as Jupyter does; what the cells printed."""
    jupytext = pytest.importorskip("jupytext")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    cells = jupytext.read(notebook)
    nbclient.NotebookClient(cells, timeout=240, resources={"metadata": {"path": str(folder)}}).execute()
    outputs = [output for cell in cells.cells for output in cell.get("outputs", [])]
    return "".join(output.text for output in outputs if output.output_type == "stream")


def test_the_core_says_what_is_wrong_and_finds_the_race(tmp_path):
    done = run_python(CORE, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for words in (
        "WiringError: <source>:7: kernel 'fall' has a parameter 'sped', but no array 'sped' was pushed. "
        "Did you mean 'speed'?",
        "WiringError: <source>:7: kernel 'fall' takes 'height' as float32",
        "CompileError: <source>:13:",
        "race: this thread reads 'height'",
        "the result depends on the order of threads.",
        "smooth.cu:13: index 1000 is out of range of 'height', which has 20 elements",
        "in debug mode, mended: [1.   2.   3.   2.75 1.25]",
    ):
        assert words in done.stdout


def test_the_core_runs_in_jupyter(tmp_path):
    assert "in debug mode, mended" in run_in_jupyter(CORE, tmp_path)


def test_writing_an_env_ends_with_a_film(tmp_path):
    pytest.importorskip("matplotlib")
    said = run_in_jupyter(WRITE_AN_ENV, tmp_path)
    assert "debug mode finds nothing" in said
    at_random, to_the_middle = (
        float(line.partition("mean return ")[2]) for line in said.splitlines() if "mean return" in line
    )
    assert to_the_middle > at_random + 5
    folder = tmp_path / "runs" / "flock_notebook"
    assert (folder / "flock.png").exists() and "<html" in (folder / "flock.html").read_text()


def test_drawing_an_episode_leaves_an_episode_and_a_learning_curve(tmp_path):
    plt = pytest.importorskip("matplotlib.pyplot", reason="needs matplotlib, the extra [plot]")
    assert "an episode of" in run_in_jupyter(DRAW_AN_EPISODE, tmp_path)
    (run,) = (tmp_path / "runs").iterdir()
    assert "<html" in (run / "episode.html").read_text()
    assert min(plt.imread(run / "returns.png").shape[:2]) > 400
    picture = plt.imread(run / "episode.png")[..., :3] * 255
    for colour in ([0, 114, 178], [213, 94, 0]):  # taggers and runner
        num_pixels = (abs(picture - colour) < 1.5).all(-1).sum()
        assert num_pixels > LEAST_PIXELS, f"episode.png shows too little in colour {colour}"


def test_looking_into_a_replay_store_finds_what_was_kept(tmp_path, monkeypatch):
    """A quarter of 16,384 steps and what is under way, of 32 envs; leaves and root say the same."""
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("ENV_STEPS", "16_384")
    said = run_in_jupyter(REPLAY, tmp_path)
    assert "512 steps of each env came in, the last 136 are there" in said
    assert f"{(136 - 1 - 2) * 32:,} items may be drawn" in said
    sums = said.partition("the tree sums up to ")[2].splitlines()[0]
    root, leaves = (float(number) for number in sums.split(", its leaves to "))
    assert root == pytest.approx(leaves, abs=0.11) and root > 100
    (run,) = (tmp_path / "runs").iterdir()
    assert (run / "replay.png").exists()


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_opens_as_one_and_begins_with_a_title(notebook):
    header, _, cells = notebook.read_text().partition("# ---\n\n")
    assert header.startswith("# ---\n# jupyter:\n#   jupytext:\n#     formats: py:percent\n")
    lines = cells.splitlines()
    assert lines[0] == "# %% [markdown]" and lines[1].startswith("# # ")
    assert lines.count("# %%") >= 2
