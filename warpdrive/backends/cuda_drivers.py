"""Who loads cubins and launches kernels on a GPU: PyCUDA, or cuda.bindings. Both do the same.

A driver owns two streams of the GPU's primary context, the context that torch uses: one for nearly all, and one for
what runs beside that.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib.util
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from warpdrive.backends.base import LaunchShape
from warpdrive.distribution import pip_install
from warpdrive.errors import BackendError, KernelError
from warpdrive.signature import Signature

_STRUCT_CODES = {
    torch.float32: "f", torch.float64: "d", torch.int32: "i", torch.uint32: "I", torch.int64: "q", torch.uint64: "Q",
    torch.int16: "h", torch.uint16: "H", torch.int8: "b", torch.uint8: "B", torch.bool: "?",
}  # fmt: skip


class Driver(ABC):
    """Loads cubins and launches kernels on one GPU."""

    name: str
    stream_handle: int
    side_handle: int
    """Of a second stream."""
    _stream: Any
    """Where launches go."""
    _side: Any

    @classmethod
    @abstractmethod
    def is_installed(cls) -> bool: ...

    @abstractmethod
    def load(self, cubin: bytes) -> object:
        """A module handle."""

    @abstractmethod
    def function(self, module: object, name: str) -> object:
        """The handle of the kernel `name`."""

    @abstractmethod
    def static_shared_bytes(self, function: object) -> int:
        """Shared memory that the kernel declares with a fixed size."""

    @abstractmethod
    def allow_shared_bytes(self, function: object, num_bytes: int) -> None:
        """Raises the kernel's limit of dynamic shared memory, which starts at 48 KB."""

    @abstractmethod
    def prepare(self, function: object, signature: Signature, arguments: tuple, shape: LaunchShape) -> Callable:
        """A launch with everything packed; it keeps the tensors alive."""

    def in_thread(self) -> AbstractContextManager[None]:
        """Where a thread loads and launches kernels that is not the one that made the driver."""
        return nullcontext()

    @contextmanager
    def on_side(self) -> Iterator[None]:
        """Launches, prepared ones too, go to the second stream."""
        self._stream, self._side = self._side, self._stream
        try:
            yield
        finally:
            self._stream, self._side = self._side, self._stream

    @abstractmethod
    def synchronize(self) -> None:
        """Waits for the stream. Raises KernelError if a launch failed."""


def _pack(signature: Signature, arguments: tuple) -> list[tuple[str, object]]:
    """(struct code, value) a parameter; a tensor becomes its address."""
    return [
        ("P", argument.data_ptr()) if parameter.is_pointer else (_STRUCT_CODES[parameter.dtype], argument)
        for parameter, argument in zip(signature.parameters, arguments, strict=True)
    ]


class PyCudaDriver(Driver):
    """PyCUDA, the extra `[cuda]`. This class is the only place that imports it."""

    name = "PyCUDA"

    def __init__(self, index: int) -> None:
        try:
            import pycuda.driver as cuda
        except Exception as error:  # ImportError, or a build for another CUDA
            raise BackendError(
                f"PyCUDA cannot be imported ({error}). Install it with `{pip_install('cuda')}`, "
                "or leave the driver to 'auto', which then takes cuda.bindings. `warpdrive doctor` tells more."
            ) from None
        torch.zeros(1, device=f"cuda:{index}")  # torch makes the primary context first
        cuda.init()
        self._cuda = cuda
        self._context = cuda.Device(index).retain_primary_context()
        self._context.push()
        atexit.register(self._context.pop)  # PyCUDA aborts the process if a context is left
        self._stream, self._side = cuda.Stream(), cuda.Stream()
        self.stream_handle, self.side_handle = self._stream.handle, self._side.handle

    @classmethod
    def is_installed(cls) -> bool:
        return importlib.util.find_spec("pycuda") is not None

    @classmethod
    def import_error(cls) -> Exception | None:
        """Why PyCUDA cannot be imported; None if it can."""
        try:
            import pycuda.driver  # noqa: F401
        except Exception as error:
            return error
        return None

    def load(self, cubin: bytes) -> object:
        return self._cuda.module_from_buffer(cubin)

    def function(self, module: object, name: str) -> object:
        return module.get_function(name)

    def static_shared_bytes(self, function: object) -> int:
        return function.shared_size_bytes

    def allow_shared_bytes(self, function: object, num_bytes: int) -> None:
        function.set_attribute(self._cuda.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, num_bytes)

    def prepare(self, function: object, signature: Signature, arguments: tuple, shape: LaunchShape) -> Callable:
        packed = _pack(signature, arguments)
        buffer = struct.pack("".join(code for code, _ in packed), *(value for _, value in packed))
        launch, shared_bytes = function._launch_kernel, shape.shared_bytes
        grid, block = (shape.num_blocks, 1, 1), (*shape.block, 1)

        def call(_kept_alive=arguments) -> None:
            launch(grid, block, buffer, shared_bytes, self._stream)

        return call

    @contextmanager
    def in_thread(self):
        self._context.push()  # PyCUDA looks for one in a list of its own, a thread's
        try:
            yield
        finally:
            self._context.pop()

    def synchronize(self) -> None:
        try:
            self._stream.synchronize()
        except self._cuda.Error as error:
            raise KernelError(f"a kernel failed on the GPU: {error}. Run it on the CPU in debug mode.") from None


class BindingsDriver(Driver):
    """cuda.bindings, NVIDIA's own Python bindings."""

    name = "cuda.bindings"

    def __init__(self, index: int) -> None:
        try:
            from cuda.bindings import driver as cuda
        except ImportError as error:
            raise BackendError(
                f"neither PyCUDA nor cuda.bindings can be imported ({error}). `pip install cuda-bindings` mends it."
            ) from None
        self._cuda = cuda
        torch.zeros(1, device=f"cuda:{index}")  # torch makes the primary context and makes it current
        torch.cuda.set_device(index)
        self._context = self._check(*cuda.cuCtxGetCurrent())
        flags = cuda.CUstream_flags.CU_STREAM_NON_BLOCKING
        self._stream, self._side = (self._check(*cuda.cuStreamCreate(flags)) for _ in range(2))
        self.stream_handle, self.side_handle = int(self._stream), int(self._side)

    @classmethod
    def is_installed(cls) -> bool:
        # Asked for `cuda.bindings` at once, importlib raises an error where there is no `cuda`.
        return importlib.util.find_spec("cuda") is not None and importlib.util.find_spec("cuda.bindings") is not None

    def load(self, cubin: bytes) -> object:
        return self._check(*self._cuda.cuModuleLoadData(cubin))

    def function(self, module: object, name: str) -> object:
        return self._check(*self._cuda.cuModuleGetFunction(module, name.encode()))

    def static_shared_bytes(self, function: object) -> int:
        attribute = self._cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
        return int(self._check(*self._cuda.cuFuncGetAttribute(attribute, function)))

    def allow_shared_bytes(self, function: object, num_bytes: int) -> None:
        attribute = self._cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._check(*self._cuda.cuFuncSetAttribute(function, attribute, num_bytes))

    def prepare(self, function: object, signature: Signature, arguments: tuple, shape: LaunchShape) -> Callable:
        packed = _pack(signature, arguments)
        values = [ctypes.create_string_buffer(struct.pack(code, value)) for code, value in packed]
        addresses = (ctypes.c_void_p * max(1, len(values)))(*(ctypes.addressof(value) for value in values))
        launch, address = self._cuda.cuLaunchKernel, ctypes.addressof(addresses)
        grid, block, shared_bytes = (shape.num_blocks, 1, 1), (*shape.block, 1), shape.shared_bytes
        success = self._cuda.CUresult.CUDA_SUCCESS

        def call(_kept_alive=(arguments, values, addresses)) -> None:
            (result,) = launch(function, *grid, *block, shared_bytes, self._stream, address, 0)
            if result is not success:
                raise KernelError(self._message(result, signature.name))

        return call

    def synchronize(self) -> None:
        (result,) = self._cuda.cuStreamSynchronize(self._stream)
        if result != self._cuda.CUresult.CUDA_SUCCESS:
            raise KernelError(self._message(result, None))

    def _check(self, result: object, *values: object) -> object:
        if result != self._cuda.CUresult.CUDA_SUCCESS:
            raise BackendError(self._message(result, None))
        return values[0] if values else None

    def _message(self, result: object, kernel: str | None) -> str:
        text = self._cuda.cuGetErrorString(result)[1]
        what = f"kernel '{kernel}' could not be launched" if kernel else "a kernel failed on the GPU"
        return f"{what}: {text.decode() if text else result}. Run it on the CPU in debug mode."
