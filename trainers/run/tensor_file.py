"""Safetensors files, written piece by piece: beside the tensors there is one buffer, however large they are.

    8 bytes     length of the header, lowest first
    header      JSON: name -> dtype, shape, [begin, end) of its bytes; spaces fill it up to a multiple of 8
    bytes       of each tensor, by dtype as in _DTYPES and then by name, as the library orders them

Format: https://huggingface.co/docs/safetensors
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes

from trainers.learning.distributed import World
from trainers.run.older_versions import of_this_version
from warpdrive.errors import CheckpointError

PIECE = 16 << 20
"""Bytes of the buffer through which tensors of a GPU and of other ranks travel."""

SMALL = 1 << 20
"""Bytes; what is smaller is not written by itself."""

_DTYPES = {
    torch.uint64: "U64", torch.int64: "I64", torch.float64: "F64", torch.complex64: "C64", torch.float32: "F32",
    torch.uint32: "U32", torch.int32: "I32", torch.bfloat16: "BF16", torch.float16: "F16", torch.uint16: "U16",
    torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


def write_tensors(
    path: Path, tensors: Mapping[str, torch.Tensor], world: World | None = None, axes: Mapping[str, int] | None = None
) -> None:
    """Writes a file, which may not be on the disk yet: see `disk.flush`. Of several ranks the first writes it.

    Args:
        tensors: by name, on any device.
        axes: along which axis each rank holds a part of a tensor, as large as the others'; the rest are the first's.
    Raises:
        OSError: it cannot be written; on the first rank, once all have sent what they had to.
    """
    world, axes = world or World(), axes or {}
    names = _in_order(tensors)
    parts = (piece for name in names for piece in _pieces_of_ranks(tensors[name], world, axes.get(name)))
    if world.rank:
        for _ in parts:
            pass
        return
    shapes = {name: _whole_shape(tensors[name], world, axes.get(name)) for name in names}
    try:
        with path.open("wb") as file:
            header = _header(names, {name: tensors[name].dtype for name in names}, shapes)
            for piece in _joined(header, parts):
                file.write(piece)
    except Exception:
        for _ in parts if world.size > 1 else ():  # the others send on
            pass
        raise


def mapped(path: Path, num_bytes: int, like: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """By name, [bytes] uint8 of a file that `write_tensors` wrote: memory that the kernel reads as it is asked for.

    Args:
        like: tensors as they were written, of any device.
    """
    header, found = header_of(like), {}
    whole = torch.from_file(str(path), shared=False, size=num_bytes, dtype=torch.uint8)
    for name, said in json.loads(header[8:]).items():
        begin, end = (len(header) + offset for offset in said["data_offsets"])
        found[name] = whole[begin:end].numpy()
    return found


def num_bytes_of(
    tensors: Mapping[str, torch.Tensor], world: World | None = None, axes: Mapping[str, int] | None = None
) -> int:
    """Of what `write_tensors` writes, without the header."""
    size, axes = (world or World()).size, axes or {}
    return sum(one.nbytes * (size if name in axes else 1) for name, one in tensors.items())


def sha256_of(tensors: Mapping[str, torch.Tensor]) -> str:
    """Of names and bytes."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        found.update(name.encode())
        for piece in pieces(tensors[name]):
            found.update(piece)
    return found.hexdigest()


def pieces(tensor: torch.Tensor, size: int | None = None) -> Iterator[memoryview]:
    """The bytes of a tensor, in order, PIECE or so many at once; each piece is good until the next is asked for."""
    size, buffer = size or PIECE, None
    for part in _flat_parts(tensor.detach(), size):
        if part.device.type == "cpu":
            yield part.numpy().data
            continue
        if buffer is None:
            buffer = torch.empty(min(size, tensor.nbytes), dtype=torch.uint8, pin_memory=part.is_cuda)
        yield buffer[: len(part)].copy_(part).numpy().data


def _joined(first: bytes, parts: Iterator[memoryview]) -> Iterator[bytes | memoryview]:
    """The same bytes; small pieces, of which a checkpoint has many, are put together."""
    small = bytearray(first)
    for piece in parts:
        if len(small) + len(piece) > SMALL:
            yield bytes(small)
            small.clear()
        if len(piece) > SMALL:
            yield piece
        else:
            small += piece
    yield bytes(small)


def _flat_parts(tensor: torch.Tensor, size: int) -> Iterator[torch.Tensor]:
    """[n] uint8 each, on the tensor's device; views, where it lies in one run of memory."""
    if not tensor.numel():
        return
    if tensor.is_contiguous():
        yield from tensor.reshape(-1).view(torch.uint8).split(size)
        return
    row = tensor.nbytes // len(tensor)
    for part in tensor.split(max(1, size // row)):
        yield from _flat_parts(part[0] if row > size else part.contiguous(), size)


def _pieces_of_ranks(tensor: torch.Tensor, world: World, axis: int | None) -> Iterator[memoryview]:
    """The bytes of the whole tensor, in order, on the first rank; empty pieces on the others."""
    if axis is None or world.size == 1:
        yield from pieces(tensor) if world.rank == 0 else ()
        return
    for rows in tensor.reshape(math.prod(tensor.shape[:axis]), *tensor.shape[axis:]):
        yield from world.in_turn(pieces(rows, PIECE), rows.nbytes, PIECE)


def header_of(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """What a file that `write_tensors` writes of them begins with."""
    names = _in_order(tensors)
    shapes = {name: list(tensors[name].shape) for name in names}
    return _header(names, {name: tensors[name].dtype for name in names}, shapes)


def has_header_of(file: BinaryIO, tensors: Mapping[str, torch.Tensor]) -> bool:
    """Whether a file, at its beginning, holds tensors of these names, shapes and dtypes; then it stands behind its
    header."""
    header = header_of(tensors)
    return file.read(len(header)) == header


def read_tensors_into(file: BinaryIO, tensors: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> None:
    """Reads the last rows of the tensors of a file, which stands behind its header, into these.

    Args:
        sizes: bytes of each tensor of the file.
    """
    for name in _in_order(tensors):
        file.seek(sizes[name] - tensors[name].nbytes, os.SEEK_CUR)
        _read_into(file, tensors[name])


def _read_into(file: BinaryIO, into: torch.Tensor) -> None:
    if not into.numel():
        return
    if not into.is_contiguous():  # by way of memory that is
        row = into.nbytes // len(into)
        for part in into.split(max(1, PIECE // row)):
            if row > PIECE:
                _read_into(file, part[0])
            else:
                read = torch.empty_like(part, memory_format=torch.contiguous_format)
                _read_into(file, read)
                part.copy_(read)
        return
    buffer = None
    for part in _flat_parts(into, PIECE):
        if part.device.type != "cpu" and buffer is None:
            buffer = torch.empty(min(PIECE, into.nbytes), dtype=torch.uint8, pin_memory=part.is_cuda)
        place = part if buffer is None else buffer[: len(part)]
        _read_whole(file, place.numpy().data)
        if buffer is not None:
            part.copy_(place)


def _read_whole(file: BinaryIO, place: memoryview) -> None:
    while place:
        count = file.readinto(place)
        if not count:
            raise CheckpointError(f"{file.name}: became shorter while it was read. Use an older checkpoint.")
        place = place[count:]


def _in_order(tensors: Mapping[str, torch.Tensor]) -> list[str]:
    return sorted(tensors, key=lambda name: (list(_DTYPES).index(tensors[name].dtype), name))


def _whole_shape(tensor: torch.Tensor, world: World, axis: int | None) -> list[int]:
    return [size * (world.size if i == axis else 1) for i, size in enumerate(tensor.shape)]


def _header(names: list[str], dtypes: Mapping[str, torch.dtype], shapes: Mapping[str, list[int]]) -> bytes:
    found, begin = {}, 0
    for name in names:
        end = begin + math.prod(shapes[name]) * dtypes[name].itemsize
        found[name] = {"dtype": _DTYPES[dtypes[name]], "shape": shapes[name], "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(found, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def tensors_of(path: Path, content: bytes) -> dict[str, torch.Tensor]:
    """By name, what the content of a file holds; of an older version as this one has it.

    Raises:
        CheckpointError: it is no complete safetensors file; names the path.
    """
    try:
        return of_this_version(tensors_from_bytes(content))
    except (SafetensorError, ValueError, KeyError) as error:
        # Not before: a file of safetensors begins with a length, whose bytes may look like a pickle's.
        if content[:2] in (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"):
            message = f"{path}: a pickle, which can run code when it is read. Only safetensors are."
            raise CheckpointError(message) from None
        raise CheckpointError(f"{path}: no complete safetensors file ({' '.join(str(error).split())}).") from None
