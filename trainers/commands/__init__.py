"""The commands of the command line, each in a module with the same three names.

HELP                                one line, the same as in COMMANDS
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
    "eval": "play whole episodes with a run's policies and tell their scores",
    "play": "watch a run's policies play, or play yourself",
    "render": "draw an episode of a run as a page or a picture",
    "plot": "draw the learning curves of runs",
    "bench": "measure how fast a config's env, policy and learner run on this machine",
    "export": "write a run's policies in a form that other programs read",
    "list": "list envs, algorithms and policies",
    "doctor": "say what this machine has and what it lacks, with the fix",
    "config": "show a config with all its defaults, or check configs",
    "new-env": "start an env of your own: two files, a test and a config",
}
"""name -> HELP, in the order of --help. It stands here as well, so that listing the commands imports none of them."""


def find_command(name: str) -> ModuleType:
    """The module of a command that is in COMMANDS: `new-env` is new_env.py."""
    return importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
