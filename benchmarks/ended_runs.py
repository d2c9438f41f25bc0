"""Processes that train one run, each until a signal ends it: kills, replay_kills, stops and locks of reliability.py."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults import PATIENCE, TrainingProcess
from report import ROOT
from small_run import SEED, SMALL, config_in, hashes, leftovers, quiet

from trainers.replay.chunks import REPLAY
from trainers.run import checkpoint, disk
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.errors import CheckpointError

LEARNING_FROM_REPLAY = {
    "tagger": {"algorithm": "DQN", "buffer_size": 400, "learning_starts": 60, "batch_size": 16, "model": SMALL},
    "runner": {"algorithm": "DQN", "buffer_size": 200, "learning_starts": 60, "batch_size": 16, "model": SMALL},
}
IN_TIERS = {**LEARNING_FROM_REPLAY}
IN_TIERS["tagger"] = {**IN_TIERS["tagger"], "buffer_size": 2000, "tiers": {"device": "40KB", "file": "1GB", "ahead": 2}}
"""Three windows of its seventeen on the device, two in host memory."""
STOPS = ((signal.SIGINT,), (signal.SIGTERM,), (signal.SIGINT, signal.SIGINT), (signal.SIGHUP,))


class Chain:
    """One run that processes train one after the other, each until something ends it."""

    def __init__(self, folder: Path, **sections: Any) -> None:
        self.folder, self.run, self.log, self.sections = folder, folder / "run", folder / "said.txt", sections
        self.newest: Path | None = None
        self.num_left = self.num_resumed = self.num_steps_lost = 0
        file = folder / "run.yaml"
        file.write_text(json.dumps(config_in(folder, **sections)))  # which is YAML, too
        first = TrainingProcess(["--config", file, "--run-name", "run"], self.log)
        first.wait_for("env steps           60")
        first.send(signal.SIGINT)
        if first.end() != 130:
            raise SystemExit(f"the first process did not stop:\n{first.said()}")
        self.look()

    def start(self) -> TrainingProcess:
        return TrainingProcess(["--resume", self.run], self.log)

    def look(self, said: str | None = None) -> bool:
        """Whether the newest checkpoint loads, and is not older than before; counts what `said` says of the start."""
        before, self.newest = self.newest, checkpoint.list_checkpoints(self.run / "checkpoints")[-1]
        if said is not None:
            self.num_resumed += f"resumed from {before}" in said
        try:
            checkpoint.load_checkpoint(self.newest)
            checkpoint.load_checkpoint(self.run / "checkpoints" / checkpoint.LAST)
        except CheckpointError as error:
            print(error)
            return False
        return before is None or self.newest.name >= before.name

    def end(self) -> dict[str, Any]:
        """Goes on once more, to a stop; compares with a run that was never ended."""
        process = self.start()
        process.wait_for("run folder:")
        process.send(signal.SIGINT)
        code, left = process.end(), leftovers(self.run)
        self.look(process.said())
        iterations = checkpoint.load_checkpoint(self.newest).progress["iteration"]
        whole = self.folder / "whole"
        config = config_in(whole, iterations, **self.sections)
        config["saving"] |= {"model_params_save_freq": 0}
        config["evaluation"] = {}
        with quiet():
            trainer = Trainer(read_config(config))
            trainer.train()
        same = hashes(trainer.run.checkpoints / checkpoint.LAST) == hashes(self.newest)
        return {
            "exit_code_at_the_end": code,
            "leftovers_seen": self.num_left,
            "leftovers_after_the_next_start": len(left),
            "iterations": iterations,
            "same_bits_as_a_run_that_was_never_ended": same,
        }


Moment = Callable[[Chain, TrainingProcess, random.Random], None]


def kills(number: int, folder: Path) -> dict[str, Any]:
    """kill -9 at a random moment of an iteration, and so often of its save: before the first report, or after a few."""

    def moment(chain: Chain, process: TrainingProcess, chance: random.Random) -> None:
        time.sleep(chance.uniform(0.0, process.wait_for_reports(chance.randrange(5))))

    return _kill(number, Chain(folder), moment)


def tier_kills(number: int, folder: Path) -> dict[str, Any]:
    """The same where most of the store is in files, which are written while training goes on."""
    return replay_kills(number, folder, IN_TIERS)


def replay_kills(number: int, folder: Path, policies: dict[str, Any] | None = None) -> dict[str, Any]:
    """kill -9 within a save, up to the time that one takes after its first file is there."""

    def moment(chain: Chain, process: TrainingProcess, chance: random.Random) -> None:
        process.wait_for_reports(chance.randrange(5))
        until = time.monotonic() + PATIENCE
        while not any((chain.run / "checkpoints").glob(f"{disk.TEMPORARY}step_*")) and time.monotonic() < until:
            time.sleep(0.0005)
        time.sleep(chance.uniform(0.0, 0.04))

    chain = Chain(folder, policy=policies or LEARNING_FROM_REPLAY, evaluation={})
    found = _kill(number, chain, moment)
    folder = chain.run / "checkpoints"
    listings = [checkpoint.load_checkpoint(place).replay.values() for place in checkpoint.list_checkpoints(folder)]
    listed = {part.name for ones in listings for one in ones for part in one.parts}
    return {**found, "files_of_no_checkpoint": len({file.name for file in (folder / REPLAY).iterdir()} - listed)}


def _kill(number: int, chain: Chain, moment: Moment) -> dict[str, Any]:
    chance, good = random.Random(SEED), 0
    for _ in range(number):
        process = chain.start()
        process.wait_for("run folder:")
        seen = leftovers(chain.run)
        moment(chain, process, chance)
        process.send(signal.SIGKILL)
        process.end()
        good += chain.look(process.said()) and not [name for name in seen if f"-{process.pid}-" not in name]
        chain.num_left += len(leftovers(chain.run))
    end = chain.end()
    resumed = min(good, chain.num_resumed - 1) if end["same_bits_as_a_run_that_was_never_ended"] else 0
    return {"kills": number, "resumed": resumed, **end}


def stops(number: int, folder: Path) -> dict[str, Any]:
    """Signals at a random moment; in every fifth process from its very start on, while torch is being loaded."""
    chance, chain, resumable, codes = random.Random(SEED), Chain(folder), 0, {}
    for turn in range(number):
        signals = STOPS[turn % len(STOPS)]
        if turn % 5 == 4:
            good, code, said = _stop_program(chain, signals, chance)
        else:
            process = chain.start()
            num_reports = chance.randrange(-1, 5)
            if num_reports >= 0:
                process.wait_for("run folder:")
            time.sleep(chance.uniform(0.0, process.wait_for_reports(num_reports)))
            for one in signals:
                process.send(one)
                time.sleep(chance.uniform(0.0, 0.1))
            code, said = process.end(), process.said()
            good = "Traceback" not in said
        is_told = code == 128 + signals[0]
        good &= is_told or code == -signals[0]  # as a shell sees it, the same
        good &= chain.look(said if "resumed from" in said else None)
        if len(signals) == 1 and is_told and "after" in said:
            good &= not leftovers(chain.run)
        chain.num_left += len(leftovers(chain.run))
        resumable += good
        key = " ".join(signal.Signals(one).name for one in signals)
        codes.setdefault(key, {}).setdefault(str(code), 0)
        codes[key][str(code)] += 1
    end = chain.end()
    ok = end["same_bits_as_a_run_that_was_never_ended"] and end["exit_code_at_the_end"] == 130
    return {"stops": number, "resumable": resumable if ok else 0, "exit_codes": codes, **end}


def _stop_program(chain: Chain, signals: tuple[int, ...], chance: random.Random) -> tuple[bool, int, str]:
    command = [sys.executable, ROOT / "examples" / "train.py", "--resume", chain.run]
    with chain.log.open("w") as log:
        # As many threads as a TrainingProcess has: torch's GRU rounds otherwise with more.
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        time.sleep(chance.uniform(0.0, 5.0))
        for one in signals:
            process.send_signal(one)
            time.sleep(chance.uniform(0.0, 0.1))
        code = process.wait(120)
    return True, code, chain.log.read_text()  # Ctrl-C while Python itself starts is told by Python


def locks(number: int, folder: Path) -> dict[str, Any]:
    """Processes that all want to go on with one run."""
    chain = Chain(folder)
    processes = [TrainingProcess(["--resume", chain.run], folder / f"said_{i}.txt") for i in range(number)]
    until = time.monotonic() + 60
    while sum(process.is_alive() for process in processes) > 1 and time.monotonic() < until:
        time.sleep(0.05)
    running = [process for process in processes if process.is_alive()]
    refused = [process for process in processes if process not in running]
    named = sum(
        process.end() == 3 and f"process {running[0].pid} on" in process.said().splitlines()[-1] for process in refused
    )
    for process in running:
        process.send(signal.SIGINT)
    return {
        "processes": number,
        "that_ran": len(running),
        "refused_with_its_number": named,
        "exit_code_of_the_one": running[0].end(),
    }
