"""Each thing that can be wrong with a machine gets its line and its fix; what is missing here is feigned."""

import argparse
import ctypes
import errno
import importlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from doctor_cases import CPU_TORCH, GPU_TORCH, H100, NEW, NO_GPU, OLD, has, only

from trainers.commands import doctor as command
from warpdrive import doctor, nvidia_driver
from warpdrive.backends import examine, examine_compiler
from warpdrive.findings import OK, PROBLEM, WARNING, Finding, Torch
from warpdrive.nvidia_driver import Gpu, NvidiaDriver

pytestmark = pytest.mark.usefixtures("own_cache")


def tells(value):
    return lambda number, *rest: setattr(number._obj, "value", value)


def library(error: int = 0, num_gpus: int = 1) -> SimpleNamespace:
    """libcuda with so many GPUs, or one that does not start."""
    return SimpleNamespace(
        cuInit=lambda flags: error,
        cuDriverGetVersion=tells(13000),
        cuDeviceGetCount=tells(num_gpus),
        cuDeviceGet=lambda device, index: tells(index)(device),
        cuDeviceGetName=lambda name, size, device: setattr(name, "value", b"NVIDIA H100"),
        cuDeviceTotalMem_v2=tells(80 * 2**30),
        cuDeviceGetAttribute=lambda value, which, device: tells({75: 9, 76: 0, 20: 0}[which])(value),
    )


def test_a_gpu_is_told_with_its_memory_and_architecture_and_the_first_one_is_woken():
    driver = nvidia_driver.find_driver(lambda name: library())
    assert driver.gpus == (H100,) and driver.cuda == (13, 0) and driver.is_gpu_here
    findings = doctor.check_driver(driver)
    assert [finding.state for finding in findings] == [OK, OK]
    assert findings[1].text == "NVIDIA H100, 80 GiB, compute capability 9.0 (sm_90)"
    retained = []
    two = library(num_gpus=2)
    two.cuDevicePrimaryCtxRetain = lambda context, device: retained.append(device.value)
    nvidia_driver.wake_first_gpu(lambda name: two)
    assert retained == [0]


def test_linux_tells_the_kernel_modules_version_closed_device_files_and_gpus_on_the_bus(tmp_path, monkeypatch):
    file = tmp_path / "proc/driver/nvidia/version"
    file.parent.mkdir(parents=True)
    for line in (
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22 01:44:30 UTC 2024",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  Release Build  (a@b)",
    ):
        file.write_text(f"{line}\nGCC version: gcc 12.2.0 \n")
        assert nvidia_driver.kernel_module_version(tmp_path) == "550.54.14"
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-modeset"):
        (tmp_path / "dev" / name).touch()
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: path.name != "nvidia0")
        assert nvidia_driver.closed_device_files(tmp_path) == (str(tmp_path / "dev" / "nvidia0"),)
    device = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x040300\n")  # the sound of a graphics card
    assert not nvidia_driver.is_gpu_here(tmp_path)
    (device / "class").write_text("0x030200\n")
    assert nvidia_driver.is_gpu_here(tmp_path)


def test_no_gpu_is_no_mistake():
    driver = nvidia_driver.find_driver(lambda name: ctypes.CDLL("no_such_library.so"))
    assert driver.error.startswith("no_such_library.so: cannot open shared object file")
    assert has(only(doctor.check_driver(NO_GPU)), OK, "no NVIDIA GPU in this machine", "")


@pytest.mark.parametrize(
    ("driver", "state", "text", "fix"),
    [
        (NvidiaDriver("not found", is_gpu_here=True), PROBLEM, "no driver for it (not found)",
         "ubuntu-drivers install"),
        (NvidiaDriver(100), WARNING, "it shows no GPU", "--gpus all"),
        (NvidiaDriver(34), PROBLEM, "the toolkit's stub", "LD_LIBRARY_PATH"),
        (NvidiaDriver(803), PROBLEM, "different versions", "restart the machine"),
        (NvidiaDriver(304), PROBLEM, "the system refused", "nvidia-modprobe"),
        (NvidiaDriver(999), PROBLEM, "cannot start (CUDA error 999)", "nvidia-smi"),
        (NvidiaDriver(100, closed_files=("/dev/nvidia0",)), PROBLEM, "/dev/nvidia0 cannot be opened",
         "usermod -aG video"),
    ],
)  # fmt: skip
def test_a_driver_that_fails_is_told_with_its_fix(driver, state, text, fix, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if isinstance(driver.error, int) and not driver.closed_files:
        found = nvidia_driver.find_driver(lambda name: library(driver.error))
        assert found.error == driver.error
    assert has(only(doctor.check_driver(driver)), state, text, fix)


def test_gpus_that_are_hidden_or_that_nobody_may_use_are_told_so(monkeypatch):
    found = doctor.check_driver(NvidiaDriver(None, (13, 0), None, (Gpu("X", 1, (9, 0), nvidia_driver.PROHIBITED),)))[1]
    assert has(found, PROBLEM, "lets nobody use it", "nvidia-smi -i 0 -c DEFAULT")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    found = only(doctor.check_driver(NvidiaDriver(100)))
    assert has(found, WARNING, "CUDA_VISIBLE_DEVICES='-1' hides all", "unset CUDA_VISIBLE_DEVICES")


@pytest.mark.parametrize(
    ("torch", "driver", "state", "text", "fix"),
    [
        (GPU_TORCH, NEW, OK, "2.13.0, built for CUDA 13.0", ""),
        (CPU_TORCH, NO_GPU, OK, "built without CUDA, as there is no GPU", ""),
        (CPU_TORCH, NEW, WARNING, "is built without CUDA", "pip install --force-reinstall torch"),
        (GPU_TORCH, OLD, PROBLEM, "too new for the driver, which runs CUDA up to 12.4", "580.65.06 or later"),
        (Torch("2.13.0", "12.8", ("sm_70", "sm_80")), OLD, PROBLEM, "not built for NVIDIA H100 (sm_90)", "newer"),
        (Torch("2.13.0", "12.6", ("sm_80", "compute_80"), True), OLD, OK, "", ""),
        (Torch("2.13.0", "12.6", (), False), OLD, PROBLEM, "sees no GPU", "torch.cuda.init()"),
        (Torch(error="libtorch.so: cannot open"), NEW, PROBLEM, "cannot be imported: libtorch.so", "--force-reinstall"),
    ],
)
def test_torch_is_held_against_driver_and_gpu(torch, driver, state, text, fix):
    assert has(doctor.check_torch(torch, driver), state, text, fix)


def test_machine_code_runs_in_its_family_and_ptx_on_what_came_later():
    archs = ("sm_90", "sm_80", "sm_86", "compute_80", "sm_100", "compute_100")
    assert [arch for arch in archs if doctor._runs_on([arch], (9, 0))] == ["sm_90", "compute_80"]


def test_python_and_packages_are_held_to_what_is_needed():
    assert has(doctor.check_python((3, 10, 4)), PROBLEM, "3.10.4, but 3.11 or later", "uv venv --python 3.11")
    versions = {"torch": "2.13.0+cpu", "numpy": "1.26.4", "pycuda": "2026.1"}

    def version_of(name):
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    requires = ["torch>=2.8", "numpy>=2", "pyyaml>=6", 'pycuda>=2025.1; extra == "cuda"', 'pytest>=8; extra == "test"']
    torch, numpy, pyyaml, extras = doctor.check_packages(requires, version_of)
    assert torch == Finding("torch", OK, "2.13.0+cpu")
    assert has(numpy, PROBLEM, "1.26.4 is too old: 2 or later", "pip install 'numpy>=2'")
    assert has(pyyaml, PROBLEM, "is not installed", "pip install 'pyyaml>=6'")
    assert extras.text.startswith("pycuda 2026.1 [cuda]: ")


def test_a_cache_of_ones_own_is_well(own_cache):
    own_cache.mkdir(mode=0o700)
    (own_cache / "kernel.so").write_bytes(bytes(2_000_000))
    assert doctor.check_cache() == Finding("cache", OK, f"{own_cache}, 1 files, 2 MB")
    assert [path.name for path in own_cache.iterdir()] == ["kernel.so"]


def test_a_cache_that_is_open_to_others_or_not_ones_own_is_told(own_cache, monkeypatch):
    own_cache.mkdir()
    own_cache.chmod(0o755)
    assert has(doctor.check_cache(), WARNING, "can be read by others (mode 0755)", f"chmod 700 {own_cache}")
    monkeypatch.setattr(tempfile, "tempdir", str(own_cache.parent))
    own_cache.chmod(0o777)
    private = own_cache.parent / f"warpdrive-{os.getuid()}"
    text = f"can be written by others (mode 0777), so {private} is used instead"
    assert has(doctor.check_cache(), WARNING, text, f"chmod 700 {own_cache} if it is yours")
    odd = own_cache.rename(own_cache.with_name("of mine; rm -rf x"))
    monkeypatch.setenv("WARPDRIVE_CACHE", str(odd))
    assert has(doctor.check_cache(), WARNING, text, f"chmod 700 '{odd}' if it is yours")
    odd.chmod(0o755)
    assert doctor.check_cache().fix == f"chmod 700 '{odd}'"
    monkeypatch.setenv("WARPDRIVE_CACHE", "/proc/nothing")
    assert has(doctor.check_cache(), PROBLEM, "/proc/nothing", "set WARPDRIVE_CACHE to a folder of yours")


def test_a_full_disk_is_told(own_cache, monkeypatch):
    def full(**where):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(doctor.tempfile, "NamedTemporaryFile", full)
    assert has(doctor.check_cache(), PROBLEM, "No space left on device", f"rm {own_cache}/*")
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda place: usage(10**12, 10**12, 50_000_000))
    assert has(doctor.check_disks()[0], PROBLEM, "0.1 GB free", "make room")
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda place: usage(10**12, 10**12, 4_000_000_000))
    assert has(doctor.check_disks()[0], WARNING, "4.0 GB free", "saving.basedir")


COMPILER, NO_COMPILER = Finding("host compiler", OK, "g++"), Finding("host compiler", PROBLEM, "none", "install g++")


@pytest.mark.parametrize(
    ("torch", "compiler", "can_keep", "gpu", "state", "text", "fix"),
    [
        (GPU_TORCH, NO_COMPILER, True, "device: cuda:0 (NVIDIA H100)", OK, "device: cuda:0 (NVIDIA H100)", ""),
        (CPU_TORCH, COMPILER, True, None, OK, "device: cpu, because this torch is built without CUDA", ""),
        (Torch("2.13.0", "13.0"), COMPILER, True, None, OK, "device: cpu, because torch sees no GPU", ""),
        (CPU_TORCH, NO_COMPILER, True, None, PROBLEM, "nothing: neither a GPU nor a C++ compiler", "install g++"),
        (GPU_TORCH, COMPILER, True, None, WARNING, "no kernel runs on the GPU (out of memory), but", "--device cpu"),
        (GPU_TORCH, NO_COMPILER, True, None, PROBLEM, "nothing: no kernel runs on the GPU", "install g++"),
        (GPU_TORCH, COMPILER, False, "x", PROBLEM, "nothing: compiled kernels cannot be kept", "mend the cache"),
    ],
)
def test_the_last_line_says_what_a_run_would_take(torch, compiler, can_keep, gpu, state, text, fix, monkeypatch):
    def try_gpu():
        if gpu is None:
            raise RuntimeError("out of memory")
        return gpu

    monkeypatch.setattr(examine, "_try_gpu", try_gpu)
    assert has(examine.check_what_runs(torch, compiler, can_keep), state, text, fix)


def test_what_takes_long_and_no_torch_is_asked_while_torch_is_imported(monkeypatch):
    compiled, woken, nvcc_asked = threading.Event(), threading.Event(), threading.Event()

    def ask_torch():
        assert compiled.wait(60) and woken.wait(60), "torch was imported before they were asked"
        return CPU_TORCH

    def check_bindings(driver):
        assert nvcc_asked.wait(60), "modules were imported before nvcc was asked"
        return Finding("cuda.bindings", OK, "")

    monkeypatch.setattr(doctor, "ask_torch", ask_torch)
    monkeypatch.setattr(nvidia_driver, "find_driver", lambda: NEW)
    monkeypatch.setattr(nvidia_driver, "wake_first_gpu", woken.set)
    monkeypatch.setattr(examine_compiler, "check_host_compiler", lambda can_keep: compiled.set() or COMPILER)
    monkeypatch.setattr(examine, "check_nvcc", lambda driver: nvcc_asked.set() or Finding("nvcc", OK, ""))
    monkeypatch.setattr(examine, "check_bindings", check_bindings)
    subjects = [finding.subject for finding in doctor.examine().findings]
    last = ["gpu 0", "torch build", "host compiler", "nvrtc", "nvcc", "pycuda", "cuda.bindings", "would run"]
    assert subjects[0] == "python" and subjects[-8:] == last


def test_the_host_compiler_is_tried_without_torch(monkeypatch):
    code = "import sys; sys.modules['torch'] = None\nfrom warpdrive.backends import examine_compiler\n"
    command = [sys.executable, "-c", f"{code}print(examine_compiler.check_host_compiler().text)"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.endswith(", builds kernels\n"), done.stderr


def run_command(capsys, *words: str) -> tuple[int, str]:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    code = command.run(parser.parse_args(words), [], None)
    return code, capsys.readouterr().out


def test_this_machine_can_train(capsys):
    code, text = run_command(capsys, "--json")
    report = json.loads(text)
    assert code == 0 and report["can_train"]
    device = "device: cuda:0" if torch.cuda.is_available() else "device: cpu"
    assert report["findings"][-1]["subject"] == "would run"
    assert report["findings"][-1]["text"].startswith(device)


def test_a_terminal_has_colours_unless_nobody_wants_them(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "examine", lambda: doctor.Report((COMPILER,), True))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    for no_colour in ("", "1"):
        monkeypatch.setenv("NO_COLOR", no_colour)
        assert ("\033[" in run_command(capsys)[1]) == (not no_colour)


def test_where_nothing_can_train_the_exit_code_is_3(no_compiler, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "ask_torch", lambda: CPU_TORCH)
    code, text = run_command(capsys)
    assert code == 3
    lines = text.splitlines()
    assert "would run" in lines[-2] and lines[-2].startswith("problem  ")
    assert lines[-1].strip().startswith("fix: Debian, Ubuntu: sudo apt install g++")


def test_a_torch_that_cannot_be_imported_ends_in_exit_code_3(tmp_path):
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.13: cannot open shared object file')")
    code = (
        "import argparse, sys; from trainers.commands import doctor\n"
        "sys.exit(doctor.run(argparse.Namespace(json=False), [], None))"
    )
    path = os.pathsep.join([str(tmp_path), str(Path(doctor.__file__).parents[1])])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 3, done.stderr
    assert "cannot be imported: libcudart.so.13" in done.stdout
    assert done.stdout.splitlines()[-1].strip() == "fix: mend torch, see above"
