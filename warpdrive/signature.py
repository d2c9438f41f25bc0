"""Reads `extern "C" __global__ void f(const float* x, ...)` into names and dtypes.

A parameter's name is the name of the array it receives, so the source text is the only place
where a kernel's arguments are listed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from warpdrive.comments import blank_comments
from warpdrive.errors import SignatureError

DTYPES = {
    "float": torch.float32,
    "double": torch.float64,
    "int": torch.int32,
    "unsigned int": torch.uint32,
    "long long": torch.int64,
    "unsigned long long": torch.uint64,
    "short": torch.int16,
    "unsigned short": torch.uint16,
    "signed char": torch.int8,
    "char": torch.int8,
    "unsigned char": torch.uint8,
    "bool": torch.bool,
    "__half": torch.float16,
    "__nv_bfloat16": torch.bfloat16,
}
"""C type of a kernel's parameter -> dtype of the array it takes."""

CTYPES = {dtype: ctype for ctype, dtype in reversed(DTYPES.items())}
"""dtype of an array -> C type of the parameter that takes it."""

_ALIASES = {
    "unsigned": "unsigned int",
    "int32_t": "int",
    "uint32_t": "unsigned int",
    "int64_t": "long long",
    "uint64_t": "unsigned long long",
    "long long int": "long long",
    "unsigned long long int": "unsigned long long",
    "int16_t": "short",
    "uint16_t": "unsigned short",
    "int8_t": "signed char",
    "uint8_t": "unsigned char",
    "half": "__half",
}

_KERNEL = re.compile(
    r"__global__\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?void\s+"
    r"(?:__(?:launch_bounds|cluster_dims)__\s*\([^)]*\)\s*)*(\w+)\s*\(([^)]*)\)"
)
_BODY = re.compile(r"\s*\{")
_CONDITION = re.compile(r"^[ \t]*#[ \t]*(if|ifdef|ifndef|endif)\b", re.MULTILINE)
_IGNORED = {"__restrict__", "__restrict", "restrict", "volatile"}


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel: `const float* x` is Parameter("x", "float", float32, True, True)."""

    name: str
    ctype: str
    dtype: torch.dtype
    is_pointer: bool
    is_const: bool

    def __str__(self) -> str:
        return f"{'const ' if self.is_const else ''}{self.ctype}{'*' if self.is_pointer else ''} {self.name}"


@dataclass(frozen=True)
class Signature:
    """A kernel's name, parameters in order, and the line of the source on which it starts."""

    name: str
    parameters: tuple[Parameter, ...]
    line: int


def read_signatures(text: str, path: str = "<source>") -> dict[str, Signature]:
    """Every kernel of a CUDA C source, by name, in the order of the source.

    Raises:
        SignatureError: a parameter has no name, or a type that no array can have; or two kernels share a name. The
            preprocessor has not run, so variants by `#if` are two kernels.
    """
    code = blank_comments(text)
    signatures: dict[str, Signature] = {}
    starts: dict[str, int] = {}
    for match in _KERNEL.finditer(code):
        name, line = match.group(1), code.count("\n", 0, match.start()) + 1
        if name in signatures:
            way_out = "Rename one."
            if _is_conditional(code, starts[name]) or _is_conditional(code, match.start()):
                way_out = (
                    "Parameters are read before #if is, so variants need names or files of their own; "
                    "or put the #if inside one kernel's body."
                )
            first = signatures[name].line
            raise SignatureError(f"{path}:{line}: kernel '{name}' is defined twice (first on line {first}). {way_out}")
        starts[name] = match.start()
        if not re.search(r'extern\s+"C"[\s{]*(?:__launch_bounds__\s*\([^)]*\)\s*)?$', code[: match.start()]):
            raise SignatureError(
                f"{path}:{line}: kernel '{name}' is not `extern \"C\"`, so it cannot be found by its name. "
                f'Write `extern "C" __global__ void {name}(...)`.'
            )
        if "#" in match.group(2):
            raise SignatureError(
                f"{path}:{line}: kernel '{name}' has a line of the preprocessor among its parameters, which are read "
                "before it is. Write kernels of different names, and give each the parameters it needs."
            )
        parameters = _read_parameters(match.group(2), name, f"{path}:{line}")
        signatures[name] = Signature(name, parameters, line)
    return signatures


def read_function(text: str, name: str, path: str = "<source>") -> Signature:
    """A `__device__ void` function, read as a kernel is: for kernels whose text is written around it.

    Raises:
        SignatureError: there is none of that name; or a parameter is none that a kernel could have.
    """
    code = blank_comments(text)
    match = re.search(rf"__device__\s+(?:__forceinline__\s+)?void\s+{name}\s*\(([^)]*)\)", code)
    if match is None:
        raise SignatureError(f"{path}: no function `__device__ void {name}(...)` in it. Write one, or rename it so.")
    line = code.count("\n", 0, match.start()) + 1
    return Signature(name, _read_parameters(match.group(1), name, f"{path}:{line}"), line)


def starts_of_bodies(text: str) -> dict[str, int]:
    """Where the body of each kernel begins in a CUDA C source: the place behind its brace."""
    code = blank_comments(text)
    ends = {match.group(1): match.end() for match in _KERNEL.finditer(code)}
    bodies = {name: _BODY.match(code, end) for name, end in ends.items()}
    return {name: body.end() for name, body in bodies.items() if body is not None}


def _is_conditional(code: str, position: int) -> bool:
    """Whether an `#if` is open there."""
    found = [match.group(1) for match in _CONDITION.finditer(code, 0, position)]
    return len(found) > 2 * found.count("endif")


def _read_parameters(text: str, kernel: str, place: str) -> tuple[Parameter, ...]:
    parts = [part for part in text.split(",") if part.strip() not in ("", "void")]
    parameters = tuple(_read_parameter(part, kernel, place) for part in parts)
    names = [parameter.name for parameter in parameters]
    for repeated in {n for n in names if names.count(n) > 1}:
        raise SignatureError(f"{place}: kernel '{kernel}' has two parameters named '{repeated}'. Rename one.")
    return parameters


def _read_parameter(text: str, kernel: str, place: str) -> Parameter:
    words = re.findall(r"\w+|\*|&|\[|\]|<|>|::", text)
    shown = " ".join(text.split())
    way_out = f"A kernel's parameters are `TYPE* name` or `TYPE name`, TYPE one of: {', '.join(DTYPES)}."
    words = [word for word in words if word not in _IGNORED]
    if len(words) < 2 or not re.fullmatch(r"[A-Za-z_]\w*", words[-1]) or words[-1] in DTYPES:
        raise SignatureError(f"{place}: kernel '{kernel}': cannot read the parameter `{shown}`. {way_out}")
    *words, name = words
    num_stars = words.count("*")
    is_const = "const" in words[: words.index("*")] if num_stars else "const" in words
    ctype = " ".join(word for word in words if word not in ("const", "*"))
    ctype = _ALIASES.get(ctype, ctype)
    if ctype not in DTYPES or num_stars > 1:
        raise SignatureError(f"{place}: kernel '{kernel}': no array can be given to the parameter `{shown}`. {way_out}")
    return Parameter(name, ctype, DTYPES[ctype], bool(num_stars), is_const)
