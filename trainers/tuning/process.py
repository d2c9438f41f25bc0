"""A trial's process: `warpdrive train` with what the trial changes, whose metrics.jsonl is read while it is written."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainers.report.statistics import has
from trainers.run.stop import PARENT, signal_name
from trainers.settings.config import Config

MOST_ON_A_GPU = 4
"""Trials at once there, if nobody says how many: more share its time without gaining any."""
STEPS, EPISODES = "time/total_timesteps", "rollout/num_episodes"
CONTEXT = 600 << 20
"""Bytes of a GPU that each process takes before it makes anything."""


class TrainingProcess:
    """A trial that trains.

    It is a session of its own: Ctrl-C reaches the search alone, which then asks its trials to end. Where the search is
    killed, they stop as by a SIGTERM.

    Args:
        command: what trains.
        run: the run folder that it makes.
        metric: the one that is reported.
        environment: variables besides those of this process.
    """

    def __init__(self, command: Sequence[str], run: Path, metric: str, environment: Mapping[str, str]) -> None:
        self.metrics, self.metric = run / "metrics.jsonl", metric
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._read, self._env_steps = 0, -1
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            env={**os.environ, **environment, PARENT: str(os.getpid())},
            start_new_session=True,
        )

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def reports(self) -> list[tuple[int, float | None, float]]:
        """(env steps, figure, episodes that it is the mean of) of what was reported since the last call; None where a
        report has no figure, 1 where it is not of a rollout's episodes."""
        try:
            with self.metrics.open("rb") as file:
                if file.seek(0, os.SEEK_END) < self._read:
                    self._read = 0  # it was thinned out, and begins anew
                file.seek(self._read)
                whole, newline, _ = file.read().rpartition(b"\n")  # the rest is being written
        except OSError:
            return []  # not there yet
        self._read += len(whole + newline)
        found = []
        for line in whole.splitlines():
            with contextlib.suppress(ValueError):
                report = json.loads(line)
                if has(report, STEPS) and report[STEPS] > self._env_steps:
                    self._env_steps = int(report[STEPS])
                    figure = float(report[self.metric]) if has(report, self.metric) else None
                    is_of_rollout = self.metric.startswith("rollout/") and has(report, EPISODES)
                    found.append((self._env_steps, figure, max(1, report[EPISODES]) if is_of_rollout else 1))
        return found

    def why_failed(self) -> str | None:
        """Of one that ended, asked once; None if it trained to its end."""
        code = self._process.wait()
        with self._errors:
            self._errors.seek(0)
            lines = self._errors.read().decode(errors="replace").splitlines()
        if code == 0:
            return None
        told = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        if told:
            return told[0]
        return f"ended by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"

    @property
    def exit_code(self) -> int:
        """Of one that ended; 1 where a signal ended it."""
        code = self._process.wait()
        return 1 if code < 0 else code

    def stop(self) -> None:
        """Asks it to end soon."""
        if not self.has_ended():
            self._process.terminate()

    def kill(self) -> None:
        """Ends it now."""
        if not self.has_ended():
            os.killpg(self._process.pid, signal.SIGKILL)  # its ranks, too, if it has any
            self._process.wait()
        self._errors.close()


def jobs_at_once(config: Config) -> int:
    """How many trials train at once, if nobody says: on a GPU as many as fit by their estimate, 4 at most."""
    from trainers.run.estimate import estimate
    from trainers.run.free_memory import free_bytes
    from trainers.trainer import make_backend

    if config.trainer.num_gpus > 1:
        return 1
    device = make_backend(config.trainer).device
    if device.type != "cuda":
        return 1
    return max(1, min(MOST_ON_A_GPU, free_bytes(device) // (estimate(config, device="cuda").total + CONTEXT)))


def shares_of_cores(num_jobs: int) -> dict[str, str]:
    """Environment variables by which as many trials at once share the cores, as far as they do not say it already."""
    if num_jobs == 1:
        return {}
    share = str(max(1, len(os.sched_getaffinity(0)) // num_jobs))
    return {name: share for name in ("OMP_NUM_THREADS", "WARPDRIVE_NUM_THREADS") if name not in os.environ}
