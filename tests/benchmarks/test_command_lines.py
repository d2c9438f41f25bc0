"""What every benchmark says where it cannot run, or cannot write what it found."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from report import write_report

from warpdrive.backends import choose_backend

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
NO_GPU = "--device cuda:63"
NO_PAIR = "expected key=value, such as trainer."


@pytest.mark.parametrize(
    ("script", "words", "said"),
    [
        *((name, NO_GPU, "GPU") for name in ("throughput", "scaling", "host_fed")),
        *((name, f"--{option} 0", f"--{option} must be at least 1, got 0") for name, option in (
            ("multi_gpu", "gpus"), ("multi_gpu", "repeats"), ("multi_gpu", "iterations"), ("multi_gpu", "envs"),
            ("throughput", "repeats"), ("host_fed", "repeats"), ("saving", "repeats"),
            ("profile", "kernels"), ("learning", "seeds"), ("learning", "jobs"), ("time_to_score", "seeds"),
            ("cold_start", "repeats"),
        )),
        *((name, "--device cpu precision", f"{NO_PAIR}") for name in (
            "throughput", "multi_gpu", "time_to_score", "host_fed", "scaling", "profile", "cold_start",
        )),
        ("multi_gpu", "--device cpu trainer.num_env=3", "trainer.num_env: unknown key. Did you mean 'num_envs'?"),
        ("multi_gpu", "--device cpu --config nobody.yaml", "nobody.yaml: no such file"),
        ("rank_faults", "--gpus 1", "--gpus must be at least 2, got 1"),
        ("gpu_faults", "--jobs 0", "--jobs must be at least 1, got 0"),
        ("multi_gpu", "--gpus 99", "99 GPUs are asked for on this machine"),
        ("time_to_score", "--child 1 --device cpu trainer.num_env=3 started=0", "trainer.num_env: unknown key"),
        ("time_to_score", f"--child 1 {NO_GPU} started=0", "GPU"),
        ("scaling", "--agents 1,2", "--agents: it takes a tagger and a runner to play"),
        ("scaling", "--envs 0,10", "--envs, --envs-of-agents: give at least 1"),
        ("scaling", "--envs-of-agents 0", "--envs, --envs-of-agents: give at least 1"),
        ("profile", "--workload P9", "--workload P9 is several. Give one: ['P9_2048', 'P9_16384', 'P9_65536']."),
        ("throughput", "--workload P9 --name x", "--name names one result"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line_before_anything_is_measured(monkeypatch, capsys, script, words, said):
    monkeypatch.setattr(sys, "argv", [f"{script}.py", *words.split()])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(BENCHMARKS / f"{script}.py"), run_name="__main__")
    told = capsys.readouterr().err if ended.value.code == 2 else str(ended.value.code)
    assert said in told.splitlines()[-1] and (ended.value.code == 2 or "\n" not in told)


def test_figures_that_cannot_be_written_were_printed(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit, match=r"--out: .*file/x.json cannot be written \(.*\). The figures are above."):
        write_report("x", choose_backend("cpu"), {"us": 3.25}, tmp_path / "file")
    assert '"us": 3.25' in capsys.readouterr().out


def test_every_script_can_be_imported_beside_the_one_called_profile():
    """It hides the standard library's, which cProfile and torch ask for."""
    names = sorted(path.stem for path in BENCHMARKS.glob("*.py") if path.stem != "profile")
    code = (
        f"import sys; sys.path.insert(0, {str(BENCHMARKS)!r})\n"
        f"import profile, cProfile, {', '.join(names)}\n"
        "assert hasattr(profile, 'runctx') and not hasattr(profile, 'profile_iteration'), profile\n"
        "cProfile.run('1 + 1')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert len(names) > 10 and done.returncode == 0, done.stderr
