"""The env outside the framework stays small, conforms and learns."""

import json

import pytest
from adapter_cases import SOCCER
from programs import ROOT, run_python

from warpdrive.env import load_env
from warpdrive.errors import ConfigError

EXAMPLES = ROOT / "examples"


def test_it_fits_in_sixty_lines_of_each_language():
    for name in ("soccer.cu", "soccer.py"):
        assert len((EXAMPLES / "soccer" / name).read_text().splitlines()) <= 60


def test_all_that_is_wrong_with_its_config_is_told_at_once():
    wrong = {"players_per_team": 0, "episode_length": 0, "length": 0.0, "width": -6.0, "kick": 1e39}
    with pytest.raises(ConfigError) as caught:
        load_env(SOCCER, wrong)
    assert [line.partition(":")[0] for line in str(caught.value).splitlines()] == [f"env.{key}" for key in wrong]


def test_it_passes_the_conformance_kit_with_the_sanitizers(device):
    done = run_python("-m", "warpdrive.testing", "soccer.soccer:Soccer", "--device", device, "--sanitize", cwd=EXAMPLES)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = done.stdout.splitlines()[-1].partition("; ")[0]  # what was left out comes after it
    assert summary == f"1 passed, 0 failed (1 envs on {device})"


def test_it_trains(tmp_path, device):
    options = ["trainer.total_timesteps=300000", f"trainer.device={device}", f"saving.basedir={tmp_path}"]
    done = run_python("train.py", "--config", "soccer/soccer.yaml", "--allow-import", *options, cwd=EXAMPLES)
    assert done.returncode == 0, done.stderr
    lines = next(tmp_path.glob("*/metrics.jsonl")).read_text().splitlines()
    returns = [json.loads(line)["rollout/left/ep_rew_mean"] for line in lines]
    assert returns[-1] > returns[0] + 0.1
