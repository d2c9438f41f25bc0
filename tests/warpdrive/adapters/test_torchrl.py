import itertools
import warnings

import pytest
import torch
from adapter_cases import CLIMBERS, MANY_ENVS, MANY_SPACES, NUM_ENVS, NUM_STEPS, SOCCER, actions_inside, name_of, played

from warpdrive.adapters.torchrl import torchrl_env
from warpdrive.errors import EnvError
from warpdrive.layout import FINAL, Place

pytest.importorskip("torchrl", reason="needs torchrl, an extra of the tests", exc_type=ImportError)

from torchrl.collectors import Collector
from torchrl.envs import EnvBase
from torchrl.envs.utils import check_env_specs

SHORT = {"episode_length": 15}


def group_of(tensordict, env, group):
    return tensordict if env.is_single else tensordict[group]


@pytest.mark.parametrize(("name", "config"), MANY_ENVS, ids=name_of)
def test_torchrls_own_checks_pass_without_a_warning(device, name, config):
    env = torchrl_env(name, NUM_ENVS, device, env_config=config)
    assert isinstance(env, EnvBase) and env.batch_size == (NUM_ENVS,)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env_specs(env, seed=0)
        check_env_specs(env, break_when_any_done="both")


@pytest.mark.parametrize(("name", "config"), MANY_ENVS, ids=name_of)
def test_a_rollout_is_that_of_env_wrapper_bit_for_bit(device, name, config, monkeypatch):
    """Also where memory held something else before, and after episodes that ended."""
    monkeypatch.setattr(torch, "empty_like", lambda tensor: torch.full_like(tensor, 77))
    actions = actions_inside(name, config, NUM_ENVS, NUM_STEPS)
    frames = played(name, config, device, actions)
    env = torchrl_env(name, NUM_ENVS, device, env_config=config)
    layout, data = env.wrapper.layout, env.wrapper.data
    steps = iter(actions)

    def act(tensordict):
        by_array = next(steps)
        for group, place in layout.action.items():
            action = by_array[place.array][:, place.columns]
            action = action if action.is_floating_point() else action.long()
            tensordict["action" if env.is_single else (group, "action")] = action[:, 0] if env.is_single else action
        return tensordict

    env.set_seed(5)
    run = env.rollout(NUM_STEPS, act, break_when_any_done=False)
    num_ended = 0
    for t, (before, after) in enumerate(itertools.pairwise(frames)):
        now, later = run[:, t], run[:, t]["next"]
        ended = torch.from_numpy(after["terminated"] | after["truncated"])
        num_ended += int(ended.sum())

        def same(given, frame, place):
            frame = torch.from_numpy(frame)[:, place.columns]
            assert torch.equal(given.cpu(), frame[:, 0] if env.is_single else frame)

        for flag in ("terminated", "truncated"):
            assert torch.equal(later[flag][:, 0].cpu(), torch.from_numpy(after[flag]))
        assert torch.equal(later["done"][:, 0].cpu(), ended) and not now["done"].any()
        assert ("state" in now) == ("global_state" in data)
        if "global_state" in data:
            assert torch.equal(now["state"].cpu(), torch.from_numpy(before["global_state"]))
        for group, places in layout.observation.items():
            mine, next_mine = group_of(now, env, group), group_of(later, env, group)
            agents = env.wrapper.groups[group].agents
            same(next_mine["reward"][..., 0], after["reward"], Place("reward", slice(agents.start, agents.stop)))
            for key, place in places.items():
                last = after[place.array].copy()
                last[ended] = after[FINAL + place.array][0][ended]
                get = lambda part, key=key: part["observation"][key] if key else part["observation"]  # noqa: E731
                same(get(mine), before[place.array], place)
                same(get(next_mine), last, place)
            if "active" in data:
                same(mine["mask"], before["active"], Place("active", slice(agents.start, agents.stop)))
    assert num_ended >= NUM_ENVS


def test_kernels_write_into_the_tensors_that_a_step_returns(device, monkeypatch):
    env = torchrl_env(SOCCER, NUM_ENVS, device, env_config=SHORT)
    given, advance = [], env.wrapper.advance

    def watched(**written):
        given.append({name: array.data_ptr() for name, array in written.items()})
        advance(**written)

    monkeypatch.setattr(env.wrapper, "advance", watched)
    tensordict = env.rand_action(env.reset())
    steps = [env.step(tensordict)["next"], env.step(tensordict)["next"]]
    for written, step in zip(given, steps, strict=True):
        assert step["left", "observation"].data_ptr() == written["observation"]
        assert step["right", "observation"].data_ptr() == written["observation"] + 2 * 10 * 4, "after the 2 of the left"
        assert step["left", "reward"].data_ptr() == written["reward"]
        assert step["terminated"].data_ptr() == written["terminated"]
    assert not set(given[0].values()) & set(given[1].values()), "a step has memory of its own"


def test_a_seed_makes_the_run_and_a_reset_with_a_mask_draws_anew_and_leaves_the_others(device):
    env = torchrl_env("cartpole", NUM_ENVS, device, env_config=SHORT)
    starts = []
    for seed in (3, None, 3):
        if seed is not None:
            env.set_seed(seed)
        starts.append(env.reset())
    first, second, again = (start["observation"] for start in starts)
    assert torch.equal(first, again) and (first != second).any(1).all()
    mask = torch.zeros(NUM_ENVS, 1, dtype=torch.bool, device=device)
    mask[3] = True
    for _ in range(2):
        starts.append(env.reset(starts[-1].clone().set("_reset", mask)))
        assert ((starts[-1]["observation"] != starts[-2]["observation"]).any(1) == mask[:, 0]).all()


def test_agents_are_nested_by_group(device):
    env = torchrl_env("simple_tag", NUM_ENVS, device)
    assert env.group_map == {"adversary": ["adversary_0", "adversary_1", "adversary_2"], "agent": ["agent_0"]}
    run = env.rollout(4)
    assert run["adversary", "observation"].shape == (NUM_ENVS, 4, 3, 16)
    assert run["agent", "observation"].shape == (NUM_ENVS, 4, 1, 14)
    assert run["next", "adversary", "reward"].shape == (NUM_ENVS, 4, 3, 1)
    assert run["adversary", "action"].shape == (NUM_ENVS, 4, 3) and run["next", "done"].shape == (NUM_ENVS, 4, 1)
    assert run["adversary", "action"].unique().tolist() == [0, 1, 2, 3, 4]


def test_masks_are_told_and_random_actions_keep_to_them(device):
    """Action 2 is allowed from height 1 on, so that a start at height 0 shows who looks."""
    env = torchrl_env(CLIMBERS, NUM_ENVS, device)
    run = env.rollout(60, break_when_any_done=False)
    mask, action, height = run["climber", "action_mask"], run["climber", "action"], run["climber", "observation"]
    assert torch.equal(mask[..., 2], height[..., 0] > 0)
    assert mask.gather(-1, action.unsqueeze(-1)).all() and (action == 2).any()
    assert torch.equal(run["climber", "mask"], height[..., 0] < 3)


def test_a_collector_gathers_what_was_played(device):
    env = torchrl_env("cartpole", NUM_ENVS, device, env_config=SHORT)
    collector = Collector(env, frames_per_batch=20 * NUM_ENVS, total_frames=40 * NUM_ENVS)
    for batch in collector:
        seen, later, done = batch["observation"], batch["next", "observation"], batch["next", "done"][..., 0]
        goes_on = ~done[:, :-1]
        assert torch.equal(later[:, :-1][goes_on], seen[:, 1:][goes_on]) and done.any()
        assert seen[:, 1:][done[:, :-1]].abs().max() <= 0.05
        assert torch.allclose(later[..., 0], seen[..., 0] + 0.02 * seen[..., 1], atol=1e-6), "Euler's method"
    collector.shutdown(close_env=False)


def test_work_on_another_stream_is_waited_for_and_waits(device):
    """The action is written, and what was seen is read, on a stream that is busy for a while first."""
    env = torchrl_env("pendulum", NUM_ENVS, device)
    if device == "cpu":
        pytest.skip("a CPU has no streams")
    seen = []
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            env.set_seed(7)
            told = env.reset()
            torch.cuda._sleep(100_000_000)  # clocks
            told["action"] = torch.linspace(-2, 2, NUM_ENVS, device=device).view(-1, 1)
            seen.append((told["observation"] * 1, env.step(told)["next", "observation"] * 1))
    torch.cuda.synchronize()
    (before, after), (other_before, other_after) = seen
    assert torch.equal(before, other_before) and torch.equal(after, other_after) and not torch.equal(before, after)


def test_an_action_that_does_not_fit_is_named_with_its_group():
    env = torchrl_env(MANY_SPACES, NUM_ENVS, "cpu")
    tensordict = env.rand_action(env.reset())
    tensordict["scout", "action"] = torch.full((NUM_ENVS, 3), 3)
    with pytest.raises(EnvError, match=r"action of group 'scout' is 3 at \[0, 0\], expected 0 to 2"):
        env.step(tensordict)


def test_groups_may_not_be_called_what_a_step_holds(monkeypatch):
    from cuda_envs.simple_spread.simple_spread import SimpleSpread

    env = SimpleSpread()
    env.groups = {"done": next(iter(env.groups.values()))}
    with pytest.raises(EnvError, match="group 'done'.*Rename"):
        torchrl_env(env, NUM_ENVS, "cpu")
