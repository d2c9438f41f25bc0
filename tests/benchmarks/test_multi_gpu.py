import multi_gpu
import pytest
from multi_gpu import counts_up_to
from trainers_runs import config_of

from trainers.settings.read_config import read_config
from trainers.trainer import Trainer


@pytest.mark.parametrize(("num_gpus", "counts"), [(1, [1]), (2, [1, 2]), (4, [1, 2, 4]), (6, [1, 2, 4, 6])])
def test_gpus_are_doubled_up_to_the_number_asked_for(num_gpus, counts):
    assert counts_up_to(num_gpus) == counts


def test_it_times_processes_on_a_cpu(run):
    sizes = ["--config", "tag.yaml", "--envs", 10, "--steps", 4, "--iterations", 2, "--repeats", 2]
    code, found = run(multi_gpu, "--device", "cpu", "--gpus", 2, *sizes)
    assert code == 0 and [found[count]["num_envs"] for count in ("1", "2")] == [10, 20]
    one, two = found["1"], found["2"]
    assert one["times_one"] == 1.0
    assert two["times_one"] == pytest.approx(2 * one["us_a_step"] / two["us_a_step"], abs=1e-3)
    assert len(two["us_a_step_of_each_repeat"]) == 2


def test_each_gpu_keeps_draws_and_updates_as_one_alone_and_draws_are_timed(tmp_path):
    config = config_of("dqn", {"num_envs": 4, "train_batch_size": 20, "total_timesteps": 100, "device": "cpu"}, {})
    config = read_config({**config, "saving": {"basedir": str(tmp_path)}})
    tagger = multi_gpu.with_replay_of_each(config, 2).policy["tagger"]
    assert (tagger.buffer_size, tagger.batch_size, tagger.learning_starts, tagger.replay_ratio) == (600, 32, 80, 0.025)
    of_rank = tagger.of_rank(2)
    assert (of_rank.buffer_size, of_rank.batch_size) == (300, 16)
    trainer = Trainer(config)
    trainer.iterate()
    found = multi_gpu.time_draws(trainer, 2)
    assert list(found) == ["tagger"] and {len(one) for one in found["tagger"].values()} == {2}
    assert list(found["tagger"]) == ["us_a_draw", "us_a_draw_alone"]
