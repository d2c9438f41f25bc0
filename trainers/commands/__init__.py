"""The commands of the command line, each in a module with the same two names.

add_arguments(parser)               its options and positional arguments
run(options, overrides, folder)     does it; the exit code

`overrides` are the (dotted key, text) pairs of a config that were typed; `folder` is where configs are looked for
besides the current one. Besides its own options a command finds `verbose`, `typed` (the words of the command line) and
`again` (what Python is given to do the same in another process). Mistakes are raised as WarpDriveErrors.

What is heavy (torch, numpy, gymnasium, matplotlib, rich) is imported inside `run`, so that --help is there at once.
"""

from __future__ import annotations

import importlib
from types import ModuleType

COMMANDS = {
    "train": "train the policies of an env, as a YAML file says",
    "eval": "score the policies of runs, or let those of two runs play each other",
    "play": "play episodes: mean returns, and pictures if asked for",
    "render": "draw an episode as an HTML player or a GIF",
    "plot": "draw the learning curves of one run or many",
    "tune": "search for the keys of a config that learn best",
    "bench": "measure how fast a config's env, policy and learner run on this machine",
    "export": "write a trained policy as ONNX, or as a torch.export program; or its replay store as a dataset",
    "list": "list envs, algorithms and policies, or metrics",
    "doctor": "check GPU, driver, compilers and packages, and say how to mend what is wrong",
    "config": "show a config with all its defaults, or check configs",
    "new-env": "start an env of your own: two files, a test and a config",
}
"""In the order of --help; it stands here so that listing the commands imports none of them."""


def find_command(name: str) -> ModuleType:
    """The module of a command that is in COMMANDS: `new-env` is new_env.py."""
    return importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
