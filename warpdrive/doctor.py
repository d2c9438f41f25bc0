"""Looks at this machine: what kernels and training need, what is missing, and how to mend it.

Every check gives findings: one line each that says what was found and, if it is not well, what to do. The backends
themselves say what they would do, so that nothing here can differ from what a run does.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import re
import shlex
import shutil
import stat
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from warpdrive import nvidia_driver
from warpdrive.cache import asked_folder, cache_folder, why_not_safe
from warpdrive.distribution import DISTRIBUTION, pip_install
from warpdrive.errors import BackendError
from warpdrive.findings import OK, PROBLEM, WARNING, WOULD_RUN, Finding, Torch, dotted, one_line
from warpdrive.nvidia_driver import NvidiaDriver

MIN_PYTHON = (3, 11)
MIN_DRIVERS = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
"""CUDA's major version -> the oldest Linux driver that runs it. Source: NVIDIA, CUDA Toolkit release notes."""
FEW_BYTES, TOO_FEW_BYTES = 5_000_000_000, 100_000_000
"""Free on a disk: less than the first is worth a warning, less than the second stops a run."""

_TORCH_WITH_CUDA = "reinstall torch from pypi.org, whose Linux builds bring CUDA: pip install --force-reinstall torch"


@dataclass(frozen=True)
class Report:
    findings: tuple[Finding, ...]
    can_train: bool


def examine() -> Report:
    """Every check, in order. Builds a tiny kernel; leaves nothing behind but the cache's folder."""
    from warpdrive.backends.examine_compiler import check_host_compiler

    cache = check_cache()
    can_keep = cache.state != PROBLEM
    with ThreadPoolExecutor() as pool:  # importing torch takes longer than either
        asking = pool.submit(find_and_wake_driver)
        compiling = pool.submit(check_host_compiler, can_keep)
        findings = [check_python(sys.version_info[:3]), *check_packages(), cache, *check_disks()]
        torch, driver = ask_torch(), asking.result()
        findings += [*check_driver(driver), check_torch(torch, driver)]
        if torch.error is not None:
            findings.append(Finding(WOULD_RUN, PROBLEM, "nothing: every device takes torch.", "mend torch, see above"))
        else:
            from warpdrive.backends.examine import examine_backends  # imports torch

            findings += examine_backends(torch, driver, compiling, can_keep)
    return Report(tuple(findings), findings[-1].state != PROBLEM)


# ----------------------------------------------------------------------------------------- Python and packages


def check_python(version: tuple[int, ...]) -> Finding:
    found = ".".join(map(str, version))
    if version[:2] < MIN_PYTHON:
        oldest = ".".join(map(str, MIN_PYTHON))
        fix = f"make an environment with Python {oldest} or later: uv venv --python {oldest}"
        return Finding("python", PROBLEM, f"{found}, but {oldest} or later is needed.", fix)
    return Finding("python", OK, f"{found}, {sys.executable}, on {platform.system()} {platform.machine()}")


def check_packages(
    requires: Iterable[str] | None = None, version_of: Callable[[str], str] = importlib.metadata.version
) -> list[Finding]:
    """A finding for each package that the framework needs, and one for those that are optional.

    Args:
        requires: requirements as in package metadata; those of the installed project if not given.
    """
    if requires is None:
        try:
            requires = importlib.metadata.requires(DISTRIBUTION) or []
        except importlib.metadata.PackageNotFoundError:
            text = "warpdrive itself is not installed: it runs from a folder, so nobody looked after what it needs."
            return [Finding("packages", WARNING, text, pip_install())]
    findings, extras = [], []
    for line in requires:
        name, least = re.match(r"([\w.-]+)(?:\[.*?\])?\s*(?:>=\s*([\w.]+))?", line).groups()
        extra = re.search(r"extra\s*==\s*[\"'](\w+)[\"']", line)
        try:
            found = version_of(name)
        except importlib.metadata.PackageNotFoundError:
            found = None
        if extra is not None:
            if extra.group(1) not in ("test", "dev"):
                extras.append(f"{name} {found or 'is not installed'} [{extra.group(1)}]")
            continue
        findings.append(_package(name, found, least))
    if extras:
        findings.append(Finding("extras", OK, f"{', '.join(extras)}: {pip_install('NAME')} brings one"))
    return findings


def _package(name: str, found: str | None, least: str | None) -> Finding:
    needed = f">={least}" if least else ""
    if found is None:
        return Finding(name, PROBLEM, "is not installed.", f"pip install '{name}{needed}'")
    if least and _numbers(found) < _numbers(least):
        text = f"{found} is too old: {least} or later is needed."
        return Finding(name, PROBLEM, text, f"pip install '{name}{needed}'")
    return Finding(name, OK, found)


# ------------------------------------------------------------------------------------------------ GPU and torch


def find_and_wake_driver() -> NvidiaDriver:
    """NVIDIA's driver; the GPU that a kernel is tried on gets ready meanwhile."""
    driver = nvidia_driver.find_driver()
    if driver.gpus:
        nvidia_driver.wake_first_gpu()
    return driver


def check_driver(driver: NvidiaDriver) -> list[Finding]:
    """NVIDIA's driver, and a finding for each GPU that it shows."""
    if driver.error is None and driver.gpus:
        name = f"NVIDIA {driver.version or 'driver'}, which runs CUDA up to {dotted(driver.cuda)}"
        return [Finding("driver", OK, name), *(_gpu(i, gpu) for i, gpu in enumerate(driver.gpus))]
    if driver.closed_files:
        text = f"{', '.join(driver.closed_files)} cannot be opened by this user, so no GPU can be used."
        group = _group_of(driver.closed_files[0])
        fix = f"sudo usermod -aG {shlex.quote(group)} $USER and log in anew, or ask whoever runs the machine"
        return [Finding("driver", PROBLEM, text, fix)]
    if isinstance(driver.error, str):
        if not driver.is_gpu_here:
            return [Finding("driver", OK, "none, and no NVIDIA GPU in this machine: kernels run on the CPU")]
        text = f"there is an NVIDIA GPU here, but no driver for it ({driver.error})."
        fix = f"install the driver (Ubuntu: sudo ubuntu-drivers install), {MIN_DRIVERS[13]} or later; "
        return [Finding("driver", PROBLEM, text, fix + "in a container: start it with --gpus all")]
    if driver.error in (None, nvidia_driver.NO_DEVICE):
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        if hidden is not None:
            text = f"CUDA_VISIBLE_DEVICES={hidden!r} hides all GPUs."
            return [Finding("driver", WARNING, text, "unset CUDA_VISIBLE_DEVICES, or name a GPU in it")]
        text = "there is a driver, but it shows no GPU."
        return [Finding("driver", WARNING, text, "nvidia-smi tells why; in a container: start it with --gpus all")]
    causes = {
        nvidia_driver.STUB: (
            "the libcuda.so.1 that is found is the toolkit's stub, which drives nothing.",
            "take the folder 'stubs' out of LD_LIBRARY_PATH",
        ),
        nvidia_driver.MISMATCH: (
            "the driver's library and its kernel module are of different versions: it was updated while it ran.",
            "restart the machine",
        ),
        nvidia_driver.OS_REFUSED: (
            "the system refused the driver's call: its device files are missing or closed.",
            "run nvidia-modprobe -u -c 0; in a container: start it with --gpus all",
        ),
    }
    other = f"the driver cannot start (CUDA error {driver.error}).", "nvidia-smi tells more; restart the machine"
    return [Finding("driver", PROBLEM, *causes.get(driver.error, other))]


def _gpu(index: int, gpu: nvidia_driver.Gpu) -> Finding:
    arch = "sm_{}{}".format(*gpu.capability)
    text = f"{gpu.name}, {gpu.num_bytes / 2**30:.0f} GiB, compute capability {dotted(gpu.capability)} ({arch})"
    if gpu.compute_mode == nvidia_driver.PROHIBITED:
        text += ", but its compute mode lets nobody use it."
        return Finding(f"gpu {index}", PROBLEM, text, f"sudo nvidia-smi -i {index} -c DEFAULT")
    return Finding(f"gpu {index}", OK, text)


def ask_torch() -> Torch:
    """Imports torch, which takes most of the time that all checks take."""
    try:
        with warnings.catch_warnings():  # an old driver is told of below
            warnings.simplefilter("ignore")
            import torch

            sees_gpu = torch.cuda.is_available()
            archs = tuple(torch.cuda.get_arch_list())
    except Exception as error:  # ImportError, or whatever a half-installed library raises
        return Torch(error=one_line(error))
    return Torch(torch.__version__, torch.version.cuda, archs, sees_gpu)


def check_torch(torch: Torch, driver: NvidiaDriver) -> Finding:
    """torch's build against the driver and the GPU."""
    if torch.error is not None:
        text = f"torch cannot be imported: {torch.error}."
        return Finding("torch build", PROBLEM, text, "pip install --force-reinstall torch")
    if torch.cuda is None:
        if not driver.is_gpu_here:
            return Finding("torch build", OK, f"{torch.version}, built without CUDA, as there is no GPU")
        text = f"{torch.version} is built without CUDA, so it cannot use the GPU."
        return Finding("torch build", WARNING, text, _TORCH_WITH_CUDA)
    built = f"{torch.version}, built for CUDA {torch.cuda}"
    needed = _numbers(torch.cuda)
    if driver.cuda is not None and needed[:1] > driver.cuda[:1]:
        text = f"{built}, is too new for the driver, which runs CUDA up to {dotted(driver.cuda)}."
        fix = f"update the driver to {MIN_DRIVERS.get(needed[0], 'its newest')} or later, "
        fix += f"or take a torch for CUDA {driver.cuda[0]} (pytorch.org/get-started tells how)"
        return Finding("torch build", PROBLEM, text, fix)
    for gpu in driver.gpus[:1] if torch.archs else ():
        if not _runs_on(torch.archs, gpu.capability):
            text = f"{built}, is not built for {gpu.name} (sm_{gpu.capability[0]}{gpu.capability[1]}), only for "
            fix = "take a torch whose list has it: an older one for an older GPU, a newer one for a newer"
            return Finding("torch build", PROBLEM, text + ", ".join(torch.archs) + ".", fix)
    if driver.gpus and not torch.sees_gpu:
        fix = "python -c 'import torch; torch.cuda.init()' tells why"
        return Finding("torch build", PROBLEM, f"{built}, sees no GPU, though the driver does.", fix)
    return Finding("torch build", OK, built)


def _runs_on(archs: Iterable[str], capability: tuple[int, int]) -> bool:
    """Machine code runs on GPUs of its major version from its minor version on; compute_ code on all later ones."""
    for arch in archs:
        kind, major, minor = re.match(r"(sm|compute)_(\d+)(\d)", arch).groups()
        built = int(major), int(minor)
        if (built[0] == capability[0] or kind == "compute") and built <= capability:
            return True
    return False


# ------------------------------------------------------------------------------------------- folders and disks


def check_cache() -> Finding:
    """The folder of compiled kernels: ours, closed to others, and with room for a file."""
    try:
        with contextlib.suppress(OSError):  # told below
            asked = asked_folder()
            if asked.is_dir() and (why := why_not_safe(asked.resolve())) is not None:
                fix = f"chmod 700 {shlex.quote(str(asked))} if it is yours, or set WARPDRIVE_CACHE to a folder of yours"
                return Finding("cache", WARNING, f"{why}, so {cache_folder()} is used instead.", fix)
        folder = cache_folder()
        with tempfile.NamedTemporaryFile(dir=folder, prefix="doctor", suffix=".tmp") as file:
            file.write(bytes(65536))
            file.flush()
    except BackendError as error:
        text, _, fix = str(error).partition(" Set WARPDRIVE_CACHE")
        return Finding("cache", PROBLEM, text, f"set WARPDRIVE_CACHE{fix}".rstrip("."))
    except OSError as error:
        text = f"nothing can be written into {folder} ({error.strerror})."
        fix = f"make room there (rm {shlex.quote(str(folder))}/*), or set WARPDRIVE_CACHE to another folder"
        return Finding("cache", PROBLEM, text, fix)
    sizes = []
    for entry in os.scandir(folder):
        with contextlib.suppress(OSError):  # another process may have taken it away
            sizes.append(entry.stat(follow_symlinks=False).st_size)
    text = f"{folder}, {len(sizes):,} files, {sum(sizes) / 1e6:,.0f} MB"
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & 0o055:
        fix = f"chmod 700 {shlex.quote(str(folder))}"
        return Finding("cache", WARNING, f"{text}, can be read by others (mode {mode:04o}).", fix)
    return Finding("cache", OK, text)


def check_disks() -> list[Finding]:
    """Room where kernels are kept, where compilers work and where runs are written; one line a disk."""
    places = [("cache", _existing_cache()), ("temporary", tempfile.gettempdir()), ("current", ".")]
    findings, seen = [], {}
    for name, place in places:
        with contextlib.suppress(OSError):
            seen.setdefault(os.stat(place).st_dev, (place, []))[1].append(name)
    for place, names in seen.values():
        free = shutil.disk_usage(place).free
        text = f"{free / 1e9:,.1f} GB free for the {' and the '.join(names)} folder{'s' * (len(names) > 1)}"
        state = PROBLEM if free < TOO_FEW_BYTES else WARNING if free < FEW_BYTES else OK
        text = text if state == OK else f"{text} ({Path(place).resolve()})."
        fix = "" if state == OK else "make room, or set WARPDRIVE_CACHE, TMPDIR and saving.basedir to another disk"
        findings.append(Finding("disk", state, text, fix))
    return findings


def _existing_cache() -> Path:
    folder = asked_folder()
    return next((place for place in [folder, *folder.parents] if place.exists()), Path("/"))


def _numbers(version: str) -> tuple[int, ...]:
    """(2, 13, 0) of "2.13.0+cpu"."""
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("+")[0])[:3])


def _group_of(file: str) -> str:
    """The group that owns a file; "video", the usual one, if it has no name."""
    import grp

    try:
        name = grp.getgrgid(os.stat(file).st_gid).gr_name
    except (KeyError, OSError):
        return "video"
    return "video" if name == "root" else name
