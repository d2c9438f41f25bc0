"""What becomes of compilers and of their folders when the process that runs them ends."""

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from programs import ROOT, is_alive, variables_of

from warpdrive.backends import compiler_process
from warpdrive.backends.compiler_process import run_compiler, work_folder

SLOW_COMPILER = """#!/bin/sh
case "$*" in *" -c "*) ;; *) exec g++ "$@" ;; esac
touch "$TMPDIR/cc1234.s"
sleep 600 &
echo $$ $! > "$TOLD.new" && mv "$TOLD.new" "$TOLD"
wait
"""
"""A g++ that starts another process to compile with, as g++ does, writes beside it, and never gets done."""

COMPILE = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # who began the tests may have had it ignored
from warpdrive.backends.base import Source
from warpdrive.backends.cpu_compiler import Variant, compile_kernels, find_compiler
compile_kernels(find_compiler(), Source("a.cu", "", "", {}), Variant())
"""


def wait_for(condition) -> None:
    """The test's own time limit ends it if that never comes."""
    while not condition():
        time.sleep(0.01)


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)  # read anew
    return folder


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_compiler_ends_with_its_parent_and_leaves_no_file(temporary, tmp_path, by):
    compiler, told = tmp_path / "slow", tmp_path / "told"
    compiler.write_text(SLOW_COMPILER)
    compiler.chmod(0o755)
    variables = variables_of(CXX=str(compiler), TOLD=str(told), TMPDIR=str(temporary))
    parent = subprocess.Popen([sys.executable, "-c", COMPILE], cwd=ROOT, env=variables, stderr=subprocess.DEVNULL)
    wait_for(told.exists)
    processes = [int(word) for word in told.read_text().split()]
    (folder,) = temporary.iterdir()
    assert all(map(is_alive, processes)) and (folder / "cc1234.s").exists()
    parent.send_signal(by)
    parent.wait()
    wait_for(lambda: not any(map(is_alive, processes)))
    wait_for(lambda: not list(temporary.iterdir()))


def test_a_compilers_output_and_exit_code_come_back(temporary):
    command = ["sh", "-c", 'echo out; echo err >&2; echo "$TMPDIR"; pwd; read line; exit 7']
    with work_folder() as folder:
        done = run_compiler(command, folder, cwd=folder)
        assert (done.returncode, done.stderr, done.stdout.splitlines()) == (7, "err\n", ["out", *[str(folder)] * 2])
        assert run_compiler(["sh", "-c", "kill -9 $$"], folder).returncode == 128 + 9
        missing = run_compiler(["no-such-compiler"], folder)
        assert (missing.returncode, missing.stderr) == (127, "no-such-compiler: No such file or directory\n")
    assert list(temporary.iterdir()) == []


def test_folders_of_the_dead_are_removed_and_no_others(temporary, monkeypatch):
    names = ["dead", "used", "new", "file", "link"]
    dead, used, new, file, link = (temporary / f"warpdrive-compile-{name}" for name in names)
    for folder in (dead, used, new):
        folder.mkdir()
        (folder / "kernels.cpp").touch()
    file.touch()
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir()
    link.symlink_to(elsewhere)
    for path in (dead, used, file, elsewhere):
        os.utime(path, (0, 0))
    held = os.open(used, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_SH)
    kept = {used, new, file, link, elsewhere}
    with work_folder() as folder:
        assert {*temporary.iterdir()} == {*kept, folder}
        os.utime(folder, (0, 0))
        with work_folder() as second:
            assert folder.exists() and second != folder
    os.close(held)
    with monkeypatch.context() as other:
        other.setattr(compiler_process.os, "getuid", lambda: os.geteuid() + 1)
        with work_folder():
            assert used.exists()  # of another user
    with work_folder():
        assert not used.exists()
    assert {*temporary.iterdir()} == kept - {used}
