"""A backend that compiles for GPUs and launches nothing: kernels can be checked where there is no GPU."""

import torch

from warpdrive.backends.base import Backend, Module, Source
from warpdrive.backends.cuda import compile_to_cubin


class CompileOnlyBackend(Backend):
    name = "cuda"
    device = torch.device("cpu")  # where arrays wait, as there is no GPU
    prefers_one_thread = False

    def __init__(self, compiler: str, arch: str) -> None:
        self.compiler, self.arch = compiler, arch
        self.compiled: list[str] = []

    def compile(self, source: Source) -> Module:
        cubin = compile_to_cubin(source, self.arch, self.compiler)
        assert cubin[:4] == b"\x7fELF"
        for kernel in source.signatures:
            assert f".text.{kernel}\0".encode() in cubin, f"the cubin has no code of kernel '{kernel}'"
        self.compiled += source.signatures
        return NoModule()

    def synchronize(self) -> None:
        pass


class NoModule(Module):
    def prepare(self, signature, arguments, shape):
        return lambda: None
