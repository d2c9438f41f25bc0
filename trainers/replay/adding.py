"""What takes a window into a store, in one launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch

from trainers.experience.field import Field, in_a_line
from trainers.replay.kernel_text import MULTIPROCESSORS, KernelText, launch_shape
from trainers.replay.storage import Window, lies_side_by_side, run_of
from warpdrive.errors import ShapeError
from warpdrive.signature import CTYPES

if TYPE_CHECKING:
    from trainers.replay.store import ReplayStore

THREADS = 128
"""Of a block that adds."""
MOST_BLOCKS = 32 * MULTIPROCESSORS
"""Of a launch."""
WORDS_AT_ONCE = 4
"""Of a long field, that a thread copies at once."""
BYTES_AT_ONCE, MOST_STEPS = 128, 16
"""Of records that a thread puts together at once; and steps."""
SHORT_ROW = 256
"""Bytes of what an env sees up to which a block keeps those that many envs saw last."""
BYTES_OF_SIDES = 1 << 15
"""Of what envs saw last, that a block keeps of longer ones."""
LAST = "final_"
"""`final_<observation>` of a window [K, E(, A), *shape]: what an env saw before its k-th truncation in it."""
_ENDS = ("terminated", "truncated")


class Adding:
    """The launch that takes in what a window's tensors hold then; see `ReplayStore.prepare_add`."""

    def __init__(self, store: ReplayStore, window: Window) -> None:
        self.layout, self.record, self.backend = store.layout, store.record, store.backend
        self.tensors, self.small, self.window = store.tensors, store.small, window
        self._words_of_tile = WORDS_AT_ONCE * (THREADS if self.backend.name == "cuda" else 1)

    def prepare(self) -> Callable[[], None]:
        """Raises ShapeError where a tensor is missing, or does not fit its field."""
        layout = self.layout
        if not isinstance(self.window, Mapping):
            raise ShapeError(f"a window is a {type(self.window).__name__}. Give a dict of tensors by field's name.")
        known = {*(one.name for one in layout), *(LAST + one.name for one in layout.observations)}
        known |= {"terminated", "truncated"}
        for name in self.window:
            if name not in known:
                told = f"the window has '{name}', which the store does not keep"
                raise ShapeError(f"{told}. It keeps {', '.join(sorted(known))}: leave it out.")
        text = KernelText("add", ["add.cuh"])
        shape = (layout.num_steps, layout.num_envs)
        ends = [self._fitting(name, self._given(name), shape, torch.bool) for name in _ENDS]
        counts = {self._num_truncations(LAST + one.name) for one in layout.observations}
        if len(counts) > 1:
            raise ShapeError(f"the window's '{LAST}...' hold {sorted(counts)} truncations. Give as many of each.")
        most = max(counts, default=0)
        side_of = torch.full((max(most, 1), layout.num_envs), -1, dtype=torch.int32, device=self.backend.device)
        head = text.write("head", self.small["head"])
        records = text.write("records", self.record.whole(self.tensors))
        arguments = [text.read(name, one.contiguous()) for name, one in zip(_ENDS, ends, strict=True)]
        arguments += ["begin", records]
        arguments += [text.write(name, self.small[name]) for name in ("side_step", "num_truncated", "num_dropped")]
        arguments += [text.write("side_of", side_of)]
        text.line(f"const long long begin = {head}[0];")
        text.line("const int base = (int)(begin % NUM_SLOTS);")
        text.line("const Crews crews;")
        text.line("for (long long i = crews.of_steps.me; i * ENVS_OF_BLOCK < NUM_ENVS && crews.of_steps.has_me();")
        text.line("     i += crews.of_steps.count) {")
        text.line("    const Envs envs(i);")
        text.line(f"    Ends<{CTYPES[self.tensors['done'].dtype]}> ends(envs, {', '.join(arguments)});")
        self._write_records(text, records)
        self._write_sides(text)
        text.line("}")
        num_tiles = self._write_tiles(text)
        text.line(f"move_head(begin, {head});")
        constants = {name.upper(): getattr(layout, name) for name in ("num_steps", "num_slots", "num_sides")}
        constants |= {"MAX_TRUNCATIONS": most, **self._shape_of_records()}
        of_steps = -(-layout.num_envs // constants["ENVS_OF_BLOCK"])
        at_most = max(1, MOST_BLOCKS - of_steps)
        of_rows = -(-num_tiles // max(1, -(-num_tiles // at_most)))  # with as many tiles each
        shape = launch_shape(self.backend, (of_steps + of_rows) * THREADS, THREADS, MOST_BLOCKS)
        return text.prepare(self.backend, shape, constants, layout.num_envs)

    def _write_tiles(self, text: KernelText) -> int:
        """The copies of a window's long fields into their rings, a tile of one of them after the other; how many."""
        copies, num_tiles = [], 0
        for i, one in enumerate(self.layout):
            if one.name in self.record.offsets:
                continue
            num_rows, parts = len(self.tensors[one.name]), self._parts(one)
            ring = text.write(_named("ring", i, one), self.tensors[one.name], True)
            for part, given in enumerate(parts):
                run = run_of(given)
                first = f"(int)((begin + {part * self.layout.num_steps}) / {one.every} % {num_rows})"
                from_window = text.read(_named(f"window{part}", i, one), run.flat)
                sizes = f"{run.words}, {run.num_runs}, {run.run_stride}, {run.step_stride}, {num_rows}"
                # What a later row will overwrite is left out.
                skipped = max(0, sum(len(later) for later in parts[part:]) - num_rows)
                num_words = (len(given) - skipped) * run.num_runs * run.words
                begin, num_tiles = num_tiles, num_tiles - -num_words // self._words_of_tile
                arguments = f"tile - {begin}, {from_window}, {ring}, {first}, {skipped}, {len(given)}"
                copies.append(f"if (tile >= {begin} && tile < {num_tiles}) add_tile<{run.word}, {sizes}>({arguments});")
        text.line(f"for (int tile = crews.of_rows.me; crews.of_rows.has_me() && tile < {num_tiles};")
        text.line("     tile += crews.of_rows.count) {")
        for copy in copies:
            text.line(f"    {copy}")
        text.line("}")
        return num_tiles

    def _shape_of_records(self) -> dict[str, int]:
        """How many are put together at once, and how; constants of add.cuh."""
        of_sides = sum(self.small[f"side_{one.name}"][0, 0].nbytes for one in self.layout.observations)
        at_once = THREADS if of_sides <= SHORT_ROW else max(1, min(32, BYTES_OF_SIDES // of_sides))
        return {
            "WORDS_OF_TILE": self._words_of_tile,
            "WORDS_AT_ONCE": WORDS_AT_ONCE,
            "ENVS_OF_BLOCK": at_once if self.backend.name == "cuda" else 1,
            "STEPS_AT_ONCE": min(self.layout.num_steps, max(1, BYTES_AT_ONCE // self.record.num_bytes), MOST_STEPS),
            "RECORD": self.record.num_bytes,
            "BY_ENV": self.record.is_by_env,
            "CODE_OFFSET": self.record.offsets["done"],
        }

    def _write_records(self, text: KernelText, records: str) -> None:
        """The records of a window's steps, and what of the next ones is known after them, of the same envs."""
        after = []
        text.line("    const auto load = [&](Record (&of)[STEPS_AT_ONCE], int t0) {")
        for i, one in enumerate(self.layout):
            if one.name not in self.record.offsets:
                continue
            offset, ring = self.record.offsets[one.name], self.tensors[one.name]
            steps, *rest = self._parts(one)
            run = run_of(steps, merges=False)
            sizes, place = f"{run.word}, {run.words}, {run.run_stride}", text.read(_named("window", i, one), run.flat)
            text.line(f"        load_field<{offset}, {sizes}, {run.step_stride}>(of, t0, ends.env, {place});")
            if not one.extra:
                continue
            run = run_of(rest[0] if rest else steps[-1:], merges=False)
            word = ring[0, 0].nbytes // run.words
            strides = ", ".join(str(stride * ring.element_size() // word) for stride in ring.stride()[:2])
            sizes, place = f"{run.word}, {run.words}, {run.run_stride}", text.read(_named("after", i, one), run.flat)
            to = text.write(_named("ring", i, one), ring, True)
            after.append(f"    add_after<{sizes}, {strides}>(envs, base, {place}, {to});")
        text.line("    };")
        text.line(f"    add_records(ends, envs, base, {records}, load);")
        text.line("    __syncthreads();")
        for line in after:
            text.line(line)

    def _write_sides(self, text: KernelText) -> None:
        """The copies of last observations into the sides, of the envs that a block looks at together."""
        for i, one in enumerate(self.layout.observations):
            given = self._given(LAST + one.name)
            expected = (len(given), *self._row_of(one))
            run = run_of(self._fitting(LAST + one.name, given, expected, one.dtype), merges=False)
            side = text.write(_named("side", i, one), self.small[f"side_{one.name}"], True)
            text.line(
                f"    add_sides<{run.word}, {run.words}, {run.run_stride}, {run.step_stride}>("
                f"envs, {text.read(_named('last', i, one), run.flat)}, {side}, side_of);"
            )

    def _row_of(self, field: Field) -> tuple[int, ...]:
        return (self.layout.num_envs, *((self.layout.num_agents,) if field.axis == "agent" else ()), *field.shape)

    def _parts(self, field: Field) -> list[torch.Tensor]:
        """The field's steps; and what comes after them, if it is given apart."""
        rows = self._row_of(field)
        given, num_steps = self._given(field.name), self.layout.num_steps // field.every
        if not isinstance(given, tuple):
            return [self._fitting(field.name, given, (num_steps + field.extra, *rows), field.dtype)]
        if not field.extra:
            told = f"the window's '{field.name}' is a pair, and nothing is known of it after the last step"
            raise ShapeError(f"{told}. Give the first of the two.")
        if len(given) != 2 or not isinstance(given[1], torch.Tensor):
            told = f"the window's '{field.name}' is {in_a_line(given)}"
            raise ShapeError(f"{told}. Give its steps, and what is known after them.")
        return [
            self._fitting(field.name, given[0], (num_steps, *rows), field.dtype),
            self._fitting(field.name, given[1].unsqueeze(0), (1, *rows), field.dtype),
        ]

    def _num_truncations(self, name: str) -> int:
        given = self._given(name)
        if not isinstance(given, torch.Tensor) or not given.dim():
            raise ShapeError(f"the window's '{name}' is {in_a_line(given)}. Give [K, E(, A), *shape].")
        return len(given)

    def _given(self, name: str) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        if name not in self.window:
            has = ", ".join(self.window) or "nothing"
            raise ShapeError(f"the window has no '{name}'. It has {has}: give it, too.")
        return self.window[name]

    def _fitting(self, name: str, found: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if not isinstance(found, torch.Tensor):
            raise ShapeError(f"the window's '{name}' is a {type(found).__name__}. Give a tensor of the store's device.")
        if tuple(found.shape) != shape or found.dtype != dtype:
            raise ShapeError(
                f"the window's '{name}' is {list(found.shape)} {_word(found.dtype)}, and the store keeps "
                f"{list(shape)} {_word(dtype)}. Give what its field says."
            )
        if not lies_side_by_side(found, 2):
            raise ShapeError(
                f"the window's '{name}' is strided behind its envs ({list(found.shape)}, strides "
                f"{list(found.stride())}). Give {name}.contiguous()."
            )
        return found


def _named(what: str, number: int, field: Field) -> str:
    """Of a parameter: as nothing else is, whatever fields are called."""
    return f"{what}_{number}_{field.name}"


def _word(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")
