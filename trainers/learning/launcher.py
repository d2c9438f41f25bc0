"""Starts a process for each rank, as torchrun would, and tells how they ended."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainers.learning import loopback
from trainers.learning.distributed import NO_MULTICAST, ON_LOOPBACK, check_gpus, set_defaults, uses_gpu
from trainers.learning.heartbeat import HUNG, LAUNCH_FOLDER, LOST
from trainers.run.stop import save_passed_on, signal_name
from trainers.settings.config import TrainerConfig

LAUNCHER_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""What torchrun's launcher takes for itself, and passes on to the ranks."""


def launch(
    command: Sequence[str],
    settings: TrainerConfig,
    folder: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> int:
    """Runs `python COMMAND` once for each of `num_gpus` ranks on this machine, as torchrun would.

    Ctrl-C, SIGTERM and SIGHUP go to all ranks, which have time to end an iteration and to save; a third one ends this
    process without them. SIGUSR1, which asks for a checkpoint, goes to all that train. A signal that is ignored here,
    such as SIGHUP under nohup, stays ignored.

    Args:
        folder: where ranks leave word for this process ($WARPDRIVE_LAUNCH_FOLDER); one of its own if not given.
        variables: of the environment, besides those of this process.
    Returns:
        The exit code of the run: that of the rank which failed first, by its own doing.
    Raises:
        BackendError: this machine has fewer GPUs.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    num_ranks = settings.num_gpus
    if uses_gpu(settings) or (num_ranks > 1 and "cpu" not in (settings.device, settings.env_backend)):
        check_gpus(num_ranks)
    with _restored_process(), save_passed_on(), tempfile.TemporaryDirectory() as logs:
        folder = Path(logs) if folder is None else folder
        os.environ.update({**(variables or {}), LAUNCH_FOLDER: str(folder)})
        set_defaults(NO_MULTICAST)
        share = str(max(1, len(os.sched_getaffinity(0)) // num_ranks))
        set_defaults({"OMP_NUM_THREADS": share, "WARPDRIVE_NUM_THREADS": share, **ON_LOOPBACK})
        set_defaults({"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "600"})  # seconds, from Ctrl-C to the end of the iteration
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=num_ranks,
            run_id=uuid.uuid4().hex,
            rdzv_backend=loopback.LOOPBACK,
            local_addr=loopback.ADDRESS,
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(log_dir=logs),
        )
        heeded = (number for number in LAUNCHER_SIGNALS if signal.getsignal(number) != signal.SIG_IGN)
        config.signals_to_handle = ",".join(number.name for number in heeded)
        try:
            elastic_launch(config, sys.executable)(*command)
        except SignalException as stopped:
            if isinstance(stopped.__context__, SignalException):  # the second: no rank could say what became of it
                print(f"stopped by {signal_name(stopped.sigval)}", file=sys.stderr)
            return 128 + stopped.sigval
        except ChildFailedError as failed:
            return 1 if (folder / HUNG).exists() else _told(failed.failures)
    return 0


def _told(failures: dict[int, Any]) -> int:
    """The exit code of the rank that failed first, which had said why; unless it was killed: then that is said here."""

    def order(rank: int) -> tuple[int, float]:
        code = failures[rank].exitcode
        killed_first = code < 0 and code != -signal.SIGTERM  # torchrun ends the others by SIGTERM
        return (0 if killed_first else 1 if code > 0 and code != LOST else 2), failures[rank].timestamp

    rank = min(failures, key=order)
    if (code := failures[rank].exitcode) >= 0:
        return code
    name = signal_name(-code)
    print(f"error: rank {rank} (process {failures[rank].pid}) was ended by {name}: so is the run.", file=sys.stderr)
    return 1


@contextlib.contextmanager
def _restored_process() -> Iterator[None]:
    """Silences torchrun's own log, which nobody can act on; gives signals, variables and the log back at the end."""
    variables, disabled = dict(os.environ), logging.root.manager.disable
    is_main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in LAUNCHER_SIGNALS} if is_main else {}
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(disabled)
        os.environ.clear()
        os.environ.update(variables)
        for number, handler in handlers.items():
            signal.signal(number, handler)
