"""How kernels are compiled and launched: `cuda` (a GPU) or `cpu` (the host compiler)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warpdrive.errors import BackendError

if TYPE_CHECKING:  # torch is imported by what is called, for the sake of what needs none of it
    import torch

    from warpdrive.backends.base import Backend


def choose_backend(
    env_backend: str = "auto",
    device: str | torch.device | None = None,
    debug: bool = False,
    sanitize: tuple[str, ...] = (),
    driver: str = "auto",
) -> Backend:
    """The backend that a user asked for, or the best one here.

    Args:
        env_backend: "auto" (a GPU if there is one, else the CPU), "cuda" or "cpu".
        device: "auto" or None, "cpu", "cuda" or "cuda:1"; decides where "auto" does not.
        debug: check every launch (see docs); slow.
        sanitize: of "address", "undefined", "thread"; CPU only.
        driver: who loads and launches on a GPU: "auto" (PyCUDA if installed), "pycuda" or "bindings".
    Raises:
        BackendError: what was asked for is not here.
    """
    import torch

    from warpdrive.data_manager import find_device

    if env_backend not in ("auto", "cuda", "cpu"):
        raise BackendError(f"unknown env_backend '{env_backend}'. Choose auto, cuda or cpu.")
    device = None if device in (None, "auto") else find_device(device)
    if device is not None and env_backend == "auto":
        env_backend = device.type
    if device is not None and env_backend != device.type:
        raise BackendError(f"env_backend '{env_backend}' cannot use device '{device}'. Give one of the two.")
    if env_backend == "cuda" or (env_backend == "auto" and not sanitize and torch.cuda.is_available()):
        from warpdrive.backends.cuda import CudaBackend

        if sanitize:
            raise BackendError("sanitizers run on the CPU: use env_backend cpu, or compute-sanitizer for the GPU.")
        index = device.index if device is not None and device.index is not None else 0
        return CudaBackend(index, debug=debug, driver=driver)
    from warpdrive.backends.cpu import CpuBackend

    return CpuBackend(debug=debug, sanitize=sanitize)


def why_this_device(backend: Backend) -> str:
    """One line for the start of a run: the device, and why it and no other."""
    import torch

    if backend.name == "cuda":
        return f"device: {backend.device} ({torch.cuda.get_device_name(backend.device)}), {backend}"
    if torch.cuda.is_available():
        return "device: cpu, as asked (there is a GPU: device 'cuda' would use it)"
    built = "torch sees no GPU" if torch.version.cuda else "this torch is built without CUDA"
    return f"device: cpu, because {built}; the same kernels run on a GPU where there is one"
