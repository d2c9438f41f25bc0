"""What a step left unwritten is named, and what it wrote is not, whatever it wrote."""

import numpy as np
import pytest
import torch
from planted_env import SECOND_BYTE, SECOND_FEATURE, SMALL, Few, Planted, Yes, of_kind, planted

from warpdrive.backends import choose_backend
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.errors import EnvError
from warpdrive.unwritten import ENOUGH, Search, fill_with, first_difference

WIDE = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64]
LEAVES_OUT = [  # spaces of small numbers that leave some out
    (torch.bool, (0, 1)),
    (torch.uint8, (0, 1)),
    (torch.uint8, (0, 0xA5)),
    (torch.uint8, (1, 255)),
    (torch.int8, (-128, 126)),
    (torch.int8, (0, 1)),
    (torch.int16, (0, 9)),
    (torch.int16, (-32767, 32767)),
    (torch.uint16, (0, 0xA5C3)),
]


@pytest.mark.parametrize("as_nan", [True, False])
@pytest.mark.parametrize(("dtype", "bounds"), [*((dtype, (0, 1)) for dtype in WIDE), *LEAVES_OUT])
def test_the_first_number_that_was_left_is_named(device, dtype, bounds, as_nan):
    """[steps, envs, agents, features] of which all but one number is written, with a NaN of its own, too."""
    slots = {
        "reward": torch.ones(200, 2, 3, device=device),
        "observation": torch.ones(200, 2, 3, 4, device=device).to(dtype),
    }
    search = Search({"observation": bounds})
    search.fill(slots, as_nan)
    assert slots["reward"].isnan().all() == as_nan and (as_nan or slots["reward"].abs().max() < 1e-30)
    assert search.first(slots) == ("reward", (0, 0, 0))
    slots["reward"].fill_(float("nan"))
    kept = slots["observation"].view(torch.uint8).clone()
    for number in (1, *bounds):
        slots["observation"].fill_(number)
        assert search.first(slots) is None
    bits = slots["observation"].view(torch.uint8)
    bits[130, 1, 2] = kept[130, 1, 2]
    assert search.first(slots) == ("observation", (130, 1, 2, 0))
    search.put_back(slots)
    assert bits[130, 1, 2].eq(0).all() and bits[130, 1, 1].any()
    bits[130, 1, 2] = kept[130, 1, 2]
    search.put_back(slots, {name: torch.ones_like(slot) for name, slot in slots.items()})
    assert slots["observation"][130, 1, 2].tolist() == [1] * 4
    assert search.first(slots) is None


@pytest.mark.parametrize("bounds", [{}, {"seen": (-32768, 65535)}])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.uint16])
@pytest.mark.parametrize(
    ("left", "first"),
    [(..., (0, 0)), ((slice(None), slice(3, 5)), (0, 3)), ((slice(4, 10),), (4, 0)), ((slice(9, 16), 2), None)],
)
def test_where_any_number_may_be_written_a_feature_is_told_by_its_slots(device, dtype, bounds, left, first):
    """In all steps, of two envs, in some steps; not of so few that chance could do it. All else is any number."""
    slots, search = {"seen": torch.zeros(20, 8, 2, 3, dtype=dtype, device=device)}, Search(bounds)
    search.fill(slots)
    assert search.counts("seen", slots["seen"]) and search.first(slots) == ("seen", (0, 0, 0, 0))
    search = Search(bounds)
    search.fill(slots)
    kept = slots["seen"].clone()
    slots["seen"].view(torch.uint8).random_(0, 256)
    slots["seen"][..., 1, 2][left] = kept[..., 1, 2][left]
    found = search.first(slots)
    assert found == (None if first is None else ("seen", (*first, 1, 2)))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.uint16])
def test_what_is_written_is_never_told_whatever_it_is(device, dtype):
    """The bytes of fills, each of all, and any."""
    slots, search = {"seen": torch.zeros(6, 30, 1, 2000, device=device).to(dtype)}, Search()
    bits = slots["seen"].view(torch.uint8)
    for number in (*range(0, 256, 5), 0xA5, 0x5A, 255, None, None):
        search.fill(slots)
        bits.random_(0, 256) if number is None else bits.fill_(number)
        assert search.first(slots) is None


def test_few_slots_tell_once_there_were_enough(device):
    """Of 4 envs and a step a look, and the agent in the game alone."""
    slots, search = {"seen": torch.zeros(1, 4, 2, 3, dtype=torch.uint8, device=device)}, Search()
    gone = torch.zeros(1, 4, 2, dtype=torch.bool, device=device)
    gone[:, :, 0] = True
    found = []
    for _ in range(4):
        search.fill(slots)
        slots["seen"][..., 1, :2] = 0xA5
        found.append(search.first(slots, {"seen": gone}))
    assert found[:3] == [None] * 3 and found[3] == ("seen", (0, 0, 1, 2)) and 12 < ENOUGH <= 16


def test_of_agents_out_of_the_game_nothing_need_be_written(device):
    slots, search = {"observation": torch.zeros(2, 3, 4, 5, device=device)}, Search()
    search.fill(slots)
    gone = torch.ones(2, 3, 4, dtype=torch.bool, device=device)
    assert search.first(slots, {"observation": gone}) is None
    gone[1, 2, 3] = False
    assert search.first(slots, {"observation": gone}) == ("observation", (1, 2, 3, 0))


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int32, torch.float32])
def test_two_fills_tell_of_any_dtype(device, dtype):
    """What one step wrote in both is equal; what it added to what was there, or left, differs."""
    both = [{"seen": torch.zeros(2, 3, dtype=dtype, device=device)} for _ in range(2)]
    for which, slots in enumerate(both):
        fill_with(slots, which)
        slots["seen"][0] = 1
        slots["seen"][1, :2] = 1
    assert first_difference(*both) == ("seen", (1, 2))
    for slots in both:
        slots["seen"][1, 2] = 0
    assert first_difference(*both) is None


PAID = "        reward[i] = 1.0f;\n"


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ((PAID, ""), "in step 1 'reward' of env 0, agent 0 is left"),
        ((PAID, PAID.replace(" = ", " += ")), "in step 1 'reward' of env 0, agent 0 is left"),
        ((PAID, PAID.replace("reward", "if (time < 5 || env != 2) reward")), "in step 5 'reward' of env 2, agent 0 is"),
        ((SECOND_FEATURE, ""), r"in step 1 'observation' of env 0, agent 0, feature \[1\] is left"),
        (("        terminated[env] = false;\n", ""), "in step 1 'terminated' of env 0 is left"),
        (("truncated[env] = time >= 10", "if (time >= 10) truncated[env] = true"), "in step 1 'truncated' of env 0 is"),
    ],
)
def test_debug_mode_tells_what_a_step_leaves(tmp_path, mistake, words):
    """In the step that does so; what was left holds what it held, and the next such step tells it again."""
    env = EnvWrapper(planted(tmp_path, mistake), 4, backend=choose_backend("cpu", debug=True))
    env.reset()
    with pytest.raises(EnvError, match=f"^env 'planted': {words}.* unwritten. A step writes"):
        for _ in range(6):
            env.step()
    assert env.observation.isfinite().all() and (env.data["terminated"].view(torch.uint8) <= 1).all()
    with pytest.raises(EnvError, match="unwritten"):
        env.step()


def env_of(folder, kind: type[Planted], rules: list[tuple[str, str]]) -> Planted:
    return kind(planted(folder, *(rules if kind is Planted else of_kind(kind, *rules))).config)


@pytest.mark.parametrize("kind", SMALL)
def test_debug_mode_tells_of_bytes(tmp_path, kind):
    """By what their space leaves out in the first step, else once there were enough slots: 4 a step."""
    env = EnvWrapper(env_of(tmp_path, kind, [(SECOND_BYTE, "")]), 4, backend=choose_backend("cpu", debug=True))
    env.reset()
    step = 1 if kind in (Yes, Few) else 4
    for _ in range(step - 1):
        env.step()
    words = rf"in step {step} 'observation' of env 0, agent 0, feature \[1\] is left unwritten"
    with pytest.raises(EnvError, match=words):
        env.step()


LEAVE = "agent += agent_stride()) {\n        const int i = env * NUM_AGENTS + agent;\n"
LEAVES = "moved[agent] = reward[i] = 0.0f; if (!active[i]) continue; active[i] = time < 4 + agent;\n"
LEAVING = [  # an agent that has left is paid nothing, and else left alone by the step
    ("int* count,", "int* count, bool* active,"),
    (f"{LEAVE}        moved", f"{LEAVE}{LEAVES}        moved"),
    (f"{LEAVE}        place", f"{LEAVE}if (!active[i]) continue;\n        place"),
    ("* time_step, int* count,\n        ", "* time_step, int* count, bool* active,\n        "),
    ("count[i] = 0;", "count[i] = 0; active[i] = true;"),
]


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("kind", [Planted, *SMALL])
def test_debug_mode_says_nothing_of_what_is_right_and_changes_nothing(tmp_path, kind, leaves):
    """Over the ends of episodes; where agents leave, what nobody writes of them stays as it was."""
    env = env_of(tmp_path, kind, LEAVING if leaves else [])
    if leaves:
        env.arrays = lambda: {**kind.arrays(env), "active": np.ones(3, bool)}
    wrappers = [EnvWrapper(env, 4, backend=choose_backend("cpu", debug=debug)) for debug in (True, False)]
    for wrapper in wrappers:
        wrapper.reset()
    for step in range(24):
        for wrapper in wrappers:
            wrapper.data["action"].fill_(step % 3)
            wrapper.step()
        debug, fast = (wrapper.data.snapshot() for wrapper in wrappers)
        assert [name for name in fast if not torch.equal(debug[name], fast[name])] == []
