"""Asks the backends what they would do on this machine, for the doctor."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import torch as pytorch

from warpdrive.backends import choose_backend, cuda, why_this_device
from warpdrive.backends.base import LaunchShape, Source
from warpdrive.backends.compiler_process import work_folder
from warpdrive.backends.cuda_drivers import BindingsDriver, PyCudaDriver
from warpdrive.backends.examine_compiler import KERNEL
from warpdrive.cache import cache_folder
from warpdrive.distribution import pip_install
from warpdrive.errors import WarpDriveError
from warpdrive.findings import OK, PROBLEM, WARNING, WOULD_RUN, Finding, Torch, dotted, one_line
from warpdrive.nvidia_driver import NvidiaDriver
from warpdrive.signature import read_signatures

_NVRTC = "pip install nvidia-cuda-nvrtc cuda-bindings"
_TOOLKIT = "install the CUDA toolkit (developer.nvidia.com/cuda-downloads) and put its bin folder on the PATH"
_REBUILD = "pip install --force-reinstall --no-deps --no-cache-dir pycuda"

PYCUDA_CAUSES = (
    (r"libcuda\.so", "there is no driver, which it is loaded with.", "mend the driver, see above"),
    (r"numpy|_ARRAY_API|multiarray", "it was built for another numpy.", _REBUILD),
    (r"undefined symbol", "it was built for another CUDA than the one that is found now.", _REBUILD),
    (
        r"lib(cudart|curand|nvrtc|cublas)\S*\.so",
        "the CUDA that it was built with is gone, or not on the library path.",
        f"{_REBUILD}, with the toolkit's nvcc on the PATH; or add the toolkit's lib64 to LD_LIBRARY_PATH",
    ),
    (
        r"GLIBCXX|libstdc\+\+",
        "it was built with a newer C++ compiler than the C++ library that Python has loaded.",
        f"{_REBUILD}; in conda first: conda install -c conda-forge libstdcxx-ng",
    ),
    (
        r"pycuda\._driver|_pvt_struct",
        "it was never built: its machine code is missing.",
        f"{_REBUILD}, with the toolkit's nvcc on the PATH",
    ),
    (r"[Pp]ermission denied", "its files cannot be read by this user.", f"{_REBUILD} in an environment of your own"),
    (r"No module named", "a package that it needs is missing.", "pip install --force-reinstall pycuda"),
    (r"", "the reason is its own.", _REBUILD),
)
"""What a failed import says -> what it comes from, and what mends it; the first that fits."""


def examine_backends(
    torch: Torch, driver: NvidiaDriver, compiler: Future[Finding], can_keep: bool = True
) -> list[Finding]:
    """What compiles and what launches here, each tried with a tiny kernel; last, what a run would take.

    Args:
        compiler: what `check_host_compiler` says, as soon as it has tried.
        can_keep: whether the cache takes files: else nothing can be compiled.
    """
    with ThreadPoolExecutor() as pool:
        nvcc = pool.submit(check_nvcc, driver)  # a process that takes its time, while modules are imported
        nvrtc, *launchers = check_nvrtc(driver), check_pycuda(driver), check_bindings(driver)
        findings = [compiler.result(), nvrtc, nvcc.result(), *launchers]
    return [*findings, check_what_runs(torch, findings[0], can_keep)]


@contextlib.contextmanager
def _empty_cache() -> Iterator[None]:
    """A cache of its own inside the user's, so that what is built is built now, and can be loaded from there."""
    before = os.environ.get("WARPDRIVE_CACHE")
    with work_folder(cache_folder()) as folder:
        os.environ["WARPDRIVE_CACHE"] = str(folder)
        try:
            yield
        finally:
            if before is None:
                del os.environ["WARPDRIVE_CACHE"]
            else:
                os.environ["WARPDRIVE_CACHE"] = before


def _tiny_source() -> Source:
    return Source("doctor.cu", KERNEL, "", read_signatures(KERNEL, "doctor.cu"))


def check_nvrtc(driver: NvidiaDriver) -> Finding:
    """The compiler that a GPU's kernels go through, if it is there."""
    nvrtc = cuda._nvrtc()
    if nvrtc is None:
        if not driver.is_gpu_here:
            return Finding("nvrtc", OK, "none: only a GPU's kernels would need it")
        if cuda._nvcc() is not None:
            return Finding("nvrtc", OK, "none: nvcc compiles instead")
        return Finding("nvrtc", PROBLEM, "neither NVRTC nor nvcc: nothing here compiles for the GPU.", _NVRTC)
    _, *version = nvrtc.nvrtcVersion()
    text = f"NVRTC {dotted(version)}"
    if driver.cuda is not None and version[0] > driver.cuda[0]:
        text += f" compiles what a driver for CUDA {dotted(driver.cuda)} cannot load."
        fix = f"update the driver, or take an older NVRTC: pip install 'cuda-bindings=={driver.cuda[0]}.*'"
        return Finding("nvrtc", PROBLEM, text, f"{fix} nvidia-cuda-nvrtc-cu{driver.cuda[0]}")
    archs = nvrtc.nvrtcGetSupportedArchs()[1]
    for gpu in driver.gpus[:1]:
        if gpu.capability[0] * 10 + gpu.capability[1] not in archs:
            text += f" does not compile for {gpu.name} (sm_{gpu.capability[0]}{gpu.capability[1]})."
            return Finding("nvrtc", PROBLEM, text, f"take a newer one for a newer GPU, an older for an older: {_NVRTC}")
    return Finding("nvrtc", OK, text)


def check_nvcc(driver: NvidiaDriver) -> Finding:
    """The toolkit's compiler: it builds PyCUDA, and kernels where NVRTC is missing."""
    path = cuda._nvcc()
    if path is None:
        why = "none: it is needed for nothing but building PyCUDA" if driver.is_gpu_here else "none, and none is needed"
        return Finding("nvcc", OK, why)
    try:
        found = re.search(r"release ([\d.]+)", cuda._nvcc_version())
    except (OSError, WarpDriveError, ValueError, RuntimeError) as error:
        return Finding("nvcc", WARNING, f"{path} does not run ({one_line(error)}).", _TOOLKIT)
    return Finding("nvcc", OK, f"CUDA {found.group(1) if found else '?'}, {path}")


def check_pycuda(driver: NvidiaDriver) -> Finding:
    """PyCUDA, which launches kernels where it is installed."""
    if not PyCudaDriver.is_installed():
        if not driver.is_gpu_here:
            return Finding("pycuda", OK, "not installed: only a GPU would need it")
        how = f"{pip_install('cuda')} builds it" if cuda._nvcc() else "building it takes a CUDA toolkit's nvcc"
        if BindingsDriver.is_installed():
            return Finding("pycuda", OK, f"not installed, nor needed: cuda.bindings launches ({how})")
        return Finding("pycuda", WARNING, f"not installed, and cuda.bindings neither: {how}.", _NVRTC)
    version = _version_of("pycuda")
    if (error := PyCudaDriver.import_error()) is None:
        return Finding("pycuda", OK, version)
    if not driver.is_gpu_here and "libcuda.so" in str(error):
        return Finding("pycuda", OK, f"{version}, which waits for a driver: there is no GPU")
    said = f"{type(error).__name__}: {error}"
    cause, fix = next((c, f) for pattern, c, f in PYCUDA_CAUSES if re.search(pattern, said))
    instead = " cuda.bindings launches instead." if BindingsDriver.is_installed() else ""
    if cuda._nvcc() is None and "pip install" in fix:
        fix = f"pip uninstall pycuda, as cuda.bindings does the same; or to rebuild it, {_TOOLKIT}, then {fix}"
    text = f"{version} cannot be imported: {cause} It says: {one_line(error)}.{instead}"
    return Finding("pycuda", WARNING, text, fix)


def check_bindings(driver: NvidiaDriver) -> Finding:
    """cuda.bindings, which launches kernels where PyCUDA is not."""
    if not BindingsDriver.is_installed():
        if not driver.is_gpu_here or (PyCudaDriver.is_installed() and PyCudaDriver.import_error() is None):
            return Finding("cuda.bindings", OK, "not installed, nor needed here")
        return Finding("cuda.bindings", PROBLEM, "not installed, and nothing else launches on the GPU.", _NVRTC)
    try:
        from cuda.bindings import driver as _  # noqa: F401
    except Exception as error:  # ImportError, or whatever a half-installed library raises
        fix = "pip install --force-reinstall cuda-bindings"
        return Finding("cuda.bindings", WARNING, f"cannot be imported ({one_line(error)}).", fix)
    return Finding("cuda.bindings", OK, _version_of("cuda-bindings"))


def check_what_runs(torch: Torch, compiler: Finding, can_keep: bool) -> Finding:
    """What `device: auto` takes here, tried; a problem if nothing can train."""
    runs_on_cpu = can_keep and compiler.state == OK
    if not can_keep:
        return Finding(WOULD_RUN, PROBLEM, "nothing: compiled kernels cannot be kept.", "mend the cache, see above")
    if not torch.sees_gpu:
        if not runs_on_cpu:
            return Finding(WOULD_RUN, PROBLEM, "nothing: neither a GPU nor a C++ compiler.", compiler.fix)
        built = "torch sees no GPU" if torch.cuda else "this torch is built without CUDA"
        return Finding(WOULD_RUN, OK, f"device: cpu, because {built}; {_num_cores()} cores")
    try:
        return Finding(WOULD_RUN, OK, _try_gpu())
    except Exception as error:  # the driver's, torch's, ours: each is told
        state = WARNING if runs_on_cpu else PROBLEM
        text = f"no kernel runs on the GPU ({one_line(error)})"
        if runs_on_cpu:
            return Finding(WOULD_RUN, state, f"{text}, but the CPU can train.", "train with --device cpu meanwhile")
        return Finding(WOULD_RUN, state, f"nothing: {text}, and the CPU has no compiler.", compiler.fix)


def _try_gpu() -> str:
    """Compiles, launches and reads back a kernel as a run would; what it ran on."""
    backend = choose_backend()
    source = _tiny_source()
    x = pytorch.zeros(32, dtype=pytorch.int32, device=backend.device)
    with _empty_cache():
        module = backend.compile(source)
    module.prepare(source.signatures["doctor_step"], [x], LaunchShape(1, (32, 1)))()
    backend.synchronize()
    if x.tolist() != list(range(1, 33)):
        raise RuntimeError(f"a kernel wrote {x.tolist()[:4]} ... instead of 1, 2, 3, 4 ...")
    return why_this_device(backend)


def _version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
