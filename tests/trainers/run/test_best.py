"""Which checkpoints stay, and which of them is the best."""

import errno
import math
import os

import pytest
import torch

from trainers.cli import main
from trainers.run import best as best_module
from trainers.run import checkpoint
from trainers.run.best import best_metric, is_best_evaluation, latest_figure
from trainers.run.reading import told_if_not_read
from trainers.trainer import Trainer
from warpdrive.errors import ConfigError

RETURN, OF_TAGGER = "rollout/ep_rew_mean", "rollout/tagger/ep_rew_mean"
ONE, TWO = ["agent"], ["tagger", "runner"]
"""Groups of an env; `tiny` has two."""


def save(folder, env_steps, value=None, metric=RETURN, num_kept=3):
    figure = None if value is None else (metric, value)
    tensors = {"env": {"x": torch.ones(1)}}
    return checkpoint.begin_checkpoint(folder, env_steps, tensors, {}, {}, num_kept, figure)()


def kept(folder):
    return [int(place.name[-3:]) for place in checkpoint.list_checkpoints(folder)]


def best(folder):
    return int((folder / "best").resolve().name[-3:])


@pytest.mark.parametrize(
    ("values", "num_kept", "stay", "the_best"),
    [
        ([1.0, 9.0, 3.0, 4.0, 5.0, 6.0], 3, [2, 4, 5, 6], 2),
        ([1.0, 9.0, 3.0, 4.0, 5.0, 6.0, 10.0], 3, [5, 6, 7], 7),
        ([-1.0] * 5, 3, [1, 3, 4, 5], 1),  # of several as good the oldest
        ([1.0, 2.0, 3.0], 1, [3], 3),
    ],
)
def test_the_best_stays_besides_the_newest(tmp_path, values, num_kept, stay, the_best):
    for env_steps, value in enumerate(values, 1):
        save(tmp_path, env_steps, value, num_kept=num_kept)
    assert (kept(tmp_path), best(tmp_path)) == (stay, the_best)
    checkpoint.load_checkpoint(tmp_path / "best")


def test_no_figure_that_of_another_metric_and_a_damaged_manifest_do_not_count(tmp_path):
    save(tmp_path, 1)
    assert not (tmp_path / "best").is_symlink()
    save(tmp_path, 2, 100.0)
    save(tmp_path, 3)
    assert best(tmp_path) == 2
    place = save(tmp_path, 4, 3.0, metric="eval/mean_reward")
    assert best(tmp_path) == 4
    (place / "manifest.json").write_text("{")
    save(tmp_path, 5, 1.0, metric="eval/mean_reward")
    assert best(tmp_path) == 5


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EMFILE, errno.ENOMEM], ids=errno.errorcode.get)
def test_while_a_manifest_cannot_be_read_the_best_stays_what_it_was_and_no_candidate_is_removed(
    tmp_path, monkeypatch, number
):
    for env_steps, value in enumerate([9.0, 3.0], 1):
        save(tmp_path, env_steps, value, num_kept=1)
    read_manifest = best_module.read_manifest

    def fail_for_the_best(path):
        if path.parent.name == "step_000000000001":
            with told_if_not_read(path):
                raise OSError(number, os.strerror(number))
        return read_manifest(path)

    with monkeypatch.context() as patch:
        patch.setattr(best_module, "read_manifest", fail_for_the_best)
        for env_steps, value in enumerate([10.0, 4.0, 5.0], 3):
            save(tmp_path, env_steps, value, num_kept=1)
            assert best(tmp_path) == 1
        assert kept(tmp_path) == [1, 3, 5]
    save(tmp_path, 6, 1.0, num_kept=1)
    assert (kept(tmp_path), best(tmp_path)) == ([3, 6], 3)


def test_a_best_checkpoint_that_is_set_aside_is_best_no_more(tmp_path):
    older = save(tmp_path, 1, 1.0)
    save(tmp_path, 2, 2.0)
    checkpoint.set_aside_after(older)
    assert best(tmp_path) == 1
    assert (tmp_path / "last").resolve().name == older.name


def test_the_default_is_the_evaluation_and_nothing_where_groups_may_be_opposed_and_numbers_count(tiny):
    evaluates = tiny(evaluation={"eval_freq": 1})
    assert [best_metric(one, ONE) for one in (tiny(), evaluates)] == [RETURN, "eval/mean_reward"]
    assert [best_metric(one, TWO) for one in (tiny(), evaluates)] == [None, None]
    assert best_metric(tiny(saving__best_metric=OF_TAGGER), TWO) == OF_TAGGER
    reports = [{RETURN: 1.0}, {RETURN: 2.0}, {RETURN: math.nan}, {}]
    assert latest_figure(tiny(), ONE, reports) == (RETURN, 2.0)
    assert latest_figure(tiny(), ONE, []) is None
    assert latest_figure(tiny(), TWO, reports) is None


def test_an_evaluation_is_the_best_if_it_beats_all_before(tiny):
    config = tiny(evaluation={"eval_freq": 1})
    reports = [{"eval/mean_reward": value} for value in (1.0, 3.0, 2.0, 3.0)]
    assert [is_best_evaluation(config, ONE, reports[:n]) for n in range(1, 5)] == [True, True, False, False]
    assert not is_best_evaluation(config, ONE, [*reports, {RETURN: 9.0}])
    assert not is_best_evaluation(tiny(), ONE, [{RETURN: 9.0}])
    assert not is_best_evaluation(config, TWO, reports[:2])


@pytest.mark.parametrize(
    ("evaluation", "metrics"),
    [
        ({}, "rollout/tagger/ep_rew_mean or rollout/runner/ep_rew_mean"),
        ({"eval_freq": 3, "num_episodes": 2}, "eval/tagger/mean_reward or eval/runner/mean_reward"),
    ],
)
def test_a_run_of_several_groups_says_how_to_keep_a_best_checkpoint(tiny, tmp_path, capsys, evaluation, metrics):
    config = tiny(evaluation=evaluation)
    trainer = Trainer(config)
    trainer.train()
    line = "no checkpoint is kept as the best: a mean over tagger and runner would not tell it. To go by one of them, "
    line += f"set saving.best_metric to {metrics}."
    assert capsys.readouterr().out.splitlines().count(line) == 1
    assert (kept(trainer.run.checkpoints), (trainer.run.checkpoints / "best").exists()) == ([180], False)
    file = trainer.run.path / "config.resolved.yaml"
    assert main(["config", "check", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}: ok; {line}\n"
    assert main(["config", "check", str(file), f"saving.best_metric={metrics.split()[0]}"]) == 0
    assert capsys.readouterr().out == f"{file}: ok\n"


def test_a_run_that_went_by_the_mean_of_all_keeps_its_best_when_it_goes_on(tiny, monkeypatch):
    """As runs of older versions did where no metric was given."""
    with monkeypatch.context() as patch:
        patch.setattr(best_module, "best_metric", lambda *_: RETURN)
        trainer = Trainer(tiny())
        trainer.train()
    assert best(trainer.run.checkpoints) == 180
    assert main(["train", "--resume", str(trainer.run.path), "--total-timesteps", "240"]) == 0
    assert (kept(trainer.run.checkpoints), best(trainer.run.checkpoints)) == ([180, 240], 180)


def test_a_best_evaluation_is_saved_at_once(tiny):
    """Else the policies that it scored would have learned on by the next save."""
    evaluation, saving = {"eval_freq": 1, "num_episodes": 2}, {"saving__best_metric": "eval/tagger/mean_reward"}
    trainer = Trainer(tiny(evaluation=evaluation, trainer__total_timesteps=240, **saving))
    scores = iter([1.0, 5.0, 2.0, 3.0])
    trainer.reporter._evaluate = lambda: {"eval/tagger/mean_reward": next(scores)}
    trainer.train()
    assert kept(trainer.run.checkpoints) == [60, 120, 240]
    assert best(trainer.run.checkpoints) == 120


def test_a_resumed_run_remembers_its_best(tiny):
    config = {"saving__model_params_save_freq": 1, "saving__num_checkpoints": 1, "saving__best_metric": OF_TAGGER}
    trainer = Trainer(tiny(**config))
    log, figures = trainer.run.log, iter([1.0, 7.0, 2.0])
    trainer.run.log = lambda metrics: log({**metrics, OF_TAGGER: next(figures)})
    trainer.train()
    assert kept(trainer.run.checkpoints) == [120, 180]
    assert main(["train", "--resume", str(trainer.run.path), "--total-timesteps", "240"]) == 0
    assert kept(trainer.run.checkpoints) == [120, 240]
    assert best(trainer.run.checkpoints) == 120


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"saving__best_metric": "rollout/taggr/ep_rew_mean"}, "Did you mean 'rollout/tagger/ep_rew_mean'"),
        ({"saving__best_metric": "eval/tagger/mean_reward"}, "needs evaluations. Set evaluation.eval_freq"),
        (
            {"saving__best_metric": "eval/taggr/mean_reward"} | {"evaluation": {"eval_freq": 1}},
            "Did you mean 'eval/tagger/mean_reward'",
        ),
        ({"saving__best_metric": RETURN}, f"'{RETURN}' is a mean over tagger and runner: what one wins another may "),
        ({"saving__best_metric": "eval/mean_reward"}, "lose. Take one of rollout/tagger/ep_rew_mean, rollout/runner/"),
        (
            {"saving__best_metric": "eval/mean_reward"} | {"evaluation": {"eval_freq": 1}},
            "lose. Take one of eval/tagger/mean_reward, eval/runner/mean_reward, eval/mean_ep_length, rollout/tagger/",
        ),
        (
            {"saving__best_metric": "rollout/shared/ep_rew_mean"} | {"policy": {"shared": {}}},
            "lose. Take one of rollout/tagger/ep_rew_mean, rollout/runner/ep_rew_mean, rollout/ep_len_mean.",
        ),
        ({"saving__best_metric": "my/score"}, "saving.best_metric: 'my/score' is no metric that tells the best"),
        ({"saving__num_checkpoints": 0}, "saving.num_checkpoints: expected a whole number of at least 1"),
    ],
)
def test_a_metric_that_is_not_there_is_refused(tiny, changes, message):
    with pytest.raises(ConfigError) as caught:
        tiny(**changes)
    assert message in str(caught.value)
