"""`warpdrive export`: the trained policies of a run as files for ONNX Runtime, or for torch.export; or what one was
played that its algorithm keeps, as a dataset."""

from __future__ import annotations

import argparse
from pathlib import Path

from trainers.run.disk import from_here
from trainers.settings.arguments import Overrides, add_allow_import, output_file, refuse_overrides
from warpdrive.distribution import pip_install
from warpdrive.errors import ConfigError, tell

DATASET = "dataset"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_folder", metavar="RUN", help="a run folder, or a checkpoint in it")
    parser.add_argument("--policy", metavar="NAME", help="which of its policies; all of them if not given")
    parser.add_argument(
        "--format",
        choices=["onnx", "torch", DATASET],
        default="onnx",
        help="onnx (default); torch: a .pt2 for torch.export; dataset: a folder with the steps of its replay store",
    )
    parser.add_argument(
        "--output", metavar="FILE", help="the file, or folder; policy.<NAME>.onnx in the run folder if not given"
    )
    parser.add_argument("--value", action="store_true", help="the critic's value is an output, too")
    add_allow_import(parser)


def run(options: argparse.Namespace, overrides: Overrides, folder: Path | None) -> int:
    refuse_overrides("export", overrides)
    if options.format == DATASET:
        return _export_datasets(options)
    from trainers.evaluation import load_policies
    from trainers.export.exporter import FORMATS, check_installed, export_policy, provenance
    from trainers.export.portable import PortablePolicy, real_inputs
    from trainers.run.checkpoint import candidates, load_tensors, run_folder_of

    check_installed(options.format)
    output = None if options.output is None else output_file(options.output, [FORMATS[options.format]])
    run_folder = run_folder_of(Path(options.run_folder))
    saved = candidates(Path(options.run_folder))[0]  # asked for once: a run that still trains may save another
    env, policies = load_policies(saved, allow_import=options.allow_import)
    names = list(policies) if options.policy is None else [options.policy]
    if unknown := [name for name in names if name not in policies]:
        raise ConfigError(f"--policy: the run has no policy '{unknown[0]}'. It has: {', '.join(policies)}.")
    if options.output is not None and len(names) > 1:
        raise ConfigError(f"--output: one file, but the run has {len(names)} policies: name one of them by --policy.")
    arrays = load_tensors(saved / "env.safetensors")
    for name in names:
        path = output or run_folder / f"policy.{name}{FORMATS[options.format]}"
        actor = PortablePolicy(policies[name], env, name, options.value)
        real = real_inputs(env, name, arrays)
        written = export_policy(actor, path, options.format, provenance(env, name, saved), real)
        tell(f"{from_here(written.path)}: {path.stat().st_size:,} bytes")
        tell(f"  takes {_list(actor.inputs)}")
        tell(f"  gives {_list(actor.outputs)}")
        if written.differences is None:
            tell(f"  not checked: {pip_install('onnx')} brings onnxruntime, which would")
        else:
            worst = max(written.differences, key=written.differences.get)
            tell(
                f"  largest difference from the policy: {written.differences[worst]:.1e} ({worst}), "
                f"over {written.num_rows:,} rows"
            )
    return 0


def _export_datasets(options: argparse.Namespace) -> int:
    from trainers.replay.dataset import export_dataset
    from trainers.replay.of_ranks import is_of_rank
    from trainers.run.checkpoint import candidates, load_checkpoint, run_folder_of

    run_folder = run_folder_of(Path(options.run_folder))
    saved = load_checkpoint(candidates(Path(options.run_folder))[0])
    stores = {name.removeprefix("replay."): name for name in saved.replay if not is_of_rank(name)}
    if not stores:
        raise ConfigError(f"{saved.path}: holds no replay store. DQN has one, unless saving.replay is false.")
    if options.policy is not None and options.policy not in stores:
        raise ConfigError(f"--policy: '{options.policy}' has no replay store. These have: {', '.join(stores)}.")
    names = list(stores) if options.policy is None else [options.policy]
    if options.output is not None and len(names) > 1:
        raise ConfigError(f"--output: one folder, but {len(names)} policies have a store: name one by --policy.")
    for name in names:
        folder = Path(options.output) if options.output is not None else run_folder / f"dataset.{name}"
        listing = export_dataset(saved, stores[name], folder)
        size = sum(part.bytes for part in listing.parts)
        num_steps, num_envs = listing.num_steps - listing.first, listing.layout["num_envs"]
        tell(f"{from_here(folder)}: {num_steps:,} steps of {num_envs:,} envs, {size:,} bytes")
        fields = [f"{one['name']} {one['shape']} {one['dtype']}" for one in listing.layout["fields"]]
        tell(f"  holds {', '.join(fields)}")
    return 0


def _list(slots) -> str:
    return ", ".join(f"{slot.name} [{', '.join(['N', *map(str, slot.shape)])}] {slot.dtype}" for slot in slots)
