"""When a run is saved, and what becomes of a checkpoint that is being written while training goes on."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from trainers.errors import NotSavedError
from trainers.run import disk
from trainers.run.run_folder import MAX_UNWRITTEN_BYTES
from trainers.run.stop import SAVE, StopSignals

if TYPE_CHECKING:
    from trainers.trainer import Trainer


class Saves:
    """The checkpoints of a run.

    with saves.kept():                          # a run trains
        number = world.agree_on(saves.asked(stop))
        if number == SAVE:
            saves.save_if_possible(begin=True)  # the disk may take its time
        saves.poll()                            # after each iteration: what was begun may be done

    The tensors are written into files at once, between two iterations: the kernel keeps what the disk has not taken
    yet, and no copy of them is made. A thread then waits for the disk and sums the files up. So a save takes no
    memory of its own, on no device, and where the disk cannot follow, training waits for it.

    Args:
        trainer: whose run it is.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.saving = trainer.config.saving
        self.run, self.world = trainer.run, trainer.world
        self.now: Callable[[], float] = time.monotonic
        """Seconds, by which checkpoints are due and a second signal may be waited for."""
        self.iteration: int | None = None
        """That was saved last, whole; None if none is in this run's folder."""
        self.reserved = disk.temporary(self.run.path / "reserved")
        """A file that takes the room of the last checkpoint, and of reports that wait, while the run trains."""
        self._since = self.now()
        self._writing: _Writing | None = None
        self._is_told = False

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """While it is entered: the clock runs, the last checkpoint's room is reserved, and what was begun is ended on
        leaving; unless the user wants the end at once. Nothing is written into the run's folder after the last
        iteration."""
        self._since = self.now()
        self._reserve_room()
        try:
            yield
            self.flush_stores()
        except BaseException as error:
            if type(error) is not KeyboardInterrupt:
                self.wait()
                with contextlib.suppress(Exception):  # the error goes first
                    self.flush_stores()
            raise
        finally:
            self.free_room()

    def flush_stores(self) -> None:
        """Returns once no thread writes a file of a tier any more."""
        for store in self.trainer.stores.values():
            store.flush()

    def asked(self, stop: StopSignals) -> int | None:
        """What this rank wants after this iteration: to stop, by the signal's number; SAVE; or nothing."""
        if stop.caught is not None:
            return stop.caught
        is_due = self.world.rank == 0 and self.saving.minutes and self.now() - self._since >= 60 * self.saving.minutes
        if stop.take_save() or is_due:
            self._since = self.now()
            return SAVE
        return None

    def save_last(self) -> Path:
        """`save` at the end of a run, into the room that was reserved for it. Where the disk has none for all of it,
        what was learned is saved without the experience that was kept."""
        self.free_room()
        try:
            return self.trainer.save()
        except NotSavedError as error:
            if not self.trainer.chunks.stores:
                raise
            told = "Saving it without the experience that was kept: what is resumed from it begins with none."
            self.run.say(f"warning: {error} {told}", style="yellow")
        return self.save(with_stores=False)

    def save(self, with_stores: bool = True) -> Path:
        """A checkpoint of now, whole on the disk before anything goes on. Raises what `Trainer.save` does."""
        self.world.first(self.wait)
        place = self.world.first(self.trainer.begin_save(with_stores))
        self.iteration, self._since = self.trainer.iteration, self.now()
        self._noted()
        self.trainer.callbacks.saved(self.trainer, place)
        return place

    def save_if_possible(self, begin: bool = False) -> None:
        """A run outlives a full disk: what cannot be saved now is said once, until one is saved again.

        Args:
            begin: the rest of it may wait for the disk while training goes on.
        """
        if self.iteration == self.trainer.iteration:
            return
        try:
            if not begin:
                self.trainer.reporter.saved(self.trainer.save())
                return
            self.world.first(self.wait)
            finish = self.trainer.begin_save()
            if self.world.rank == 0:
                self._writing = _Writing(finish, self.run.check_place)
                self._writing.start()
        except NotSavedError as error:
            self._tell(error)

    @property
    def is_writing(self) -> bool:
        """Whether a checkpoint was begun that nobody knows yet to be whole."""
        return self._writing is not None

    def poll(self) -> None:
        """Takes note of a checkpoint that is written; nobody waits."""
        if self._writing is not None and not self._writing.is_alive():
            with self.world.alone():  # callbacks may take long
                self.wait()

    def wait(self) -> None:
        """Waits for the checkpoint that was begun, if any; on the first rank."""
        if self._writing is None:
            return
        writing, self._writing = self._writing, None
        writing.join()
        if isinstance(writing.error, NotSavedError):
            self._tell(writing.error)
            return
        if writing.error is not None:
            raise writing.error
        self._noted()
        self.trainer.reporter.saved(writing.place)
        self.trainer.callbacks.saved(self.trainer, writing.place, is_first_alone=True)

    def _noted(self) -> None:
        """A checkpoint was written: from now on a full disk is said again."""
        self._is_told = False
        self.run.has_room_again()

    def _tell(self, error: NotSavedError) -> None:
        if not self._is_told:
            self.run.say(f"warning: {error} Training goes on. Make room: the next one may fit.", style="yellow")
        self._is_told = True

    # ------------------------------------------------------------------------------------ the last one's room

    def _reserve_room(self) -> None:
        num_bytes = self.trainer.num_bytes_of_checkpoint() + MAX_UNWRITTEN_BYTES
        if self.world.rank:
            return
        try:
            disk.reserve(self.reserved, num_bytes)
        except OSError as error:
            reason = disk.why_not_written(error, self.run.path, num_bytes)
            line = f"warning: {self.run.checkpoints}: no room for the last checkpoint ({reason}). Make room before the"
            self.run.say(f"{line} run ends.", style="yellow")

    def free_room(self) -> None:
        """The last checkpoint is to be written."""
        if self.world.rank == 0:
            with contextlib.suppress(OSError):
                self.reserved.unlink(missing_ok=True)


class _Writing(threading.Thread):
    """Ends a checkpoint that was begun. A process that ends does not wait for it: then it is no checkpoint."""

    def __init__(self, finish: Callable[[], Path], check: Callable[[], None]) -> None:
        super().__init__(name="checkpoint", daemon=True)
        self.finish, self.check = finish, check
        self.place: Path | None = None
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self.check()
            self.place = self.finish()
        except Exception as error:
            self.error = error
