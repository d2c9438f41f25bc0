import numpy as np
import pytest

from trainers.report.statistics import common_places, interval, iqm, returns_by_group


def test_iqm_leaves_out_a_quarter_at_each_end_rounded_down_at_each_point_by_itself():
    assert iqm(np.array([100.0, 1.0, 2.0, 3.0, -100.0])) == 2.0  # 1 of 5 at each end
    assert iqm(np.array([0.0, 9.0, 9.0])) == 6.0  # 3 // 4 = 0: the mean
    values = np.array([[0.0, 8.0], [4.0, 4.0], [6.0, 2.0], [50.0, -50.0]])
    assert iqm(values).tolist() == [5.0, 3.0]


def test_interval_holds_95_percent_of_the_resampled_means():
    assert tuple(interval(np.full(5, 7.0))) == (7.0, 7.0)
    # Of 3 seeds the IQM is the mean. Of the 27 equally likely draws one is -1, -1, -1: 3.7 %, so that the lowest
    # 2.5 % all are -1.
    low, high = interval(np.array([-1.0, 0.0, 1.0]))
    assert low == pytest.approx(-1.0) and high == pytest.approx(1.0)
    # Of many normal scores the interval of the trimmed mean is about 1.96 x 1.09 / sqrt(n) on either side.
    scores = np.random.default_rng(3).normal(size=400)
    low, high = interval(scores)
    assert (high - low) / 2 == pytest.approx(1.96 * 1.09 / 20, rel=0.15)
    assert low < iqm(scores) < high


def test_seeds_measured_at_other_times_are_interpolated_where_all_reach_and_fewer_places_keep_the_last():
    seeds = [([0.0, 2.0, 4.0, 6.0], [0.0, 2.0, 4.0, 6.0]), ([1.0, 5.0], [10.0, 50.0])]
    places, values = common_places(seeds)
    assert places.tolist() == [2.0, 4.0]
    assert values.tolist() == [[2.0, 4.0], [20.0, 40.0]]
    assert common_places([([0.0], [1.0]), ([5.0], [1.0])])[0].tolist() == []  # they never overlap
    assert common_places([([0.0], [1.0]), ([], [])])[0].tolist() == []
    x = list(range(1, 8))
    assert common_places([(x, x)], most=3)[0].tolist() == [1.0, 4.0, 7.0]


def test_returns_are_told_of_as_many_groups_as_an_env_may_have():
    names = [f"rollout/g{number}/ep_rew_mean" for number in range(3_000)]
    assert returns_by_group([*names, "rollout/ep_len_mean"]) == {f"g{i}": names[i] for i in range(64)}
    assert returns_by_group(["rollout/" + "x" * 201 + "/ep_rew_mean"]) == {}
