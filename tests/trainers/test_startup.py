"""What a run loads before its first step: every second of it is waited for at each start."""

import pytest
from programs import ROOT, run_python

CODE = """
import sys
from trainers_runs import config_of
from trainers.fused import plan
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
folder, run, path = sys.argv[1:]
plan.RUNS_ON_CPU = path == "fused"
sizes = {"num_envs": 8, "train_batch_size": 80, "total_timesteps": 160, "device": "cpu"}
trainer = Trainer(read_config(config_of(run, sizes, {"basedir": folder})))
assert {one.path for one in trainer.algorithms.values()} == {path}
trainer.train()
print("loaded:", *(name for name in ("torch._dynamo", "sympy", "matplotlib") if name in sys.modules))
"""


@pytest.mark.parametrize(("run", "path"), [("fused kernels", "fused"), ("a2c", "torch"), ("dqn", "torch")])
def test_training_loads_neither_torchs_compiler_nor_what_it_needs(tmp_path, run, path):
    """One to three seconds, which torch.optim.Adam, its steps and nn.utils.skip_init would take."""
    done = run_python("-c", CODE, tmp_path, run, path, cwd=ROOT / "tests")
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.splitlines()[-1]
    assert loaded in ("loaded:", "loaded: matplotlib")  # which draws the learning curve at the end
