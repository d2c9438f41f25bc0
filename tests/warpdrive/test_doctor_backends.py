"""What compiles and what launches gets its line and its fix in the doctor; what is missing here is feigned."""

import ctypes
import importlib
import os
import sys
from types import ModuleType, SimpleNamespace

import pytest
from doctor_cases import NEW, NO_GPU, OLD, has

from warpdrive.backends import cuda, examine, examine_compiler
from warpdrive.errors import BackendError
from warpdrive.findings import OK, PROBLEM, WARNING, Finding
from warpdrive.nvidia_driver import Gpu, NvidiaDriver

pytestmark = pytest.mark.usefixtures("own_cache")


def test_no_compiler_or_one_that_does_not_work_is_told_with_how_to_install_one(no_compiler):
    found = examine_compiler.check_host_compiler()
    assert has(found, PROBLEM, "no C++ compiler: the CPU backend cannot", "sudo apt install g++")
    (no_compiler / "g++").write_text("#!/bin/sh\necho 'g++: no such thing as cc1plus' >&2\nexit 1\n")
    (no_compiler / "g++").chmod(0o755)
    found = examine_compiler.check_host_compiler()
    assert has(found, PROBLEM, "no such thing as cc1plus: the CPU backend", "sudo apt install g++")


def test_a_compiler_is_tried_with_a_kernel_and_nothing_is_left(own_cache):
    found = examine_compiler.check_host_compiler()
    assert found.state == OK and found.text.endswith(", builds kernels")
    assert not list(own_cache.iterdir()) and os.environ["WARPDRIVE_CACHE"] == str(own_cache)


def test_a_disk_from_which_nothing_can_be_loaded_is_told(monkeypatch):
    def refuse(path):
        raise OSError("failed to map segment from shared object")

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    found = examine_compiler.check_host_compiler()
    assert has(found, PROBLEM, "cannot be loaded (failed to map segment", "not mounted noexec")


def test_nothing_that_compiles_for_the_gpu_is_a_problem(no_compiler, monkeypatch):
    monkeypatch.setattr(cuda, "_nvrtc", lambda: None)
    assert has(examine.check_nvrtc(NEW), PROBLEM, "neither NVRTC nor nvcc", "pip install nvidia-cuda-nvrtc")
    assert examine.check_nvrtc(NO_GPU).state == OK
    assert has(examine.check_nvcc(NEW), OK, "none: it is needed for nothing but building PyCUDA", "")
    monkeypatch.setattr(cuda, "_nvcc", lambda: "nvcc")
    assert has(examine.check_nvrtc(NEW), OK, "none: nvcc compiles instead", "")
    assert has(examine.check_nvcc(NEW), WARNING, "nvcc does not run", "CUDA toolkit")


def test_nvrtc_is_held_against_driver_and_gpu(monkeypatch):
    nvrtc = SimpleNamespace(nvrtcVersion=lambda: (0, 13, 0), nvrtcGetSupportedArchs=lambda: (0, [75, 80, 90]))
    monkeypatch.setattr(cuda, "_nvrtc", lambda: nvrtc)
    assert examine.check_nvrtc(NEW) == Finding("nvrtc", OK, "NVRTC 13.0")
    assert has(examine.check_nvrtc(OLD), PROBLEM, "a driver for CUDA 12.4 cannot load", "cuda-bindings==12.*")
    volta = NvidiaDriver(None, (13, 0), None, (Gpu("Tesla V100", 1, (7, 0)),), True)
    assert has(examine.check_nvrtc(volta), PROBLEM, "does not compile for Tesla V100 (sm_70)", "an older")


@pytest.fixture
def pycuda(tmp_path, monkeypatch):
    """A function that installs a PyCUDA whose driver module is this text."""

    def install(text: str) -> None:
        folder = tmp_path / "site" / "pycuda"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").touch()
        (folder / "driver.py").write_text(text)
        monkeypatch.syspath_prepend(folder.parent)
        forget()
        importlib.invalidate_caches()

    def forget() -> dict[str, ModuleType]:
        return {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "pycuda"}

    real = forget()
    yield install
    forget()
    sys.modules.update(real)


@pytest.mark.parametrize(
    ("text", "cause", "fix"),
    [
        ("from pycuda._driver import *", "it was never built", "--no-cache-dir pycuda, with the toolkit's nvcc"),
        ("raise ImportError('_driver.so: undefined symbol: cuCtxCreate_v4')", "another CUDA", "--force-reinstall"),
        ("raise ImportError('libcurand.so.10: cannot open shared object file')", "is gone", "LD_LIBRARY_PATH"),
        ("raise ImportError('libcuda.so.1: cannot open shared object file')", "there is no driver", "mend the driver"),
        ("raise ValueError('numpy.dtype size changed, may indicate')", "another numpy", "--force-reinstall"),
        ("raise ImportError('numpy.core.multiarray failed to import')", "another numpy", "--force-reinstall"),
        ('raise ImportError("version `GLIBCXX_3.4.32\' not found")', "a newer C++ compiler", "libstdcxx-ng"),
        ("import pytools_of_nobody", "a package that it needs", "pip install --force-reinstall pycuda"),
        ("raise PermissionError(13, 'Permission denied', '_driver.so')", "cannot be read", "of your own"),
        ("raise RuntimeError('something else')", "the reason is its own. It says: something else.",
         "--force-reinstall"),
    ],
)  # fmt: skip
def test_each_way_in_which_pycuda_cannot_be_imported_is_told(text, cause, fix, pycuda, monkeypatch):
    pycuda(text)
    monkeypatch.setattr(cuda, "_nvcc", lambda: "nvcc")
    found = examine.check_pycuda(NEW)
    assert has(found, WARNING, cause, fix)


def test_a_pycuda_that_works_is_well_and_so_is_one_that_waits_for_a_driver_without_a_gpu(pycuda):
    pycuda("raise ImportError('libcuda.so.1: cannot open shared object file')")
    assert has(examine.check_pycuda(NO_GPU), OK, "waits for a driver", "")
    pycuda("")
    assert examine.check_pycuda(NEW).state == OK


def test_pycuda_cannot_be_built_without_nvcc(pycuda, no_compiler, monkeypatch):
    pycuda("from pycuda._driver import *")
    assert has(
        examine.check_pycuda(NEW), WARNING, "never built", "pip uninstall pycuda, as cuda.bindings does the same"
    )
    monkeypatch.setattr(examine.PyCudaDriver, "is_installed", classmethod(lambda cls: False))
    assert has(examine.check_pycuda(NEW), OK, "building it takes a CUDA toolkit's nvcc", "")
    monkeypatch.setattr(examine.BindingsDriver, "is_installed", classmethod(lambda cls: False))
    assert has(examine.check_pycuda(NEW), WARNING, "cuda.bindings neither", "pip install nvidia-cuda-nvrtc cuda-bind")
    assert has(examine.check_bindings(NEW), PROBLEM, "nothing else launches", "cuda-bindings")
    assert examine.check_bindings(NO_GPU).state == OK


def test_launches_go_through_cuda_bindings_where_pycuda_is_broken(pycuda, monkeypatch):
    monkeypatch.setattr(cuda, "_drivers", {})
    monkeypatch.setattr(cuda, "BindingsDriver", lambda index: "bindings")
    pycuda("raise ImportError('undefined symbol')")
    assert cuda._driver(0, "auto") == "bindings"
    with pytest.raises(BackendError, match="PyCUDA cannot be imported .undefined symbol.*warpdrive doctor"):
        cuda._driver(0, "pycuda")


def test_without_any_package_called_cuda_the_bindings_are_not_installed(monkeypatch):
    find = importlib.util.find_spec

    def find_spec(name):
        if name == "cuda.bindings":
            raise ModuleNotFoundError("No module named 'cuda'")
        return None if name == "cuda" else find(name)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    assert not examine.BindingsDriver.is_installed()
