"""What a run loads before its first step: every second of it is waited for at each start."""

from programs import ROOT, run_python

CODE = """
import sys
from trainers_runs import config_of
from trainers.fused import plan
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
plan.RUNS_ON_CPU = True
sizes = {"num_envs": 8, "train_batch_size": 80, "total_timesteps": 160, "device": "cpu"}
trainer = Trainer(read_config(config_of("fused kernels", sizes, {"basedir": sys.argv[1]})))
assert all(one.path == "fused" for one in trainer.algorithms.values())
trainer.train()
print("loaded:", *(name for name in ("torch._dynamo", "sympy", "matplotlib") if name in sys.modules))
"""


def test_training_by_fused_kernels_loads_neither_torchs_compiler_nor_what_it_needs(tmp_path):
    """One to three seconds, which torch.optim.Adam and nn.utils.skip_init would take."""
    run = run_python("-c", CODE, tmp_path, cwd=ROOT / "tests")
    assert run.returncode == 0, run.stderr
    loaded = run.stdout.splitlines()[-1]
    assert loaded in ("loaded:", "loaded: matplotlib")  # which draws the learning curve at the end
