"""What a backend is: it compiles a translation unit and prepares launches of its kernels."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from warpdrive.signature import Signature, blank_comments

KERNELS_FOLDER = Path(__file__).resolve().parent.parent / "kernels"
"""Holds warpdrive.cuh and random.cuh; always on the include path."""

SANITIZERS = ("address", "undefined", "thread")


@dataclass(frozen=True)
class Source:
    """One translation unit: constants, then the user's text, unchanged.

    `path` names the file in messages and debug information; it need not exist on disk.
    `constants` are lines of C++ that go ahead of the text.
    """

    path: str
    text: str
    constants: str
    signatures: dict[str, Signature]
    include_folders: tuple[Path, ...] = ()
    options: tuple[str, ...] = ()

    def all_include_folders(self) -> list[Path]:
        """Where `#include "..."` looks: beside the source, in the folders given, among our own kernels."""
        beside = [Path(self.path).parent] if Path(self.path).is_file() else []
        return [*beside, *self.include_folders, KERNELS_FOLDER]

    def included_text(self) -> str:
        """The text of every file that this source includes by `#include "..."`, directly or not."""
        folders = self.all_include_folders()
        waiting, seen = [self.text], {}
        while waiting:
            for name in re.findall(r'^\s*#\s*include\s*"([^"]+)"', blank_comments(waiting.pop()), re.MULTILINE):
                for file in (folder / name for folder in folders):
                    if file.is_file() and file not in seen:
                        seen[file] = file.read_text()
                        waiting.append(seen[file])
                        break
        return "\0".join(seen[file] for file in sorted(seen))


@dataclass(frozen=True)
class LaunchShape:
    """Blocks in the grid; threads of a block as (threads of one env, envs in the block)."""

    num_blocks: int
    block: tuple[int, int] = (1, 1)
    shared_bytes: int = 0


class Module(ABC):
    """A compiled translation unit."""

    @abstractmethod
    def prepare(
        self, signature: Signature, arguments: Sequence[torch.Tensor | float | int | bool], shape: LaunchShape
    ) -> Callable[[], None]:
        """A launch, packed once: calling the result launches the kernel with these arguments.

        `arguments` fit `signature` (the FunctionManager has checked dtype, device and contiguity).
        The result keeps the tensors alive.
        """


class Backend(ABC):
    """`name` is "cpu" or "cuda"; `device` is where its arrays live."""

    name: str
    device: torch.device

    @abstractmethod
    def compile(self, source: Source) -> Module:
        """Raises CompileError with the user's file, line, column, source line and caret."""

    @abstractmethod
    def synchronize(self) -> None:
        """Waits until every launch so far has ended. Raises KernelError if one of them failed."""

    @property
    @abstractmethod
    def prefers_one_thread(self) -> bool:
        """Whether a kernel that is right for any block size is fastest with one thread an env."""


def show_source_line(message: str, path: str, line: int, column: int, text: str) -> str:
    """`path:line:column: error: message`, then the line of `text` and a caret below the column. Both count from 1."""
    lines = text.splitlines()
    shown = f"{path}:{line}:{column}: error: {message}"
    if 1 <= line <= len(lines):
        source = lines[line - 1].expandtabs(4)
        column += 3 * lines[line - 1][: column - 1].count("\t")
        shown += f"\n    {source}\n    {' ' * (column - 1)}^"
    return shown
