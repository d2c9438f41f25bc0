"""Reads what the host compiler made of a kernel's source: the symbols of an object file, and who uses them."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass


@dataclass(frozen=True)
class _Symbol:
    name: str
    kind: int
    section: int
    value: int
    size: int


_FUNCTION, _THREAD_LOCAL, _UNDEFINED_SECTION = 2, 6, 0


class ObjectFile:
    """The symbols of a 64-bit ELF object file and where its code refers to them."""

    def __init__(self, file: bytes) -> None:
        (sections_at,) = struct.unpack_from("<Q", file, 40)
        entry_size, num_sections = struct.unpack_from("<HH", file, 58)
        if num_sections == 0:  # too many for the field: the first section holds their number
            (num_sections,) = struct.unpack_from("<Q", file, sections_at + 32)
        sections = [struct.unpack_from("<IIQQQQIIQQ", file, sections_at + i * entry_size) for i in range(num_sections)]
        symbol_table, extended_sections, relocations_with_addend = 2, 18, 4
        allocated = 2
        self.num_allocated_bytes = sum(size for _, _, flags, _, _, size, *_ in sections if flags & allocated)
        self.symbols: list[_Symbol] = []
        self.references: list[tuple[int, int, int]] = []  # section, offset in it, index of the symbol
        in_extended: list[int] = []
        for _, kind, _, _, offset, size, _, _, _, _ in sections:
            if kind == extended_sections:
                in_extended = [index for (index,) in struct.iter_unpack("<I", file[offset : offset + size])]
        for _, kind, _, _, offset, size, link, info, _, _ in sections:
            content = file[offset : offset + size]
            if kind == symbol_table:
                strings_at = sections[link][4]
                for i, (name, type_, _, section, value, bytes_) in enumerate(struct.iter_unpack("<IBBHQQ", content)):
                    end = file.index(b"\0", strings_at + name)
                    section = in_extended[i] if section == 0xFFFF and in_extended else section
                    text = file[strings_at + name : end].decode(errors="replace")
                    self.symbols.append(_Symbol(text, type_ & 15, section, value, bytes_))
            elif kind == relocations_with_addend:
                self.references += [(info, at, what >> 32) for at, what, _ in struct.iter_unpack("<QQq", content)]


def undefined_thread_locals(file: bytes) -> list[str]:
    """Names of the thread-local variables that a 64-bit ELF object file uses and does not define."""
    symbols = ObjectFile(file).symbols
    return [s.name for s in symbols if s.kind == _THREAD_LOCAL and s.section == _UNDEFINED_SECTION]


def static_shared_bytes(file: bytes, kernel: str) -> int:
    """Bytes of the `__shared__` variables that a kernel's compiled code refers to.

    Those of functions it calls count where the compiler inlined them: what is found is never more than on a GPU.
    """
    compiled = ObjectFile(file)
    in_template = re.compile(rf"_ZN13warpdrive_cpu6KernelIXadL_Z(?:\d+L?)?L?{len(kernel)}{kernel}(?![0-9])")
    own = [
        symbol
        for symbol in compiled.symbols
        if symbol.kind == _FUNCTION and (symbol.name == kernel or in_template.match(symbol.name))
    ]
    most = 0
    for function in own:
        used = {
            index
            for section, at, index in compiled.references
            if section == function.section and function.value <= at < function.value + function.size
        }
        symbols = [compiled.symbols[index] for index in used]
        shared = [s for s in symbols if s.kind == _THREAD_LOCAL and s.section != _UNDEFINED_SECTION]
        most = max(most, sum(s.size for s in shared if "warpdrive_cpu" not in s.name))
    return most
