"""What is wrong with algorithms, networks and callbacks from outside is told in a line."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from trainers_runs import changed

from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.errors import ConfigError

HERE = Path(__file__).parent
CONFIG = yaml.safe_load((HERE / "my_package" / "signs.yaml").read_text())

BROKEN = """
import torch
from torch import nn
from trainers.algorithms.algorithm import Algorithm
from trainers.callbacks import Callback
from my_package.memory import Recurrent
from my_package.nets import Cnn

class Headless(Cnn):
    def forward(self, observation, critic_input=None): return {}

class Wide(Cnn):
    def forward(self, observation, critic_input=None): return {"policy": torch.zeros(2, 3)}

class Fails(Cnn):
    def forward(self, observation, critic_input=None): return observation["picture"]

class Listed(Cnn):
    def forward(self, observation, critic_input=None): return [torch.zeros(2, 2), torch.zeros(2, 1)]

class Remembers(Listed):
    memory_size, sequence_length = 3, None
    def unroll(self, observation, critic_input, memory, starts=None): return {"policy": torch.zeros(1, 2, 2)}

class Other(Cnn):
    def __init__(self, num_features, heads): pass

class Double(Cnn):
    def forward(self, observation, critic_input=None):
        return {name: one.double() for name, one in super().forward(observation).items()}

class Pixels(Cnn):
    sees = "pixels"

class Unread(Recurrent):
    def __init__(self, *given):
        super().__init__(*given)
        self.memory_size = 16.0

class Endless(Recurrent):
    sequence_length = 0

class Narrow(Recurrent):
    def unroll(self, *given):
        found, memory = super().unroll(*given)
        return found, memory[:, :1]

class OneRow(Recurrent):
    def unroll(self, *given):
        found, memory = super().unroll(*given)
        return found, memory[:1]

class OneStep(Recurrent):
    def unroll(self, *given):
        found, memory = super().unroll(*given)
        return {name: one[:1] for name, one in found.items()}, memory

class WholeBurnIn(Recurrent):
    def unroll(self, observation, critic_input, memory, starts=None, burn_in=0):
        return super().unroll(observation, critic_input, memory, starts)

class Attached(Recurrent):
    def unroll(self, observation, critic_input, memory, starts=None, burn_in=0):
        found, memory = super().unroll(observation, critic_input, memory, starts)
        return {name: one[burn_in:] for name, one in found.items()}, memory

class Sevens(Recurrent):
    sequence_length = 7

class Frozen(Cnn):
    def __init__(self, *given):
        super().__init__(*given)
        self.requires_grad_(False)

class Unmade(Cnn):
    def __init__(self, config, inputs, heads, generator): inputs.nothing

class NoActor(Algorithm):
    def phases(self): return {}

class BadConfig(Algorithm):
    phases = actor = None
BadConfigConfig = dict

class Picky(Callback):
    def __init__(self, start):
        if start < 0: raise ValueError(f"start must be at least 0, got {start}")
"""


@pytest.fixture
def broken(tmp_path, monkeypatch) -> Iterator[None]:
    """Modules that cannot be used lie on the path."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "broken.py").write_text(BROKEN)
    (tmp_path / "unreadable.py").write_text("class A(\n")
    (tmp_path / "lacking.py").write_text("import not_installed\n")
    yield
    sys.modules.pop("broken", None)


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize(
    ("key", "name", "line"),
    [
        ("algorithm", "my_package.reinforc:A", "algorithm 'my_package.reinforc:A': No module named"),
        ("algorithm", "my_package.reinforce:Renforce", "has no class 'Renforce'. Did you mean 'Reinforce'?"),
        ("algorithm", "my_package.nets:Cnn", "is no Algorithm. Derive it from trainers.algorithms.algorithm.Algorithm"),
        ("algorithm", "my_package:", "expected a module and a class of it with one colon between"),
        ("algorithm", "broken:NoActor", "has no `actor`, which says who plays. See docs/own_algorithm.md."),
        ("algorithm", "broken:BadConfig", "broken:BadConfigConfig must be a frozen dataclass that derives from "),
        ("algorithm", "unreadable:A", "importing unreadable failed: SyntaxError: "),
        ("algorithm", "lacking:A", "importing lacking failed: ModuleNotFoundError: No module named 'not_installed'"),
        ("model.type", "my_package.reinforce:Reinforce", "is no Module. Derive it from torch.nn"),
        ("model.type", "broken:Headless", "'broken:Headless': gave nothing as 'policy' for two rows, expected "),
        ("model.type", "broken:Wide", "gave [2, 3] float32 as 'policy' for two rows, expected [2, 2] float"),
        ("model.type", "broken:Fails", "failed on two rows of zeros: KeyError: 'picture'"),
        ("model.type", "broken:Listed", "expected a dict by head of its forward, and got a list. See docs/own_network"),
        ("model.type", "broken:Remembers", "expected (a dict by head, the memory) of its unroll, and got a dict. See"),
        ("model.type", "broken:Double", "gave [2, 2] float64 as 'policy' for two rows, expected [2, 2] float32. See"),
        ("model.type", "broken:Pixels", "its sees is 'pixels', expected 'rows' or 'arrays'. See docs/own_network.md."),
        ("model.type", "broken:Unread", "its memory_size is 16.0, expected a whole number of at least 0. See docs/own"),
        ("model.type", "broken:Endless", "its sequence_length is 0, expected a whole number of at least 1, or None."),
        ("model.type", "broken:Narrow", "gave [2, 1] float32 as the memory after 3 steps of two rows, expected [2,"),
        ("model.type", "broken:OneRow", "gave [1, 16] float32 as the memory after 3 steps of two rows, expected [2,"),
        ("model.type", "broken:OneStep", "gave [1, 2, 2] float32 as 'policy' for 3 steps of two rows, expected [3,"),
        ("model.type", "broken:WholeBurnIn", "for 3 steps of two rows with burn_in 1, expected [2, 2, 2] float32. See"),
        ("model.type", "broken:Attached", "its unroll lets gradients reach what comes before its burn_in. Detach the"),
        ("model.type", "broken:Sevens", "its network's sequence_length 7 does not divide the 8 steps of an iter"),
        ("model.type", "broken:Frozen", "has no parameter that learns. Say to_train: false of its policy."),
        ("model.type", "broken:Other", "takes (num_features, heads), expected (config, inputs, heads, generator). See"),
        ("model.type", "broken:Unmade", "its constructor failed: AttributeError: 'Inputs' object has no attribute"),
        ("callbacks", "my_package.nets:Cnn", "callbacks[0]: callback 'my_package.nets:Cnn': is no Callback."),
        ("callbacks", {"broken:Picky": {"begin": 3}}, "missing a required argument: 'start'. It takes start."),
        ("callbacks", {"a:B": 1, "c:D": 2}, 'callbacks[0]: expected "my_package.curriculum:Harder", or {'),
    ],
)
def test_what_is_wrong_outside_is_told_in_one_line_when_the_config_is_read(key, name, line):
    config = changed(CONFIG, policy__reader__baseline=True, callbacks=[name] if key == "callbacks" else [])
    reader = config["policy"]["reader"]
    if key == "algorithm":
        reader.pop("baseline")
        reader["algorithm"] = name
    elif key == "model.type":
        reader["model"]["type"] = name
        reader["model"].pop("channels")
    with pytest.raises(ConfigError) as caught:
        read_config(config, allow_import=True)
    (told,) = str(caught.value).splitlines()
    place = "callbacks[0]" if key == "callbacks" else f"policy.reader.{key}"
    assert told.startswith(f"{place}: ") and line in told


def test_an_error_in_ones_own_code_names_the_line_and_is_kept_in_the_log(tmp_path, warpdrive, capsys, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine.py").write_text(
        "from my_package.reinforce import Reinforce\n\n\n"
        "class Mine(Reinforce):\n    def learn(self):\n        raise ValueError('a slip')\n"
    )
    (tmp_path / "early.py").write_text("\nnothing = 1 / 0\n")
    config = HERE / "my_package" / "signs.yaml"
    words = ("train", "--config", config, f"saving.basedir={tmp_path}", "trainer.device=cpu")
    assert warpdrive(*words, "--run-name", "a", "policy.reader.algorithm=mine:Mine") == 1
    told = f"error: ValueError: a slip, in {tmp_path / 'mine.py'}:6 (--traceback shows where)"
    assert told in capsys.readouterr().err.splitlines()
    log = (tmp_path / "a" / "log.txt").read_text()
    assert f'File "{tmp_path / "mine.py"}", line 6, in learn' in log and log.endswith("ValueError: a slip\n")
    assert warpdrive(*words, "policy.reader.algorithm=early:Early") == 2
    assert f"importing early failed: ZeroDivisionError: division by zero, in {tmp_path / 'early.py'}:2" in (
        capsys.readouterr().err
    )


@pytest.mark.usefixtures("broken")
def test_a_callback_that_cannot_be_made_says_why(tmp_path):
    callbacks = [{"broken:Picky": {"start": -1}}]
    config = read_config(changed(CONFIG, callbacks=callbacks, saving={"basedir": str(tmp_path)}), allow_import=True)
    with pytest.raises(ConfigError, match="callback 'broken:Picky': start must be at least 0, got -1"):
        Trainer(config)
