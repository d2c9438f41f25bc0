"""From a `.cu` file and constants to kernels whose parameters are wired to arrays by name."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from warpdrive.backends.base import KERNELS_FOLDER, Backend, LaunchShape, Source
from warpdrive.comments import blank_comments
from warpdrive.data_manager import DataManager
from warpdrive.errors import SignatureError, WiringError
from warpdrive.signature import CTYPES, Parameter, Signature, read_signatures

MAX_THREADS = 1024
"""Threads in one block, on every GPU."""

PACKED_THREADS = 128
"""Threads of a block that several small envs share."""

Constant = bool | int | float | Sequence[int] | Sequence[float]

_CONSTANT_NAME = re.compile(r"[A-Z_][A-Z0-9_]*")
_OWN_INDEX = re.compile(r"\b(?:blockIdx|blockDim|threadIdx|gridDim|__syncthreads\w*)\b")
_OWN_LOOP = re.compile(r"\+=\s*blockDim\s*\.\s*x\b")
_ELEMENT_LOOP = re.compile(r"\bglobal_thread\s*\(")
_ENV_WORD = re.compile(r"\b(?:env_index|first_agent)\s*\(")
_LONE_AGENT = re.compile(r"\bfirst_agent\s*\(\s*\)(?!\s*[!=]=\s*0)")
_AGENT_LOOP = re.compile(r"\bagent_stride\s*\(|\bTHREADS_PER_ENV\b")
_BRACE = re.compile(r"[{}]")
_CALL = re.compile(r"\b([A-Za-z_]\w*)\s*(?:<[^;<>]*>)?\s*\(")
_DEFINITION = re.compile(r"\b([A-Za-z_]\w*)\s*(?=(\([^;{}]*?\)\s*(?:const\s*)?\{))")
_KEYWORDS = {"if", "for", "while", "switch", "return", "sizeof", "alignof", "catch", "decltype"}


class FunctionManager:
    """Compiles one source and launches its kernels.

    functions = FunctionManager(data, Path("tag.cu"), {"SPEED": 0.5}, num_envs=2000, num_agents=5)
    functions.launch("tag_step")                              # every parameter takes the array of its name
    step = functions.prepare("tag_step", reward=rewards[t])   # a view in place of an array, packed once
    step()                                                    # little more than the driver itself takes

    How many threads an env gets follows from how the source, with what it includes, is written:

    * in the words of warpdrive.cuh alone (`env_index()`, `first_agent()`, `agent_stride()`): any number is right. A
      GPU gives an env a thread an agent, at most 1,024, and lets small envs share a block; the CPU gives it one, and
      lets envs of one agent share a block;
    * with indices of its own (`threadIdx`, `blockIdx` ...) anywhere: one block an env and one thread an agent. With
      more than 1,024 agents it must loop, `i += blockDim.x`;
    * a kernel that loops over elements from `global_thread()` gets enough threads for one an agent of every env.

    Args:
        data: where arrays come from; None: from nowhere, all are given at each launch.
        source: path of the `.cu` file, or its text.
        constants: name -> number, or a sequence of numbers. Names are capitals. Sequences take 64 KiB at most.
        num_envs, num_agents: the grid; also the constants NUM_ENVS and NUM_AGENTS.
        backend: who compiles and launches; chosen by `data.device` if not given.
        threads_per_env, envs_per_block: of kernels that are right for any number; chosen if not given. Several envs
            a block need a power of two of at most 32 threads each.
        include_folders, options: for the compiler.
        name: what messages call a source given as text.
        block: threads of an env and envs of a block that the source is written for, whatever words it is written in.
    Raises:
        SignatureError, CompileError: the source is wrong.
        WiringError: a constant is.
    """

    def __init__(
        self,
        data: DataManager | None,
        source: Path | str,
        constants: Mapping[str, Constant] | None = None,
        num_envs: int = 1,
        num_agents: int = 1,
        backend: Backend | None = None,
        threads_per_env: int | None = None,
        envs_per_block: int | None = None,
        include_folders: Sequence[Path] = (),
        options: Sequence[str] = (),
        name: str = "<source>",
        block: tuple[int, int] | None = None,
    ) -> None:
        if backend is None:
            from warpdrive.backends import choose_backend

            backend = choose_backend(device=data.device)
        self.data = DataManager(backend.device) if data is None else data
        self.backend = backend
        self.num_envs = num_envs
        self.num_agents = num_agents
        path, text = (str(source), _read(source)) if isinstance(source, Path) else (name, source)
        self.signatures = read_signatures(text, path)
        if not self.signatures:
            raise SignatureError(f'{path}: no kernel in it. A kernel is `extern "C" __global__ void name(...)`.')
        self.constants = dict(constants or {})
        self.source = Source(path, text, "", self.signatures, tuple(include_folders), tuple(options))
        self._read_loops()
        self.threads_per_env, self.envs_per_block = block or self._choose_block(threads_per_env, envs_per_block)
        grid = {
            "NUM_ENVS": num_envs,
            "NUM_AGENTS": num_agents,
            "THREADS_PER_ENV": self.threads_per_env,
            "ENVS_PER_BLOCK": self.envs_per_block,
        }
        if taken := [name for name in grid if name in self.constants]:
            raise WiringError(f"{path}: constant '{taken[0]}' follows from how kernels are launched. Leave it out.")
        self.source = replace(self.source, constants=write_constants({**self.constants, **grid}))
        self._module = backend.compile(self.source)
        self._calls: dict[str, Callable[[], None]] = {}

    def launch(self, kernel: str, **overrides: Any) -> None:
        """Launches a kernel over all envs; returns at once on a GPU.

        Args:
            overrides: parameter name -> a tensor to use in place of the array of that name (a contiguous view
                of the array's shape), or the value of a number parameter.
        Raises:
            WiringError: a parameter has no array, or an array does not fit its parameter.
        """
        if overrides:
            self.prepare(kernel, **overrides)()
            return
        call = self._calls.get(kernel)
        if call is None:
            call = self._calls[kernel] = self.prepare(kernel)
        call()

    def prepare(self, kernel: str, launch_shape: LaunchShape | None = None, **overrides: Any) -> Callable[[], None]:
        """A launch that was checked and packed once; see `launch`. A call takes little more than the driver does.

        Args:
            launch_shape: blocks, threads and dynamic shared memory, of kernels that are written for some; chosen as
                the class says if not given.
        """
        signature = self.signature(kernel)
        names = {parameter.name for parameter in signature.parameters}
        for name in overrides:
            if name not in names:
                raise WiringError(
                    f"kernel '{kernel}' has no parameter '{name}'. It has: {', '.join(sorted(names)) or 'none'}."
                )
        try:
            arguments = [self._argument(kernel, parameter, overrides) for parameter in signature.parameters]
        except WiringError as error:
            raise WiringError(f"{self.source.path}:{signature.line}: {error}") from None
        return self._module.prepare(signature, arguments, launch_shape or self.launch_shape(kernel))

    def prepare_with(self, kernel: str, views: Mapping[str, torch.Tensor]) -> Callable[[], None]:
        """As `prepare`, with those of `views` that the kernel has a parameter for.

        Raises:
            WiringError: a view stands in for no array at all.
        """
        names = {parameter.name for parameter in self.signature(kernel).parameters}
        for name in views:
            if name not in names and name not in self.data:
                raise WiringError(f"kernel '{kernel}': no array '{name}'. {self.data.nearest(name)}")
        return self.prepare(kernel, **{name: view for name, view in views.items() if name in names})

    def signature(self, kernel: str) -> Signature:
        """Raises WiringError if there is no such kernel."""
        if kernel not in self.signatures:
            raise WiringError(
                f"{self.source.path}: no kernel '{kernel}'. It has: {', '.join(self.signatures)}. "
                f'Write it as `extern "C" __global__ void {kernel}(...)`.'
            )
        return self.signatures[kernel]

    def launch_shape(self, kernel: str) -> LaunchShape:
        """Blocks and threads of a kernel; the class says by which rule."""
        self.signature(kernel)
        if kernel in self.element_kernels:
            num_elements = self.num_envs * self.num_agents
            threads = min(256, num_elements)
            return LaunchShape(-(-num_elements // threads), (threads, 1))
        return LaunchShape(-(-self.num_envs // self.envs_per_block), (self.threads_per_env, self.envs_per_block))

    def _read_loops(self) -> None:
        """Which kernels loop over elements, and whether the others are right for any number of threads."""
        ours = [text for file, text in self.source.included_files().items() if file.parent != KERNELS_FOLDER]
        code = blank_comments("\n".join([self.source.text, *ours]), keep_strings=False)
        self.element_kernels, self.takes_any_threads = _classify(code, tuple(self.signatures))
        self._loops_itself = bool(_OWN_LOOP.search(code))

    def _choose_block(self, threads: int | None, envs: int | None) -> tuple[int, int]:
        """Threads of an env, and envs of a block."""
        if not self.takes_any_threads:
            if self.num_agents <= MAX_THREADS:
                return self.num_agents, 1
            if self._loops_itself:
                return MAX_THREADS, 1
            raise WiringError(
                f"{self.source.path}: its kernels take threadIdx.x for their agent, but a block has at most "
                f"{MAX_THREADS} threads and an env {self.num_agents} agents. Loop over agents: "
                "`for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride())`."
            )
        if threads is None:
            if self.backend.prefers_one_thread:
                threads = 1
            elif self.backend.name != "cuda":
                threads = min(self.num_agents, MAX_THREADS)
            elif self.num_agents <= 16:
                threads = 1 << (self.num_agents - 1).bit_length()
            else:
                threads = min(-(-self.num_agents // 32) * 32, MAX_THREADS)
        if envs is None:
            is_lone = self.backend.prefers_one_thread and self.num_agents == 1  # a block an env would cost more than it
            fits = (self.backend.name == "cuda" or is_lone) and threads in (1, 2, 4, 8, 16)
            envs = min(PACKED_THREADS // threads, self.num_envs) if fits else 1
        if envs > 1 and (threads not in (1, 2, 4, 8, 16, 32) or threads * envs > MAX_THREADS):
            raise WiringError(
                f"{envs} envs of {threads} threads cannot share a block: threads must be a power of two up to 32, "
                f"and both together at most {MAX_THREADS}."
            )
        return threads, envs

    def _argument(self, kernel: str, parameter: Parameter, overrides: Mapping[str, Any]) -> Any:
        name = parameter.name
        if not parameter.is_pointer:
            number = overrides.get(name)
            if isinstance(number, (bool, int, float)):
                return _fitting(kernel, parameter, number)
            if name in self.data:
                array = f"const {CTYPES[self.data[name].dtype]}* {name}"
                raise WiringError(f"kernel '{kernel}' takes '{name}' as a number, but it is an array. Say `{array}`.")
            raise WiringError(
                f"kernel '{kernel}' takes a number as '{name}'. Give it at launch, {name}=..., "
                f"or make it a constant, {name.upper()}."
            )
        if name not in overrides and name not in self.data:
            raise WiringError(
                f"kernel '{kernel}' has a parameter '{name}', but no array '{name}' was pushed. "
                f"{self.data.nearest(name)}"
            )
        tensor = overrides.get(name, self.data.get(name))
        self._check(kernel, parameter, tensor)
        return tensor

    def _check(self, kernel: str, parameter: Parameter, tensor: Any) -> None:
        name = parameter.name
        if not isinstance(tensor, torch.Tensor):
            raise WiringError(
                f"kernel '{kernel}' takes an array as '{name}', got {type(tensor).__name__}. Give it a torch tensor."
            )
        if tensor.dtype != parameter.dtype:
            has, wants = (str(dtype).removeprefix("torch.") for dtype in (tensor.dtype, parameter.dtype))
            raise WiringError(
                f"kernel '{kernel}' takes '{name}' as {wants} (`{parameter}`), but it is {has}. "
                f"Push it as {wants}: data.push('{name}', {name}.astype('{wants}'))."
            )
        # A GPU reads host memory that is pinned over the bus, at the same address.
        if tensor.device != self.backend.device and not (self.backend.name == "cuda" and tensor.is_pinned()):
            raise WiringError(
                f"kernel '{kernel}' runs on {self.backend.device}, but '{name}' is on {tensor.device}. "
                f"Give a tensor.to('{self.backend.device}')."
            )
        if not tensor.is_contiguous():
            raise WiringError(
                f"kernel '{kernel}' takes '{name}' as one piece of memory, but the tensor given is strided "
                f"({list(tensor.shape)}, strides {list(tensor.stride())}). Give a tensor.contiguous()."
            )
        if name not in self.data:
            return
        if tuple(tensor.shape) != tuple(self.data[name].shape):
            raise WiringError(
                f"kernel '{kernel}' takes '{name}' as {list(self.data[name].shape)}, got {list(tensor.shape)}. "
                "Give a view of the array's shape."
            )
        if self.data.is_const(name) and not parameter.is_const:
            raise WiringError(
                f"kernel '{kernel}' may write '{name}', which was pushed as constant. "
                f"Declare the parameter `const {parameter}`, or push the array without const=True."
            )


def all_of(calls: Sequence[Callable[[], None]]) -> Callable[[], None]:
    """One call that makes them all, in order."""
    if len(calls) == 1:
        return calls[0]

    def launch() -> None:
        for call in calls:
            call()

    return launch


def _fitting(kernel: str, parameter: Parameter, number: bool | int | float) -> bool | int | float:
    """`number`, if the parameter's type can hold it."""
    dtype = parameter.dtype
    if dtype.is_floating_point:
        return float(number)
    if isinstance(number, float) and not number.is_integer():
        raise WiringError(f"kernel '{kernel}' takes '{parameter.name}' as {parameter.ctype}, got {number}.")
    low, high = (0, 1) if dtype is torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    if not low <= number <= high:
        raise WiringError(
            f"kernel '{kernel}' takes '{parameter.name}' as {parameter.ctype}, {low} to {high}, got {number}."
        )
    return int(number)


@functools.lru_cache(maxsize=128)  # a tenth of a second for the sources of a run, which a process may make again
def _classify(code: str, kernels: tuple[str, ...]) -> tuple[frozenset[str], bool]:
    """The kernels that loop over elements, and whether the others are right for any number of threads an env, and of
    envs a block. `code` has no comments."""
    has_own_index = bool(_OWN_INDEX.search(code))
    if has_own_index and not _ELEMENT_LOOP.search(code):  # what else is in it then decides nothing
        return frozenset(), False
    bodies = {kernel: reachable_code(code, kernel) for kernel in kernels}
    element_kernels = frozenset(
        kernel
        for kernel, body in bodies.items()
        if _ELEMENT_LOOP.search(body) and not _ENV_WORD.search(body) and not _OWN_INDEX.search(body)
    )
    others = [body for kernel, body in bodies.items() if kernel not in element_kernels]
    lone = any(_LONE_AGENT.search(body) and not _AGENT_LOOP.search(body) for body in others)
    return element_kernels, not has_own_index and not lone


def reachable_code(code: str, function: str) -> str:
    """The body of a function and of every function of the same text that it calls. `code` has no comments."""
    bodies: dict[str, str] = {}
    waiting = [function]
    while waiting:
        name = waiting.pop()
        if name not in bodies:
            bodies[name], called = _body_and_calls(code, name)
            waiting += called
    return "\n".join(bodies.values())


@functools.lru_cache(maxsize=1024)  # kernels of one source call the same functions
def _body_and_calls(code: str, function: str) -> tuple[str, tuple[str, ...]]:
    """A function's own body, "" if the text has none, and what is called in it."""
    body = ""
    for start in _starts_of_bodies(code).get(function, ()):
        depth, end = 1, len(code)
        for brace in _BRACE.finditer(code, start):
            depth += 1 if brace.group() == "{" else -1
            if depth == 0:
                end = brace.end()
                break
        body += code[start:end]
    return body, tuple(dict.fromkeys(one for one in _CALL.findall(body) if one not in _KEYWORDS))


@functools.lru_cache(maxsize=128)
def _starts_of_bodies(code: str) -> dict[str, list[int]]:
    """By function, where what looks like a body of it begins, behind the brace."""
    found: dict[str, list[int]] = {}
    for match in _DEFINITION.finditer(code):
        starts = found.setdefault(match[1], [])
        if not starts or match.start() >= starts[-1]:  # else it is called in the head of the same body
            starts.append(match.end(2))
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        why = f"{path}: no kernels can be read there ({error.strerror}). Give the path of a .cu file."
        raise WiringError(why) from None


_WIDTHS = {"bool": 1, "int": 4, "long long": 8, "float": 4}
"""Kinds of constants and their bytes; a sequence has the last of its items' kinds."""
MAX_SEQUENCE_BYTES = 1 << 16
"""Of all sequences of one source: a GPU's constant memory."""
_TAKEN_NAMES = {"NAN", "INFINITY", "NULL", "INT_MAX", "INT_MIN", "M_PI", "ENV_SHARED", "REDUCE_LANES", "BLOCK_OF_ENVS"}
_TAKEN_NAMES |= {"STREAM_ENV", "STREAM_ACTION", "STREAM_RESET", "STREAM_REPLAY", "STREAM_UPDATE"}


def write_constants(constants: Mapping[str, Constant]) -> str:
    """Lines of C++: `constexpr int NUM_AGENTS = 5;`. Floats are float, not double; sequences become arrays.

    Raises:
        WiringError: a name is not in capitals or taken, a value is no number, or sequences are too long.
    """
    lines, num_bytes = [], {}
    for name, value in constants.items():
        if name in _TAKEN_NAMES:
            raise WiringError(f"constant '{name}': C or warpdrive.cuh has one of that name already. Choose another.")
        if not _CONSTANT_NAME.fullmatch(name):
            raise WiringError(f"constant '{name}': names are capitals, digits and _, such as '{name.upper()}'.")
        if isinstance(value, np.ndarray):
            value = value.tolist()
        if isinstance(value, Sequence) and not isinstance(value, str) and len(value):
            kind = max((_literal(name, item)[0] for item in value), key=list(_WIDTHS).index)
            num_bytes[name] = len(value) * _WIDTHS[kind]
            items = ", ".join(_literal(name, float(item) if kind == "float" else item)[1] for item in value)
            lines.append(f"__constant__ const {kind} {name}[{len(value)}] = {{{items}}};")
        else:
            kind, literal = _literal(name, value)
            lines.append(f"constexpr {kind} {name} = {literal};")
    if sum(num_bytes.values()) > MAX_SEQUENCE_BYTES:
        longest = max(num_bytes, key=num_bytes.__getitem__)
        raise WiringError(
            f"constants: their sequences take {sum(num_bytes.values()):,} bytes, '{longest}' {num_bytes[longest]:,} of "
            f"them, and a GPU has room for {MAX_SEQUENCE_BYTES:,}. Make '{longest}' a table: an env returns it by "
            f"tables(), others call data.push_table('{longest.lower()}', ...)."
        )
    return "\n".join(lines)


def _literal(name: str, value: Any) -> tuple[str, str]:
    if hasattr(value, "item"):
        value = value.item()  # a numpy number
    if isinstance(value, bool):
        return "bool", str(value).lower()
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise WiringError(f"constant '{name}' = {value} does not fit 64 bits. Make it an array.")
        return ("int", str(value)) if -(2**31) < value < 2**31 else ("long long", f"{value}ll")
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise WiringError(f"constant '{name}' is {value}. Use a finite number, or INFINITY in the source.")
        literal = torch.tensor(value, dtype=torch.float32).item()
        if literal in (float("inf"), float("-inf")):
            raise WiringError(f"constant '{name}' = {value} does not fit a float. Use a smaller number.")
        return "float", f"{literal!r}f"
    raise WiringError(
        f"constant '{name}' is a {type(value).__name__}. Constants are numbers, or sequences of them; what "
        "has more axes is a table."
    )
