"""Inputs that were made to do harm: nothing of them runs or is written outside the folder, and a line says why."""

import contextlib
import hashlib
import io
import json
import math
import os
import pickle
import struct
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save

from trainers import cli
from trainers.run import checkpoint, manifest
from trainers.run.generators import generator_states, prepare_generators
from trainers.run.resume import restore
from trainers.trainer import Trainer
from warpdrive.backends import choose_backend
from warpdrive.cache import asked_folder
from warpdrive.errors import CheckpointError, WiringError
from warpdrive.function_manager import write_constants

GOOD = "name: cartpole\ntrainer: {num_envs: 4, train_batch_size: 8, total_timesteps: 8, device: cpu}\n"

_watched: list[tuple[Path, list[str]]] = []
"""The folder that may be written to, and what was done besides."""


def _hook(event: str, arguments: tuple) -> None:
    if not _watched:
        return
    folder, found = _watched[-1]
    if event in ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "pickle.find_class", "os.fork"):
        found.append(event)
    elif event == "open" and isinstance(arguments[0], str | bytes) and set(str(arguments[1])) & set("wax+"):
        path = Path(os.fsdecode(arguments[0])).resolve()
        may_be = [folder, "/dev", asked_folder()]  # kernels of others may still be on their way into the cache
        if not any(path.is_relative_to(one) for one in may_be) and "__pycache__" not in path.parts:
            found.append(f"write {path}")


sys.addaudithook(_hook)  # there is no taking it away again: outside of `harmless` it does nothing


@contextlib.contextmanager
def harmless(folder: Path) -> Iterator[None]:
    """Nothing in here starts a program, reads a pickle or writes outside `folder`; nothing appears beside it."""
    beside = sorted(path for path in folder.parent.rglob("*") if not path.is_relative_to(folder))
    _watched.append((folder, []))
    try:
        yield
    finally:
        _, found = _watched.pop()
    assert found == []
    assert sorted(path for path in folder.parent.rglob("*") if not path.is_relative_to(folder)) == beside
    assert not list(folder.rglob("canary"))


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "inside"
    folder.mkdir()
    (tmp_path / "outside").mkdir()
    monkeypatch.chdir(folder)
    choose_backend(device="cpu")  # the first one of a process asks the compiler for its version
    return folder


def test_the_watch_sees_what_it_is_there_for(inside):
    for harm in (lambda: os.system("true"), lambda: pickle.loads(pickle.dumps(Path))):
        with pytest.raises(AssertionError), harmless(inside):
            harm()
    with pytest.raises(AssertionError), harmless(inside):
        (inside.parent / "canary").touch()


LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 99))
CONFIGS = {
    "apply": "name: !!python/object/apply:os.system ['touch canary']\n",
    "new": "name: !!python/object/new:subprocess.Popen [[touch, canary]]\n",
    "name": "name: !!python/name:os.system\n",
    "module": "name: !!python/module:antigravity\n",
    "tuple": "name: !!python/tuple [a]\n",
    "whole tag": "name: !<tag:yaml.org,2002:python/object/apply:os.system> ['touch canary']\n",
    "own tag": "%TAG ! tag:yaml.org,2002:python/\n---\nname: !object/apply:os.system ['touch canary']\n",
    "tag of a key": "!!python/object/apply:os.system ['touch canary']: 1\n",
    "billion laughs": LAUGHS,
    "merge": f"{GOOD}a: &a {{b: 1}}\n<<: *a\n",
    "alias of itself": "a: &a [*a]\n",
    "name up": GOOD + "saving: {name: ../../x}\n",
    "tag with a slash": GOOD + "saving: {tag: a/b}\n",
    "name absolute": GOOD + "saving: {name: /x}\n",
    "tag of dots": GOOD + "saving: {tag: ..}\n",
    "name of two lines": GOOD + 'saving: {name: "a\\nb"}\n',
    "name of an option": GOOD + "saving: {name: -rf}\n",
    "basedir that steers": GOOD + 'saving: {basedir: "\\e]0;owned\\a"}\n',
    "basedir with a zero": GOOD + 'saving: {basedir: "a\\0b"}\n',
    "env up": GOOD.replace("cartpole", "../../x:Y"),
    "env of os": GOOD.replace("cartpole", "os:system"),
    "env of a path": GOOD.replace("cartpole", "../cuda_envs/cartpole"),
    "env and a statement": GOOD.replace("cartpole", "'cartpole; import os'"),
    "env that is code": GOOD.replace("cartpole", "\"__import__('os').system('touch canary'):X\""),
    "env by its module": GOOD.replace("cartpole", "cuda_envs.cartpole.cartpole"),
    "text for a number": GOOD.replace("cartpole", "simple_tag") + "env: {num_agents: '1; system(\"touch x\")'}\n",
    "macro for a key": GOOD + "env: {'A 1\\n#include </etc/passwd>': 1}\n",
    "algorithm up": GOOD + "policy: {shared: {algorithm: ../../x}}\n",
    "algorithm of os": GOOD + "policy: {shared: {algorithm: os}}\n",
    "network up": GOOD + "policy: {shared: {model: {type: ../../x}}}\n",
    "no network": GOOD + "policy: {shared: {model: {type: policy}}}\n",
    "policy up": GOOD + "policy: {../../x: {}}\n",
    "device that is code": GOOD.replace("device: cpu", "device: 'cuda:0; import os'"),
    "line that steers": GOOD + '"\\e[2J\\e]52;c;AAAA\\a\\u202e": 1\n',
}  # fmt: skip


@pytest.mark.parametrize("allow_import", [False, True])
@pytest.mark.parametrize("case", CONFIGS)
def test_config_is_refused_and_does_nothing(inside, capfd, case, allow_import):
    (inside / "a.yaml").write_text(CONFIGS[case])
    with harmless(inside):
        code = cli.main(["--config", "a.yaml", *["--allow-import"] * allow_import], command="train")
    printed, errors = capfd.readouterr()
    assert (code, printed) == (2, "")
    assert errors.startswith("error: a.yaml:")
    assert all(line.isprintable() for line in errors.splitlines())
    assert [path.name for path in inside.iterdir()] == ["a.yaml"]


@pytest.mark.parametrize("name", ["../x", "..", ".", "/x", "a/b", "-rf", "a\nb", "\x1b[2J", "", "a\0b"])
def test_run_name_stays_in_the_basedir(inside, capfd, name):
    (inside / "a.yaml").write_text(GOOD)
    with harmless(inside):
        code = cli.main(["--config", "a.yaml", f"--run-name={name}"], command="train")
    (line,) = capfd.readouterr().err.splitlines()
    assert code == 2
    assert line.startswith("error: ") and line.isprintable()
    assert not list(inside.glob("runs/*"))


def test_no_link_leads_out_of_the_basedir_and_the_config_of_a_resumed_run_imports_nothing(inside, capfd):
    (inside / "runs").mkdir()
    (inside / "runs" / "a").symlink_to(inside.parent / "outside")
    (inside / "a.yaml").write_text(GOOD)
    assert cli.main(["--config", "a.yaml", "--run-name=a"], command="train") == 0
    assert not list((inside.parent / "outside").iterdir())
    assert (inside / "runs" / "a-2" / "metrics.jsonl").is_file()
    resolved = inside / "runs" / "a-2" / checkpoint.RESOLVED_CONFIG
    resolved.write_text(resolved.read_text().replace("name: cartpole", "name: 'antigravity:X'"))
    capfd.readouterr()
    with harmless(inside):
        assert cli.main(["--resume", "runs/a-2"], command="train") == 2
    assert "imports code from outside. Allow it with --allow-import (in Python" in capfd.readouterr().err
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    "constants",
    [
        {"A": '1; system("touch canary")'},
        {"A": ["1", '}; system("touch canary")']},
        {"A": np.array(["1;"])},
        {"A = 1; int B": 1},
        {"A\n#include": 1},
        {"A\n": 1},
        {"a": 1},
        {"\u0391": 1},
        {"A": float("nan")},
        {"A": 2**64},
        {"A": None},
        {"A": {"b": 1}},
    ],
    ids=repr,
)
def test_constants_are_names_and_numbers(constants):
    with pytest.raises(WiringError, match="^constant '"):
        write_constants(constants)


class Payload:
    def __reduce__(self) -> tuple:
        return os.system, ("touch canary",)


def zipped(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", content)
    return file.getvalue()


def tensors(header: object, size: int = 8, length: int | None = None) -> bytes:
    """A safetensors file with a header of one's own."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + bytes(size)


def tensor(start: int = 0, end: int = 8, shape: tuple[int, ...] = (2,), dtype: str = "F32") -> dict:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


POLICIES = {
    "pickle": pickle.dumps(Payload()),
    "old pickle": pickle.dumps(Payload(), 0),
    "zipped pickle": zipped(pickle.dumps(Payload())),
    "zip bomb": zipped(bytes(50 << 20)),
    "passwords": b"root:x:0:0:root:/root:/bin/sh\n" * 9,
    "script": b"#!/bin/sh\ntouch canary\n",
    "nothing": b"",
    "overlap": tensors({"a": tensor(), "b": tensor(4, 12)}, 12),
    "gap": tensors({"a": tensor(), "b": tensor(16, 24)}, 24),
    "beyond the end": tensors({"a": tensor(0, 1 << 40, (1 << 38,))}),
    "before the start": tensors({"a": tensor(-8, 0)}),
    "shape that overflows": tensors({"a": tensor(shape=(1 << 62, 4))}),
    "huge header": tensors(b"{}", length=1 << 60),
    "header of 4 GiB": tensors(b"{}", length=1 << 32),
    "nested header": tensors(b'{"a":' * 100_000),
    "other dtype": tensors({"a": tensor(dtype="PY")}),
    "same name twice": tensors(b'{"a":%b,"a":%b}' % ((json.dumps(tensor()).encode(),) * 2)),
    "name that leads out": tensors({"../../x": tensor()}),
    "name that steers": tensors({"\x1b[2J": tensor()}),
    "numbers for text": save({"network.trunk.0.weight": torch.full((2, 2), torch.nan)}),
    "FIFO": os.mkfifo,
    "folder": os.mkdir,
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "link to itself": lambda path: path.symlink_to("a.safetensors"),
}


@pytest.mark.parametrize("case", POLICIES)
def test_starting_policy_is_refused_and_does_nothing(inside, capfd, case):
    content, path = POLICIES[case], inside / "a.safetensors"
    content(path) if callable(content) else path.write_bytes(content)
    (inside / "a.yaml").write_text(GOOD)
    start = "policy.shared.model.model_ckpt_filepath=a.safetensors"
    with harmless(inside):
        code = cli.main(["--config", "a.yaml", start], command="train")
    (line,) = capfd.readouterr().err.splitlines()
    assert code == 4
    assert line.startswith("error: a.safetensors: ") and line.isprintable()
    assert not (inside / "runs").exists()


def signed(told: dict) -> bytes:
    """A manifest whose own sum is right."""
    told = {key: value for key, value in told.items() if key != "sha256"}
    return manifest.to_json(told | {"sha256": manifest.sha256(manifest.to_json(told))})


def of_file(content: bytes) -> dict:
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def nested(depth: int) -> list:
    found: list = []
    for _ in range(depth):
        found = [found]
    return found


PICKLE = pickle.dumps(Payload())
MANIFESTS: dict[str, Callable[[dict], bytes]] = {
    "no number": lambda found: signed(found | {"progress": found["progress"] | {"iteration": float("nan")}}),
    "huge number": lambda found: signed(found | {"progress": found["progress"] | {"iteration": 10**4000}}),
    "truth": lambda found: signed(found | {"progress": found["progress"] | {"iteration": True}}),
    "nested": lambda found: b'{"a":' * 100_000,
    "less nested": lambda found: signed(found | {"progress": {"iteration": nested(300)}}),
    "key twice": lambda found: signed(found).replace(b'"format"', b'"format": 1,\n "format"', 1),
    "file up": lambda found: signed(found | {"files": found["files"] | {"../../canary": of_file(b"")}}),
    "file absolute": lambda found: signed(found | {"files": found["files"] | {"/etc/passwd": of_file(b"")}}),
    "folder above": lambda found: signed(found | {"files": found["files"] | {"..": of_file(b"")}}),
    "file that steers": lambda found: signed(found | {"files": found["files"] | {"\x1b[2J": of_file(b"")}}),
    "signed pickle": lambda found: signed(found | {"files": found["files"] | {"x.safetensors": of_file(PICKLE)}}),
    "list": lambda found: b"[]\n",
    "pickle": lambda found: PICKLE,
}


@pytest.mark.parametrize("case", MANIFESTS)
def test_checkpoint_is_refused_and_does_nothing(tiny, inside, case):
    trainer = Trainer(tiny(trainer__device="cpu"), "a")
    place = trainer.save()
    file = place / "manifest.json"
    file.write_bytes(MANIFESTS[case](json.loads(file.read_text())))
    (place / "x.safetensors").write_bytes(PICKLE)
    folder = trainer.run.path.parent.parent
    before = trainer.iteration
    with harmless(folder), pytest.raises(CheckpointError) as caught:
        trainer.restore(place)
    assert str(caught.value).isprintable()
    assert str(place) in str(caught.value)
    assert trainer.iteration == before


@pytest.mark.parametrize(
    ("of", "name", "value"),
    [
        ("optim.", "/exp_avg_sq", -1e-9), ("optim.", "/step", -1.0), ("policy.", "observation_norm.variance", -1.0),
        ("policy.", "observation_norm.count", -1.0),
    ],
)  # fmt: skip
def test_statistics_whose_roots_would_be_nans_are_refused_by_file_and_tensor(tiny, inside, of, name, value):
    trainer = Trainer(tiny(trainer__device="cpu", policy={"shared": {"normalize_observation": True}}), "a")
    trainer.iterate()
    saved = trainer.save()
    told = json.loads((saved / "manifest.json").read_text())
    file = next(file for file in told["files"] if file.startswith(of))
    tensors = checkpoint.load_tensors(saved / file)
    tensor = next(one for one in tensors if one.endswith(name))
    tensors[tensor].view(-1)[-1] = value
    content = save(tensors)
    (saved / file).write_bytes(content)
    (saved / "manifest.json").write_bytes(signed(told | {"files": told["files"] | {file: of_file(content)}}))
    with pytest.raises(CheckpointError) as caught:
        trainer.restore(saved)
    assert str(caught.value) == f"{saved / file}: '{tensor}' holds a negative number. Use an older checkpoint."


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_seen_is_a_number(tiny, inside, value):
    trainer = Trainer(tiny(trainer__device="cpu"), "a")
    saved = checkpoint.load_checkpoint(trainer.save())
    saved.tensors["env"]["observation"][2].view(-1)[3] = value
    with pytest.raises(CheckpointError, match=rf"env\.safetensors: 'observation' of env 2.* is {value}, and never but"):
        restore(trainer, saved)


def test_a_checkpoint_under_the_name_of_another_is_refused(tiny, inside):
    trainer = Trainer(tiny(trainer__device="cpu"), "a")
    trainer.iterate()
    saved = trainer.save()
    other = saved.rename(saved.with_name("step_000000000001"))
    with pytest.raises(CheckpointError) as caught:
        trainer.restore(other)
    way_out = f"holds {trainer.env_steps} env steps. Rename it to {saved.name}, or use another one."
    assert str(caught.value) == f"{other}: {way_out}"


@pytest.mark.parametrize("key", ["env_steps", "iteration"])
def test_a_checkpoint_whose_counts_disagree_is_refused(tiny, inside, key):
    trainer = Trainer(tiny(trainer__device="cpu"), "a")
    trainer.iterate()
    saved = trainer.save()
    told = json.loads((saved / "manifest.json").read_text())
    told |= {"env_steps": 7} if key == "env_steps" else {"progress": told["progress"] | {"iteration": 7}}
    (saved / "manifest.json").write_bytes(signed(told))
    words = r"holds 7 env steps\. Rename|progress\.iteration makes \d+ env steps, and env_steps says "
    with pytest.raises(CheckpointError, match=words):
        trainer.restore(saved)


@pytest.mark.parametrize("number", [[2], "2", True, 0])
def test_a_number_of_ranks_that_is_none_is_refused(tiny, inside, number):
    trainer = Trainer(tiny(trainer__device="cpu"), "a")
    saved = trainer.save()
    told = json.loads((saved / "manifest.json").read_text())
    told["progress"]["run"]["trainer.num_gpus"] = number
    (saved / "manifest.json").write_bytes(signed(told))
    with pytest.raises(CheckpointError, match=r"expected progress\.run\.trainer\.num_gpus to count ranks, got "):
        trainer.restore(saved)


@pytest.mark.parametrize(
    ("place", "word", "number"),
    [(8, "i", 624), (16, "Q", 624), (8, "i", 0), (5024, "d", math.inf), (5048, "f", math.nan)],
)
def test_a_state_of_torchs_generator_leads_nowhere_outside_of_its_numbers(inside, place, word, number):
    torch.manual_seed(3)
    torch.rand(100)
    states = generator_states({})
    prepare_generators(states, "rng.json", {})
    content = bytearray.fromhex(states["torch"])
    struct.pack_into(word, content, place, number)
    with pytest.raises(CheckpointError, match=r"^rng\.json: 'torch' is no state of a generator \("):
        prepare_generators({**states, "torch": content.hex()}, "rng.json", {})


@pytest.mark.parametrize(
    "state",
    ["x", [], {"a": 1}, nested(500), [3, [2**70] * 625, None], [3, list(range(10)), "os.system('touch canary')"]],
    ids=["text", "nothing", "keys", "nested", "huge", "code"],
)
@pytest.mark.parametrize("name", ["python", "numpy", "torch"])
def test_state_of_a_generator_is_numbers(inside, name, state):
    with harmless(inside), pytest.raises(CheckpointError, match=f"^rng.json: '{name}' is no state of a generator"):
        prepare_generators(generator_states({}) | {name: state}, "rng.json", {})


@pytest.mark.parametrize(
    ("place", "value"),
    [(0, "PCG64"), (2, 10**9), (2, 625), (2, -5), (2, 1.5), (2, True), (3, 2), (3, 1), (4, "x"), (4, float("inf"))],
)
def test_state_of_numpys_generator_leads_nowhere_outside_of_its_numbers(inside, place, value):
    """numpy reads at the position it is told, and gives the normal number that it is told."""
    states = generator_states({})
    states["numpy"] = [*states["numpy"][:3], 1, 0.5]
    prepare_generators(states, "rng.json", {})
    if (place, value) == (3, 1):
        place, value = 4, None
    states["numpy"][place] = value
    with pytest.raises(CheckpointError, match="^rng.json: 'numpy' is no state of a generator"):
        prepare_generators(states, "rng.json", {})
