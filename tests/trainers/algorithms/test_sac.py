"""SAC: targets, losses and gradients by hand and as TorchRL has them, who plays, what is kept apart from the policy."""

import copy
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from critic_cases import (
    SMALL,
    ToyCritics,
    ToyPolicy,
    as_tensordict,
    assert_same_gradients,
    batch_of,
    gradients,
    take_over,
)
from gymnasium import spaces
from torch import nn

from trainers.algorithms.sac import (
    SAC,
    SACConfig,
    critic_pass,
    log_probs_of,
    soft_value,
    target_entropy_of,
    temperature_losses,
)
from trainers.errors import NonFiniteError
from trainers.export.portable import PortablePolicy
from trainers.heads import CategoricalHeads, SquashedGaussianHead
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.errors import ConfigError

ENVS = Path(__file__).parents[2] / "warpdrive" / "envs"


@pytest.mark.parametrize("is_of_box", [True, False], ids=["box", "discrete"])
def test_losses_and_gradients_are_torchrls(is_of_box):
    pytest.importorskip("torchrl")
    from tensordict.nn import TensorDictModule
    from torchrl.data import Bounded
    from torchrl.modules import ProbabilisticActor, QValueModule, SafeSequential, TanhNormal, ValueOperator
    from torchrl.modules.distributions import OneHotCategorical
    from torchrl.objectives import DiscreteSACLoss, SACLoss

    torch.manual_seed(5)
    if is_of_box:
        head = SquashedGaussianHead(spaces.Box(-1.0, 1.0, (2,), np.float32), log_std_init=-0.5)
        action, critics, targets = torch.rand(32, 2).double() * 2 - 1, ToyCritics(6), ToyCritics(6)
        policy = ToyPolicy(head)

        class Split(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = policy.layer

            def forward(self, observation):
                outputs = self.layer(observation)
                return head.mean(outputs), head.log_std(outputs).exp()

        actor = ProbabilisticActor(
            TensorDictModule(Split(), ["observation"], ["loc", "scale"]), in_keys=["loc", "scale"],
            spec=Bounded(-1.0, 1.0, (2,)), distribution_class=TanhNormal,
            distribution_kwargs={"tanh_loc": False}, return_log_prob=True,
        )  # fmt: skip
        values = [ValueOperator(one, ["observation", "action"]) for one in copy.deepcopy(critics).networks]
        loss = SACLoss(actor, values, loss_function="l2", alpha_init=0.7, target_entropy=-2.0)
    else:
        policy, critics, targets = ToyPolicy(CategoricalHeads([3])), ToyCritics(4, 3), ToyCritics(4, 3)
        action = torch.randint(3, (32,))
        actor = ProbabilisticActor(
            TensorDictModule(policy.layer, ["observation"], ["logits"]), in_keys=["logits"],
            distribution_class=OneHotCategorical,
        )  # fmt: skip
        values = [
            SafeSequential(
                TensorDictModule(one, ["observation"], ["action_value"]), QValueModule(action_space="categorical")
            )
            for one in copy.deepcopy(critics).networks
        ]
        loss = DiscreteSACLoss(
            actor, values[0], action_space="categorical", num_actions=3, loss_function="l2", alpha_init=0.7,
            target_entropy_weight=0.4,
        )  # fmt: skip
    loss.make_value_estimator(gamma=0.5)
    take_over(loss.qvalue_network_params, critics.networks)
    take_over(loss.target_qvalue_network_params, targets.networks)
    batch = batch_of(action)
    given = as_tensordict(batch)

    def deviate() -> torch.Tensor | None:
        return torch.normal(torch.zeros(32, 2).double(), torch.ones(32, 2).double()) if is_of_box else None

    alpha = loss.log_alpha.detach().exp()
    torch.manual_seed(9)
    of_critics = loss.qvalue_v2_loss if is_of_box else loss.qvalue_loss
    expected = of_critics(given.clone())[0].mean()
    expected.backward()
    torch.manual_seed(9)
    losses, _, _ = critic_pass(policy, critics, targets, batch, alpha, deviate())
    assert losses.mean().item() == pytest.approx(expected.item(), abs=1e-6)
    assert_same_gradients(losses.mean(), list(critics.networks), gradients(loss.qvalue_network_params))

    torch.manual_seed(9)
    expected, told = loss.actor_loss(given.clone())
    expected.mean().backward()
    torch.manual_seed(9)
    value, entropy = soft_value(policy, critics, batch.observation, None, alpha, deviate())
    assert -value.mean().item() == pytest.approx(expected.mean().item(), abs=1e-6)
    assert_same_gradients(-value.mean(), [policy.layer], gradients(loss.actor_network_params))

    expected = loss.alpha_loss(told["log_prob"]).mean()
    target_entropy = -2.0 if is_of_box else 0.4 * math.log(3)
    found = temperature_losses(loss.log_alpha, entropy, target_entropy).mean()
    assert found.item() == pytest.approx(expected.item(), abs=1e-6)


def test_the_correction_of_the_tangent_is_right_where_it_is_flat_and_its_gradient_finite():
    """At 12, 1 - tanh^2 is 0 in float32; its logarithm is 2 (log 2 - 12) to nine digits."""
    head = SquashedGaussianHead(spaces.Box(-3.0, 5.0, (1,), np.float32))
    outputs = torch.tensor([[12.0, 0.0], [-12.0, 0.0], [0.5, 1.0]], requires_grad=True)
    action, log_prob = head.draw(outputs, torch.zeros(3, 1))
    base = -0.5 * math.log(2 * math.pi)
    far = base - 2 * (math.log(2) - 12)
    near = base - 1.0 - math.log(1 - math.tanh(0.5) ** 2)
    assert log_prob.tolist() == pytest.approx([far, far, near], rel=1e-6)
    assert action.flatten().tolist() == pytest.approx([1.0, -1.0, math.tanh(0.5)])
    (gradient,) = torch.autograd.grad(log_prob.sum(), outputs)
    assert gradient.isfinite().all()
    assert head.action_of(outputs).flatten().tolist() == pytest.approx([5.0, -3.0, 1.0 + 4 * math.tanh(0.5)])
    assert head.parts_of(torch.tensor([[-3.0], [1.0], [5.0]])).flatten().tolist() == [-1.0, 0.0, 1.0]
    assert head.log_std(torch.tensor([[0.0, 9.0], [0.0, -90.0]])).flatten().tolist() == [2.0, -20.0]


def test_what_the_mask_forbids_is_worth_nothing_by_hand():
    """Logits log 1, log 3: chances 1/4 and 3/4. Where nothing may be taken, action 0 is."""
    logits = torch.tensor([[0.0, math.log(3.0), 9.0]] * 2, requires_grad=True)
    mask = torch.tensor([[True, True, False], [False] * 3])
    found = log_probs_of(logits, mask)
    assert found.exp()[0].tolist() == pytest.approx([0.25, 0.75, 0.0])
    assert found.exp()[1].tolist() == [1.0, 0.0, 0.0]
    (gradient,) = torch.autograd.grad((found.exp() * found).sum(), logits)
    assert gradient.isfinite().all() and not gradient[:, 2].any()

    class Fixed(nn.Module):
        def normalised(self, observation):
            return observation

        def heads(self, observation):
            return {"policy": logits.detach()}

    q = torch.tensor([[[4.0, 8.0, 1e6]] * 2, [[6.0, 2.0, 1e6]] * 2])
    value, entropy = soft_value(Fixed(), lambda seen: q, torch.zeros(2, 1), mask, torch.tensor(2.0), None)
    expected = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert entropy.tolist() == pytest.approx([expected, 0.0])
    assert value.tolist() == pytest.approx([0.25 * 4 + 0.75 * 2 + 2 * expected, 4.0])  # the smaller


def test_target_entropy_is_of_what_may_be_done():
    class Spec:
        action_space = spaces.Discrete(4)

    config = SACConfig(target_entropy_part=0.5)
    assert target_entropy_of(config, Spec, None) == pytest.approx(0.5 * math.log(4))
    mask = torch.tensor([[True, True, False, False], [True, False, False, False], [False] * 4])
    assert target_entropy_of(config, Spec, mask).tolist() == pytest.approx([0.5 * math.log(2), 0.0, 0.0])
    Spec.action_space = spaces.Box(-1.0, 1.0, (3,), np.float32)
    assert target_entropy_of(config, Spec, None) == -3.0
    assert target_entropy_of(SACConfig(target_entropy=-1.5), Spec, None) == -1.5


@pytest.fixture
def make(tmp_path, device, monkeypatch):
    """A function that makes a small Trainer: 4 steps of `num_envs` envs an iteration."""
    monkeypatch.syspath_prepend(ENVS)

    def trainer(name: str, num_envs: int = 6, groups: tuple[str, ...] = ("agent",), **policy) -> Trainer:
        sizes = {"num_envs": num_envs, "train_batch_size": 4 * num_envs, "total_timesteps": 4000, "device": device}
        sizes["precision"] = policy.pop("precision", "auto")
        policies = {group: {"algorithm": "SAC", **SMALL, **policy.get(group, policy)} for group in groups}
        config = {"name": name, "trainer": sizes, "policy": policies, "saving": {"basedir": str(tmp_path)}}
        return Trainer(read_config(config, allow_import=True))

    return trainer


@pytest.mark.parametrize("name", ["pendulum", "cartpole"])
def test_an_update_moves_policy_critics_and_temperature_and_the_targets_follow(make, name):
    trainer = make(name, target_update_freq=3, prioritized=name == "cartpole")
    one = trainer.algorithms["agent"]
    learned = [*one.policy.parameters(), *one.critics.parameters(), *one.temperature.parameters()]
    before = [p.detach().clone() for p in learned]
    targets = [p.clone() for p in one.target_critics.parameters()]
    assert one.plan(trainer.clock) == ["add"]  # nothing can be drawn before the first rollout is kept
    trainer.iterate()
    figures = trainer.iterate()["agent"]  # env steps 24 to 48: updates 3 to 8
    assert set(figures) == set(SAC.FIGURES)
    assert not any(torch.equal(old, new) for old, new in zip(before, learned, strict=True))
    pairs = zip(targets, one.target_critics.parameters(), one.critics.parameters(), strict=True)
    assert all((new - old).abs().sum() > 0 and (new - now).abs().sum() > 0 for old, new, now in pairs)
    alone, *others = one.critics.networks
    weights = [network.q_head.weight for network in (alone, *others)]
    assert len(weights) == 2 and not torch.equal(*weights)


def test_a_temperature_that_does_not_learn_stays(make):
    trainer = make("pendulum", temperature=0.3, learns_temperature=False)
    for _ in range(3):
        alpha = trainer.iterate()["agent"].get("alpha")
    assert float(alpha) == pytest.approx(0.3) and "temperature_optim" not in trainer.algorithms["agent"].state()


@pytest.mark.parametrize("name", ["pendulum", "cartpole"])
def test_env_3_does_the_same_among_6_and_among_400(make, name):
    found = []
    for num_envs in (6, 400):
        trainer = make(name, num_envs)
        trainer.rollout.collect()
        group = trainer.rollout.groups["agent"]
        found.append([one[:, 3] for one in (trainer.rollout.action, trainer.rollout.reward, group.log_prob)])
    torch.testing.assert_close(*found, rtol=0, atol=1e-4)


def test_what_is_drawn_has_the_log_probability_that_learning_gives_it(make):
    """Of the action in the Box's unit, which is 2 wide on each side: log 2 less."""
    trainer = make("pendulum", 50, precision="fp32")  # to the digits that are compared
    rollout, group = trainer.rollout, trainer.rollout.groups["agent"]
    with torch.no_grad():  # deviations that depend on the state
        trainer.policies["agent"].network.policy_head.weight.normal_(std=0.3)
    rollout.collect()
    policy = trainer.policies["agent"]
    outputs = policy.heads(group.observation[:-1].flatten(0, 2))["policy"]
    number = torch.atanh(policy.head.parts_of(group.action.flatten(0, 2)).double().clamp(-1 + 1e-9, 1 - 1e-9))
    deviate = (number - policy.head.mean(outputs)) / policy.head.log_std(outputs).exp()
    _, log_prob = policy.head.draw(outputs.double(), deviate)
    within = number.abs().flatten() < 3
    expected = (log_prob - math.log(2.0)).float()
    torch.testing.assert_close(group.log_prob.flatten()[within], expected[within], rtol=1e-3, atol=1e-3)
    assert policy.head.log_std(outputs).std() > 0.01


@pytest.mark.parametrize("name", ["pendulum", "cartpole"])
def test_what_plays_greedily_is_what_is_exported_and_critics_are_no_part_of_it(make, name):
    trainer = make(name)
    for _ in range(2):
        trainer.iterate()
    rollout = trainer.make_evaluation().rollout
    rollout.begin()
    rollout.collect()
    group = rollout.groups["agent"]
    portable = PortablePolicy(group.policy, trainer.env.env, "agent")
    outputs = portable({"observation": group.observation[:-1].flatten(0, 2).cpu()})
    words = ["mean", "std", "action"] if name == "pendulum" else ["logits", "action"]
    assert list(outputs) == words == [slot.name for slot in portable.outputs]
    torch.testing.assert_close(outputs["action"], group.action.flatten(0, 2).cpu(), rtol=1e-4, atol=1e-5)
    names = {key.split(".")[1] for key in group.policy.state_dict() if key.startswith("network.")}
    assert names == {"trunk", "policy_head"}
    assert {"critics", "target_critics", "critic_optim", "temperature"} < set(trainer.algorithms["agent"].state())


def test_a_nan_in_a_critic_is_named(make):
    trainer = make("pendulum", precision="fp32")  # the kernels learn by no hooks
    trainer.iterate()
    critic = trainer.algorithms["agent"].critics.networks[1]
    critic.trunk[0].weight.register_hook(lambda gradient: gradient * torch.nan)
    before = [p.detach().clone() for p in critic.parameters()]
    trainer.iterate()
    words = "policy 'agent': the gradient of 'critics.networks.1.trunk.0.weight' became a NaN or an infinity in iter"
    with pytest.raises(NonFiniteError, match="^" + re.escape(words)):
        trainer.guard.raise_if_halted(trainer.iteration)
    assert all(torch.equal(old, new) for old, new in zip(before, critic.parameters(), strict=True))


def test_masks_agents_that_leave_and_several_agents_a_policy_beside_another_algorithm(make):
    """Scouts choose from a list under a mask and leave; workers act in a Box. What a scout may not do, it never does;
    what happens once it left counts for nothing."""
    trainer = make(
        "many_spaces.many_spaces:ManySpaces", groups=("scout", "worker"), scout={"agent_id": True},
        worker={"algorithm": "TD3", "normalize_observation": True},
    )  # fmt: skip
    for _ in range(4):
        figures = trainer.iterate()
    group = trainer.rollout.groups["scout"]
    assert group.mask.gather(-1, group.action.long().unsqueeze(-1)).squeeze(-1)[group.active].all()
    assert not group.active.all()
    batch = trainer.algorithms["scout"].drawn()
    assert batch.mask.shape == (16, 3) and set(batch.weight.tolist()) == {0.0, 1.0}
    assert all(math.isfinite(float(one)) for found in figures.values() for one in found.values())
    one = trainer.algorithms["scout"]
    before = [p.detach().clone() for p in one.critics.parameters()]
    one.table._draw = None
    trainer.guard.raise_if_halted(trainer.iteration)
    batch.reward[batch.weight == 0] = 1e6  # of who had left: the loss does not hear of it
    losses, q, target = critic_pass(one.policy, one.critics, one.target_critics, batch, torch.ones(()), None)
    found = one._learn_critics(losses, q, target, batch)
    assert float(found["critic_loss"]) < 1e6 and float(found["td_error"]) < 1e4
    assert not all(torch.equal(old, new) for old, new in zip(before, one.critics.parameters(), strict=True))


@pytest.mark.parametrize(
    ("name", "policy", "words"),
    [
        ("two_signs:TwoSigns", {}, "policy.shared.algorithm: SAC acts in a Box or one list of actions (Discrete)"),
        ("cartpole", {"model": {"type": "gru"}},
         "policy.shared.algorithm: SAC learns from single steps, which a memory cannot. Take model.type: mlp, or PPO."),
        ("cartpole", {"model": {"shared_trunk": True}}, "policy.shared.model.shared_trunk: critics of SAC have hidden"),
        ("odd_spaces:EndlessBox", {}, "policy.shared.algorithm: SAC squashes actions into their Box, and a number of "),
    ],
)
def test_what_it_cannot_learn_is_told(tmp_path, monkeypatch, name, policy, words):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "envs")
    config = {"name": name, "trainer": {"total_timesteps": 100, "device": "cpu"}}
    config |= {"policy": {"shared": {"algorithm": "SAC", **policy}}, "saving": {"basedir": str(tmp_path)}}
    with pytest.raises(ConfigError, match="^" + re.escape(words)):
        read_config(config, allow_import=True)
