"""TensorBoard and Weights & Biases, if they are asked for. What fails there is said once, and never ends a run."""

from __future__ import annotations

import math
import os
import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainers.run.run_folder import RunFolder
from trainers.settings.config import Config
from warpdrive.config import to_plain
from warpdrive.distribution import pip_install


class Tracker(ABC):
    """One place besides the run folder to which metrics go. It may raise whatever it likes."""

    name: str
    extra: str
    """Of pip: what installs it."""

    @abstractmethod
    def open(self, folder: Path, config: Mapping[str, Any], env_steps: int) -> None:
        """Before the first report; `env_steps` were made before, if the run was resumed."""

    @abstractmethod
    def log(self, metrics: Mapping[str, float], env_steps: int) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    def where(self) -> str | None:
        """A line on where to look, once it is open; None if that needs no word."""
        return None


class TensorBoard(Tracker):
    """Event files in the run folder's tb/."""

    name, extra = "TensorBoard", "tensorboard"

    def open(self, folder: Path, config: Mapping[str, Any], env_steps: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        purge_step = env_steps + 1 if env_steps else None  # what a run that is resumed makes anew
        self._writer = SummaryWriter(folder / "tb", purge_step=purge_step)

    def log(self, metrics: Mapping[str, float], env_steps: int) -> None:
        for name, value in metrics.items():
            if math.isfinite(value):
                self._writer.add_scalar(name, value, env_steps)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandB(Tracker):
    """Weights & Biases, in the run folder's wandb/: offline, for `wandb sync`, unless $WANDB_MODE says otherwise."""

    name, extra = "Weights & Biases", "wandb"

    def open(self, folder: Path, config: Mapping[str, Any], env_steps: int) -> None:
        import wandb

        # A run that is resumed goes on under its id, which ends the names of the folders that wandb makes.
        before = sorted((folder / "wandb").glob("*run-*-*"))
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "warpdrive"),
            name=folder.name,
            dir=folder,
            config=dict(config),
            mode=os.environ.get("WANDB_MODE", "offline"),
            id=before[-1].name.rpartition("-")[2] if before else None,
            resume="allow",
            settings=wandb.Settings(silent=True, console="off", save_code=False, disable_git=True),
        )
        self._run.define_metric("*", step_metric="time/total_timesteps")
        self._folder = folder / "wandb"

    def where(self) -> str | None:
        if os.environ.get("WANDB_MODE", "offline") != "offline":
            return None
        newest = max(self._folder.glob("offline-run-*"), default=self._folder)
        return f"Weights & Biases: offline; wandb sync {shlex.quote(str(newest))} sends it, WANDB_MODE=online at once"

    def log(self, metrics: Mapping[str, float], env_steps: int) -> None:
        self._run.log(dict(metrics))

    def close(self) -> None:
        self._run.finish()


class Trackers:
    """Those that a run asks for.

    Args:
        run: whose folder holds what they write; says what fails.
        config: `saving.tensorboard` asks for TensorBoard.
        track: whether Weights & Biases is asked for.
    """

    def __init__(self, run: RunFolder, config: Config, track: bool = False) -> None:
        self._run = run
        self._config = config
        self._asked: list[Tracker] = []
        if not run.is_silent:
            self._asked += [TensorBoard()] if config.saving.tensorboard else []
            self._asked += [WandB()] if track else []
        self._open: list[Tracker] = []

    def open(self, env_steps: int) -> None:
        plain = to_plain(self._config)
        self._open = [one for one in self._asked if self._try(one, "open", self._run.path, plain, env_steps)]
        for line in filter(None, (one.where() for one in self._open)):
            self._run.say(line)

    def log(self, metrics: Mapping[str, float]) -> None:
        if self._open:
            env_steps = int(metrics["time/total_timesteps"])
            self._open = [one for one in self._open if self._try(one, "log", metrics, env_steps)]

    def close(self) -> None:
        for one in self._open:
            self._try(one, "close")
        self._open = []

    def _try(self, tracker: Tracker, verb: str, *arguments: Any) -> bool:
        try:
            getattr(tracker, verb)(*arguments)
        except ImportError as error:
            way_out = f"{pip_install(tracker.extra)} brings it."
            self._say(f"{tracker.name} cannot be imported ({error.name or error}): {way_out}")
        except Exception as error:  # whatever a library, a disk or a network does
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            self._say(f"{tracker.name} failed ({reason}).")
        else:
            return True
        return False

    def _say(self, line: str) -> None:
        self._run.say(f"warning: {line} The run goes on without; metrics.jsonl has it all.", style="yellow")
