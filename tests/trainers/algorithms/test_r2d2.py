"""R2D2: targets and gradients against plain loops, what a sequence remembers, what it is drawn by, what it refuses."""

import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from recurrent_cases import Recurrent

from trainers.algorithms.q_learning import exponents_of_envs
from trainers.algorithms.q_sequences import error_of_sequences, unrolled
from trainers.algorithms.r2d2 import R2D2, R2D2Config, r2d2_target, rescaled, unscaled
from trainers.evaluation import Evaluation
from trainers.replay.of_group import SampledSequences
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.errors import ConfigError

EPSILON = 1e-3
EXAMPLES = Path(__file__).parents[3] / "examples"


def published_h(x: float) -> float:
    return math.copysign(math.sqrt(abs(x) + 1) - 1, x) + EPSILON * x


def published_inverse(x: float) -> float:
    """Pohlen et al. 2018, proposition A.2."""
    root = (math.sqrt(1 + 4 * EPSILON * (abs(x) + 1 + EPSILON)) - 1) / (2 * EPSILON)
    return math.copysign(root * root - 1, x)


@pytest.mark.parametrize("value", [-1e4, -99.0, -3.0, -1e-3, 0.0, 1e-6, 0.5, 8.0, 1e6])
def test_values_are_rescaled_as_published_and_back(value):
    of = torch.tensor(value, dtype=torch.float64)
    assert rescaled(of, EPSILON).item() == pytest.approx(published_h(value), rel=1e-12)
    assert unscaled(of, EPSILON).item() == pytest.approx(published_inverse(value), rel=1e-9, abs=1e-9)
    assert unscaled(rescaled(of, EPSILON), EPSILON).item() == pytest.approx(value, rel=1e-12, abs=1e-15)
    assert unscaled(rescaled(of.float(), EPSILON), EPSILON).item() == pytest.approx(value, rel=1e-6, abs=1e-6)


def test_without_an_epsilon_it_is_a_root():
    assert rescaled(torch.tensor([3.0, -8.0]), 0.0).tolist() == [1.0, -2.0]
    assert unscaled(torch.tensor([1.0, -2.0]), 0.0).tolist() == [3.0, -8.0]


def test_a_target_by_hand():
    """Rewards of 1 and 2 at a discount of 0.5, then the Q-value of the action that the network chose: h^-1(1) = 3."""
    reward, discount = torch.tensor([[1.0 + 0.5 * 2.0], [2.0]]), torch.tensor([[0.25], [0.0]])
    q, of_target = torch.tensor([[[0.0, 5.0]], [[0.0, 5.0]]]), torch.tensor([[[9.0, 1.0]], [[9.0, 9.0]]])
    given = (reward, discount, q, of_target, torch.tensor([[0], [1]]))
    # h(2 + 0.25 * 3) = sqrt(3.75) - 1; h(2) = sqrt(3) - 1
    expected = [math.sqrt(3.75) - 1, math.sqrt(3.0) - 1]
    assert r2d2_target(*given, None, True, 0.0).flatten().tolist() == pytest.approx(expected)
    plain = r2d2_target(*given, None, True, None).flatten().tolist()
    assert plain == [2.25, 2.0]
    only_first = torch.tensor([[[True, False]]] * 2)
    assert r2d2_target(*given, only_first, True, None)[0].item() == 2.0 + 0.25 * 9.0
    assert r2d2_target(*given, None, False, None)[0].item() == 2.0 + 0.25 * 9.0


def test_what_a_sequence_is_drawn_by():
    """0.9 of the largest error and 0.1 of the mean, of the steps that count."""
    error, counts = torch.tensor([[1.0, 7.0], [3.0, 2.0], [2.0, 9.0]]), torch.tensor([[1.0, 0.0], [1.0, 1.0], [1, 0]])
    assert error_of_sequences(error, counts, 0.9).tolist() == pytest.approx([0.9 * 3 + 0.1 * 2, 2.0])
    assert error_of_sequences(error, torch.zeros(3, 2), 0.9).tolist() == [0.0, 0.0]


# ------------------------------------------------------------------------------------------------- a plain loop

BURN_IN, LENGTH, N_STEP, NUM_ITEMS, GAMMA = 3, 6, 5, 4, 0.9
CONFIG = R2D2Config(burn_in=BURN_IN, length=LENGTH, period=1, n_step=N_STEP, gamma=GAMMA)


@pytest.fixture
def steps() -> SimpleNamespace:
    """Steps of NUM_ITEMS envs; episodes end in the burn-in and after it, one by a truncation; which is told of a step
    that has `done`. Of each, what the published n-step double target says, item by item and step by step."""
    torch.manual_seed(7)
    rows = BURN_IN + LENGTH + N_STEP
    done = [["" for _ in range(NUM_ITEMS)] for _ in range(rows)]
    done[1][0] = done[BURN_IN + 2][1] = done[rows - 2][0] = "terminated"
    done[0][2] = done[BURN_IN + 3][2] = done[BURN_IN + LENGTH][3] = "truncated"
    return SimpleNamespace(
        observation=torch.randn(rows, NUM_ITEMS, 3, dtype=torch.float64),
        memory=torch.randn(NUM_ITEMS, 5, dtype=torch.float64),
        action=torch.randint(3, (rows - N_STEP, NUM_ITEMS)),
        reward=3 * torch.randn(rows, NUM_ITEMS, dtype=torch.float64),
        mask=torch.rand(rows, NUM_ITEMS, 3) < 0.8,
        done=done,
    )


def batch_of(steps: SimpleNamespace) -> SampledSequences:
    """As a store gives it; see docs/replay.md."""
    rows = len(steps.observation)
    starts = torch.tensor([[r > 0 and bool(steps.done[r - 1][i]) for i in range(NUM_ITEMS)] for r in range(rows)])
    found = [[returns_of(steps, BURN_IN + t, i) for i in range(NUM_ITEMS)] for t in range(LENGTH)]
    reward, discount, valid, bootstrap = (
        torch.tensor([[one[k] for one in row] for row in found], dtype=torch.float64) for k in range(4)
    )
    mask = steps.mask | ~steps.mask.any(-1, keepdim=True)
    weight = torch.tensor([1.0, 0.25, 0.5, 0.75], dtype=torch.float64)
    seen = (steps.observation, mask, starts, steps.memory, steps.action)
    return SampledSequences(*seen, reward, discount, bootstrap.long(), valid, weight)


def returns_of(steps: SimpleNamespace, r: int, i: int) -> tuple[float, float, float, int]:
    """Of the step in row r: rewards added up, the discount of what comes then, whether it counts, and which row that
    is. What a truncated episode saw last is nowhere: sums end a step before it."""
    total, k = 0.0, 0
    if steps.done[r][i] == "truncated":
        return steps.reward[r, i].item(), 0.0, 0.0, r + 1
    while k < N_STEP and steps.done[r + k][i] != "truncated":
        total += GAMMA**k * steps.reward[r + k, i].item()
        k += 1
        if steps.done[r + k - 1][i] == "terminated":
            return total, 0.0, 1.0, r + k
    return total, GAMMA**k, 1.0, r + k


@pytest.mark.parametrize("stored", [True, False])
def test_losses_and_gradients_are_those_of_a_plain_loop(steps, stored):
    """Item by item and step by step in Python, in float64; resets in the burn-in and after it, and truncations."""
    policy, target = Recurrent(3), Recurrent(3)
    batch = batch_of(steps) if stored else replace(batch_of(steps), memory=None)
    assert 0 < batch.valid.mean() < 1 and batch.starts[1:BURN_IN].any() and batch.starts[BURN_IN + 1 :].any()
    of_batch = R2D2.losses_of(policy, target, batch, CONFIG)
    losses, q, aims = of_batch.loss, of_batch.q, of_batch.target
    assert not aims.requires_grad
    found = torch.autograd.grad((losses * batch.valid * batch.weight).sum(), list(policy.parameters()))

    def values_of(network: Recurrent, i: int) -> list[torch.Tensor]:
        """Of each row; nothing flows back into the burn-in."""
        memory, values = steps.memory[i] if stored else torch.zeros(5, dtype=torch.float64), []
        for r in range(len(steps.observation)):
            if r > 0 and steps.done[r - 1][i]:
                memory = torch.zeros(5, dtype=torch.float64)
            memory = network.cell(steps.observation[r, i].unsqueeze(0), memory.unsqueeze(0))[0]
            values.append(network.layer(memory))
            if r == BURN_IN - 1:
                memory = memory.detach()
        return values

    total = torch.zeros((), dtype=torch.float64)
    for i in range(NUM_ITEMS):
        ours, theirs = values_of(policy, i), values_of(target, i)
        for t in range(LENGTH):
            reward, discount, valid, row = returns_of(steps, BURN_IN + t, i)
            allowed = [a for a in range(3) if batch.mask[row, i, a]]
            best = max(allowed, key=lambda a: ours[row][a].item())
            aim = published_h(reward + discount * published_inverse(theirs[row][best].item()))
            value = ours[BURN_IN + t][steps.action[BURN_IN + t, i]]
            assert q[t, i].item() == pytest.approx(value.item(), abs=1e-12)
            assert aims[t, i].item() == pytest.approx(aim, abs=1e-9)
            total = total + batch.weight[i] * valid * 0.5 * (value - aim) ** 2
    for ours, theirs in zip(found, torch.autograd.grad(total, list(policy.parameters())), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


# ------------------------------------------------------------------------------------------------- in a run


@pytest.fixture
def make(tmp_path, device, monkeypatch):
    """A function that makes a run of 3 envs, 8 steps an iteration; sequences of 4 and 6 steps begin every 4."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "warpdrive" / "envs")

    def make(name: str, env: dict | None = None, **policy: object) -> Trainer:
        small = {"burn_in": 4, "length": 6, "period": 4, "n_step": 3, "batch_size": 5, "buffer_size": 60}
        small |= {"learning_starts": 0, "replay_ratio": 0.1, "model": {"fc_dims": [8], "memory_size": 6}}
        policy = {"algorithm": "R2D2", "gamma": GAMMA, **small, **policy}
        trainer = {"num_envs": 3, "train_batch_size": 24, "total_timesteps": 4_000, "device": device}
        run = {"name": name, "env": env or {}, "trainer": {**trainer, "precision": "fp32"}}
        return Trainer(
            read_config({**run, "policy": {"shared": policy}, "saving": {"basedir": str(tmp_path)}}, allow_import=True)
        )

    return make


@pytest.mark.parametrize(
    ("name", "env", "period", "every"),
    [
        # masks, agents that leave and come back, envs that terminate and are truncated; several agents of one policy
        ("climbers.climbers:Climbers", {"comes_back": True}, 4, 4),
        ("acrobot", {"episode_length": 7}, 3, 1),  # periods across iterations: a memory is kept at each step
    ],
)
def test_who_learns_remembers_what_who_played_did(make, name, env, period, every):
    """The network has not changed: its largest Q-value in each row is what the actor noted at that step."""
    trainer = make(name, env, period=period, agent_id=True)
    group, algorithm = trainer.rollout.groups["shared"], trainer.algorithms["shared"]
    assert group.fields["memory"].every == every
    noted, active = [], []
    for _ in range(9):
        trainer.rollout.collect()
        algorithm.add()
        algorithm.store.count_window()
        noted += group.q_value.clone()
        active += torch.ones_like(group.q_value).bool() if group.active is None else group.active.clone()
    table, config = algorithm.table, algorithm.config
    num_agents, head, num_slots = group.spec.num_agents, len(noted), algorithm.store.num_slots
    seen, ended, differ = 0, 0, 0
    for _ in range(6):
        batch = algorithm.draw()
        with torch.no_grad():
            q, forgot = (
                unrolled(algorithm.policy, one, config) for one in (batch, replace(batch, memory=None))
            )
        differ += int((q != forgot).sum())
        if batch.mask is not None:
            q = q.masked_fill(~batch.mask[4:], -1e9)
        for i, index in enumerate(algorithm.batch.index.tolist()):
            slot, row = index // table.num_rows * period, index % table.num_rows
            step = max(s for s in range(head) if s % num_slots == slot)
            for t in range(6):
                now, (env_, agent) = step + t, divmod(row, num_agents)
                if active[now][env_, agent]:
                    assert q[t, i].max().item() == pytest.approx(noted[now][env_, agent].item(), abs=1e-5)
                    seen += 1
        ended += int(batch.starts[5:].sum())
    assert seen > 60 and ended > 5 and differ > 0


def test_an_update_is_made_of_what_was_drawn_and_becomes_priorities(make):
    """(|error| + 0.1)^0.5 in units of 2^-20, where an error is of the sequence; losses are weighed, and their mean is
    over the steps that count."""
    trainer = make("climbers.climbers:Climbers", alpha=0.5, beta=1.0, priority_epsilon=0.1)
    algorithm, config = trainer.algorithms["shared"], trainer.algorithms["shared"].config
    for _ in range(3):
        trainer.rollout.collect()
        algorithm.add()
        algorithm.store.count_window()
    tree, draws = algorithm.table.selector.tree, algorithm.table.draws.clone()
    leaves = torch.arange(algorithm.table.num_drawable, device=draws.device)
    algorithm.table.update(leaves, 1.0 + leaves)
    batch = algorithm.draw()
    with torch.no_grad():
        of_batch = R2D2.losses_of(algorithm.policy, algorithm.target, batch, config)
    weight, valid, index = batch.weight.clone(), batch.valid.clone(), algorithm.batch.index.clone()
    assert weight.unique().numel() > 1 and 0 < valid.mean() < 1
    algorithm.table.draws.copy_(draws)
    algorithm.set_scalars(trainer.clock)
    figures = algorithm.learn()
    expected = (of_batch.loss * valid * weight).sum() / valid.sum()
    assert figures["loss"].item() == pytest.approx(expected.item(), rel=1e-5)
    error = (of_batch.q - of_batch.target).abs() * valid
    expected = 0.9 * error.amax(0) + 0.1 * error.sum(0) / valid.sum(0).clamp_min(1)
    found = tree.leaves[index].cpu().double() / 2**20
    by_index = dict(zip(index.tolist(), ((expected + 0.1) ** 0.5).tolist(), strict=True))  # of equal ones the last
    assert found.tolist() == pytest.approx([by_index[one] for one in index.tolist()], abs=3e-6)


@pytest.mark.parametrize("stored", [True, False])
def test_what_was_seen_before_a_sequence_is_learned_by_what_is_stored_and_not_without(tmp_path, device, stored):
    """A bit is asked for six steps after it was shown, in sequences of four steps; the answer is paid 1 or -1."""
    trainer = [("trainer.device", device), ("trainer.precision", "fp32"), ("saving.basedir", str(tmp_path))]
    policy = [("policy.agent.stored_state", str(stored).lower()), ("trainer.total_timesteps", "6400")]
    trainer = Trainer(read_config(EXAMPLES / "memory_len_r2d2.yaml", [*trainer, *policy]))
    for _ in range(10):
        trainer.iterate()
    score = Evaluation(trainer.env.env, trainer.policies, 200, seed=7, backend=trainer.backend).play()
    assert (score.mean_of("agent") > 0.8) == stored


def test_a_run_that_ends_before_its_first_sequence_says_so(tmp_path, device, capsys):
    """The last of steps 10 to 29 looks 11 rewards ahead, to that of step 39; with one more there are too few."""
    sizes = {"num_envs": 4, "train_batch_size": 40, "total_timesteps": 160, "device": device, "precision": "fp32"}
    for n_step in (11, 12):
        agent = {"algorithm": "R2D2", "n_step": n_step, "learning_starts": 40, "batch_size": 2}
        paths = {"saving": {"basedir": str(tmp_path)}, "policy": {"agent": agent}}
        trainer = Trainer(read_config({"name": "cartpole", "trainer": sizes, **paths}))
        trainer.train()
        told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]
        assert ("train/agent/loss" in trainer.run.metrics[-1]) == (n_step == 11) == (not told)
    assert told == [
        "warning: policy.agent never learns: what it learns from (burn_in 10, length 20, n_step 12) takes 41 steps of "
        "an env, and this run has 40 of each. Shorten it, train longer, or by fewer envs."
    ]


def test_it_reports_what_it_says_it_does_and_the_target_waits(make):
    trainer = make("acrobot", {"episode_length": 7}, target_update_freq=100)
    algorithm, policy = trainer.algorithms["shared"], trainer.policies["shared"]
    before = [p.clone() for p in policy.parameters()]
    for _ in range(4):
        figures = trainer.iterate()["shared"]
    assert set(figures) == set(R2D2.FIGURES)
    assert not any(torch.equal(old, new) for old, new in zip(before, policy.parameters(), strict=True))
    assert all(torch.equal(old, new) for old, new in zip(before, algorithm.target.parameters(), strict=True))


def test_each_env_tries_as_much_as_ape_x_says(make):
    """0.4^(1 + 7 i / (N - 1)), of which each of the actions that may be taken has a part."""
    expected = [0.4, 0.4**4.5, 0.4**8]
    assert (0.4 ** exponents_of_envs(0, 3, 3)).flatten().tolist() == pytest.approx(expected, rel=1e-6)
    assert exponents_of_envs(0, 1, 1).tolist() == [[[1.0]]]
    of_ranks = torch.cat([exponents_of_envs(first, 2, 6) for first in (0, 2, 4)])
    assert torch.equal(of_ranks, exponents_of_envs(0, 6, 6))
    trainer = make("acrobot", epsilon=0.4, epsilon_per_env=True)
    trainer.rollout.collect()
    least = trainer.rollout.groups["shared"].actor._logits.exp().amin(-1).flatten()
    assert least.tolist() == pytest.approx([one / 3 for one in expected], rel=1e-5)


def test_a_store_holds_a_sequence_of_each_env_at_least(make):
    """4 + 6 + 3 - 1 steps around an anchor, and a period of 4, in whole iterations of 8."""
    assert make("acrobot", buffer_size=5, batch_size=3).algorithms["shared"].store.num_slots == 16
    assert make("acrobot", buffer_size=60).algorithms["shared"].store.num_slots == 32  # 60 / 3 + 12


@pytest.mark.parametrize(
    ("name", "policy", "words"),
    [
        ("pendulum", {}, "policy.agent.algorithm: R2D2 chooses from one list of actions (Discrete), and "),
        ("cartpole", {"model": {"type": "mlp"}},
         "policy.agent.algorithm: R2D2 learns by memory, and model.type: mlp has none. Take gru, or DQN."),
        ("cartpole", {"model": {"sequence_length": 5}},
         "policy.agent.model.sequence_length: R2D2's gradient runs through `length` (20) steps. Leave this out, "),
        ("cartpole", {"buffer_size": 20}, "policy.agent.buffer_size: 20 transitions are fewer than the 64 of an "),
    ],
)  # fmt: skip
def test_what_it_cannot_learn_is_told(tmp_path, name, policy, words):
    trainer = {"total_timesteps": 100, "num_envs": 2, "train_batch_size": 20, "device": "cpu"}
    policy = {"agent": {"algorithm": "R2D2", **policy}}
    with pytest.raises(ConfigError, match="^" + re.escape(words)):
        read_config({"name": name, "trainer": trainer, "policy": policy, "saving": {"basedir": str(tmp_path)}})
