"""What a step left unwritten is named, and what it wrote is not, whatever it wrote."""

import pytest
import torch

from warpdrive.unwritten import fill, fill_with, first_difference, first_unwritten

WIDE = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int16, torch.int32, torch.int64]


@pytest.mark.parametrize("as_nan", [True, False])
@pytest.mark.parametrize("dtype", WIDE)
def test_the_first_number_that_was_left_is_named(device, dtype, as_nan):
    """[steps, envs, agents, features] of which all but one number is written, with a NaN of its own, too."""
    slots = {
        "reward": torch.ones(200, 2, 3, device=device),
        "observation": torch.ones(200, 2, 3, 4, device=device).to(dtype),
    }
    fill(slots, as_nan)
    assert slots["reward"].isnan().all() == as_nan and (as_nan or slots["reward"].abs().max() < 1e-30)
    assert first_unwritten(slots) == ("reward", (0, 0, 0))
    slots["reward"].fill_(float("nan"))
    kept = slots["observation"].clone()
    slots["observation"].fill_(1)
    assert first_unwritten(slots) is None
    slots["observation"].view(torch.uint8)[130, 1, 2] = kept.view(torch.uint8)[130, 1, 2]
    assert first_unwritten(slots) == ("observation", (130, 1, 2, 0))


def test_of_agents_out_of_the_game_nothing_need_be_written(device):
    slots = {"observation": torch.zeros(2, 3, 4, 5, device=device)}
    fill(slots)
    gone = torch.ones(2, 3, 4, dtype=torch.bool, device=device)
    assert first_unwritten(slots, {"observation": gone}) is None
    gone[1, 2, 3] = False
    assert first_unwritten(slots, {"observation": gone}) == ("observation", (1, 2, 3, 0))


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
