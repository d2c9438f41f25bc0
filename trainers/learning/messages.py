"""What ranks tell each other, as JSON: to read it runs no code, whoever may have sent it."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from warpdrive.errors import WarpDriveError

MAX_BYTES = 1 << 30
_PATH, _ERROR = "\0path", "\0error"


def broadcast(value: Any, group: dist.ProcessGroup | None) -> Any:
    """Rank 0's value, on every rank; see `to_bytes`."""
    content = to_bytes(value) if dist.get_rank() == 0 else b""
    length = torch.tensor([len(content)])
    dist.broadcast(length, src=0, group=group)
    buffer = _buffer(content, _checked(int(length)))
    dist.broadcast(buffer, src=0, group=group)
    return from_bytes(bytes(buffer.numpy()))


def gather(value: Any, group: dist.ProcessGroup | None) -> list[Any]:
    """Every rank's value, by rank; see `to_bytes`."""
    content, size = to_bytes(value), dist.get_world_size()
    lengths = list(torch.zeros(size, 1, dtype=torch.int64))
    dist.all_gather(lengths, torch.tensor([len(content)]), group=group)
    longest = max(_checked(int(length)) for length in lengths)
    buffers = list(torch.zeros(size, longest, dtype=torch.uint8))
    dist.all_gather(buffers, _buffer(content, longest), group=group)
    return [from_bytes(bytes(one[:length].numpy())) for one, length in zip(buffers, map(int, lengths), strict=True)]


def to_bytes(value: Any) -> bytes:
    """JSON of what it takes, of paths, and of numbers of numpy and torch; of an exception by its name. Tuples become
    lists."""
    return json.dumps(value, default=_plain).encode()


def from_bytes(content: bytes) -> Any:
    """What `to_bytes` was given. An exception is one of the framework or of Python, or else a RuntimeError."""
    return json.loads(content, object_hook=_restored)


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return {_PATH: str(value)}
    if isinstance(value, Exception):
        is_known = _kind(type(value).__name__) is type(value)
        arguments = value.__reduce__()[1] if is_known else [f"{type(value).__name__}: {value}"]
        try:
            json.dumps([arguments, vars(value)])
            return {_ERROR: type(value).__name__, "arguments": list(arguments), "attributes": vars(value)}
        except (TypeError, ValueError):
            return {_ERROR: type(value).__name__, "arguments": [str(value)], "attributes": {}}
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"ranks cannot tell each other a {type(value).__name__}: only what JSON takes.")


def _restored(found: dict[str, Any]) -> Any:
    if _PATH in found:
        return Path(found[_PATH])
    if _ERROR in found:
        kind = _kind(found[_ERROR]) or RuntimeError
        error = kind.__new__(kind, *found["arguments"])
        error.__dict__.update(found["attributes"])
        return error
    return found


def _kind(name: str) -> type[Exception] | None:
    """An exception of the framework or of Python by its name."""
    ours = [WarpDriveError]
    for one in ours:  # grows by what derives from these
        ours += one.__subclasses__()
    found = {one.__name__: one for one in ours}.get(name) or getattr(builtins, name, None)
    return found if isinstance(found, type) and issubclass(found, Exception) else None


def _checked(length: int) -> int:
    if not 0 <= length <= MAX_BYTES:
        raise RuntimeError(f"a rank wants to tell {length:,} bytes, more than {MAX_BYTES:,}.")
    return length


def _buffer(content: bytes, length: int) -> torch.Tensor:
    return torch.frombuffer(bytearray(content.ljust(max(length, 1), b" ")), dtype=torch.uint8)
