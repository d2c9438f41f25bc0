"""VDN and QMIX of agents that remember: losses against a plain loop, what is drawn, a game that only a memory wins."""

import re
from dataclasses import replace

import pytest
import torch
from recurrent_cases import Recurrent
from torch import nn

from trainers.algorithms.q_sequences import error_of_sequences, unrolled
from trainers.algorithms.qmix import QMIX, QMIXConfig
from trainers.algorithms.vdn import VDN
from trainers.networks.mixer import MonotoneMixer, Sum
from trainers.replay.of_team import TeamSequences
from trainers.settings.config import ModelConfig
from trainers.settings.read_config import read_config
from warpdrive.errors import ConfigError

BURN_IN, LENGTH, N_STEP, NUM_ITEMS, NUM_AGENTS, GAMMA = 2, 5, 3, 4, 3, 0.9
ROWS = BURN_IN + LENGTH + N_STEP
SEQUENCES = {"burn_in": BURN_IN, "length": LENGTH, "period": 1, "n_step": N_STEP, "gamma": GAMMA}
CONFIG = QMIXConfig(**SEQUENCES, huber_delta=None, model=ModelConfig(type="gru"))
MIXERS = {"VDN": Sum, "QMIX": lambda: MonotoneMixer(NUM_AGENTS, 4, 5, torch.Generator().manual_seed(1)).double()}


def batch_of() -> TeamSequences:
    """Of random numbers: agents leave and come back, what follows is one to three rows ahead."""
    torch.manual_seed(7)
    ahead = torch.randint(1, N_STEP + 1, (LENGTH, NUM_ITEMS))
    mask = torch.rand(ROWS, NUM_ITEMS, NUM_AGENTS, 2) < 0.7
    return TeamSequences(
        observation=torch.randn(ROWS, NUM_ITEMS * NUM_AGENTS, 3, dtype=torch.float64),
        mask=mask | ~mask.any(-1, keepdim=True),
        starts=torch.rand(ROWS, NUM_ITEMS * NUM_AGENTS) < 0.2,
        memory=torch.randn(NUM_ITEMS * NUM_AGENTS, 5, dtype=torch.float64),
        action=torch.randint(2, (ROWS - N_STEP, NUM_ITEMS, NUM_AGENTS)),
        in_game=(torch.rand(ROWS, NUM_ITEMS, NUM_AGENTS) < 0.7).double(),
        state=torch.randn(ROWS, NUM_ITEMS, 4, dtype=torch.float64),
        reward=torch.randn(LENGTH, NUM_ITEMS, dtype=torch.float64),
        discount=GAMMA**ahead * (torch.rand(LENGTH, NUM_ITEMS) < 0.8).double(),
        bootstrap=torch.arange(BURN_IN, BURN_IN + LENGTH).unsqueeze(-1) + ahead,
        valid=(torch.rand(LENGTH, NUM_ITEMS) < 0.8).double(),
        weight=torch.tensor([1.0, 0.25, 0.5, 0.75], dtype=torch.float64),
    )


@pytest.mark.parametrize("algorithm", MIXERS)
@pytest.mark.parametrize("change", [{}, {"memory": None, "in_game": None, "mask": None}])
@pytest.mark.parametrize("double", [True, False])
def test_losses_and_gradients_are_those_of_a_plain_loop(algorithm, change, double):
    """Item by item, agent by agent and step by step, in float64."""
    batch, config = replace(batch_of(), **change), replace(CONFIG, double=double)
    learned, target = (nn.ModuleDict({"policy": Recurrent(2), "mixer": MIXERS[algorithm]()}) for _ in range(2))
    found = VDN.losses_of(learned, target, batch, config)
    assert not found.target.requires_grad
    gradient = torch.autograd.grad((found.loss * batch.valid * batch.weight).sum(), list(learned.parameters()))

    def values_of(network: Recurrent, row: int) -> list[torch.Tensor]:
        """Of one agent of an item, in each row; nothing flows back into the burn-in."""
        memory, values = torch.zeros(5, dtype=torch.float64) if batch.memory is None else batch.memory[row], []
        for r in range(ROWS):
            memory = torch.zeros_like(memory) if batch.starts[r, row] else memory
            memory = network.cell(batch.observation[r, row].unsqueeze(0), memory.unsqueeze(0))[0]
            values.append(network.layer(memory))
            memory = memory.detach() if r == BURN_IN - 1 else memory
        return values

    def of_team(mixer: nn.Module, values: list[torch.Tensor], r: int, i: int) -> torch.Tensor:
        here = [1.0] * NUM_AGENTS if batch.in_game is None else batch.in_game[r, i].tolist()
        alone = torch.stack([value * one for value, one in zip(values, here, strict=True)])
        return mixer(alone.unsqueeze(0), batch.state[r, i].unsqueeze(0))[0]

    total, agents = torch.zeros((), dtype=torch.float64), range(NUM_AGENTS)
    for i in range(NUM_ITEMS):
        ours, theirs = ([values_of(one["policy"], NUM_AGENTS * i + a) for a in agents] for one in (learned, target))
        for t in range(LENGTH):
            r, after = BURN_IN + t, batch.bootstrap[t, i].item()
            best = []
            for a in agents:
                allowed = [c for c in range(2) if batch.mask is None or batch.mask[after, i, a, c]]
                choosing = (ours if double else theirs)[a][after]
                best.append(theirs[a][after][max(allowed, key=lambda c, q=choosing: q[c].item())])
            aim = batch.reward[t, i] + batch.discount[t, i] * of_team(target["mixer"], best, after, i).detach()
            value = of_team(learned["mixer"], [ours[a][r][batch.action[r, i, a]] for a in agents], r, i)
            assert found.q[t, i].item() == pytest.approx(value.item(), abs=1e-12)
            assert found.target[t, i].item() == pytest.approx(aim.item(), abs=1e-12)
            total = total + batch.weight[i] * batch.valid[t, i] * 0.5 * (value - aim) ** 2
    for one, expected in zip(gradient, torch.autograd.grad(total, list(learned.parameters())), strict=True):
        torch.testing.assert_close(one, expected, rtol=0, atol=1e-9)


SMALL = {"burn_in": 4, "length": 6, "period": 4, "n_step": 3, "batch_size": 5, "buffer_size": 60, "gamma": GAMMA}
SMALL |= {"learning_starts": 0, "replay_ratio": 0.1, "model": {"type": "gru", "fc_dims": [8], "memory_size": 6}}


@pytest.mark.parametrize(("period", "every"), [(4, 4), (3, 1)])
def test_who_learns_remembers_what_who_played_did(make_trainer, period, every):
    """Of agents that leave and come back: the network has not changed, so its largest Q-value in each row is what the
    actor noted at that step; who was in the game then is told, and what the team was paid."""
    keys = {"algorithm": "QMIX", **SMALL, "period": period}
    trainer = make_trainer("climbers.climbers:Climbers", {"shared": keys}, 3, 8, comes_back=True, episode_length=11)
    group, algorithm = trainer.rollout.groups["shared"], trainer.algorithms["shared"]
    assert group.fields["memory"].every == every
    noted, active, paid, ended = [], [], [], []
    for _ in range(9):
        trainer.rollout.collect()
        algorithm.add()
        algorithm.store.count_window()
        for kept, one in ((noted, group.q_value), (active, group.active), (paid, group.reward_of_team)):
            kept += one.clone()
        ended += (trainer.rollout.terminated | trainer.rollout.truncated).clone()
    num_slots, seen, differ, left = algorithm.store.num_slots, 0, 0, 0
    for _ in range(6):
        batch = algorithm.draw()
        with torch.no_grad():
            q, forgot = (
                unrolled(algorithm.policy, one, algorithm.config) for one in (batch, replace(batch, memory=None))
            )
        differ += int((q != forgot).sum())
        q = q.unflatten(1, batch.action.shape[1:])
        q = q if batch.mask is None else q.masked_fill(~batch.mask[4:], -1e9)
        for i, index in enumerate(algorithm.batch.index.tolist()):
            slot, env = index // 3 * period, index % 3
            step = max(s for s in range(len(noted)) if s % num_slots == slot)  # of the first row that is learned from
            for t in range(6):
                here = active[step + t][env]
                assert torch.equal(batch.in_game[4 + t, i].bool(), here)
                left += int((~here).sum())
                torch.testing.assert_close(q[t, i].amax(-1)[here], noted[step + t][env][here], rtol=0, atol=1e-5)
                if ended[step + t][env] or not here.any():
                    continue
                seen += 1
                expected, k = 0.0, 0
                while k < 3 and (k == 0 or not ended[step + t + k - 1][env]):
                    expected, k = expected + GAMMA**k * paid[step + t + k][env].item(), k + 1
                if batch.discount[t, i].item() == pytest.approx(GAMMA**3):
                    assert batch.reward[t, i].item() == pytest.approx(expected, abs=1e-5)
    assert seen > 40 and differ > 0 and left > 5


@pytest.mark.parametrize("algorithm", ["VDN", "QMIX"])
def test_an_update_steps_all_that_learns_and_errors_become_priorities(make_trainer, algorithm):
    """(|error| + 0.1)^0.5 in units of 2^-20, where an error is of the sequence."""
    keys = {"algorithm": algorithm, **SMALL, "prioritized": True, "alpha": 0.5, "beta": 1.0, "priority_epsilon": 0.1}
    trainer = make_trainer("climbers.climbers:Climbers", {"shared": keys}, 3, 8, seed=3, comes_back=True)
    learner = trainer.algorithms["shared"]
    before = {name: one.clone() for name, one in learner.learned.named_parameters()}
    for _ in range(3):
        trainer.rollout.collect()
        learner.add()
        learner.store.count_window()
    draws = learner.table.draws.clone()
    batch = learner.draw()
    with torch.no_grad():
        found = learner.losses_of(learner.learned, learner.target, batch, learner.config)
    weight, index, counts = learner.weight_of(batch), learner.batch.index.clone(), learner.weight_of(batch).sign()
    learner.table.draws.copy_(draws)
    learner.set_scalars(trainer.clock)
    figures = learner.learn()
    expected = (found.loss * weight).sum() / counts.sum()
    assert figures["loss"].item() == pytest.approx(expected.item(), rel=1e-5)
    assert [name for name, one in learner.learned.named_parameters() if torch.equal(one, before[name])] == []
    errors = (error_of_sequences(found.error, counts, 0.9) + 0.1) ** 0.5
    by_index = dict(zip(index.tolist(), errors.tolist(), strict=True))
    leaves = learner.table.selector.tree.leaves[index].cpu().double() / 2**20
    assert leaves.tolist() == pytest.approx([by_index[one] for one in index.tolist()], abs=3e-6)


@pytest.mark.parametrize("type_", ["gru", "mlp"])
def test_a_sign_that_is_asked_for_later_is_learned_by_a_team_that_remembers_alone(make_trainer, type_):
    """It is shown at the first of 4 steps and paid at the last: without a memory half of the answers are right."""
    keys = {"algorithm": "VDN", "lr": 5e-3, "epsilon": [[0, 1.0], [4000, 0.05]], "learning_starts": 256}
    keys |= {"gamma": 0.9, "buffer_size": 4000, "batch_size": 32, "replay_ratio": 0.02, "tau": 0.05, "agent_id": False}
    keys["model"] = {"type": type_, "fc_dims": [16], **({"memory_size": 16} if type_ == "gru" else {})}
    if type_ == "gru":
        keys |= {"burn_in": 0, "length": 4, "period": 4}
    trainer = make_trainer("recall:Recall", {"agent": keys}, 32, 8, iterations=40, seed=1, episode_length=4)
    for _ in range(40):
        trainer.iterate()
    paid = torch.stack([trainer.iterate() and trainer.rollout.reward[3::4].clone() for _ in range(4)])
    assert (paid.mean().item() > 0.85) == (type_ == "gru")


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (
            {"model": {"type": "gru", "sequence_length": 5}},
            "policy.agent.model.sequence_length: QMIX's gradient runs through `length` (20) steps. Leave this out, or",
        ),
        ({"burn_in": 5}, "policy.agent.burn_in: QMIX learns from single steps with model.type: mlp. Leave this out,"),
    ],
)
def test_keys_that_do_not_fit_are_told(tmp_path, policy, words):
    policy, trainer = {"agent": {"algorithm": "QMIX", **policy}}, {"total_timesteps": 100, "device": "cpu"}
    config = {"name": "simple_spread", "trainer": trainer, "policy": policy, "saving": {"basedir": str(tmp_path)}}
    with pytest.raises(ConfigError, match="^" + re.escape(words)):
        read_config(config)


def test_a_run_too_short_for_a_sequence_says_so(make_trainer):
    """The first item begins at step 0 and is learned from at step 10, 22 steps ahead."""
    keys = {"algorithm": "VDN", "learning_starts": 0, "n_step": 3, "model": {"type": "gru"}}
    trainer = make_trainer("recall:Recall", {"agent": keys}, 4, 10, iterations=3)
    found = QMIX.why_idle(trainer.config.policy["agent"], 4 * 31, 4)
    assert found.startswith("what it learns from (burn_in 10, length 20, n_step 3) takes 32 steps of an env, and this")
    assert QMIX.why_idle(trainer.config.policy["agent"], 4 * 32, 4) is None
