"""VDN and QMIX: losses by hand and as TorchRL has them, what is kept of a team, what each of the two can represent."""

import itertools
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from trainers.algorithms.qmix import QMIX, QMIXConfig
from trainers.algorithms.vdn import VDN, VDNConfig, team_target
from trainers.errors import NonFiniteError
from trainers.networks.mixer import MonotoneMixer, Sum
from trainers.replay.of_team import TeamSamples
from trainers.replay.selectors import Uniform
from trainers.settings.read_config import read_config
from warpdrive.errors import ConfigError

MIXERS = {"VDN": Sum, "QMIX": lambda: MonotoneMixer(3, 6, 5, torch.Generator().manual_seed(1)).double()}


class BesideTheSum(nn.Module):
    """A mixer of TorchRL's, [..., A, 1] -> [..., 1], that sees a normalised state, and the sum of what it mixes."""

    def __init__(self, mixer):
        super().__init__()
        self.mixer = mixer

    def forward(self, values, state):
        deviation = (state.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
        return self.mixer(values, (state - state.mean(-1, keepdim=True)) / deviation) + values.sum(-2)


def q_of(network):
    """A policy of this network, as losses ask it."""
    return SimpleNamespace(heads=lambda observation: {"q": network(observation)})


def samples(**changes) -> TeamSamples:
    """Of 2 agents, in one env, who observe their own Q-values of 2 actions."""
    own, after = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[5.0, 6.0], [8.0, 7.0]])
    given = {"observation": own, "next_observation": after, "action": torch.tensor([[1, 0]])}
    given |= {"reward": torch.tensor([10.0]), "discount": torch.tensor([0.5]), "weight": torch.ones(1)}
    names = ("mask", "in_game", "state", "next_mask", "next_in_game", "next_state")
    return TeamSamples(**{**dict.fromkeys(names), **given, **changes})


def test_values_and_targets_by_hand():
    """2 + 3 against 10 + (6 + 8) / 2; who left neither adds to what was done nor to what follows."""
    same, doubled = q_of(lambda seen: seen), q_of(lambda seen: -2.0 * seen)
    config = VDNConfig(huber_delta=None, double=False)
    both = {"policy": same, "mixer": Sum()}
    found = VDN.losses_of(both, both, samples(), config)
    assert (found.q.tolist(), found.target.tolist(), found.loss.tolist()) == ([5.0], [17.0], [72.0])
    # The network chooses 0 and 1, as its values fall where the target network's rise.
    assert team_target(doubled, same, Sum(), samples(), double=True).tolist() == [16.0]
    only_first = torch.tensor([[[True, True], [False, True]]])
    assert team_target(same, same, Sum(), samples(next_mask=only_first), double=True).tolist() == [16.5]
    left = samples(in_game=torch.tensor([[1.0, 1.0]]), next_in_game=torch.tensor([[0.0, 1.0]]))
    assert team_target(same, same, Sum(), left, double=True).tolist() == [14.0]
    gone = samples(in_game=torch.tensor([[0.0, 1.0]]), next_in_game=torch.tensor([[0.0, 1.0]]))
    assert VDN.losses_of(both, both, gone, config).q.tolist() == [3.0]


@pytest.mark.parametrize("algorithm", MIXERS)
def test_loss_and_gradient_are_torchrls(algorithm):
    pytest.importorskip("torchrl")
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule
    from torchrl.modules import QValueModule, SafeSequential
    from torchrl.modules.models.multiagent import QMixer, VDNMixer
    from torchrl.objectives import SoftUpdate
    from torchrl.objectives.multiagent import QMixerLoss

    torch.manual_seed(3)
    number, size, num_actions = 32, 4, 3
    network, mixer = nn.Linear(size, num_actions).double(), MIXERS[algorithm]()
    own = nn.Linear(size, num_actions).double()
    own.load_state_dict(network.state_dict())
    if algorithm == "VDN":
        theirs, keys = VDNMixer(n_agents=3, device="cpu"), [("agents", "chosen_action_value")]
    else:
        theirs = BesideTheSum(QMixer(state_shape=(6,), mixing_embed_dim=5, n_agents=3, device="cpu").double())
        names = {"hyper_w_1": "weight_1", "hyper_w_final": "weight_2", "hyper_b_1": "bias_1", "V": "bias_2"}
        for name, ours in names.items():
            getattr(theirs.mixer, name).load_state_dict(getattr(mixer, ours).state_dict())
        keys = [("agents", "chosen_action_value"), "state"]
    values = [("agents", "action_value"), ("agents", "chosen_action_value")]
    actor = SafeSequential(
        TensorDictModule(network, in_keys=[("agents", "observation")], out_keys=values[:1]),
        QValueModule(
            action_value_key=values[0], out_keys=[("agents", "action"), *values], action_space="categorical"
        ),
    )  # fmt: skip
    mixing = TensorDictModule(theirs, in_keys=keys, out_keys=["chosen_action_value"])
    loss = QMixerLoss(actor, mixing, action_space="categorical", delay_value=True)
    loss.make_value_estimator(gamma=0.5)
    SoftUpdate(loss, eps=0.9)
    seen = {name: torch.randn(number, 3, size, dtype=torch.float64) for name in ("now", "next")}
    state = {name: torch.randn(number, 6, dtype=torch.float64) for name in ("now", "next")}
    action, ended = torch.randint(num_actions, (number, 3)), torch.rand(number, 1) < 0.3
    reward = torch.randn(number, 1, dtype=torch.float64)
    batch = TensorDict(
        {
            "agents": {"observation": seen["now"], "action": action},
            "state": state["now"],
            "next": {
                "agents": {"observation": seen["next"]}, "state": state["next"], "reward": reward,
                "done": ended, "terminated": ended,
            },
        },
        [number],
    )  # fmt: skip
    expected = loss(batch)["loss"]
    expected.backward()
    given = samples(
        observation=seen["now"].flatten(0, 1), next_observation=seen["next"].flatten(0, 1), action=action,
        state=state["now"], next_state=state["next"], reward=reward.squeeze(-1),
        discount=0.5 * (~ended).squeeze(-1).double(),
    )  # fmt: skip
    both = {"policy": q_of(own), "mixer": mixer}
    # TorchRL's loss is the squared error, half of which is ours.
    found = 2 * QMIX.losses_of(both, both, given, QMIXConfig(huber_delta=None, double=False)).loss.mean()
    assert found.item() == pytest.approx(expected.item(), abs=1e-6)
    ours = torch.autograd.grad(found, [*own.parameters(), *mixer.parameters()])
    flat = [loss.local_value_network_params, *([loss.mixer_network_params] if algorithm == "QMIX" else [])]
    gradients = [one.grad for params in flat for one in params.flatten_keys().values()]
    assert len(gradients) == len(ours)
    for gradient in ours:
        distance = [(gradient - one).abs().max().item() for one in gradients if one.shape == gradient.shape]
        assert min(distance) < 1e-6 and gradient.abs().max() > 1e-4


def test_the_teams_value_never_falls_where_an_agents_rises():
    """Whatever the weights and the state, it rises by as much at least."""
    generator = torch.Generator().manual_seed(2)
    mixer = MonotoneMixer(3, 6, 32, generator)
    for parameter in mixer.parameters():
        parameter.data.normal_(generator=generator)
    values = (torch.rand(500, 3, generator=generator) - 0.5).mul(20).requires_grad_()
    total = mixer(values, torch.randn(500, 6, generator=generator)).sum()
    (gradient,) = torch.autograd.grad(total, values)
    assert gradient.min() >= 1 and gradient.max() > 10


def test_a_fresh_mixer_is_nearly_the_sum_with_slopes_for_values_far_from_zero():
    """At -10, where ELU alone is flat, and at 10; exactly the sum, where the state is nothing."""
    generator = torch.Generator().manual_seed(2)
    mixer = MonotoneMixer(3, 18, 32, generator)
    values = torch.rand(500, 3, generator=generator)
    assert torch.equal(mixer(values, torch.zeros(500, 18)), values.sum(-1))
    for far in (-10.0, 10.0):
        values = torch.full((500, 3), far, requires_grad=True)
        total = mixer(values, torch.randn(500, 18, generator=generator))
        (gradient,) = torch.autograd.grad(total.sum(), values)
        assert gradient.min() >= 1.0 and gradient.max() < 3.0
        assert (total - 3 * far).abs().max() < 3 * abs(far)


def test_a_mixers_slopes_are_those_of_a_state_of_usual_size_however_far_out_it_is():
    """A state of one number is taken as it is."""
    generator = torch.Generator().manual_seed(2)
    mixer, state = MonotoneMixer(2, 6, 8, generator), torch.randn(50, 6, generator=generator)
    values = torch.randn(50, 2, generator=generator)
    torch.testing.assert_close(mixer(values, state), mixer(values, 100.0 * state + 7.0), rtol=0, atol=1e-3)
    alone = MonotoneMixer(2, 1, 8, generator)
    assert not torch.equal(alone(values, state[:, :1]), alone(values, state[:, 1:2]))


SCOUTS = {"buffer_size": 60, "batch_size": 7, "learning_starts": 16, "replay_ratio": 0.25, "model": {"fc_dims": [8]}}


@pytest.fixture
def make_scouts(make_trainer):
    """A function that makes a Trainer of 3 scouts, who see a Dict, have a mask and leave; 2 envs, 4 steps an iteration,
    episodes of 4 steps. Workers learn beside them."""

    def make(algorithm="QMIX", **policy):
        policies = {"scout": {"algorithm": algorithm, **SCOUTS, **policy}, "worker": {"algorithm": "PPO"}}
        name = "many_spaces.many_spaces:ManySpaces"
        return make_trainer(name, policies, num_envs=2, num_steps=4, seed=3, episode_length=4)

    return make


def test_a_team_is_paid_the_mean_of_those_in_the_game(make_scouts):
    trainer = make_scouts()
    trainer.rollout.collect()
    rollout, group = trainer.rollout, trainer.rollout.groups["scout"]
    rollout.reward[0, 0] = torch.tensor([1.0, 2.0, 6.0, 90.0, 90.0])
    for active, expected in (([1, 1, 1], 3.0), ([1, 0, 1], 3.5), ([0, 1, 0], 2.0), ([0, 0, 0], 0.0)):
        group.active[0, 0] = torch.tensor(active, dtype=torch.bool)
        trainer.algorithms["scout"].add()
        assert group.reward_of_team[0, 0].item() == expected


@pytest.mark.parametrize("n_step", [1, 3])
def test_an_item_is_what_all_agents_of_an_env_did_saw_and_were_paid(make_scouts, n_step):
    """Some of them leave, and some episodes are truncated: what follows is what was there before the reset."""
    trainer = make_scouts(n_step=n_step, gamma=0.5)
    algorithm, rollout = trainer.algorithms["scout"], trainer.rollout
    group, env = rollout.groups["scout"], trainer.env
    table = algorithm.store.table("all", Uniform(), algorithm.config.window())
    names = ["observation_scout_count", "observation_scout_place", "observation_worker"]
    steps = []
    for _ in range(12):
        rollout.collect()
        algorithm.add()
        algorithm.store.count_window()
        number = np.zeros(2, int)
        for t in range(4):
            for e in range(2):
                after = {name: rollout.data[name][t + 1, e].clone() for name in names}
                ended = bool(rollout.truncated[t, e] | rollout.terminated[t, e])
                if rollout.truncated[t, e]:
                    after = {name: env.data[f"final_{name}"][number[e], e].clone() for name in names}
                    number[e] += 1
                now = {name: rollout.data[name][t, e].clone() for name in names}
                steps.append((
                    now, group.active[t, e].clone(), group.action[t, e].clone(), float(group.active[t, e].any()),
                    after, group.survived[t, e].clone(), ended, bool(rollout.terminated[t, e]),
                ))  # fmt: skip
    steps = {(i // 2, i % 2): one for i, one in enumerate(steps)}
    assert sum(one[6] and not one[7] for one in steps.values()) > 3 < sum(one[7] for one in steps.values())
    assert len({tuple(one[5].tolist()) for one in steps.values()}) > 3
    batch = table.draw(table.num_drawable)
    slots = algorithm.store.num_slots
    found = algorithm.team(algorithm.config, group.spec).samples(batch, group.features)
    count = 0
    for i, index in enumerate(batch.index.tolist()):
        slot, e = index // 2, index % 2
        step = max(s for s in range(48) if s % slots == slot)
        last = next((s for s in range(step, step + n_step) if steps[s, e][6]), step + n_step - 1)
        now, active, action, *_ = steps[step, e]
        *_, after, survived, _, terminated = steps[last, e]
        for seen, state, expected in (
            (found.observation, found.state, now), (found.next_observation, found.next_state, after)
        ):  # fmt: skip
            of_agents = torch.cat([expected[name] for name in names[:2]] + [torch.eye(3, device=state.device)], -1)
            assert torch.equal(seen[3 * i : 3 * i + 3], of_agents)  # with their numbers, as agent_id is on
            assert torch.equal(state[i], torch.cat([expected[name].flatten() for name in names]))
        assert torch.equal(found.in_game[i].bool(), active) and torch.equal(found.action[i], action.long())
        if not terminated:
            assert torch.equal(found.next_in_game[i].bool(), survived)
        discount = 0.0 if terminated else 0.5 ** (last - step + 1)
        assert found.discount[i].item() == discount
        assert found.reward[i].item() == sum(0.5**k * steps[step + k, e][3] for k in range(last - step + 1))
        assert found.weight[i].item() == float(active.any())
        count += 1
    assert count == 2 * (slots - n_step) >= 40
    batch.next_observation["in_game"].zero_()
    batch.observation["in_game"][0].zero_()
    nobody = algorithm.team(algorithm.config, group.spec).samples(batch, group.features)
    assert not nobody.discount.any() and nobody.weight.tolist() == [0.0] + [1.0] * (count - 1)


@pytest.mark.parametrize("algorithm", ["VDN", "QMIX"])
def test_an_update_steps_all_that_learns_towards_the_target_which_follows(make_scouts, algorithm):
    trainer = make_scouts(algorithm, prioritized=True, normalize_observation=True, n_step=2, target_update_freq=100)
    learner = trainer.algorithms["scout"]
    before = {name: one.clone() for name, one in learner.optimizer.module.named_parameters()}
    assert any(name.startswith("mixer.") for name in before) == (algorithm == "QMIX")
    for _ in range(4):
        figures = trainer.iterate()["scout"]
    assert figures.keys() == VDN.FIGURES.keys() == QMIX.FIGURES.keys()
    now = dict(learner.optimizer.module.named_parameters())
    assert [name for name, one in before.items() if torch.equal(one, now[name])] == []
    aims = dict(learner.target.named_parameters())
    assert all(torch.equal(aims[name], one) for name, one in before.items())
    learner.follow()
    tau = learner.config.tau
    for name, one in before.items():
        torch.testing.assert_close(aims[name], one + tau * (now[name] - one), rtol=0, atol=1e-6)


def test_a_gradient_of_the_mixer_that_is_no_number_is_named(make_scouts):
    trainer = make_scouts()
    trainer.algorithms["scout"].learned["mixer"].weight_2.weight.register_hook(lambda gradient: gradient * torch.nan)
    for _ in range(3):
        trainer.iterate()
    with pytest.raises(NonFiniteError, match=r"policy 'scout': the gradient of 'mixer\.weight_2\.weight' became a NaN"):
        trainer.guard.raise_if_halted(trainer.iteration)


def test_what_it_cannot_learn_is_told(tmp_path):
    trainer = {"total_timesteps": 100, "device": "cpu"}
    config = {"name": "pendulum", "trainer": trainer, "policy": {"agent": {"algorithm": "QMIX"}}}
    words = "policy.agent.algorithm: QMIX chooses from one list of actions (Discrete), and these agents"
    with pytest.raises(ConfigError, match="^" + re.escape(words)):
        read_config({**config, "saving": {"basedir": str(tmp_path)}})


@pytest.mark.parametrize(("algorithm", "num_iterations", "worth"), [("VDN", 50, 7.0), ("QMIX", 220, 8.0)])
def test_the_two_step_game_is_worth_7_to_who_adds_up_and_8_to_who_mixes(make_trainer, algorithm, num_iterations, worth):
    """As in table 1 of QMIX's paper: every action is tried as often as every other."""
    keys = {
        "lr": 3e-3, "epsilon": 1.0, "learning_starts": 256, "buffer_size": 2000, "batch_size": 64, "tau": 0.05,
        "replay_ratio": 0.125, "huber_delta": None, "model": {"fc_dims": [32], "activation": "relu"},
    }  # fmt: skip
    trainer = make_trainer("two_step:TwoStep", {"pair": {"algorithm": algorithm, **keys}}, 16, 4, seed=1)
    for _ in range(num_iterations):
        trainer.iterate()
    learner, device = trainer.algorithms["pair"], trainer.env.device
    state, both = torch.eye(3, device=device), torch.eye(2, device=device)
    seen = torch.cat([state.repeat_interleave(2, 0), both.repeat(3, 1)], -1)
    with torch.no_grad():
        q = trainer.policies["pair"].heads(seen)["q"].view(3, 2, 2)
        pairs = list(itertools.product(range(2), repeat=2))
        mixed = torch.stack([learner.learned["mixer"](q[:, [0, 1], list(pair)], state) for pair in pairs], -1).cpu()
    assert mixed[1].tolist() == pytest.approx([7.0] * 4, abs=0.4)
    expected = [0.0, 1.0, 1.0, 8.0] if worth == 8.0 else [-1.5, 2.5, 2.5, 6.5]
    assert mixed[2].tolist() == pytest.approx(expected, abs=0.5)
    game = 2 if worth == 8.0 else 1
    assert q[0, 0].argmax().item() == game - 1  # the first agent chooses the game that is played
    assert mixed[0].max().item() == pytest.approx(0.99 * worth, abs=0.3)
