"""A trained policy as one file that others can run: ONNX, or PyTorch's own export. See docs/export.md.

The file takes what the env gives, as the env gives it, and holds all that lies between that and the action: running
statistics, hidden layers, distribution, mask. It computes in float32, whatever `precision` the policy was trained in.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import logging
import math
import shutil
import subprocess
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from trainers.experience.spec import spec_of
from trainers.export.portable import ACTION, MEMORY, NEXT_MEMORY, PortablePolicy, Slot, random_inputs
from trainers.run.disk import written
from warpdrive.config import to_plain
from warpdrive.distribution import pip_install
from warpdrive.env import Env
from warpdrive.errors import BackendError, CheckpointError
from warpdrive.version import __version__

FORMATS = {"onnx": ".onnx", "torch": ".pt2"}
TOLERANCE = 1e-5
"""How far a file may be from its policy, for each output: |difference| / max(1, largest |number| of the batch)."""
BATCHES = (1, 2, 1000)
"""Rows that a file is checked with."""
BATCH = "batch"
"""Name of the first axis of every input and output."""
METADATA_FILE = "warpdrive.json"
"""Beside the program in a .pt2, which is a zip: what is said of it. ONNX has a place for that."""


@dataclass(frozen=True)
class Written:
    """A file that was written, and how far it is from its policy: by output, and over how many rows.

    `differences` is None where onnxruntime is not installed.
    """

    path: Path
    differences: Mapping[str, float] | None
    num_rows: int


def export_policy(
    actor: PortablePolicy,
    path: Path,
    format: str = "onnx",
    metadata: Mapping[str, Any] | None = None,
    real: Mapping[str, torch.Tensor] | None = None,
) -> Written:
    """Writes a policy as one file, after checking that it does what the policy does; or leaves all as it was.

    Args:
        path: of the file; replaced if it is there.
        format: of FORMATS.
        metadata: what the file is to say of where it comes from, beside its own inputs and outputs.
        real: inputs from an env to check it with as well, [N, ...] each.
    Raises:
        BackendError: a package that is needed is not installed.
        CheckpointError: the file would not do what the policy does.
        RunFolderError: it cannot be written.
    """
    check_installed(format)
    described = json.loads(json.dumps({**describe(actor), **(metadata or {})}))
    with torch.no_grad(), _quietly():
        program = _trace(actor)
        if format == "onnx":
            content = _to_onnx(program, actor, described)
            play = _onnx_player(content) if importlib.util.find_spec("onnxruntime") else None
        else:
            content, play = _to_torch(program, described), program.module()
        differences, num_rows = None, 0
        if play is not None:
            differences, num_rows = largest_differences(actor, play, real)
    for name, difference in (differences or {}).items():
        if not difference <= TOLERANCE:
            raise CheckpointError(
                f"{path}: the exported '{name}' differs from the policy's by {difference:.1e}, more than "
                f"{TOLERANCE:.0e}, so nothing was written. Are its parameters finite and of usual size?"
            )
    with written(path) as beside:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(content)
    return Written(path, differences, num_rows)


def check_installed(format: str) -> None:
    """Raises BackendError if a package is missing that writing this format takes."""
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if format == "onnx" and missing:
        raise BackendError(
            f"writing ONNX takes {' and '.join(missing)}: {pip_install('onnx')}. --format torch takes neither."
        )


def largest_differences(
    actor: PortablePolicy,
    play: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]],
    real: Mapping[str, torch.Tensor] | None = None,
) -> tuple[dict[str, float], int]:
    """By output, how far `play` is from the policy at most, on random inputs of BATCHES rows and on real ones.

    Of numbers, |difference| / max(1, largest |number| of the batch). Of a choice, how much less likely
    it is than the likeliest, in nats: of two that are equal but for rounding, either may be taken.

    Returns:
        The differences, and the number of rows.
    """
    generator = torch.Generator().manual_seed(1)
    batches = [random_inputs(actor, rows, generator) for rows in BATCHES]
    if real is not None and len(next(iter(real.values()))):
        rows = len(next(iter(real.values())))
        filled = random_inputs(actor, rows, generator) | dict(real)
        batches.append({slot.name: filled[slot.name] for slot in actor.inputs})
    differences = {slot.name: 0.0 for slot in actor.outputs}
    for inputs in batches:
        expected, found = actor(inputs), play(inputs)
        for slot in actor.outputs:
            one = _difference(slot, found[slot.name], expected)
            differences[slot.name] = one if math.isnan(one) else max(differences[slot.name], one)
    return differences, sum(len(next(iter(inputs.values()))) for inputs in batches)


def _difference(slot: Slot, found: torch.Tensor, expected: Mapping[str, torch.Tensor]) -> float:
    if found.shape != expected[slot.name].shape or found.dtype != expected[slot.name].dtype:
        return math.inf
    if slot.name == ACTION and not slot.dtype.startswith("float"):
        heads = [logits for name, logits in expected.items() if name.startswith(("logits", "q_values"))]
        choices = found.long().view(len(found), len(heads)).unbind(-1)
        lost = [
            logits.amax(-1) - logits.gather(-1, choice.unsqueeze(-1)).squeeze(-1)
            for logits, choice in zip(heads, choices, strict=True)
        ]
        return torch.stack(lost).max().item()
    unit = expected[slot.name].abs().max().clamp_min(1.0)
    return ((found - expected[slot.name]).abs().max() / unit).item()


def describe(actor: PortablePolicy) -> dict[str, Any]:
    """What a reader of the file must know of it: inputs, outputs, and how outputs become an action."""
    names = [slot.name for slot in actor.outputs]
    if "mean" in names:
        how = "greedy: action. To draw: mean + std * standard normal numbers, clipped to the action space."
    elif names[0] == ACTION:
        how = "action: there is no other."
    else:
        heads = ", ".join(name for name in names if name.startswith("logits"))
        how = f"greedy: action. To draw: one of each head, with the probabilities softmax({heads})."
        if actor.has_mask:
            how += " A head of which nothing may be taken takes 0."
    if actor.memory_size:
        how += f" Feed {NEXT_MEMORY} back as {MEMORY}; zeros when an episode starts."
    return {
        "inputs": [asdict(slot) for slot in actor.inputs],
        "outputs": [asdict(slot) for slot in actor.outputs],
        "axes": "the first axis of every input and output is the batch: one row an agent",
        "how_to_act": how,
        "warpdrive": __version__,
        "torch": torch.__version__,
    }


def provenance(env: Env, name: str, saved: Path) -> dict[str, Any]:
    """What a file says of where it comes from: `describe_env`, the run, its checkpoint, and the code's commit.

    Args:
        saved: the checkpoint, runs/<run>/checkpoints/step_<env steps>.
    """
    found = {"run": saved.parent.parent.name, "checkpoint": saved.name}
    if commit := _commit():
        found["commit"] = commit
    return describe_env(env, name) | found


def _commit() -> str | None:
    """Of the checkout that this code is in, if it is in one."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists() or shutil.which("git") is None:
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or None


def describe_env(env: Env, name: str) -> dict[str, Any]:
    """What the file says of the env and of whom the policy acts for."""
    spec = spec_of(env, name)
    groups = [name] if name in env.groups else list(env.groups)
    return {
        "env": env.name,
        "env_config": to_plain(env.config),
        "policy": name,
        "groups": {one: [env.groups[one].agents.start, env.groups[one].agents.stop] for one in groups},
        "observation_space": describe_space(spec.observation_space),
        "action_space": describe_space(spec.action_space),
    }


def describe_space(space: Any) -> dict[str, Any]:
    """A space as JSON takes it; bounds that are the same everywhere as one number, and none as null."""
    found: dict[str, Any] = {"type": type(space).__name__}
    if isinstance(space, spaces.Dict):
        return found | {"spaces": {key: describe_space(one) for key, one in space.spaces.items()}}
    if hasattr(space, "nvec"):
        return found | {"nvec": space.nvec.tolist()}
    if hasattr(space, "n"):
        return found | {"n": int(space.n)}
    return found | {
        "shape": list(space.shape),
        "dtype": str(np.dtype(space.dtype)),
        "low": _bound(space.low),
        "high": _bound(space.high),
    }


def _bound(bound: np.ndarray) -> Any:
    def number(value: float) -> float | None:
        return float(value) if math.isfinite(value) else None

    values = np.asarray(bound, np.float64)
    if (values == values.flat[0]).all():
        return number(values.flat[0])
    return np.vectorize(number, otypes=[object])(values).tolist()


def _trace(actor: PortablePolicy) -> torch.export.ExportedProgram:
    example = random_inputs(actor, 3, torch.Generator().manual_seed(0))
    batch = torch.export.Dim(BATCH, min=1)
    program = torch.export.export(actor, (example,), dynamic_shapes=({name: {0: batch} for name in example},))
    program.example_inputs = None  # they would be written as a pickle
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # names the files of this machine
    return program


def _to_torch(program: torch.export.ExportedProgram, metadata: Mapping[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files={METADATA_FILE: json.dumps(metadata, indent=1)})
    return buffer.getvalue()


def _to_onnx(program: torch.export.ExportedProgram, actor: PortablePolicy, metadata: Mapping[str, Any]) -> bytes:
    exported = torch.onnx.export(
        program,
        dynamo=True,
        verbose=False,
        external_data=False,
        input_names=[slot.name for slot in actor.inputs],
        output_names=[slot.name for slot in actor.outputs],
    )
    model = exported.model
    graph = model.graph
    model.producer_name, model.producer_version = "warpdrive", __version__
    for key, value in metadata.items():
        model.metadata_props[key] = value if isinstance(value, str) else json.dumps(value)
    for node in graph.all_nodes():
        node.metadata_props.clear()  # how torch came to it
    for slot, value in zip([*actor.inputs, *actor.outputs], [*graph.inputs, *graph.outputs], strict=True):
        value.doc_string = slot.meaning
    symbol = str(graph.inputs[0].shape[0])
    for value in [*graph.inputs, *(output for node in graph.all_nodes() for output in node.outputs)]:
        for axis, size in enumerate(value.shape or ()):
            if str(size) == symbol:
                value.shape[axis] = BATCH
    return exported.model_proto.SerializeToString()


def _onnx_player(content: bytes) -> Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def play(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        found = session.run(names, {name: array.numpy() for name, array in inputs.items()})
        return {name: torch.from_numpy(array) for name, array in zip(names, found, strict=True)}

    return play


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without what torch's exporters say of their own workings."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
