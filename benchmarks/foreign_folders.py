"""Run folders from strangers: links, pipes, files without end. Each is refused in a line, and what it leads to is left.
And compiled kernels from strangers: none is loaded.

python benchmarks/foreign_folders.py             # some seconds
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from trainers import cli
from trainers.run import checkpoint, manifest
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive import cache

SIZES = {"num_envs": 4, "train_batch_size": 8, "total_timesteps": 8, "device": "cpu"}
CONFIG = {"name": "cartpole", "trainer": SIZES, "policy": {"shared": {"lr": 1e-3, "model": {"fc_dims": [8]}}}}
TOP = ("config.resolved.yaml", "metrics.jsonl", "log.txt", "command.txt", "run.lock")
NEWEST = "checkpoints/step_000000000008"
OF_CHECKPOINT = tuple(f"{NEWEST}/{name}" for name in ("manifest.json", "rng.json", "env.safetensors"))
FOLDERS = ("checkpoints", NEWEST, "crash", "media", "profile", "tb")
HUGE = 1 << 40

Forgery = Callable[[Path, Path], None]
"""Changes a run folder; the second is a folder elsewhere, which nothing may read or change."""


def link(name: str) -> Forgery:
    """What lies there lies elsewhere, with a link to it."""

    def forge(run: Path, elsewhere: Path) -> None:
        there = elsewhere / Path(name).name
        if (run / name).exists():
            shutil.move(run / name, there)
        else:
            there.mkdir()
        (run / name).symlink_to(there)

    return forge


def pipe(name: str) -> Forgery:
    def forge(run: Path, elsewhere: Path) -> None:
        (run / name).unlink()
        os.mkfifo(run / name)

    return forge


def huge(name: str) -> Forgery:
    """A file of a TiB that takes no room on the disk; the manifest says that it is to be so."""

    def forge(run: Path, elsewhere: Path) -> None:
        os.truncate(run / name, HUGE)
        file = run / NEWEST / checkpoint.MANIFEST
        if run / name != file and (run / name).parent == file.parent:
            told = json.loads(file.read_bytes())
            told["files"][Path(name).name]["bytes"] = HUGE
            del told["sha256"]
            file.write_bytes(manifest.to_json(told | {"sha256": manifest.sha256(manifest.to_json(told))}))

    return forge


def second_name(name: str) -> Forgery:
    def forge(run: Path, elsewhere: Path) -> None:
        (run / name).unlink()
        (elsewhere / "mine").write_text("mine")
        os.link(elsewhere / "mine", run / name)

    return forge


def last_of_another(run: Path, elsewhere: Path) -> None:
    """`last`, by which the run is given, is in another run."""
    shutil.copytree(run, elsewhere / "run", symlinks=True)
    (run / "checkpoints" / "last").unlink()
    (run / "checkpoints" / "last").symlink_to(elsewhere / "run" / NEWEST)


FORGERIES: dict[str, Forgery] = {
    **{f"link {name}": link(name) for name in (*TOP, *OF_CHECKPOINT, *FOLDERS)},
    **{f"pipe {name}": pipe(name) for name in (*TOP, *OF_CHECKPOINT)},
    **{f"huge {name}": huge(name) for name in (*TOP[:2], "run.lock", *OF_CHECKPOINT)},
    "second name run.lock": second_name("run.lock"),
    "last of another": last_of_another,
}


def made_run(folder: Path) -> Path:
    """A run of one iteration and one checkpoint."""
    trainer = Trainer(read_config(CONFIG | {"saving": {"basedir": str(folder)}}))
    trainer.train()
    return trainer.run.path


def bytes_of(folder: Path) -> dict[str, bytes]:
    """What all plain files in a folder hold; of huge ones that they are huge."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {str(file): file.read_bytes() if file.stat().st_size < HUGE else b"huge" for file in sorted(files)}


def why_not_refused(run: Path, folder: Path, name: str) -> str | None:
    """Forges a copy of a run, and goes on with it from the command line: None if that is refused in one line, and
    nothing is changed by it in the run or elsewhere."""
    place, elsewhere = folder / "foreign" / run.name, folder / "elsewhere"
    shutil.copytree(run, place, symlinks=True)
    elsewhere.mkdir()
    FORGERIES[name](place, elsewhere)
    before = [bytes_of(place), bytes_of(elsewhere)]
    given = place / "checkpoints" / "last" if name == "last of another" else place
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        code = cli.main(["train", "--resume", str(given), "--total-timesteps", "16"])
    line = errors.getvalue().removesuffix("\n")
    if code not in (cli.NO_RESOURCE, cli.BAD_CHECKPOINT):
        return f"exit code {code}: {line}"
    if not line.startswith("error: ") or not line.isprintable():
        return f"not one line: {line!r}"
    after = [bytes_of(place), bytes_of(elsewhere)]
    changed = {file for old, new in zip(before, after, strict=True) for file, _ in old.items() ^ new.items()}
    changed -= {str(place / "run.lock")}  # is there, and empty, once somebody has asked for it
    return f"changed: {changed}" if changed else None


def foreign_folders(folder: Path) -> dict[str, Any]:
    """How many forged run folders were refused, of how many; and why not."""
    run, found = made_run(folder / "runs"), {}
    for number, name in enumerate(FORGERIES):
        place = folder / str(number)
        place.mkdir()
        found[name] = why_not_refused(run, place, name)
    wrong = {name: why for name, why in found.items() if why is not None}
    return {"tried": len(found), "refused": len(found) - len(wrong), "not_refused": wrong}


def forged_kernels(folder: Path) -> dict[str, Any]:
    """How many entries of the cache that were cut, exchanged or forged were built again, of how many."""
    variables = {"WARPDRIVE_CACHE": str(folder / "cache"), "XDG_STATE_HOME": str(folder / "state")}
    with mock.patch.dict(os.environ, variables):
        path = cache.cached("key", ".so", lambda: b"kernel")
        good = path.read_bytes()
        of_another_name = cache.cached("other", ".so", lambda: b"kernel").read_bytes()
        sums = [getattr(hashlib, name)(b"other").digest() for name in ("sha256", "sha3_256", "blake2s")]
        keys = [hmac.digest(key, b"key.so\0other", "sha256") for key in (b"", bytes(32), b"key.so", good[-32:])]
        forged = [b"", good[:-1], b"other" + good[-32:], of_another_name, *(b"other" + end for end in sums + keys)]
        built: list[int] = []
        for content in forged:
            path.write_bytes(content)
            cache.cached("key", ".so", lambda: built.append(1) or b"kernel")
        return {"tried": len(forged), "built_again": len(built), "is_whole": path.read_bytes() == good}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        folders, kernels = foreign_folders(Path(temporary)), forged_kernels(Path(temporary))
    print(json.dumps({"folders": folders, "kernels": kernels}, indent=1))
    sys.exit(folders["tried"] > folders["refused"] or kernels["tried"] > kernels["built_again"])
