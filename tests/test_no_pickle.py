"""Nothing that is read from a disk can run code: no pickle, no YAML with tags, no eval."""

import ast
import gzip
import io
import json
import marshal
import pickle
import re
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from trainers.cli import main
from trainers.run import checkpoint, manifest
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.errors import CheckpointError, ConfigError

ROOT = Path(__file__).parents[1]
FORBIDDEN = {
    "torch.load", "torch.jit.load", "torch.package", "torch.hub", "pickle", "cPickle", "dill", "cloudpickle", "joblib",
    "marshal", "shelve", "pandas.read_pickle", "yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load",
    "eval", "exec", "numpy.load", "np.load",
}  # fmt: skip

OBJECTS = re.compile(r"^(dist|torch\.distributed)\..*_object(_list)?$")
"""What sends pickles to other ranks."""


def names_used(tree: ast.AST) -> set[str]:
    """Dotted names that are imported, called or reached for."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Attribute):
            found.add(ast.unparse(node))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found.add(node.func.id)
    return found


def forbidden_in(text: str) -> set[str]:
    names = names_used(ast.parse(text))
    return {name for name in names if {name, name.split(".")[0]} & FORBIDDEN or OBJECTS.search(name)}


@pytest.mark.parametrize("folder", ["warpdrive", "cuda_envs", "trainers", "examples", "benchmarks"])
def test_no_file_reads_what_can_run_code(folder):
    files = list((ROOT / folder).rglob("*.py"))
    assert files
    assert not {str(file): names for file in files if (names := forbidden_in(file.read_text(encoding="utf-8")))}


@pytest.mark.parametrize(
    "line",
    ["import pickle", "from pickle import loads", "torch.load(f)", "np.load(f)", "yaml.load(f)", "eval(x)", "exec(x)",
     "dist.all_gather_object(a, b)", "torch.distributed.recv_object_list(a)"],
)
def test_such_a_line_is_found(line):
    assert forbidden_in(line)


class Payload:
    """Unpickling it would make a file."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return open, (str(self.trace), "w")


def saved(write, **named) -> bytes:
    """What a function leaves in the file that it is given."""
    file = io.BytesIO()
    write(file, **named)
    return file.getvalue()


def payloads(trace: Path) -> dict[str, bytes]:
    """18 files, by what they pretend to be."""
    one, code = Payload(trace), f"open({str(trace)!r}, 'w')"
    array, tensors = np.array([one], dtype=object), {"weight": one}
    found = {f"pickle of protocol {number}": pickle.dumps(one, number) for number in range(6)}
    pickled = found["pickle of protocol 2"]
    reduce = {"py/reduce": [{"py/function": "builtins.open"}, [str(trace), "w"]]}
    tag = f"!!python/object/apply:builtins.open [{str(trace)!r}, w]"
    header = json.dumps({"__metadata__": {"pickle": pickled.hex()}, "x": {"dtype": code, "shape": [1]}}).encode()
    return found | {
        "torch, zip": saved(partial(torch.save, tensors)),
        "torch, old": saved(partial(torch.save, tensors, _use_new_zipfile_serialization=False)),
        "numpy": saved(np.save, arr=array),
        "numpy, zip": saved(np.savez, x=array),
        "gzip": gzip.compress(pickled),
        "marshal": marshal.dumps(compile(code, "x", "exec")),
        "Python": f"import os\n{code}\n".encode(),
        "YAML tag": f"name: {tag}\n".encode(),
        "YAML tag in a list": f"- {tag}\n".encode(),
        "JSON with py/reduce": json.dumps(reduce).encode(),
        "safetensors with code for a dtype": len(header).to_bytes(8, "little") + header,
        "pickle behind a header of safetensors": (2).to_bytes(8, "little") + b"{}" + pickled,
    }


NAMES = sorted(payloads(Path("x")))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of one iteration."""
    sizes = {"num_envs": 4, "train_batch_size": 8, "total_timesteps": 8, "device": "cpu"}
    config = {"name": "cartpole", "trainer": sizes, "saving": {"basedir": str(tmp_path_factory.mktemp("runs"))}}
    trainer = Trainer(read_config(config))
    trainer.train()
    return trainer


def test_payloads_are_live(tmp_path):
    trace = tmp_path / "ran"
    pickle.loads(payloads(trace)["pickle of protocol 4"]).close()
    assert trace.exists()


@pytest.mark.parametrize("name", NAMES)
def test_a_payload_runs_no_code_wherever_it_is_put(trained, tmp_path, name):
    """In each file of a checkpoint, with the right sum in the manifest; as a policy to start from; as a config."""
    trace = tmp_path / "ran"
    content = payloads(trace)[name]
    original = (trained.run.checkpoints / "last").resolve()
    files = [file.name for file in original.iterdir()]
    assert len(files) == 5
    for file in files:
        place = tmp_path / file / original.name
        shutil.copytree(original, place)
        (place / file).write_bytes(content)
        if file != checkpoint.MANIFEST:
            told = manifest.read_manifest(place / checkpoint.MANIFEST)
            told["files"][file] = {"bytes": len(content), "sha256": manifest.sha256(content)}
            told["sha256"] = manifest.sha256(manifest.to_json(told))
            (place / checkpoint.MANIFEST).write_bytes(manifest.to_json(told))
        with pytest.raises(CheckpointError, match=file.replace(".", r"\.")):
            trained.restore(place)
    policy = tmp_path / "policy.safetensors"
    policy.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"policy\.safetensors"):
        checkpoint.load_tensors(policy)
    with pytest.raises(ConfigError, match=r"policy\.safetensors"):
        read_config(policy)
    assert main(["train", "--config", str(policy)]) == 2
    assert not trace.exists()
