"""Builds CUDA C sources into shared libraries with g++ or clang++."""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from warpdrive.backends.base import KERNELS_FOLDER, Source, check_room, show_source_line, too_much_shared
from warpdrive.backends.compiler_process import run_compiler, run_tool, work_folder
from warpdrive.backends.object_file import ObjectFile, static_shared_bytes, undefined_thread_locals
from warpdrive.cache import cache_folder, cache_key, cached
from warpdrive.comments import blank_comments
from warpdrive.errors import BackendError, CompileError

MAX_SHARED_BYTES = 227 * 1024
"""Dynamic shared memory of a block, as on an H100."""

MAX_FRAME_BYTES = 64 * 1024
"""Locals of one thread, half of the stack that cpu_fiber.h gives it; more is refused when a kernel is compiled."""

MAX_STATIC_SHARED_BYTES = 48 * 1024
"""`__shared__` variables of fixed size in one kernel, as on every GPU."""

MAX_VARIABLES_BYTES = 2_000_000_000
"""Code and variables of one file: x86-64's instructions reach 2 GiB, and every machine refuses the same files."""

NUM_ERRORS_SHOWN = 5

FEW_SOURCES = 4
"""That a process builds before it is worth to compile what all of them include beforehand."""

_building_header = threading.Lock()
_headers: dict[str, Path | None] = {}
_num_without: Counter[str] = Counter()
"""By key of a header: where it is, None if it cannot be made; and how many sources were built without."""

_ENTRY_POINTS = "<entry points>"
_FIRST_ENTRY_LINE = 3

_SHIM_FILES = ("cpu_abi.h", "cpu_atomics.h", "cpu_checks.h", "cpu_math.h", "cpu_shim.h", "cpu_warp.h")
_RUNTIME_FILES = ("cpu_abi.h", "cpu_accesses.h", "cpu_fiber.h", "cpu_block.h", "cpu_stop.h", "cpu_runtime.cpp")

# Floating point follows CUDA's rules: every operation rounds once, nothing is contracted or reordered.
_KERNEL_FLAGS = [
    "-std=c++17",
    "-fPIC",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-strict-aliasing",
    "-fsigned-char",  # aarch64 would have it unsigned; arrays of char are int8
    "-fno-exceptions",
    "-UNDEBUG",
]
_DEBUG_CHECKS = "bounds,alignment,null,shift-exponent,float-cast-overflow,integer-divide-by-zero,unreachable,return"
_ERROR = re.compile(
    r"^(?P<path>[^\s:][^:\n]*):(?P<line>\d+):(?:(?P<column>\d+):)? (?:fatal )?error: (?P<message>.*)$", re.M
)
_UNDEFINED = re.compile(r"^(?:\S+: )?(?P<path>[^\s:]+):(?P<line>\d+): undefined reference to [`'](?P<name>.*)'$", re.M)
_UNDEFINED_ANYWHERE = re.compile(r"undefined (?:reference to|(?:hidden )?symbol:?) [`']?(?P<name>\w+)")


@dataclass(frozen=True)
class Variant:
    """How a source is built: for speed, for debug mode, or under sanitizers.

    `locals_hold` is what debug mode puts into every local that the kernel leaves unset: "pattern" or "zero".
    `is_watched` makes debug mode's kernels tell the scheduler of every read and write.
    """

    debug: bool = False
    sanitize: tuple[str, ...] = ()
    locals_hold: str = "pattern"
    is_watched: bool = False


@dataclass(frozen=True)
class Compiler:
    """A g++ or clang++ that works on this machine.

    `command` may hold several words, such as "ccache g++". `description` is all the macros that it predefines
    for this processor: its version and every instruction set it will use.
    """

    command: tuple[str, ...]
    target_flags: tuple[str, ...]
    description: str

    @property
    def is_clang(self) -> bool:
        return "__clang__" in self.description

    def supports(self, flag: str) -> bool:
        return _supports(self.command, flag)

    def flags(self, variant: Variant) -> list[str]:
        flags = [*_KERNEL_FLAGS, *self.target_flags, f"-Wframe-larger-than={MAX_FRAME_BYTES}"]
        if self.is_clang:
            flags.append("-Werror=frame-larger-than")
        else:
            flags[-1] = f"-Werror=frame-larger-than={MAX_FRAME_BYTES}"
            flags += ["-fno-semantic-interposition", "-fno-gnu-unique", "-fno-extern-tls-init"]
        if "__x86_64__" in self.description:
            flags.append("-fcf-protection=none")  # a shadow stack forbids fibers
        if "undefined" not in variant.sanitize:
            flags.append("-fwrapv")
        if variant.debug:
            flags += ["-O1", "-g", "-fno-omit-frame-pointer", "-DWARPDRIVE_CPU_DEBUG"]
            flags += [f"-fsanitize={_DEBUG_CHECKS}", "-fno-sanitize-recover=all"]
            if self.supports(f"-ftrivial-auto-var-init={variant.locals_hold}"):
                flags.append(f"-ftrivial-auto-var-init={variant.locals_hold}")
            if variant.is_watched:  # cpu_checks.h stands in for the sanitizer's library
                flags.append("-fsanitize=thread")
            if "__aarch64__" in self.description and self.supports("-mno-outline-atomics"):
                flags.append("-mno-outline-atomics")  # a fault in a function of libgcc would have no line
            if not self.is_clang:  # these passes of g++ take such a local for unset all the same
                flags += ["-fno-tree-fre", "-fno-tree-ccp"]
        elif variant.sanitize:
            # Frames grow under a sanitizer, and so do its stacks. Optimised, large kernels take far longer.
            flags = [flag for flag in flags if "frame-larger-than" not in flag]
            flags += ["-O0", "-g", "-fno-omit-frame-pointer", f"-fsanitize={','.join(variant.sanitize)}"]
        else:
            flags += [f"-O{_optimisation_level()}", "-g1"]
        return flags


def _optimisation_level() -> int:
    """$WARPDRIVE_OPT_LEVEL, from 0 (compiles in half the time) to 3 (runs fastest), which it is if not set.

    Results are the same bits at every level.
    """
    text = os.environ.get("WARPDRIVE_OPT_LEVEL") or "3"
    if text not in ("0", "1", "2", "3"):
        raise BackendError(f"WARPDRIVE_OPT_LEVEL is '{text}'. Set it to 0, 1, 2 or 3.")
    return int(text)


def find_compiler(compiler: str | None = None) -> Compiler:
    """`compiler`, else $CXX, else g++, else clang++.

    Raises:
        BackendError: there is none, or it does not work.
    """
    named = compiler or os.environ.get("CXX")
    for command in [shlex.split(named)] if named else [["g++"], ["clang++"]]:
        if shutil.which(command[0]):
            return _examine(tuple(command))
    missing = f"the compiler '{named}' is not installed" if named else "no C++ compiler"
    raise BackendError(f"{missing}: install g++ (Debian/Ubuntu: apt install g++) or set CXX.")


@functools.lru_cache
def _examine(command: tuple[str, ...]) -> Compiler:
    list_macros = ("-dM", "-E", "-x", "c++", "-std=c++17", os.devnull)
    for target_flags in (("-march=native",), ()):  # some compilers do not know the machine they run on
        try:
            result = run_tool([*command, *target_flags, *list_macros])
        except OSError as error:  # such as a program of another machine
            complaint = str(error.strerror)
            break
        if result.returncode == 0 and "__GNUC__" in result.stdout:
            return Compiler(command, target_flags, result.stdout)
        complaint = _first_line(result.stderr)
    raise BackendError(
        f"'{shlex.join(command)}' does not work as a C++17 compiler: {complaint}. "
        "Install g++ (Debian/Ubuntu: apt install g++) or set CXX."
    )


@functools.lru_cache
def _supports(command: tuple[str, ...], flag: str) -> bool:
    return run_tool([*command, flag, "-E", "-x", "c++", os.devnull]).returncode == 0


def build_runtime(compiler: Compiler) -> Path:
    """The library that launches kernels, cpu_runtime.cpp."""
    flags = ["-std=c++17", "-O2", "-g1", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-exceptions", "-Wl,-z,now"]
    if "__x86_64__" in compiler.description:
        flags.append("-fcf-protection=none")
    texts = [(KERNELS_FOLDER / name).read_text() for name in _RUNTIME_FILES]

    def build() -> bytes:
        with work_folder() as folder:
            library = folder / "runtime.so"
            source = KERNELS_FOLDER / "cpu_runtime.cpp"
            command = [*compiler.command, *flags, str(source), "-o", str(library), "-lpthread", "-lrt"]
            result = run_compiler(command, folder)
            if result.returncode:
                raise BackendError(
                    f"'{shlex.join(compiler.command)}' cannot build the CPU runtime:\n{result.stderr.strip()}\n"
                    "Set CXX to a g++ or clang++ with C++17."
                )
            return library.read_bytes()

    key = cache_key(["cpu runtime", *flags, *compiler.command, compiler.description, *texts])
    return cached(key, ".so", build, "CPU runtime")


def build_kernels(compiler: Compiler, source: Source, variant: Variant) -> Path:
    """The library of a source's kernels.

    Raises:
        CompileError: shows the first errors on the user's own lines.
    """
    text, flags, shim = _translation_unit(source), _flags(compiler, source, variant), _shim()
    # Where our own headers are is part of what a debugger is told: another checkout's build would name its files.
    place = [str(KERNELS_FOLDER)] if variant.debug or variant.sanitize else []
    key = cache_key([text, source.included_text(), *flags, *compiler.command, compiler.description, *shim, *place])
    return cached(key, ".so", lambda: compile_kernels(compiler, source, variant), source.path)


def _shim() -> list[str]:
    """What every source includes."""
    files = [KERNELS_FOLDER / name for name in _SHIM_FILES]
    return [path.read_text() for path in [*files, *sorted((KERNELS_FOLDER / "cpu_shadow").glob("*.h"))]]


def _header(compiler: Compiler, flags: Sequence[str]) -> Path | None:
    """The shim as g++ has it once it has read it, which halves the time of a small source. None: there is none yet. It
    is made where a process builds more than a few sources, by one of its threads; the others go on without."""
    key = cache_key(["header", *flags, *compiler.command, compiler.description, *_shim(), str(KERNELS_FOLDER)])
    if key in _headers:
        return _headers[key]
    _num_without[key] += 1
    is_there = (cache_folder() / f"{key}.gch").exists()
    if (not is_there and _num_without[key] <= FEW_SOURCES) or not _building_header.acquire(blocking=False):
        return None
    try:
        _headers[key] = cached(key, ".gch", lambda: _build_header(compiler, flags), "CPU header")
    except (BackendError, OSError):  # what is built without says what is wrong
        _headers[key] = None
    finally:
        _building_header.release()
    return _headers[key]


def _build_header(compiler: Compiler, flags: Sequence[str]) -> bytes:
    with work_folder() as folder:
        words = [f"-I{KERNELS_FOLDER / 'cpu_shadow'}", "-x", "c++-header", str(KERNELS_FOLDER / "cpu_shim.h")]
        result = run_compiler([*compiler.command, *flags, *words, "-o", "header.gch"], folder, folder)
        if result.returncode:
            raise BackendError(f"cpu_shim.h: {_first_line(result.stderr)}")
        return (folder / "header.gch").read_bytes()


def _flags(compiler: Compiler, source: Source, variant: Variant) -> list[str]:
    return [*compiler.flags(variant), *map(_absolute, source.options)]


def _absolute(option: str) -> str:
    """`-Ifolder` as seen from where the compiler runs, which is not where we are."""
    return f"-I{Path(option[2:]).resolve()}" if option.startswith("-I") and option != "-I" else option


def _translation_unit(source: Source) -> str:
    """The user's text, unchanged, between the shim and the table of entry points."""
    entries = "".join(f'    {{"{name}", &warpdrive_cpu::Kernel<&{name}>::entry}},\n' for name in source.signatures)
    constants = source.constants.rstrip("\n")
    path = source.path.replace("\\", "\\\\").replace('"', '\\"')
    return (
        f'#include "cpu_shim.h"\n#line 1 "<constants>"\n{constants}\n#line 1 "{path}"\n{source.text}\n'
        f'#line 1 "{_ENTRY_POINTS}"\n'
        'extern "C" __attribute__((visibility("default"))) const warpdrive_cpu::NamedEntry warpdrive_cpu_entries[];\n'
        f"const warpdrive_cpu::NamedEntry warpdrive_cpu_entries[] = {{\n{entries}    {{nullptr, nullptr}},\n}};\n"
    )


def compile_kernels(compiler: Compiler, source: Source, variant: Variant) -> bytes:
    """The library of a source's kernels, whatever the cache has. Raises CompileError as `build_kernels` does."""
    text, flags = _translation_unit(source), _flags(compiler, source, variant)
    with work_folder() as folder:
        (folder / "kernels.cpp").write_text(text)
        is_plain = variant == Variant() and not source.options  # else lines that a debugger is told would be others
        if is_plain and not compiler.is_clang and (header := _header(compiler, flags)):
            (folder / "cpu_shim.h.gch").symlink_to(header)
        # Only here, never where we happen to be: who decides what is stale looks in the same folders. For <...>
        # they come after the system's, so that a user's math.h does not hide the compiler's.
        folders = [str(place.resolve()) for place in source.all_include_folders()]
        includes = [word for place in folders for word in ("-iquote", place, "-idirafter", place)]
        includes.append(f"-I{KERNELS_FOLDER / 'cpu_shadow'}")
        plain = ["-fno-diagnostics-color", "-fno-caret-diagnostics", f"-ferror-limit={NUM_ERRORS_SHOWN}"]
        if not compiler.is_clang:
            plain = ["-fdiagnostics-color=never", "-fno-diagnostics-show-caret", "-fdiagnostics-column-unit=byte"]
            plain = [flag for flag in plain if compiler.supports(flag)]
        arguments = [*flags, *includes, *plain, f"-fdebug-prefix-map={folder}={os.getcwd()}"]
        command = [*compiler.command, *arguments, "-c", "kernels.cpp", "-o", "kernels.o"]
        result = run_compiler(command, folder, cwd=folder)
        if result.returncode and "PCH" in result.stderr:  # older ones cannot have it at another address
            (folder / "cpu_shim.h.gch").unlink(missing_ok=True)
            result = run_compiler(command, folder, cwd=folder)
        if result.returncode:
            check_room(result.stderr, source.path)
            raise CompileError(_explain(source, result.stderr))

        objects = ["kernels.o"]
        compiled = (folder / "kernels.o").read_bytes()
        _check_static_shared_memory(source, compiled)
        _check_size(source, compiled)
        if names := undefined_thread_locals(compiled):
            (folder / "shared.s").write_text(_dynamic_shared_memory(names))
            objects.append("shared.s")
        link = ["-shared", "-Wl,-Bsymbolic", "-Wl,-z,now", "-Wl,-z,relro"]
        if variant.sanitize:
            link.append(f"-fsanitize={','.join(variant.sanitize)}")
            if compiler.is_clang:
                link.append("-shared-libsan")
        else:
            link.append("-Wl,-z,defs")  # a function that is declared only is an error now, not when it is called
        command = [*compiler.command, *link, *objects, "-o", "kernels.so", "-lm"]
        result = run_compiler(command, folder, cwd=folder)
        if result.returncode:
            check_room(result.stderr, source.path)
            raise CompileError(_explain(source, result.stderr))
        return (folder / "kernels.so").read_bytes()


def _dynamic_shared_memory(names: Sequence[str]) -> str:
    """Assembly that defines every `extern __shared__ T name[];`: all of them name the same bytes, as in CUDA."""
    lines = ['.section .tbss,"awT",%nobits', ".p2align 7"]
    for name in names:
        lines += [f".globl {name}", f".hidden {name}", f".type {name},%object", f"{name}:"]
    return "\n".join([*lines, f".zero {MAX_SHARED_BYTES}", '.section .note.GNU-stack,"",%progbits', ""])


def _check_static_shared_memory(source: Source, file: bytes) -> None:
    for signature in source.signatures.values():
        if (num_bytes := static_shared_bytes(file, signature.name)) > MAX_STATIC_SHARED_BYTES:
            raise CompileError(too_much_shared(source, signature.name, num_bytes, MAX_STATIC_SHARED_BYTES))


def _check_size(source: Source, file: bytes) -> None:
    if (num_bytes := ObjectFile(file).num_allocated_bytes) > MAX_VARIABLES_BYTES:
        raise CompileError(
            f"{source.path}: the file's variables take {num_bytes / 1e9:.1f} GB, more than can be addressed "
            f"({MAX_VARIABLES_BYTES / 1e9:.1f} GB). Use smaller __shared__ and __device__ arrays."
        )


def _explain(source: Source, output: str) -> str:
    """A compiler's first errors, each with the line of the user's file that it is about."""
    shown = []
    for error in _ERROR.finditer(output):
        path, line, message = error["path"], int(error["line"]), error["message"].removeprefix("error: ")
        if path == _ENTRY_POINTS:
            shown.append(_explain_entry(source, line, message))
            continue
        if re.search(r"frame.*(larger than|exceeds limit)", message):
            message = f"the local arrays of a thread take more than {MAX_FRAME_BYTES} bytes. Put them in shared memory."
        text = _text_of(path, source)
        lines = text.splitlines()
        column = int(error["column"] or 1)
        if line <= len(lines):  # the compilers count bytes
            column = len(lines[line - 1].encode()[: column - 1].decode(errors="replace")) + 1
        shown.append(show_source_line(message, path, line, column, text))
    for missing in _UNDEFINED.finditer(output):
        path, line = missing["path"], int(missing["line"])
        if path == _ENTRY_POINTS or missing["name"] in source.signatures:  # a kernel's own error follows
            continue
        message = f"'{missing['name']}' is declared but not defined. Define it, or include the file that does."
        shown.append(show_source_line(message, path, line, 1, _text_of(path, source)))
    for missing in _UNDEFINED_ANYWHERE.finditer(output):
        if missing["name"] in source.signatures:
            shown.append(_not_a_plain_function(source, missing["name"]))
    if not shown:
        return f"{source.path}: the compiler refused it:\n{output.strip()}"
    return "\n".join(list(dict.fromkeys(shown))[:NUM_ERRORS_SHOWN])


def _explain_entry(source: Source, line: int, message: str) -> str:
    """An error in the table of entry points, behind the user's text, as one of the user's text."""
    names = list(source.signatures)
    index = line - _FIRST_ENTRY_LINE
    if 0 <= index < len(names):
        return _not_a_plain_function(source, names[index])
    last = max(1, len(source.text.rstrip().splitlines()))
    code = blank_comments(source.text, keep_strings=False)
    open_, closed = code.count("{"), code.count("}")
    if open_ != closed:
        message = f"the file has {open_} '{{' and {closed} '}}'. Close each that is opened."
    return show_source_line(message, source.path, last, 1, source.text)


def _not_a_plain_function(source: Source, kernel: str) -> str:
    message = (
        f"kernel '{kernel}' must be a plain function with a body at file level: "
        f'extern "C" __global__ void {kernel}(...) {{ ... }}. '
        "A template, a namespace or an #if that leaves it out hides it."
    )
    return show_source_line(message, source.path, source.signatures[kernel].line, 1, source.text)


def _text_of(path: str, source: Source) -> str:
    if path == source.path:
        return source.text
    if path == "<constants>":
        return source.constants
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else "it says nothing"
