"""`python -m warpdrive.testing`; see the head of the package. Exits with 1 if a check failed; a warning is none."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

import torch

from warpdrive.env import list_envs, load_env
from warpdrive.errors import WarpDriveError
from warpdrive.testing import SKIPPED, WARNING, Play, check_env
from warpdrive.testing.processes import play_under


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m warpdrive.testing", description="Checks what every env must do.")
    parser.add_argument("env", nargs="?", help="a name, or my_package.my_env:MyEnv; all shipped envs if not given")
    parser.add_argument("config", nargs="*", metavar="key=value", help="what differs from the env's defaults")
    parser.add_argument("--device", help="cpu or cuda; all there are if not given")
    parser.add_argument("--sanitize", action="store_true", help="also play under the CPU's sanitizers")
    what = "that a check looks at (%(default)s); long episodes are played to their end besides"
    parser.add_argument("--steps", type=_positive, default=Play.num_steps, help=what)
    parser.add_argument("--envs", type=_positive, default=Play.num_envs, help="in most checks (%(default)s)")
    parser.add_argument("--play-under", metavar="SANITIZER", help=argparse.SUPPRESS)
    options = parser.parse_intermixed_args(argv)
    sys.path.insert(0, os.getcwd())
    if options.play_under:
        play_under(options.env, options.play_under, *map(json.loads, options.config))
        return 0
    import yaml

    config = {key: yaml.safe_load(value) for key, _, value in (pair.partition("=") for pair in options.config)}
    names = [options.env] if options.env else list_envs()
    devices = [options.device] if options.device else ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    num_passed = num_failed = 0
    left_out: dict[str, None] = {}  # in the order in which they came
    for name in names:
        for device in devices:
            try:
                lines = check_env(load_env(name, config), device, options.sanitize, options.steps, options.envs)
            except WarpDriveError as error:
                num_failed += 1
                print(f"failed  {name} on {device}: {error}", flush=True)
                continue
            skipped = [line for line in lines if line.startswith(SKIPPED)]
            left_out |= dict.fromkeys(skipped)
            num_passed += 1
            print(f"ok      {name} on {device}: {len(lines) - len(skipped)} checks", flush=True)
            told = lines if options.env else [line for line in lines if line.startswith(WARNING)]
            print("".join(f"        {line}\n" for line in told), end="")
    summary = f"{num_passed} passed, {num_failed} failed ({len(names)} envs on {', '.join(devices)})"
    print("; ".join([summary, *left_out]))
    return int(num_failed > 0)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
