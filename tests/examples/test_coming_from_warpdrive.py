"""The env that docs/coming_from_warpdrive.md ports, as it stands there."""

import re
from pathlib import Path

import numpy as np
import torch

from warpdrive.env import load_env
from warpdrive.env_wrapper import EnvWrapper

DOCS = Path(__file__).parents[2] / "docs"


def test_the_ported_kernel_plays(tmp_path, monkeypatch, backend):
    text = (DOCS / "coming_from_warpdrive.md").read_text()
    (tmp_path / "line").mkdir()
    (tmp_path / "line" / "__init__.py").touch()
    for name, code in re.findall(r"^`(line\.\w+)`:\n\n```\w+\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        (tmp_path / "line" / name).write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    env = EnvWrapper(load_env("line.line:Line", {"episode_length": 12}), num_envs=3, backend=backend)
    env.reset()
    for _ in range(11):
        observation, reward, terminated, truncated, _ = env.step(torch.tensor([[2, 2, 1, 0]] * 3))
    np.testing.assert_allclose(observation[1, :, 0].cpu(), [1.1, 1.1, 0.0, -1.1], rtol=1e-5)
    assert reward[1].tolist() == [1.0, 1.0, 0.0, 0.0] and not terminated.any() and not truncated.any()
    observation, _, terminated, truncated, _ = env.step(torch.tensor([[2, 2, 1, 0]] * 3))
    assert truncated.all() and not terminated.any() and not observation.any()  # it began anew
