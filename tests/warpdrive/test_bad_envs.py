"""An env whose definition is wrong gets one line that names the env or its kernel, what is wrong, and where."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from compile_only import CompileOnlyBackend
from gymnasium import spaces

from warpdrive.backends.cuda import _nvrtc
from warpdrive.env import METRICS, Env, Group
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.errors import CompileError, EnvError, WarpDriveError, WiringError

KERNEL = """
#include "warpdrive.cuh"
extern "C" __global__ void odd_step(float* place, float* observation)
{
    const int env = env_index();
    if (env >= NUM_ENVS) return;
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        place[env * NUM_AGENTS + agent] += 1.0f;
        observation[env * NUM_AGENTS + agent] = place[env * NUM_AGENTS + agent];
    }
}
"""
RESET = """
extern "C" __global__ void odd_reset(const bool* terminated, const bool* truncated, float* place, float* observation)
{
    const int env = env_index();
    if (env >= NUM_ENVS || !(terminated[env] || truncated[env])) return;
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        place[env * NUM_AGENTS + agent] = observation[env * NUM_AGENTS + agent] = 0.0f;
    }
}
"""
COMPILERS = [
    pytest.param("nvcc", marks=pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc here")),
    pytest.param("nvrtc", marks=pytest.mark.skipif(_nvrtc() is None, reason="there is no NVRTC here")),
]
SEEN, MOVES = spaces.Box(-1.0, 1.0, (1,), np.float32), spaces.Discrete(2)


@dataclass(frozen=True)
class OddConfig:
    pass


class Odd(Env):
    """Right as it is; each test sets one thing wrong."""

    Config = OddConfig
    name = "odd"
    source = None
    num_agents = 4
    episode_length = None
    groups: ClassVar = {"first": Group(range(2), SEEN, MOVES), "second": Group(range(2, 4), SEEN, MOVES)}
    start: ClassVar[dict[str, Any]] = {"place": np.zeros(4, np.float32), "observation": np.zeros((4, 1), np.float32)}
    rows = shared = numbers = None

    def arrays(self) -> dict[str, Any]:
        return self.start

    def pool(self) -> dict[str, Any] | None:
        return self.rows

    def tables(self) -> dict[str, Any]:
        return self.shared or {}

    def constants(self) -> dict[str, Any]:
        return self.numbers or {}


def odd(folder: Path, text: str = KERNEL, **wrong: Any) -> Odd:
    env = Odd()
    env.source = folder / "odd.cu"
    env.source.write_text(text)
    for name, value in wrong.items():
        setattr(env, name, value)
    return env


def refusal(device: str, env: Odd) -> str:
    with pytest.raises(WarpDriveError) as caught:
        EnvWrapper(env, 3, device)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_without_a_mistake_it_is_made(device, tmp_path):
    env = EnvWrapper(odd(tmp_path), 3, device)
    env.reset()
    assert env.step()[0].flatten().tolist() == [1.0] * 12


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_start_that_holds_what_is_no_number(tmp_path, wrong):
    place = np.array([0, 0, wrong, 0], np.float32)
    line = "^env 'odd': 'place' starts with a NaN or an infinity. Start it with numbers.$"
    with pytest.raises(EnvError, match=line):
        EnvWrapper(odd(tmp_path, start={**Odd.start, "place": place}), 3, "cpu")
    rows = {"place": np.stack([Odd.start["place"], place]), "observation": np.zeros((2, 4, 1), np.float32)}
    with pytest.raises(EnvError, match=line):
        EnvWrapper(odd(tmp_path, rows=rows), 3, "cpu")


@pytest.mark.parametrize("reset", ["", RESET])
@pytest.mark.parametrize("rows", [None, {"place": np.ones((3, 4)), "observation": np.ones((3, 4, 1))}])
def test_arrays_may_be_called_as_the_restarts_own_numbers_are(device, tmp_path, reset, rows):
    names = ("row", "env", "ended", "keep", "kept", "step")
    if reset:
        reset = reset.replace("float* place", "float* place, " + ", ".join(f"int* {name}" for name in names))
        reset, rows = reset.replace("const int env = env_index()", "const int e = env_index()"), None
        reset = reset.replace("env * ", "e * ").replace("env >=", "e >=").replace("[env]", "[e]")
    text = KERNEL.replace("float* place", "int* step, float* place") + reset
    given = starting_with(**{name: np.zeros((), np.int32) for name in names})
    if rows is not None:
        given["rows"] = {name: array.astype(np.float32) for name, array in rows.items()}
    env = EnvWrapper(odd(tmp_path, text, **given), 3, device)
    env.reset()
    start = 0.0 if rows is None else 1.0
    assert env.step()[0].flatten().tolist() == [start + 1.0] * 12


def starting_with(**arrays: Any) -> dict[str, Any]:
    return {"start": {**Odd.start, **arrays}}


def acting_in(space: spaces.Space) -> dict[str, Any]:
    return {"groups": {"all": Group(range(4), SEEN, space)}}


def second_has(agents: Any) -> dict[str, Any]:
    return {"groups": {"first": Group(range(2), SEEN, MOVES), "second": Group(agents, SEEN, MOVES)}}


OVERLAP = "expected a slice from 2. Groups cover the agent axis in order, without gap or overlap."


UNLIKE = [  # array, given, as it is shown, what its space says
    ("observation", np.zeros((4, 3), np.float32), "[4, 3] torch.float32", "[4, 1] float32"),
    ("observation", np.zeros((4, 1), np.float64), "[4, 1] torch.float64", "[4, 1] float32"),
    ("action", np.zeros((4, 2), np.int32), "[4, 2] torch.int32", "[4] int32"),
    ("action", np.zeros(4, np.float32), "[4] torch.float32", "[4] int32"),
    ("reward", np.zeros(3, np.float32), "[3] torch.float32", "[4] float32"),
]
ALL_ELEMENTS = """extern "C" __global__ void odd_reset(float* place)
{ for (long long i = global_thread(); i < NUM_ENVS * NUM_AGENTS; i += num_global_threads()) place[i] = 0; }"""
PLACES = {"place": np.zeros((2, 4), np.float32)}
DECLARED = {
    **{
        f"{array} of {shown}": (
            starting_with(**{array: given}),
            f"env 'odd': array '{array}' is {shown} a copy, its spaces say {wanted}. Make them agree.",
        ) for array, given, shown, wanted in UNLIKE
    },
    **{
        f"an array named {name}": (starting_with(**{name: np.zeros(4)}), f"array '{name}' has a name that is taken")
        for name in ("seed", "start_place", "pool_x", "final_y", "env_step")
    },
    "an array that is not there": (
        {"step": KERNEL.replace("float* place", "float* place, float* plaice")},
        "kernel 'odd_step' has a parameter 'plaice', but no array 'plaice' was pushed. Did you mean 'place'?",
    ),
    "an array taken as a number": (
        {"step": KERNEL.replace("float* place", "int far, float* place"), **starting_with(far=np.zeros((), np.int32))},
        "kernel 'odd_step' takes 'far' as a number, but it is an array. Say `const int* far`.",
    ),
    "a start without an observation": ({"start": {"place": np.zeros(4, np.float32)}}, "add 'observation' there, or"),
    "a reset over all elements": ({"reset": ALL_ELEMENTS}, "'odd_reset' loops over elements of all envs"),
    "a group that overlaps": (second_has(range(1, 4)), f"group 'second' has agents [1, 2, 3], {OVERLAP}"),
    "a group after a gap": (second_has(range(3, 4)), f"group 'second' has agents [3], {OVERLAP}"),
    "a group of every second": (second_has(range(2, 6, 2)), f"group 'second' has agents [2, 4], {OVERLAP}"),
    "an agent without a group": (second_has(range(2, 3)), "groups cover 3 agents of 4. Every agent needs one."),
    "an agent too many": (second_has(range(2, 5)), "groups cover 5 agents of 4. Every agent needs one."),
    "a group in a list": (second_has([2, 3]), "group 'second' has agents [2, 3]. Give a range: range(0, 4)."),
    "a state that is no Box": (
        {"global_state_space": spaces.Discrete(4)}, "global_state_space is a Discrete. Use a Box, [feature] float32."),
    "a state unlike its array": (
        {"global_state_space": spaces.Box(0, 1, (5,)), **starting_with(global_state=np.zeros(4, np.float32))},
        "array 'global_state' is [4] torch.float32 a copy, its spaces say [5] float32.",
    ),
    "a state that nobody writes": (
        {"global_state_space": spaces.Box(0, 1, (4,)), **starting_with(global_state=np.zeros(4, np.float32))},
        "kernel 'odd_step' does not write 'global_state'. Give the kernel a parameter of this name that is not const",
    ),
    "a state that a restart leaves": (
        {
            "global_state_space": spaces.Box(0, 1, (4,)),
            "step": KERNEL.replace("float* place", "float* global_state, float* place"),
        },
        "what is seen at the start: add 'global_state' there, or write the kernel.",
    ),
    "a constant of the framework's": (
        {"numbers": {"NUM_AGENTS": 9}}, "constants() has 'NUM_AGENTS', which the framework sets. Leave it out."),
    "actions from 1": (
        acting_in(spaces.Discrete(2, start=1)),
        "group 'all' acts in Discrete(2, start=1), but kernels, networks and masks count actions from 0. "
        "Leave `start` out, and add it in the kernel.",
    ),
    "choices from 1": (
        acting_in(spaces.MultiDiscrete([2, 2], start=[0, 1])),
        "group 'all' acts in MultiDiscrete([2 2], start=[0 1]), but",
    ),
    "active, too short": (
        starting_with(active=np.ones(3, bool)),
        "array 'active' is [3] bool, but must be [4] bool: it says which agents are in the game.",
    ),
    "active, of numbers": (starting_with(active=np.ones(4, np.int32)), "'active' is [4] int32, but must be [4] bool"),
    "a mask of another shape": (
        starting_with(action_mask=np.ones((4, 3), bool)),
        "array 'action_mask' is [4, 3] bool, but must be [4, 2] bool: it says which actions agents may take, those of "
        "'first', too. Make it so, or give it another name.",
    ),
    "a group's mask for all": (
        starting_with(action_mask_second=np.ones((4, 2), bool)),
        "array 'action_mask_second' is [4, 2] bool, but must be [2, 2] bool: it says which actions the agents of "
        "'second' may take.",
    ),
    "a group's mask of numbers": (
        starting_with(action_mask_first=np.ones((2, 2), np.float32)),
        "'action_mask_first' is [2, 2] float32, but must be [2, 2] bool",
    ),
    "settable, a word": ({"settable": "place"}, "settable is 'place'. Give names in a tuple: ('place',)."),
    "settable, no array": (
        {"settable": ("plaice",), "shared": {"wall": np.zeros(3)}},
        "settable names 'plaice', which is neither in arrays() nor in tables(), or which each step writes. "
        "There are: place, wall.",
    ),
    "settable, but drawn": (
        {"settable": ("place",), "rows": PLACES},
        "settable names 'place', but restarts take it from pool(). Leave it out of one of them.",
    ),
    "a table named as an array": (
        {"shared": {"place": np.zeros(3)}}, "table 'place' has the name of an array. Choose another."),
    "a table of the framework's": ({"shared": {"reward": np.zeros(3)}}, "table 'reward' has the name of an array."),
    "a table named as a start": ({"shared": {"start_x": np.zeros(3)}}, "array 'start_x' has a name that is taken"),
    "a pool of no array": (
        {"rows": {"plaice": PLACES["place"]}, "reset": RESET},
        "pool() has 'plaice', which is no array that restarts. There is: place.",
    ),
    "a pool without rows": ({"rows": {"place": np.zeros((0, 4), np.float32)}}, "pool() has no rows of 'place'."),
    "a pool that nobody reads": (
        {"rows": PLACES, "reset": RESET},
        "its kernel 'odd_reset' reads none of pool(). Give it a parameter `const float* pool_place`, or leave out one "
        "of kernel and pool.",
    ),
    "a reset that undoes what was set": (
        {"settable": ("place",), "reset": RESET},
        "kernel 'odd_reset' may write 'place', which is settable, and so undo what was set. Declare it "
        "`const float* place`, or restart it from a parameter `const float* start_place`.",
    ),
    "a table that is written": (
        {"shared": {"wall": np.zeros(3, np.float32)}, "step": KERNEL.replace("(float*", "(float* wall, float*")},
        "kernel 'odd_step' may write 'wall', which is a table and is only read. Declare it `const float* wall`.",
    ),
    "a Box of float64": (
        {
            "groups": {"all": Group(range(4), spaces.Box(-1.0, 1.0, (1,), np.float64), MOVES)},
            **starting_with(observation=np.zeros((4, 1))),
            "reset": RESET,
        },
        "kernel 'odd_step' takes 'observation' as float32 (`float* observation`), but its space says float64. "
        "Make it float32 there, or the parameter `double*`.",
    ),
    **{
        f"episodes of {length!r} steps": (
            {"episode_length": length},
            f"env 'odd': episode_length is {length!r}. Give a whole number of at least 1, or None.",
        ) for length in (0, -3, "a", 2.5)
    },
    "a bound that is one number": (
        {"bounds": {"place": 3}}, "bounds of 'place' are 3. Give the least and the largest: (0, 9).",
    ),
    **{
        f"a figure called {name}": (
            {"figures": {name: ""}, **starting_with(**{name: np.zeros((), np.float32)})},
            f"env 'odd': figures names '{name}', which is reported of every env. Choose another.",
        ) for name in METRICS
    },
    "nothing to see": (
        {"groups": {"all": Group(range(4), spaces.Box(0, 1, (0,)), MOVES)}}, "observes a Box of [0], which is empty.",
    ),
    "parts and groups of one name": (
        {
            "groups": {
                "a": Group(range(2), spaces.Dict({"b_c": SEEN}), MOVES),
                "a_b": Group(range(2, 4), spaces.Dict({"c": SEEN}), MOVES),
            }
        },
        "two groups, or parts of what they see, would share 'observation_a_b_c'. Call one of them otherwise.",
    ),
    "a group called mask": (
        {"groups": {"mask": Group(range(2), SEEN, MOVES), "b": Group(range(2, 4), SEEN, spaces.Discrete(3))}},
        "a group is called 'mask', so that its actions would have a mask's name. Choose another.",
    ),
    "a reward of integers": (
        {"step": KERNEL.replace("float* place", "int* reward, float* place")},
        "kernel 'odd_step' takes 'reward' as int32 (`int* reward`), but it is float32. Make the parameter `float*`.",
    ),
    "an array of float64": (
        {**starting_with(place=np.zeros(4)), "step": KERNEL.replace("float* place", "double* place"), "reset": RESET},
        "kernel 'odd_reset' takes 'place' as float32 (`float* place`), but the env says float64.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", DECLARED)
def test_what_an_env_declares_and_cannot_be_is_told_where_it_is_made(tmp_path, mistake):
    wrong, line = DECLARED[mistake]
    wrong = dict(wrong)
    text = wrong.pop("step", KERNEL) + wrong.pop("reset", "")
    assert line in refusal("cpu", odd(tmp_path, text, **wrong))


@pytest.mark.parametrize("compiler", COMPILERS)
def test_sequences_fill_a_gpus_constant_memory_and_no_more(tmp_path, compiler):
    text = KERNEL.replace("+= 1.0f", "+= A[agent] + B[agent]")
    for length in (16_380, 16_381):
        env = odd(tmp_path, text, numbers={"A": [1] * length, "B": [0.5] * 4})
        if length == 16_380:
            EnvWrapper(env, 3, backend=CompileOnlyBackend(compiler, "sm_90"))
            continue
        with pytest.raises(WiringError) as caught:
            EnvWrapper(env, 3, backend=CompileOnlyBackend(compiler, "sm_90"))
    assert str(caught.value) == (
        "constants: their sequences take 65,540 bytes, 'A' 65,524 of them, and a GPU has room for 65,536. Make 'A' a "
        "table: an env returns it by tables(), others call data.push_table('a', ...)."
    )


@pytest.mark.parametrize("compiler", [None, *COMPILERS])
@pytest.mark.parametrize("declared", ["__shared__ float much[13000]", "ENV_SHARED(float, much, 13000)"])
def test_more_shared_memory_than_the_device_has(device, tmp_path, declared, compiler):
    """The one line, then the kernel's own line and a caret. More than the 52,000 bytes where envs share a block. What
    a GPU has is known without one."""
    use = f"{declared}; much[first_agent()] = place[0]; env_sync(); place[0] = much[1];"
    env = odd(tmp_path, KERNEL.replace("    for (", f"    {use}\n    for ("))
    where = {"backend": CompileOnlyBackend(compiler, "sm_90")} if compiler else {"device": device}
    with pytest.raises(CompileError) as caught:
        EnvWrapper(env, 3, **where)
    first, *shown = str(caught.value).splitlines()
    assert "odd.cu:3:1: error: kernel 'odd_step' has " in first and " bytes of static shared memory. A GPU's " in first
    assert first.endswith("or dynamic shared memory (extern __shared__).") and len(shown) == 2
