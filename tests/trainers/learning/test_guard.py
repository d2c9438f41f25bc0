"""A NaN or an infinity stops a run, is told with its place, and is neither learned from nor saved."""

import copy
import dataclasses
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

from trainers.cli import main
from trainers.errors import NonFiniteError
from trainers.learning import guard
from trainers.run import checkpoint
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.errors import CheckpointError

HERE = Path(__file__).parents[1]
NUM_STEPS, NUM_ENVS = 10, 8
STATISTICS = {"normalize_observation": True, "normalize_reward": True, "normalize_return": True}
ALGORITHMS = {
    "A2C": {"algorithm": "A2C", "num_minibatches": 1, **STATISTICS},
    "PPO": {"algorithm": "PPO", "num_epochs": 2, "num_minibatches": 1, **STATISTICS},
}
BOTH = pytest.mark.parametrize("algorithm", ALGORITHMS)
NAN_OR_INF = pytest.mark.parametrize("is_infinite", [False, True], ids=["nan", "inf"])
ITERATION = 2
"""In which it goes wrong: the third."""


def config_of(
    folder: Path, device: str, algorithm: str, save: int = 0, graphs: bool = True, moves: bool = True, **env: object
) -> dict:
    """10 steps of 8 envs an iteration, 6 iterations, a report every 2. If it `moves`, the critic's unit does, before
    anything is learned."""
    size = NUM_STEPS * NUM_ENVS
    length = {"train_batch_size": size, "total_timesteps": 6 * size}
    return {
        "name": "faulty:Faulty",
        "env": env,
        "trainer": {"num_envs": NUM_ENVS, **length, "device": device, "cuda_graphs": graphs, "precision": "fp32"},
        "policy": {name: {**ALGORITHMS[algorithm], "normalize_return": moves} for name in ("first", "others")},
        "saving": {"basedir": str(folder), "metrics_log_freq": 2, "model_params_save_freq": save},
    }


@pytest.fixture
def make_faulty(tmp_path, device, monkeypatch) -> Callable[..., Trainer]:
    monkeypatch.syspath_prepend(HERE / "envs")
    return lambda algorithm, **changes: Trainer(
        read_config(config_of(tmp_path, device, algorithm, **changes), allow_import=True)
    )


def learned(trainer: Trainer) -> dict[str, torch.Tensor]:
    """All that learning changes: parameters, and what the optimisers remember of them."""
    found = {}
    for name, policy in trainer.policies.items():
        found |= {f"{name}.{key}": value for key, value in policy.named_parameters()}
        optimizer = trainer.algorithms[name].optimizer
        found |= {f"{name}/{key}": value for key, value in optimizer.tensors().items()}
    return {name: tensor.detach().clone() for name, tensor in found.items()}


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


def fail_in(trainer: Trainer, message: str, iteration: int = ITERATION, finisher: str | None = None) -> None:
    """The run stops for this reason; what was learned is what was learned before `iteration`, bit for bit. Of
    the policy `finisher`, it is what was learned in `iteration`, too.
    """
    states, iterate = [learned(trainer)], trainer.iterate

    def recorded() -> dict:
        figures = iterate()
        states.append(learned(trainer))
        return figures

    trainer.iterate = recorded
    with pytest.raises(NonFiniteError) as caught:
        trainer.train()
    assert str(caught.value) == message
    assert len(states) > iteration + 1
    for before in range(1, iteration):
        assert any(not torch.equal(states[before][name], states[before + 1][name]) for name in states[before])
    finished = {name for name in states[iteration] if finisher is not None and name.startswith(finisher)}
    for after in states[iteration + 1 :]:
        assert_same(after, states[iteration + 1])
        before = {name: one for name, one in states[iteration].items() if name not in finished}
        assert_same({name: after[name] for name in before}, before)
    if finished:
        assert any(not torch.equal(states[iteration][name], states[iteration + 1][name]) for name in finished)
    for policy in trainer.policies.values():
        assert all(torch.isfinite(tensor).all() for tensor in policy.state_dict().values())  # statistics, too
    with pytest.raises(NonFiniteError):
        trainer.save()
    for place in checkpoint.list_checkpoints(trainer.run.checkpoints):
        saved = checkpoint.load_checkpoint(place)
        assert saved.progress["iteration"] <= iteration
        for tensors in saved.tensors.values():
            assert all(torch.isfinite(tensor).all() for tensor in tensors.values())


MEND = "Mend the env's kernel: python -m warpdrive.testing shows what it does."
LOWER = "Lower its lr, or normalize_observation if the env's numbers are large."


FROM_THE_ENV = {
    "reward": ({"where": "reward", "env": 5, "agent": 2, "step": 27}, "others", "reward", 7),
    # step 24 shows it, step 25 would act on it
    "observation": ({"where": "observation", "env": 3, "agent": 0, "step": 24}, "first", "observation", 5),
    # it counts for the rollout that bootstraps from it
    "observation after the last step": (
        {"where": "observation", "env": 3, "agent": 1, "step": 19}, "others", "observation", 10,
    ),
    # episodes are truncated by steps 5, 11, 17, 23, 29: a value is made of what the reset overwrites
    "observation before a reset": (
        {"where": "observation", "env": 4, "agent": 2, "step": 29}, "others", "final_observation", 9,
    ),
    # of several the first: what is seen after the step comes after its reward, though it is looked at first
    "both": ({"where": "both", "env": 1, "agent": 1, "step": 24}, "others", "reward", 4),
}  # fmt: skip
"""What the env does, and what is told: policy, tensor, step of the rollout."""


@BOTH
@pytest.mark.parametrize(
    ("is_infinite", "save", "few_bytes"),
    [(False, 0, guard.FEW_BYTES), (True, 1, 0)],  # by one launch, and by one for each array
    ids=["nan, saved at the end", "inf, saved each time"],
)
@pytest.mark.parametrize("case", FROM_THE_ENV)
def test_what_is_bad_of_an_env_stops_the_run(make_faulty, algorithm, is_infinite, save, few_bytes, case, monkeypatch):
    monkeypatch.setattr(guard, "FEW_BYTES", few_bytes)
    bad, policy, tensor, step = FROM_THE_ENV[case]
    trainer = make_faulty(algorithm, save=save, is_infinite=is_infinite, **bad)
    iteration = 2 if step == 10 else 3
    fail_in(
        trainer,
        f"policy '{policy}': {tensor} is a NaN or an infinity at env {bad['env']}, agent {bad['agent']}, step {step} "
        f"of iteration {iteration} (step {10 * (iteration - 1) + step} of the run). {MEND}",
        iteration=iteration - 1,
    )
    if case == "reward":
        assert len(checkpoint.list_checkpoints(trainer.run.checkpoints)) == 2 * save
        # The next save; or the next report, which a GPU's host reads while it goes on, at the latest at the one after.
        assert trainer.iteration == 3 if save else 4 <= trainer.iteration <= 6


def spoil_samples(trainer: Trainer, name: str, row: int, value: float) -> None:
    """In iteration ITERATION the advantage of this row of [T, E, A] is `value` once its loss is made."""
    group = trainer.rollout.groups[name]
    samples_of = group.samples

    def samples(units: torch.Tensor):
        found = samples_of(units)
        if trainer.iteration != ITERATION:
            return found
        return dataclasses.replace(found, advantage=found.advantage.masked_fill(found.index == row, value))

    group.samples = samples


@BOTH
@NAN_OR_INF
def test_a_bad_loss_stops_the_run(make_faulty, algorithm, is_infinite):
    """Row (6 x 8 + 5) x 2 + 1 of the second policy's samples."""
    trainer = make_faulty(algorithm, save=1, graphs=False, moves=False)  # a graph would not know which iteration it is
    spoil_samples(trainer, "others", 107, float("-inf") if is_infinite else float("nan"))
    trainer.algorithms["first"].update = lambda *_: {}  # it learns first, and would be a step ahead
    fail_in(
        trainer,
        "policy 'others': loss is a NaN or an infinity at env 5, agent 2, step 6 of iteration 3 "
        f"(step 26 of the run). {LOWER}",
    )


@BOTH
@NAN_OR_INF
def test_a_bad_gradient_stops_the_run_and_names_the_parameter(make_faulty, algorithm, is_infinite):
    trainer = make_faulty(algorithm, save=1, graphs=False, moves=False)
    bad = float("inf") if is_infinite else float("nan")
    weight = trainer.policies["first"].network.trunk[1].weight
    weight.register_hook(lambda gradient: gradient * bad if trainer.iteration == ITERATION else gradient)
    fail_in(
        trainer,
        "policy 'first': the gradient of 'network.trunk.1.weight' became a NaN or an infinity in iteration 3. "
        "Lower its lr, or a coefficient of its loss that is very large.",
        finisher="others",
    )


def test_a_gradient_is_as_long_as_its_parts_are_together_and_the_first_bad_one_is_told(make_faulty):
    guard = make_faulty("PPO").guard
    place, flag = guard.place_of("gradient", "others"), guard.flag_of("others")
    stopped = torch.zeros(1, device=flag.device)
    check = guard.prepare_gradient("others", 600, stopped, max_norm=2.0, first=7)
    check.norms[5], check.norms[590] = 3.0, 4.0
    check.look()
    assert check.norm.item() == 5.0 and check.scale.item() == pytest.approx(0.4) and check.skip.item() == 0.0
    stopped.fill_(1.0)
    check.norms.mul_(0.2)
    check.look()
    assert check.scale.item() == 1.0 and check.skip.item() == 1.0 and flag.item() == guard.halted.item() == 0.0
    stopped.zero_()
    check.norms[[300, 400]] = torch.tensor([torch.inf, torch.nan], device=flag.device)
    check.look()
    assert place.item() == 7 + 300 and check.skip.item() == flag.item() == guard.halted.item() == 1.0
    check.norms[0] = torch.nan  # what follows from what was found
    check.look()
    assert place.item() == 7 + 300 and guard.flag_of("first").item() == 0.0


def test_from_the_first_bad_minibatch_on_ppo_makes_no_step(make_faulty):
    """8 minibatches: a row of the third is bad. The two before it were learned from."""
    trainer = make_faulty("PPO", graphs=False)
    learner, group = trainer.algorithms["others"], trainer.rollout.groups["others"]
    learner.config = dataclasses.replace(learner.config, num_minibatches=4)
    generator = torch.Generator(group.advantage.device)
    for _ in range(ITERATION):
        trainer.iterate()
    generator.set_state(learner.generator.get_state())
    order = torch.randperm(group.num_units, generator=generator, device=group.advantage.device)
    row = order.chunk(4)[2][0].item()
    states, step = [learned(trainer)], learner.step

    def recorded() -> torch.Tensor:
        norm = step()
        states.append({name: tensor for name, tensor in learned(trainer).items() if name.startswith("others")})
        return norm

    learner.step = recorded
    spoil_samples(trainer, "others", row, float("nan"))
    trainer.iterate()
    changes = [
        any(not torch.equal(before[name], after[name]) for name in after)
        for before, after in itertools.pairwise(states)
    ]
    assert changes == [True, True, *[False] * 6]
    where = f"loss .* env {row // 2 % NUM_ENVS}, agent {1 + row % 2}, step {row // 2 // NUM_ENVS} of iteration 3"
    with pytest.raises(NonFiniteError, match=where):
        trainer.guard.raise_if_halted(trainer.iteration)


@pytest.mark.parametrize(("tensor", "head"), [("value", "value_head"), ("log_prob", "policy_head")])
def test_a_policy_that_makes_no_numbers_is_named_with_the_tensor(make_faulty, tensor, head):
    trainer = make_faulty("A2C")
    trainer.policies["others"].network.get_submodule(head).bias.data.fill_(float("nan"))
    trainer.iterate()
    where = rf"policy 'others': {tensor} is a NaN or an infinity at env 0, agent 1, step 0 of iteration 1 \(step 0 of"
    with pytest.raises(NonFiniteError, match=where):
        trainer.guard.raise_if_halted(trainer.iteration)
    with pytest.raises(CheckpointError, match=rf"policy\.others: 'network\.{head}\.bias' holds a NaN"):
        trainer.save()


def test_each_policy_has_a_flag_of_its_own_that_a_rollout_sets(make_faulty):
    """A policy's kernels raise it; nobody else's see that before the next rollout."""
    trainer = make_faulty("PPO")
    guard = trainer.guard
    first, others = (guard.flag_of(name) for name in ("first", "others"))
    first.fill_(1.0)
    assert (first.item(), others.item()) == (1.0, 0.0)
    guard.place_of("loss", "first").fill_(3)
    guard.check_rollout()
    assert (guard.halted.item(), first.item(), others.item()) == (1.0, 1.0, 1.0)
    guard.clear()
    assert (guard.halted.item(), first.item(), others.item()) == (0.0, 0.0, 0.0)


def test_a_stopped_run_goes_on_from_its_last_checkpoint(make_faulty):
    """And where it fails again, the iteration is still counted from the start of the run."""
    trainer = make_faulty("A2C", save=1, where="reward", env=0, agent=0, step=43)
    with pytest.raises(NonFiniteError, match="step 3 of iteration 5"):
        trainer.train()
    last = checkpoint.list_checkpoints(trainer.run.checkpoints)[-1]
    assert checkpoint.load_checkpoint(last).progress["iteration"] == 4
    trainer.restore(last)
    before = copy.deepcopy(learned(trainer))
    with pytest.raises(NonFiniteError, match=r"step 3 of iteration 5 \(step 43 of the run\)"):
        trainer.train()
    trainer.restore(last)
    assert_same(learned(trainer), before)
    trainer.env.data["env_step"].add_(10)  # past the fault
    trainer.train()
    assert trainer.iteration == 6


LINE = (
    "error: policy 'others': reward is a NaN or an infinity at env 2, agent 1, step 3 of iteration 1 "
    f"(step 3 of the run). {MEND}\n"
)


def test_the_command_line_and_the_program_end_with_code_1_and_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(HERE / "envs")
    config = tmp_path / "faulty.yaml"
    config.write_text(yaml.safe_dump(config_of(tmp_path, "cpu", "PPO", where="reward", env=2, agent=1, step=3)))
    assert main(["train", "--config", str(config), "--allow-import"]) == 1
    assert capsys.readouterr().err == LINE
    paths = [str(HERE / "envs"), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    command = [sys.executable, HERE.parents[1] / "examples" / "train.py", "--allow-import", "--config", config]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, LINE)
    assert not list(tmp_path.glob("*/checkpoints/step_*"))
