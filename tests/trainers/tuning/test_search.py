"""How a search goes: what it proposes, whom it stops, and who is the best."""

import pytest
from fake_trials import FakeRun, SilentRun

from trainers.tuning.search import Search, Trial, first_judged, in_order
from trainers.tuning.space import LogRange

SPACE = {"policy.agent.lr": LogRange(1e-4, 1e-2), "policy.agent.num_epochs": (1, 2, 3)}


def searched(heights: list[float], num_jobs: int = 1, **options: object) -> Search:
    return Search(SPACE, lambda trial: FakeRun(heights[trial.number]), 80, 10, num_jobs=num_jobs, **options)


def test_the_same_seed_proposes_the_same_trials_whatever_becomes_of_them(hurried):
    def chosen(seed: int, heights: list[float], num_jobs: int) -> list[dict]:
        return [trial.chosen for trial in searched(heights, num_jobs, seed=seed).run(4)]

    first = chosen(1, [1.0, 2.0, 3.0, 4.0], 1)
    assert first == chosen(1, [4.0, 3.0, 2.0, 1.0], 3) != chosen(2, [1.0, 2.0, 3.0, 4.0], 1)
    assert first[0] == {} and all(set(one) == set(SPACE) for one in first[1:])  # the first is the config as given


def test_the_worse_are_stopped_at_an_eighth_a_quarter_and_a_half(hurried):
    found = searched([1.0, 2.0, 0.5, 3.0, 0.6, 1.5]).run(6)
    # One of each two goes on: the last is third of six at 10 steps, and third of the four that came to 20.
    assert [(trial.state, trial.env_steps) for trial in found] == [
        ("finished", 80), ("finished", 80), ("pruned", 10), ("finished", 80), ("pruned", 10), ("pruned", 20),
    ]  # fmt: skip
    assert [trial.number for trial in in_order(found)] == [3, 1, 0, 5, 4, 2]


def test_the_config_as_given_is_trained_to_its_end(hurried):
    runs = [FakeRun(1.0, pace=5), FakeRun(3.0), FakeRun(2.0)]  # it is last everywhere, and the worst
    found = Search(SPACE, lambda trial: runs[trial.number], 80, 10, num_jobs=3).run(3)
    assert [trial.state for trial in found] == ["finished", "finished", "pruned"]


@pytest.mark.parametrize(
    ("num_steps", "report_every", "of_episodes", "judged"),
    [
        (800, 10, 0, 100),
        (800, 30, 0, 90),
        (80, 30, 0, 30),
        (800, 10, 500, 510),
        (800, 30, 100, 150),
        (8000, 10, 50, 1000),
    ],
)
def test_nobody_is_judged_by_a_report_that_holds_first_episodes(num_steps, report_every, of_episodes, judged):
    """Of which the short ones end first."""
    assert first_judged(num_steps, report_every, of_episodes) == judged


def test_a_trial_that_fails_is_a_line_and_the_search_goes_on(hurried):
    told = []
    runs = [FakeRun(1.0), FakeRun(1.0, "rewards hold a NaN"), FakeRun(2.0)]
    found = Search(SPACE, lambda trial: runs[trial.number], 80, 10, ended=lambda trial: told.append(trial.number)).run(
        3
    )
    assert [(trial.state, trial.reason) for trial in found][1:] == [("failed", "rewards hold a NaN"), ("finished", "")]
    assert told == [0, 1, 2]
    assert [trial.number for trial in in_order(found)] == [2, 0, 1]


def test_what_was_reported_before_the_last_quarter_says_nothing_of_a_trial(hurried):
    """A policy that comes to end no episode reports none of its own: its short ones of before are no figure of it."""

    class Survives(FakeRun):
        def reports(self) -> list[tuple[int, float | None, float]]:
            return [(steps, figure if steps < 40 else None, weight) for steps, figure, weight in super().reports()]

    runs = [FakeRun(1.0), Survives(9.0)]
    found = Search(SPACE, lambda trial: runs[trial.number], 80, 100).run(2)
    assert [(trial.state, trial.env_steps, trial.figure) for trial in found] == [
        ("finished", 80, 75.0), ("finished", 80, None),
    ]  # fmt: skip
    assert found[1].reason == "nothing was reported of its last quarter: no episode ended in it"
    assert in_order(found)[0].number == 0


def test_a_figure_is_a_mean_of_episodes_and_not_of_reports():
    trial = Trial(0, {}, reports=[(70, 9.0, 7), (80, 5.0, 1), (90, 3.0, 1), (100, 1.0, 2)], env_steps=100)
    assert trial.figure == (5 + 3 + 2 * 1) / 4


def test_when_time_is_over_trials_under_way_count_as_they_are(hurried):
    looks = iter([False] * 3 + [True])
    found = searched([1.0, 5.0, 9.0], num_jobs=2).run(3, lambda: next(looks))
    assert [(trial.state, trial.env_steps >= 30) for trial in found] == [("stopped", True)] * 2
    assert in_order(found)[0].number == 1


def test_a_trial_that_is_stopped_before_trials_are_judged_is_not_the_best(hurried):
    """What it reported is of the first episodes, of which the short ones end first."""
    looks = iter([False] * 3 + [True])
    runs = [FakeRun(1.0, pace=20), FakeRun(9.0, pace=5), SilentRun(1.0)]
    found = Search(SPACE, lambda trial: runs[trial.number], 80, 40, num_jobs=3).run(3, lambda: next(looks))
    assert [(trial.state, trial.env_steps, trial.counts) for trial in found[:2]] == [
        ("stopped", 60, True), ("stopped", 15, False),
    ]  # fmt: skip
    assert found[1].reason == "it was stopped before 40 env steps, where trials are first judged"
    assert [trial.number for trial in in_order(found)] == [0, 1, 2]


def test_a_trial_that_never_began_is_told_apart_from_one_whose_episodes_did_not_end(hurried):
    looks = iter([False, True])
    (found,) = Search(SPACE, lambda trial: SilentRun(1.0), 80, 10).run(1, lambda: next(looks))
    assert (found.state, found.reason) == ("stopped", "it ended before its first report")


@pytest.mark.parametrize("num_jobs", [1, 3])
def test_where_the_config_as_given_fails_at_once_no_more_is_tried(hurried, num_jobs):
    runs = [FakeRun(1.0, "there is 1 GPU"), FakeRun(1.0), FakeRun(1.0), FakeRun(1.0)]
    search = Search(SPACE, lambda trial: runs[trial.number], 80, 10, num_jobs=num_jobs)
    assert len(search.run(4)) == num_jobs and search.is_hopeless
    assert (search.trials[0].state, search.trials[0].exit_code) == ("failed", 3)
