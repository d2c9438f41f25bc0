import multi_gpu
import pytest
from multi_gpu import counts_up_to


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
