"""What a backend is: it compiles a translation unit and prepares launches of its kernels."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from warpdrive.comments import blank_comments
from warpdrive.errors import BackendError

if TYPE_CHECKING:  # the doctor tries the host compiler while torch is imported
    import torch

    from warpdrive.signature import Signature

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

    def included_files(self) -> dict[Path, str]:
        """The text of every file that this source includes and that we can find, directly or not, by path.

        The compiler's own headers are not among them: they change with the compiler's version.
        """
        options = [Path(option[2:]) for option in self.options if option.startswith("-I")]
        top_folders = [*self.all_include_folders(), *options]
        waiting: list[tuple[str, list[Path]]] = [(self.text, [])]
        found: dict[Path, str] = {}
        while waiting:
            text, beside = waiting.pop()
            for quote, name in re.findall(r'^\s*#\s*include\s*(["<])([^">]+)[">]', blank_comments(text), re.MULTILINE):
                folders = [*(beside if quote == '"' else []), *top_folders]
                file = next((folder / name for folder in folders if (folder / name).is_file()), None)
                if file is not None and file not in found:
                    found[file] = file.read_text()
                    waiting.append((found[file], [file.parent]))
        return found

    def included_text(self) -> str:
        """All that this source includes, as one text: a part of what decides what is compiled."""
        files = self.included_files()
        return "\0".join(f"{file}\0{files[file]}" for file in sorted(files))

    def line_directive(self) -> str:
        """`#line 1 "path"`, so that messages name the user's file."""
        return f'#line 1 "{escape(self.path)}"'


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

    def build(self, source: Source) -> None:
        """On any thread what takes long of `compile`, into the cache. Raises as that does."""
        type(self).compile(self, source)  # not what stands in for it while all is compiled ahead (see ahead.py)

    def in_thread(self) -> AbstractContextManager[None]:
        """Where a thread loads and launches kernels that is not the one that made the backend."""
        return nullcontext()

    def beside(self) -> AbstractContextManager[Callable[[], None]]:
        """What is launched within, and torch's work there, may run beside what comes after it, until what this gives is
        called: `with backend.beside() as meet: ...`. It begins after what was launched before. What it reads must stay
        as it is until then."""
        return nullcontext(lambda: None)

    @abstractmethod
    def synchronize(self) -> None:
        """Waits until every launch so far has ended. Raises KernelError if one of them failed."""

    @property
    @abstractmethod
    def prefers_one_thread(self) -> bool:
        """Whether a kernel that is right for any block size is fastest with one thread an env."""


def escape(path: str) -> str:
    """A path as it stands in a C string."""
    return path.replace("\\", "\\\\").replace('"', '\\"')


def check_room(said: str, path: str) -> None:
    """Raises BackendError where a compiler failed on a full disk, which says nothing of the file at `path`."""
    if full := re.search(r"^.*(?:No space left on device|Disk quota exceeded).*$", said, re.MULTILINE):
        raise BackendError(
            f"{path}: no room to compile it: {full[0].strip()}. Make room, or set TMPDIR to a folder on another disk."
        )


def too_much_shared(source: Source, kernel: str, used: int, most: int) -> str:
    """What to say of a kernel with more static shared memory than a GPU's block may have."""
    line = source.signatures[kernel].line if kernel in source.signatures else 1
    message = (
        f"kernel '{kernel}' has {used} bytes of static shared memory. A GPU's block has {most} ({most >> 10} KB): "
        "use fewer or smaller __shared__ arrays, or dynamic shared memory (extern __shared__)."
    )
    return show_source_line(message, source.path, line, 1, source.text)


def show_source_line(message: str, path: str, line: int, column: int, text: str) -> str:
    """`path:line:column: error: message`, then the line of `text` and a caret below the column. Both count from 1."""
    lines = text.splitlines()
    shown = f"{path}:{line}:{column}: error: {message}"
    if 1 <= line <= len(lines):
        source = lines[line - 1].expandtabs(4)
        column += 3 * lines[line - 1][: column - 1].count("\t")
        shown += f"\n    {source}\n    {' ' * (column - 1)}^"
    return shown
