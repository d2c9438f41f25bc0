import pytest
from learning_curves import draw, thin


def test_thinned_curve_keeps_the_last_point():
    steps = [float(step) for step in range(1, 8)]
    curve = thin({name: steps for name in ("env_steps", "iqm", "low", "high")}, 3)
    assert curve["env_steps"] == [1.0, 4.0, 7.0]
    assert thin(curve, 10) == curve


def test_curves_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    curve = {"env_steps": [1, 2], "iqm": [0.0, 1.0], "low": [0.0, 0.5], "high": [0.0, 1.5]}
    path = draw({"tagger": curve, "runner": curve}, "two", tmp_path / "new" / "curve.png", {"tagger": 1.0})
    assert path.read_bytes().startswith(b"\x89PNG")
