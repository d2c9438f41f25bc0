"""Named torch tensors on one device: what kernels read and write is what the trainer reads and writes."""

from __future__ import annotations

import difflib
from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import Any

import numpy as np
import torch

from warpdrive.errors import ArrayError, BackendError
from warpdrive.signature import CTYPES

START = "start_"
"""`start_x` [E, ...] is what array `x` restarts from, env by env."""
POOL = "pool_"
"""`pool_x` [P, ...] holds P starts of array `x`; a restarting env takes the same row of every pool."""


def find_device(device: str | torch.device) -> torch.device:
    """The device that a user named: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:1".

    Raises:
        BackendError: it is no device, or not here.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        raise BackendError(f"unknown device '{device}'. Choose auto, cpu, cuda or cuda:1.")
    if found.type == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        built = "" if torch.version.cuda else " This torch is built without CUDA: reinstall it from pypi.org."
        instead = "Or take the CPU: device: cpu, env_backend: cpu."
        raise BackendError(f"no GPU here, or no driver for it (nvidia-smi tells).{built} {instead}")
    if (found.index or 0) >= torch.cuda.device_count():
        raise BackendError(f"no GPU {found}: there are {torch.cuda.device_count()}. Use cuda:0.")
    return torch.device("cuda", found.index or 0)


class DataManager:
    """Owns every array of a run. An array is pushed once, then lives on the device under its name.

    It is read as a dict of tensors is: `name in data`, `data[name]`, `data.get(name)`, `data.items()`, `len(data)`.

    data = DataManager("cuda")
    data.push("x", np.zeros((num_envs, num_agents), np.float32))
    data["x"] += 1.0                # a torch tensor, the very memory that kernels see
    data.pull("x")                  # a numpy copy

    Args:
        device: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:1".
    """

    def __init__(self, device: str | torch.device = "auto") -> None:
        self.device = find_device(device)
        self._arrays: dict[str, torch.Tensor] = {}
        self._constant: set[str] = set()
        self._tables: dict[str, bool] = {}  # name -> whether it is settable

    def push(self, name: str, array: Any, const: bool = False) -> torch.Tensor:
        """Copies an array to the device and names it.

        Args:
            name: a C identifier; kernels receive the array by this name.
            array: numpy array, torch tensor, or what `numpy.asarray` takes. Copied.
            const: kernels may only read it (`const float* name`).
        Returns:
            The tensor on the device.
        Raises:
            ArrayError: the name is taken or no identifier, or kernels cannot take the dtype.
        """
        if not isinstance(array, torch.Tensor):
            array = self._from_numpy(name, self._as_numpy(name, array))
        tensor = torch.empty(array.shape, dtype=array.dtype, device=self.device).copy_(array)
        return self.add(name, tensor, const)

    def add(self, name: str, tensor: torch.Tensor, const: bool = False) -> torch.Tensor:
        """Names a tensor that is already on the device. No copy.

        Raises:
            ArrayError: the name is taken or no identifier; or dtype, device or layout do not fit kernels.
        """
        if not isinstance(tensor, torch.Tensor):
            kind = type(tensor).__name__
            raise ArrayError(f"data.add names a torch tensor, and '{name}' is {kind}. data.push copies other arrays.")
        if not isinstance(name, str) or not name.isidentifier():
            raise ArrayError(f"'{name}' cannot name an array: kernels need a C identifier, such as 'heading'.")
        if name in self._arrays:
            raise ArrayError(f"array '{name}' is there already. Write into it: data['{name}'].copy_(new_values).")
        if tensor.dtype not in CTYPES:
            raise ArrayError(self._refuse_dtype(name, str(tensor.dtype).removeprefix("torch.")))
        if tensor.device != self.device:
            raise ArrayError(
                f"array '{name}' is on {tensor.device}, this DataManager on {self.device}. "
                f"Use data.push('{name}', ...), which copies it there."
            )
        if not tensor.is_contiguous():
            raise ArrayError(f"array '{name}' is not contiguous. Give data.add a tensor.contiguous().")
        self._arrays[name] = tensor.detach()
        if const:
            self._constant.add(name)
        return self._arrays[name]

    def __getitem__(self, name: str) -> torch.Tensor:
        """The live tensor: writing into it is seen by the next kernel."""
        try:
            return self._arrays[name]
        except (KeyError, TypeError):  # TypeError: of a list, or a slice
            raise ArrayError(f"no array {name!r}. {self.nearest(name)}") from None

    def __setitem__(self, name: str, values: Any) -> None:
        """Writes into the array's memory: `data["x"] = 0.0`, `data["x"] += 1.0`. Shapes broadcast.

        Raises:
            ArrayError: the shape does not fit, or floats are given for integers, or numbers for booleans, or integers
                that it cannot hold; the last is not looked for on a GPU.
        """
        array = self[name]
        if values is array:
            return
        try:
            is_large = type(values) is int and values > torch.iinfo(torch.int64).max
            given = torch.as_tensor(values, dtype=torch.uint64 if is_large else None)
            has, gets = (str(one.dtype).removeprefix("torch.") for one in (array, given))
            if not torch.can_cast(given.dtype, array.dtype):
                raise ArrayError(
                    f"array '{name}' is {has}: {gets} cannot be written into it unchanged. "
                    f"Convert it first: data['{name}'] = torch.as_tensor(values).to(torch.{has})."
                )
            held = given.to(array.dtype)
            is_rounded = type(values) is int and array.is_floating_point()
            if not given.is_cuda and not is_rounded and not _holds(held, given):
                raise ArrayError(f"array '{name}' is {has}, which cannot hold all of these numbers. Give smaller ones.")
            array.copy_(held.expand(array.shape))
        except (RuntimeError, TypeError, ValueError):
            has = list(values.shape) if hasattr(values, "shape") else type(values).__name__
            raise ArrayError(f"array '{name}' is {list(array.shape)}: {has} cannot be written into it.") from None

    def __contains__(self, name: object) -> bool:
        return name in self._arrays

    def __iter__(self) -> Iterator[str]:
        """Names in the order of their push, tables among them."""
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def keys(self) -> KeysView[str]:
        return self._arrays.keys()

    def values(self) -> ValuesView[torch.Tensor]:
        return self._arrays.values()

    def items(self) -> ItemsView[str, torch.Tensor]:
        return self._arrays.items()

    def get(self, name: str, default: Any = None) -> Any:
        """The live tensor, or `default` where there is none."""
        return self._arrays.get(name, default)

    def names(self) -> list[str]:
        """Names of all but tables, in the order of their push."""
        return [name for name in self if name not in self._tables]

    def is_table(self, name: str) -> bool:
        """Whether all envs share the array; see `push_table`."""
        return name in self._tables

    def is_const(self, name: str) -> bool:
        """Whether kernels may only read the array."""
        return name in self._constant

    def pull(self, name: str) -> np.ndarray:
        """A numpy copy of the array, after all work queued so far."""
        tensor = self[name]
        if tensor.dtype is torch.bfloat16:
            tensor = tensor.float()
        return tensor.to("cpu", copy=True).numpy()

    def push_table(self, name: str, array: Any, settable: bool = False) -> torch.Tensor:
        """As `push`, of what all envs share: a map, a deck. It has no env axis, and kernels may only read it.

        Who pushes a table can push it again, so a snapshot leaves it out, unless it is `settable` and may have changed.
        """
        tensor = self.push(name, array, const=True)
        self._tables[name] = settable
        return tensor

    def save_start(self, *names: str) -> None:
        """Keeps the arrays' values of now as `start_<name>`: ended envs restart from them."""
        for name in names:
            if START + name in self:
                self[START + name].copy_(self[name])
            else:
                self.add(START + name, self[name].clone(), const=True)

    def push_pool(self, **rows: Any) -> None:
        """Start pools: each array [P, ...] holds P starts of the array it is named for.

        A restarting env draws one row and takes it from every array of the pool, so rows must hold
        whole states: push the observation of each state with it.

        Raises:
            ArrayError: an array is unknown, or shapes, dtypes or numbers of rows disagree.
        """
        for name, values in rows.items():
            if not hasattr(values, "__len__"):
                raise ArrayError(f"pool '{name}': expected an array of rows [P, ...], got {type(values).__name__}.")
        num_rows = {name: len(values) for name, values in rows.items()}
        if len(set(num_rows.values())) > 1:
            raise ArrayError(f"the arrays of a pool need the same number of rows, got {num_rows}.")
        for name, values in rows.items():
            array = self[name]
            if not isinstance(values, torch.Tensor):
                values = self._from_numpy(name, self._as_numpy(name, values))
            if tuple(values.shape[1:]) != tuple(array.shape[1:]) or values.dtype != array.dtype:
                raise ArrayError(
                    f"pool rows of '{name}' are {list(values.shape[1:])} {values.dtype}, one env of the array is "
                    f"{list(array.shape[1:])} {array.dtype}. Make them agree."
                )
            self.push(POOL + name, values, const=True)

    def bytes_held(self) -> dict[str, int]:
        """Bytes on the device, by array."""
        return {name: tensor.numel() * tensor.element_size() for name, tensor in self._arrays.items()}

    def state(self) -> dict[str, torch.Tensor]:
        """The live tensors that a snapshot copies: all there is to know to go on later."""
        return {name: tensor for name, tensor in self.items() if self._tables.get(name, True)}

    def snapshot(self) -> dict[str, torch.Tensor]:
        """Copies of all arrays, and of the tables that are settable, on the device."""
        return {name: tensor.clone() for name, tensor in self.state().items()}

    def restore(self, snapshot: Mapping[str, torch.Tensor]) -> None:
        """Writes a snapshot back into the same memory. Nothing is written if anything does not fit.

        Raises:
            ArrayError: the snapshot has other names, shapes or dtypes.
        """
        if not isinstance(snapshot, Mapping) or not all(isinstance(one, torch.Tensor) for one in snapshot.values()):
            raise ArrayError("a snapshot is a dict of tensors by name, as data.snapshot() makes one.")
        state = self.state()
        if missing := [name for name in state if name not in snapshot]:
            raise ArrayError(f"the snapshot lacks {missing}: it was taken of other arrays.")
        if unknown := [name for name in snapshot if name not in state]:
            raise ArrayError(f"the snapshot holds {unknown}, which are no arrays here: it was taken of others.")
        for name, value in snapshot.items():
            array = state[name]
            if value.shape != array.shape or value.dtype != array.dtype:
                raise ArrayError(
                    f"'{name}' is {list(value.shape)} {value.dtype} in the snapshot and "
                    f"{list(array.shape)} {array.dtype} here."
                )
        for name, value in snapshot.items():
            state[name].copy_(value)

    def nearest(self, name: object) -> str:
        """A hint for a wrong name: `Did you mean 'x'?`, else the names there are."""
        near = difflib.get_close_matches(name, self._arrays, 1) if isinstance(name, str) else []
        return f"Did you mean '{near[0]}'?" if near else f"Pushed so far: {', '.join(self._arrays) or 'nothing'}."

    def _from_numpy(self, name: str, array: np.ndarray) -> torch.Tensor:
        try:
            return torch.from_numpy(np.array(array, order="C", copy=True))
        except TypeError:
            raise ArrayError(self._refuse_dtype(name, str(array.dtype))) from None

    @staticmethod
    def _as_numpy(name: str, array: Any) -> np.ndarray:
        try:
            return np.asarray(array)
        except ValueError:
            raise ArrayError(f"'{name}' is ragged: its rows differ in length. Push a rectangular array.") from None

    @staticmethod
    def _refuse_dtype(name: str, dtype: str) -> str:
        taken = ", ".join(str(known).removeprefix("torch.") for known in CTYPES)
        return (
            f"kernels cannot take '{name}' as {dtype} (they take {taken}). "
            f"Push it as float32: data.push('{name}', numpy.asarray({name}, dtype='float32'))."
        )


def _holds(held: torch.Tensor, given: torch.Tensor) -> bool:
    """Whether integers are what they were before they were written as another dtype."""
    if given.dtype in (held.dtype, torch.bool) or given.is_floating_point():
        return True
    if held.dtype.is_floating_point:
        return given.itemsize <= held.itemsize or bool((held.to(given.dtype) == given).all())
    # As floats as well, which tell apart what begins anew beyond 2^63.
    return all(bool((held.to(dtype) == given.to(dtype)).all()) for dtype in (torch.int64, torch.float64))
