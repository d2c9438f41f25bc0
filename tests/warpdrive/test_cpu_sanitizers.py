"""The sanitizers find planted mistakes in kernels, name the line, and keep silent on correct ones.

Each runs in a process of its own, because its library must be loaded before Python.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from warpdrive.backends.cpu import CpuBackend
from warpdrive.backends.cpu_sanitize import sanitizer_environment
from warpdrive.errors import BackendError

MISTAKES = Path(__file__).parent / "kernels" / "cpu_mistakes.cu"

LAUNCH_CORRECT_THEN_MISTAKE = """
import sys
import torch
from warpdrive.backends.base import LaunchShape, Source
from warpdrive.backends.cpu import CpuBackend
from warpdrive.signature import read_signatures

path, sanitizer, mistake, arguments = sys.argv[1:]
text = open(path).read()
signatures = read_signatures(text)
module = CpuBackend(sanitize=(sanitizer,), num_threads=2).compile(Source(path, text, "", signatures))
x, out = torch.arange(24.0).reshape(3, 8), torch.zeros(3, 8)
for _ in range(5):
    out.zero_()
    module.prepare(signatures["correct"], [x, out], LaunchShape(3, (8, 1)))()
    assert torch.equal(out, x.flip(1))
print("the correct kernel ran", flush=True)
numbers = torch.zeros(24, dtype=torch.int32)
module.prepare(signatures[mistake], eval(arguments), LaunchShape(3, (8, 1)))()
print("the mistake went unseen", flush=True)
"""


def line_of(kernel: str) -> int:
    lines = MISTAKES.read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if line.endswith(f"// {kernel}"))


@pytest.mark.parametrize(
    ("sanitizer", "mistake", "arguments", "finding"),
    [
        ("address", "index_out_of_range", "[out, 1]", "heap-buffer-overflow"),
        ("undefined", "signed_overflow", "[numbers]", "signed integer overflow"),
        ("thread", "missing_barrier", "[x, out]", "data race"),
        ("thread", "race_of_blocks", "[x, out]", "data race"),
        ("thread", "lost_additions", "[numbers]", "data race"),
    ],
)
def test_a_sanitizer_finds_the_mistake_and_nothing_else(sanitizer, mistake, arguments, finding):
    try:
        environment = sanitizer_environment([sanitizer])
    except BackendError as error:
        pytest.skip(str(error))
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, **environment, "PYTHONPATH": path}
    if subprocess.run([sys.executable, "-c", ""], env=environment).returncode:
        pytest.skip(f"this compiler's {sanitizer} sanitizer cannot even start Python here")
    result = subprocess.run(
        [sys.executable, "-c", LAUNCH_CORRECT_THEN_MISTAKE, str(MISTAKES), sanitizer, mistake, arguments],
        env=environment,
        capture_output=True,
        text=True,
    )
    before, correct, after = (result.stdout + result.stderr).partition("the correct kernel ran")
    assert correct and finding not in before, result.stdout + result.stderr
    assert finding in after and f"{MISTAKES}:{line_of(mistake)}" in after
    assert "the mistake went unseen" not in after and result.returncode != 0


@pytest.mark.parametrize(("sanitizer", "library"), [("address", "libasan.so"), ("thread", "libtsan.so")])
def test_without_the_library_the_command_to_run_is_given(sanitizer, library):
    with pytest.raises(BackendError) as caught:
        CpuBackend(sanitize=sanitizer, compiler="g++")
    assert f"LD_PRELOAD=$(g++ -print-file-name={library}) " in str(caught.value)


def test_an_unknown_sanitizer_and_impossible_pairs_are_refused():
    with pytest.raises(BackendError, match="no sanitizer 'memory'. Choose among address, undefined, thread"):
        CpuBackend(sanitize=("memory",))
    with pytest.raises(BackendError, match="exclude each other"):
        CpuBackend(sanitize=("address", "thread"))
    with pytest.raises(BackendError, match="Choose one: debug=True or sanitize"):
        CpuBackend(debug=True, sanitize=("undefined",))
