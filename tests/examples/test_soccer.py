"""The env outside the framework stays small, conforms and learns."""

import json
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_it_fits_in_sixty_lines_of_each_language():
    assert len((EXAMPLES / "soccer" / "soccer.cu").read_text().splitlines()) <= 60
    assert len((EXAMPLES / "soccer" / "soccer.py").read_text().splitlines()) <= 60


def test_it_passes_the_conformance_kit_with_the_sanitizers(device):
    command = [sys.executable, "-m", "warpdrive.testing", "soccer.soccer:Soccer", "--device", device, "--sanitize"]
    done = subprocess.run(command, cwd=EXAMPLES, capture_output=True, text=True, env=with_root_on_path())
    assert done.returncode == 0, done.stdout + done.stderr
    summary = done.stdout.splitlines()[-1].partition("; ")[0]  # what was left out comes after it
    assert summary == f"1 passed, 0 failed (1 envs on {device})"


def test_it_trains(tmp_path, device):
    options = [
        "--allow-import",
        "trainer.total_timesteps=1500000",
        f"trainer.device={device}",
        f"saving.basedir={tmp_path}",
    ]
    command = [sys.executable, "train.py", "--config", "soccer/soccer.yaml", *options]
    done = subprocess.run(command, cwd=EXAMPLES, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = next(tmp_path.glob("*/metrics.jsonl")).read_text().splitlines()
    returns = [json.loads(line)["rollout/left/ep_rew_mean"] for line in lines]
    assert returns[-1] > returns[0] + 0.1


def with_root_on_path() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(EXAMPLES.parent), os.environ.get("PYTHONPATH", "")])}
