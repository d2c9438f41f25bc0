"""Machines that are well or not, for the tests of the doctor."""

from warpdrive.findings import Finding, Torch
from warpdrive.nvidia_driver import Gpu, NvidiaDriver

H100 = Gpu("NVIDIA H100", 80 * 2**30, (9, 0))
NO_GPU = NvidiaDriver("libcuda.so.1: cannot open shared object file: No such file or directory")
NEW = NvidiaDriver(None, (13, 0), "580.65.06", (H100,), True)
OLD = NvidiaDriver(None, (12, 4), "550.54.14", (H100,), True)
GPU_TORCH = Torch("2.13.0", "13.0", ("sm_75", "sm_80", "sm_90", "compute_90"), True)
CPU_TORCH = Torch("2.13.0+cpu")


def only(findings: list[Finding]) -> Finding:
    (finding,) = findings
    return finding


def has(finding: Finding, state: str, text: str, fix: str) -> bool:
    return finding.state == state and text in finding.text and fix in finding.fix
