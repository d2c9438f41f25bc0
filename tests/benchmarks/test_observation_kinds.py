import observation_kinds
import torch
from observation_kinds import KINDS, config_of

from trainers.report.throughput import temporary_trainer
from trainers.settings.read_config import read_config

SMALL = ["trainer.num_envs=3", "trainer.train_batch_size=12"]


def test_every_kind_shows_the_same_numbers():
    """One float32 row of 32; `ids` has 27 of them, and then one of 5 agents."""
    found = {}
    for kind in KINDS:
        pairs = [pair.split("=") for pair in (*SMALL, "trainer.device=cpu")]
        with temporary_trainer(read_config(config_of(kind, 3, 8), pairs, allow_import=True)) as trainer:
            trainer.rollout.collect()
            found[kind] = trainer.rollout.groups["agent"].observation
    assert 100 < len((found["row"] * 255).round().unique()) <= 256
    ids = found.pop("ids")
    torch.testing.assert_close(ids[..., :27], found["row"][..., :27])
    assert torch.equal(ids[..., 27:], torch.eye(5).expand(5, 3, 5, 5))
    for seen in found.values():
        torch.testing.assert_close(seen, found["row"])


def test_every_kind_is_timed_beside_the_row(run, capsys):
    words = ["--device", "cpu", "--repeats", 1, "--kinds", "row", "uint8", "--sizes", "16384_64"]
    code, results = run(observation_kinds, *SMALL, *words)
    (kinds,) = results.values()
    assert code == 0 and kinds["row"]["times_the_row"] == 1.0
    ratio = kinds["uint8"]["train"]["us_a_step"] / kinds["row"]["train"]["us_a_step"]
    assert abs(kinds["uint8"]["times_the_row"] - ratio) < 1e-3
    assert capsys.readouterr().out.splitlines()[-1].startswith("16384_64: us a step (times the row): row ")
