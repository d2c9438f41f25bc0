"""Ranks that are launched sum, agree and end together; a launch leaves its process as it was."""

import os
import pickle
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launched_ranks import IMPORTS, ranks_of
from torch.distributed.launcher.api import LaunchConfig

from trainers.learning.launcher import launch
from trainers.settings.config import TrainerConfig

pytestmark = pytest.mark.alone

ROOT = Path(__file__).parents[3]

OF_THREE = """
from pathlib import Path
from launched_ranks import listening
from safetensors.torch import load_file
from trainers.run import tensor_file
from trainers.run.tensor_file import write_tensors
import torch.distributed.distributed_c10d as c10d
def refuse(*_):
    sys.exit("a pickle was read")
c10d._tensor_to_object = refuse
world.gather(rank)  # all have their sockets
for process in (os.getpid(), os.getppid()):
    addresses = listening(process)
    assert addresses and set(addresses) == {"127.0.0.1"}, addresses
world.gather(rank)

values = [torch.tensor([1.0, 2.0, 6.0]), torch.tensor([]), torch.tensor([-4.0, 9.0])]  # rank 1 has none
everything, own = torch.cat(values), values[rank]
zero = torch.zeros(())
mean, variance = (own.mean(), own.var(correction=0)) if len(own) else (zero, zero)
for number in (torch.tensor(len(own)), torch.tensor(float(len(own))), torch.tensor(len(own), dtype=torch.float64)):
    found = world.moments(number, mean, variance)
    assert found[0] == 5 and found[0].dtype == number.dtype and found[1].dtype == torch.float32
    torch.testing.assert_close(found[1], everything.mean())
    torch.testing.assert_close(found[2], everything.var(correction=0))
nan = torch.tensor(float("nan"))
assert world.average(torch.tensor(int(rank > 0)), nan if rank == 0 else zero)[1] == 0  # 0 values have no say
assert world.average(torch.tensor(1), nan if rank == 0 else zero)[1].isnan()
assert world.average(4, torch.tensor(float(rank)))[1] == 1.0 and world.total(4) == 12
one, two = world.sum(torch.ones(2, 3), torch.tensor(rank))
assert one.tolist() == [[3.0] * 3] * 2 and two == 3 and two.dtype == torch.int64

tensor_file.PIECE, path = 7, Path(sys.argv[1]) / "whole"
for dtype in (torch.bool, torch.uint32, torch.float64):
    for axis in (0, 1):
        every = torch.arange(6 * 6).view(6, 6, 1).to(dtype)
        part = world.part(every, axis)
        assert part.shape[axis] == 2
        write_tensors(path, {"whole": part, "of the first": every}, world, {"whole": axis})
        found = {} if rank else load_file(path)
        assert rank or (torch.equal(found["whole"], every) and torch.equal(found["of the first"], every))
for name in ("no folder/a", "/dev/full"):
    try:
        world.together(lambda: write_tensors(Path(name), {"whole": part}, world, {"whole": axis}))
        sys.exit("nothing was raised")
    except OSError:  # told by all, who went on sending
        pass

assert world.first(lambda: rank) == 0 and world.gather(rank) == [0, 1, 2]
def fail():
    raise ConfigError(f"by rank {rank}")
try:
    world.first(fail)
    sys.exit("nothing was raised")
except ConfigError as error:
    assert str(error) == "by rank 0"
answers = [world.agree_on(15 if (rank, call) == (2, 1) else None) for call in range(4)]
assert answers == [None, None, 15, None]  # a call late, on every rank
with world.watched():
    time.sleep(0.3 * rank)
"""

BLOCKED = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as one whose device waits for a rank that is gone
world.gather(rank)
with world.watched():
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(3600)
"""


def test_ranks_sum_average_share_and_agree_and_one_that_waits_for_a_dead_one_ends(capfd, monkeypatch, tmp_path):
    """It would sleep for longer than a test may take. All listen to their own machine alone, and no pickle is read."""
    monkeypatch.setattr(pickle, "loads", lambda *_: pytest.fail("a pickle was read"))
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    assert launch(["-c", IMPORTS + OF_THREE + BLOCKED, str(tmp_path)], TrainerConfig(num_gpus=3, device="cpu")) == 1
    first, second = capfd.readouterr().err.splitlines()
    assert first == "error: rank 1 of 3 has ended: so do the others."
    assert re.fullmatch(r"error: rank 1 \(process \d+\) was ended by SIGKILL: so is the run\.", second)


def test_a_launch_turns_multicast_off_and_leaves_signals_and_variables_as_they_were(capfd):
    handlers, variables = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)], dict(os.environ)
    names = "NCCL_NVLS_ENABLE", "TORCH_SYMM_MEM_DISABLE_MULTICAST", "NVSHMEM_DISABLE_NVLS"
    code = f"import os, sys; print(*(os.environ[name] for name in {names}), flush=True); sys.exit(7)"
    assert launch(["-c", code], TrainerConfig(num_gpus=1, device="cpu")) == 7
    assert capfd.readouterr().out == "0 1 1\n"
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert dict(os.environ) == variables


STUBBORN = """
import signal, sys
from trainers.settings.config import TrainerConfig
from trainers.learning.launcher import launch
rank = r'''
import os, signal, time
signal.signal(signal.SIGINT, lambda *_: None)
os.write(1, b"ready\\n")
time.sleep(60)
'''
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(launch(["-c", rank], TrainerConfig(num_gpus=2, device="cpu")))
"""
"""A launcher of ranks that go on after Ctrl-C, as those do that are in the middle of an iteration."""


def launch_stubborn(**popen: object) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", STUBBORN], env=environment, **pipes, **popen)
    assert [process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
    return process


NEEDS_SIGNALS = pytest.mark.skipif(
    not hasattr(LaunchConfig, "signals_to_handle"), reason="this torch's launcher takes SIGHUP whatever the config says"
)


@pytest.mark.parametrize("is_under_nohup", [False, pytest.param(True, marks=NEEDS_SIGNALS)])
def test_a_second_signal_ends_all_ranks_at_once_and_a_closed_terminal_under_nohup_none(is_under_nohup):
    ignore = (lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)) if is_under_nohup else None
    process = launch_stubborn(preexec_fn=ignore)
    try:
        ranks = ranks_of(process)
        if is_under_nohup:
            process.send_signal(signal.SIGHUP)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(3)
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            time.sleep(1)
        _, errors = process.communicate(timeout=20)
    finally:
        process.kill()
    assert (process.returncode, errors) == (130, "stopped by Ctrl-C\n")
    assert len(ranks) == 2 and not any(Path(f"/proc/{pid}").exists() for pid in ranks.values())
