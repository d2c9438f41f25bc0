"""Draws of the standard normal distribution for what a table drew: by its store's seed and the number of its draw."""

import math

import pytest
import torch
from philox import philox

from trainers.experience.field import Field
from trainers.replay.deviates import prepare_deviates
from trainers.replay.selectors import Uniform
from trainers.replay.store import ReplayStore
from trainers.replay.windows import Transitions
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer


def deviates_of(backend, shape, num_draws: int = 1, seed: int = 5) -> torch.Tensor:
    """Those of the last of so many draws."""
    store = ReplayStore([Field("reward", axis="env")], 4, 1, 8, 32, backend, seed=seed)
    table = store.table("one", Uniform(), Transitions(axis="env"))
    ends = {name: torch.zeros(8, 4, dtype=torch.bool, device=backend.device) for name in ("terminated", "truncated")}
    store.add({"reward": torch.zeros(8, 4, device=backend.device), **ends})
    for _ in range(num_draws):
        table.draw(3)
    found = torch.zeros(shape, device=backend.device)
    call = prepare_deviates(table, found)
    call(), call()  # the same again
    return found.cpu()


def test_numbers_are_philoxs_by_box_and_muller(backend):
    """Of set k, item i and number n of N: counter (i, k N + n, the number of the draw), stream 4."""
    found = deviates_of(backend, (2, 3, 2), num_draws=2)
    for k in range(2):
        for i in range(3):
            for n in range(2):
                one, other = ((philox((5, 0), (i, 2 * k + n, 2, (4 << 28) + j)) >> 8) / 2**24 for j in range(2))
                number = math.sqrt(-2 * math.log(1 - one)) * math.cos(2 * math.pi * other)
                assert found[k, i, n].item() == pytest.approx(number, rel=1e-4, abs=1e-5)


def test_they_are_normal_and_an_items_own(backend):
    """Quantiles of 40,000, of which 5 standard errors are a fortieth; an item draws the same among any number."""
    many, few = deviates_of(backend, (1, 20_000, 2)), deviates_of(backend, (1, 50, 2))
    assert torch.equal(many[:, :50], few)
    for quantile in (0.1, 0.5, 0.9):
        part = (many < math.sqrt(2) * torch.erfinv(torch.tensor(2 * quantile - 1))).float().mean()
        assert abs(part - quantile) < 5 * math.sqrt(quantile * (1 - quantile) / 40_000)
    assert not torch.equal(few, deviates_of(backend, (1, 50, 2), num_draws=2))
    assert not torch.equal(few, deviates_of(backend, (1, 50, 2), seed=6))


@pytest.mark.parametrize("changed", [{}, {"saving.replay": "false"}, {"policy.agent.buffer_size": "96"}])
def test_a_run_that_goes_on_draws_what_it_did_not_draw_before(changed, tmp_path, device, monkeypatch):
    """With its store, without it, and with one of another size: none of 12 updates' numbers comes again in 12 more."""
    policy = {"algorithm": "SAC", "buffer_size": 48, "batch_size": 40, "learning_starts": 16, "replay_ratio": 0.5}
    config = {
        "name": "pendulum", "env": {"episode_length": 3}, "saving": {"basedir": str(tmp_path)},
        "trainer": {"num_envs": 2, "train_batch_size": 8, "total_timesteps": 800, "device": device},
        "policy": {"agent": {**policy, "model": {"fc_dims": [8]}}},
    }  # fmt: skip
    drawn = []

    def iterate(trainer: Trainer, times: int) -> None:
        algorithm = trainer.algorithms["agent"]
        deviate = algorithm.deviate

        def watched() -> list[torch.Tensor]:
            found = deviate()
            drawn.append(torch.stack([*found]).flatten().tolist())
            return found

        monkeypatch.setattr(algorithm, "deviate", watched)
        for _ in range(times):
            trainer.iterate()

    given = [("trainer.cuda_graphs", "false"), *changed.items()]  # a graph would draw without us
    of_first = [one for one in given if not one[0].startswith("policy")]
    first = Trainer(read_config(config, of_first))
    iterate(first, 5)
    first.save()
    iterate(Trainer(read_config(config, given), resume=first.run.path), 4)
    assert len(drawn) >= 20 and len({*map(tuple, drawn)}) == len(drawn)
