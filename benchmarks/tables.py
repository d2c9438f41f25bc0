"""Writes the results in README.md and docs/ from the JSONs in benchmarks/results: WRITTEN says what goes where.

`python benchmarks/tables.py --check` writes nothing and exits 1 if they say anything else.
"""

import re
import sys

import compare
import numpy as np
import tables_of_replay
from read_results import RESULTS, ROOT, ResultError, made, read, read_peers, report_of, standard_errors, table

from trainers.report.statistics import interval, iqm

FP32_PER_S = 33.5e12
"""Float32 operations of an H200: 132 multiprocessors x 128 lanes x 1.98 GHz."""
OPERATIONS_A_PAIR = 7
"""Of tag_continuous: two differences, two squares, a sum, a comparison and a mark."""


def comparison() -> str:
    """Each row against its target, what residence is worth, and how cost grows."""
    return "\n\n".join([*compare.table().split("\n\n")[:2], residence(), *growth()])


def residence() -> str:
    """Against the same envs on the CPU that feed the same policies on the GPU."""
    report = report_of("host_fed_cuda")
    found, times = report["results"], report["results"]["times_faster"]
    us = {name: [found[name][column]["us_a_step"] for column in times] for name in ("resident", "host_fed")}
    return (
        f"**What residence is worth**: continuous Tag, {found['num_envs']:,} x {found['num_agents']:,}, "
        f"{report['device']}, {found['precision']}. The same kernels on the machine's {found['cpu_cores']} CPU cores, "
        "which feed the policies on the GPU through the host, as around a CPU simulator, take "
        f"{us['host_fed'][0]:,.0f} us a step with a policy and {us['host_fed'][1]:,.0f} with a learner, too; resident, "
        f"{us['resident'][0]:,.0f} and {us['resident'][1]:,.0f}: {times['rollout']:.0f} and {times['train']:.0f} times "
        f"as fast ({made(report)})."
    )


def growth() -> list[str]:
    """The picture of cost over envs and agents, if it was drawn."""
    if not (RESULTS / "scaling_cuda.png").exists():
        return []
    report = report_of("scaling_cuda")
    return [
        "![Microseconds a step over envs and over agents](benchmarks/results/scaling_cuda.png)",
        f"How cost grows, {report['device']} ({made(report)}).",
    ]


def results() -> str:
    """What else was measured: of each row its three columns, then envs, sampler, CPU and launches."""
    columns = "\n\n".join(compare.table().split("\n\n")[2:])
    parts = [columns, envs(), sampler(), cpu(), learning(), launch()]
    return "\n\n".join(part for part in parts if part)


def envs() -> str:
    report, peers = report_of("env_step_cuda"), read_peers(RESULTS)["env alone"]
    rows = []
    for name, one in report["results"].items():
        us = one["us"]
        both = f"{us['random_actions_step_and_reset']:.1f}"
        rows.append((name, f"{us['step']:.1f}", both, f"{one['limit_us']:.2f}", peers.get(name, "")))
    return (
        f"**Envs alone**, {report['device']}, launches replayed from a CUDA graph ({made(report)}). The limit is the "
        "time that the bytes of a step need at 4.3 TB/s; the pair distances of continuous Tag are not in it.\n\n"
        + table("env", "step, us", "with random actions and reset, us", "limit, us", "others' step, us", rows=rows)
    )


def limits() -> str:
    report, rows = report_of("env_step_cuda"), []
    for name, one in report["results"].items():
        us, bytes_us = one["us"]["step"], one["limit_us"]
        pairs_us = one["num_envs"] * pairs_of_an_env(name, one["num_agents"]) * OPERATIONS_A_PAIR / FP32_PER_S * 1e6
        of_pairs = f"{pairs_us:.1f}" if pairs_us else ""
        times = us / max(bytes_us, pairs_us)
        rows.append((name, f"{us:.1f}", f"{one['mb_moved']:.1f}", f"{bytes_us:.1f}", of_pairs, f"{times:.1f}"))
    names = ("env", "step, us", "MB", "limit of the bytes, us", "of the pairs, us", "times the longer")
    return (
        f"{report['device']}, launches replayed from a CUDA graph ({made(report)}):\n\n{table(*names, rows=rows)}"
    )


PARTS = {
    "env step and restart": ("step_and_restart", "tag_continuous_step", "restart_ended"),
    "`act`: all networks of a rollout": ("act",),
    "`learn`: forward, loss, backward": ("learn",),
    "products of records": ("products",),
    "sum of the gradient, Adam": ("add_up_gradient", "adam_step", "pack_parameters"),
    "search for NaNs": ("look_at_rollout", "first_nonfinite", "first_nonfinite_final"),
}
"""Part of an iteration -> its kernels. What is in no part is "the rest"."""
PROFILED = ("P1", "P3", "P5", "P7")


def training() -> str:
    """Where an iteration's time goes, by part."""
    reports = [report_of(f"profile_{name}_cuda") for name in PROFILED]
    columns = [us_of_parts(report["results"]) for report in reports]
    rows = ((part, *(_us(column[part]) for column in columns)) for part in columns[0])
    return (
        f"{reports[0]['device']}, {reports[0]['results']['precision']}, microseconds a step ({made(*reports)} and so "
        f"on):\n\n{table('', *PROFILED, rows=rows)}"
    )


def us_of_parts(results: dict) -> dict[str, float]:
    """Part -> microseconds a step, of a report of profile.py; then their sum, and an iteration without the profiler."""
    us = {part: sum(one["us"] for one in results["kernels"] if one["name"] in names) for part, names in PARTS.items()}
    us["the rest: advantages, statistics, shuffle, copies"] = results["us_of_all_kernels"] - sum(us.values())
    us["all kernels"] = results["us_of_all_kernels"]
    us["an iteration, without the profiler"] = results["us_an_iteration"]
    return {part: value / results["num_steps"] for part, value in us.items()}


def _us(value: float) -> str:
    return "-" if value == 0 else f"{value:.1f}" if value < 10 else f"{value:.0f}"


def pairs_of_an_env(name: str, num_agents: int) -> int:
    """Distances that a step computes: of every agent to every place in the kernel's chunks, padded ones too."""
    if not name.startswith("tag_continuous"):
        return 0
    chunk = 32 if num_agents > 16 else 16 if num_agents > 8 else 8 if num_agents > 4 else 4
    return num_agents * (-(-num_agents // chunk) * chunk)


def sampler() -> str:
    report = report_of("sampler_cuda")
    ours = report["results"]
    return (
        f"**Sampler**, {ours['num_envs']:,} x {ours['num_agents']:,} agents, {ours['num_actions']} actions, "
        f"{report['device']}: {ours['sampler_us']:.0f} us with log-probability and entropy, against "
        f"{ours['multinomial_us']:.0f} us for softmax and `torch.multinomial` alone: {ours['times_faster']:.1f} times "
        f"(chi-square {ours['chi_square']:.1f} at {ours['degrees_of_freedom']} degrees of freedom; "
        f"`{report['command']}`)."
    )


def cpu() -> str:
    report = report_of("cpu_env_step")
    num_envs, versions = next(iter(report["results"].values()))["num_envs"], report["versions"]
    rows = []
    for name, one in report["results"].items():
        numpy_us = f"{one['numpy_us']:.0f}" + " (to be read)" * one.get("is_oracle", False)
        ours = f"{one['kernel_us']:.0f}", f"{one['kernel_ns_an_agent_step']:.0f}"
        rows.append((name, one["num_agents"], *ours, numpy_us, f"{one['times_faster_than_numpy']:.1f}"))
    return (
        f"**One CPU core**, {num_envs:,} envs: our step kernels against vectorised numpy of the same rules, in turn in "
        f"one run ({made(report)}; {versions['compiler']}, numpy {versions['numpy']}). Numpy is ahead where a step is "
        "mostly sines and cosines, which it takes of many envs at once and the C library of one (pendulum), and level "
        "where rows are written in short pieces (tag_continuous).\n\n"
        + table("env", "agents", "ours, us a step", "ns an agent step", "numpy, us a step", "times", rows=rows)
    )


def learning() -> str:
    report = report_of("learning_tag_cpu")
    runs = report["results"]["runs"]
    rows = []
    for run in runs:
        pairs = [f"{first:+.2f} to {last:+.2f}" for first, last in run["returns"].values()]
        rows.append((run["seed"], f"{run['seconds']:.0f}", *pairs))
    rise = report["results"]["least_rise"]["tagger"]
    return (
        f"**`make train`** on {report['device']}: {report['results']['env_steps']:,} env steps "
        f"(`{report['command']}`). Mean returns of an episode, from the first report to the last:\n\n"
        f"{table('seed', 'seconds', *runs[0]['returns'], rows=rows)}\n\n"
        f"The taggers' mean return rises by at least {rise:.1f}, whatever the seed."
    )


SCORE_COLUMNS = ("task", "seeds", "env steps", "seconds a seed", "reached", "must reach")


def scores() -> str:
    """What the tasks of benchmarks/learning.py reached, on a GPU and on a CPU; empty if none was measured."""
    parts = []
    for backend in ("cuda", "cpu"):
        reports = [read(RESULTS, path.name) for path in sorted(RESULTS.glob(f"learning_*_{backend}.json"))]
        reports = [report for report in reports if "missed" in report["results"]]  # a config alone has no score
        if reports:
            parts += [
                f"**What is learned**, {reports[0]['device']} (`python benchmarks/learning.py --task TASK --seeds N`): "
                "mean return of whole episodes, interquartile mean over the seeds with its 95 % interval; in Tag, what "
                "a trained side gains over an untrained one against untrained opponents, in standard errors.",
                table(*SCORE_COLUMNS, rows=map(_score, reports)),
            ]
    if not parts:
        return ""
    if (RESULTS / "both_paths.png").exists():
        parts.append(
            "Where no precision is named, fused kernels played and learned where they can; `_fp32` is "
            "`trainer.precision=fp32`: torch did. Both paths' learning curves are in "
            "[one picture](../benchmarks/results/both_paths.png) (`python benchmarks/both_paths.py`)."
        )
    if (peer := read(RESULTS, "peers_torchrl.json", "results")) is not None:
        parts.append(torchrl(peer))
    return "\n\n".join(parts)


def _score(report: dict) -> tuple:
    """The cells of a task's line."""
    found, runs = report["results"], report["results"]["runs"]
    if "score" in found:
        reached = {
            f"{group} " if len(found["score"]) > 1 else "": f"{one['iqm']:.1f} ({one['low']:.1f} to {one['high']:.1f})"
            for group, one in found["score"].items()
        }
    else:
        reached = {f"{group} ": f"{value:.1f}" for group, value in found["standard_errors"].items()}
    task = report["benchmark"].removeprefix("learning_").rpartition("_")[0]
    seconds = sum(run["seconds"] for run in runs) / len(runs)
    must = "" if found.get("at_least") is None else f"{found['at_least']:g}"
    must = f"at most {found['at_most']:g}" if "at_most" in found else must
    told = ", ".join(group + value for group, value in reached.items())
    return task, len(runs), f"{found['env_steps']:,}", f"{seconds:.0f}", told, must


MOST_SCORES = 10
"""Of a row, all of which are told."""


def defaults() -> str:
    """What the runs of benchmarks/defaults.py reached, on a CPU and on a GPU; a row measured twice, by more seeds."""
    measured: dict[tuple[str, str], dict] = {}
    for path in sorted(RESULTS.glob("defaults_*.json")):
        report = read(RESULTS, path.name)
        for line, one in report["results"].items():
            place = as_users_write(line), "cpu" if report["backend"] == "cpu" else "cuda"
            measured[place] = max(measured.get(place, one), one, key=lambda found: len(found["runs"]))
    reached: dict[str, dict[str, str]] = {}
    rows: dict[str, tuple[str, str, bool]] = {}
    for (label, device), one in measured.items():
        cell = of_sides(one.get("standard_errors", {}))
        if "score" in one:
            scores = sorted(run["agent"] for run in one["runs"])
            many = f", others better, by {len(scores)} seeds" if len(scores) > MOST_SCORES else ""
            scores = scores[:5] if many else scores
            cell = ", ".join(f"{score:z.{int(abs(score) < 20)}f}" for score in scores) + many
        elif len(one["runs"]) > 5:
            few = {side: standard_errors([run[side]["mean"] for run in one["runs"][:5]]) for side in one["runs"][0]}
            cell += f" by {len(one['runs'])} seeds, {of_sides(few)} by the first five"
        reached.setdefault(label, {})[device] = cell
        *_, is_reached = rows.get(label, (True,))
        rows[label] = (f"{one['env_steps']:,}", f"{one['at_least']:g}", is_reached and one["missed"] is None)
    if not rows:
        return ""
    cells = [
        (label, steps, *(reached[label].get(name, "-") for name in ("cpu", "cuda")), least, ("no", "yes")[is_reached])
        for label, (steps, least, is_reached) in sorted(rows.items())
    ]
    return (
        "**At default keys** (`python benchmarks/defaults.py --seeds 5 --device cpu`, and `cuda`): the config names an "
        "env, an algorithm, a number of envs and a length, and nothing else but what stands beside it. Greedy mean "
        "returns by seed, worst first, - where it was not measured; in Tag, what a trained side gains over an "
        "untrained one, in standard errors over the seeds. The GPU is an H200. A row is reached if every seed does; in "
        "Tag, if the mean over the seeds does.\n\n"
        + table("task", "env steps", "CPU", "GPU", "must reach", "reached", rows=cells)
    )


def default_keys() -> str:
    """What the runs of benchmarks/default_keys.py reached on a GPU, each key beside its default."""
    reports = [read(RESULTS, path.name) for path in sorted(RESULTS.glob("default_keys_*cuda.json"))]
    results: dict[str, dict] = {}
    for report in reports:
        for label, one in report["results"].items():
            results[label] = one | results.get(label, {})  # of what was measured twice, the first
    if not results:
        return ""

    def cell(runs: list[dict[str, float]] | None) -> str:
        if runs is None:
            return "-"
        means = {side: sum(run[side] for run in runs) / len(runs) for side in runs[0]}
        told = {side: f"{mean:.{0 if abs(mean) > 50 else 1 if abs(mean) > 5 else 2}f}" for side, mean in means.items()}
        return told["agent"] if "agent" in told else ", ".join(f"{side} {mean}" for side, mean in told.items())

    rows, tasks = [], ("acrobot", "simple_spread", "tag_gridworld", "pendulum")
    for label, one in sorted(results.items(), key=lambda pair: pair[0].partition(" ")[0]):
        algorithm, _, key = label.partition(" ")
        keys = re.split(r", (?=[a-z_.]+=)", key) if key else []
        told = ", ".join(f"`{one.replace('=', ': ')}`" for one in keys) or "**defaults**"
        rows.append((algorithm, told, *(cell(one.get(task)) for task in tasks)))
    number = max(len(runs) for one in results.values() for runs in one.values())
    return (
        f"**What each default is worth** (`python benchmarks/default_keys.py --seeds {number} --device cuda`): one key "
        f"has another value, all others their defaults, 100 envs. Means over {number} seeds: the greedy return; in "
        "Tag, what a trained side gains over an untrained one, in rewards of an episode. Single seeds differ by 1 and "
        "more in simple_spread, and by 0.8 a side in Tag: what differs less from its default says nothing.\n\n"
        + table("algorithm", "key", *tasks, rows=rows)
    )


def of_sides(figures: dict[str, float]) -> str:
    return ", ".join(f"{side} {value:.1f}" for side, value in figures.items())


def as_users_write(label: str) -> str:
    """A row of defaults.py, whose overrides are of whichever groups there are; the number of envs is told anyway."""
    row, *overrides = re.split(r", (?=trainer\.|policy\.)", label)
    told = (one for one in overrides if not one.startswith("trainer.num_envs="))
    return ", ".join([row, *(f"`{one.removeprefix('policy.').replace('=', ': ')}`" for one in told)])


def torchrl(report: dict) -> str:
    """What TorchRL's PPO reached on the same envs."""
    runs, version, reached = report["results"]["runs"], report["results"]["versions"]["torchrl"], []
    for config in dict.fromkeys(run["config"] for run in runs):
        for group in next(run["greedy"] for run in runs if run["config"] == config):
            values = np.array([run["greedy"][group] for run in runs if run["config"] == config])
            low, high = interval(values)
            reached.append(f"{config} {group} {iqm(values):.2f} ({low:.2f} to {high:.2f})")
    return (
        f"TorchRL {version}'s PPO on the same envs, networks and budget, from the same "
        f"kind of start, {len(values)} seeds (`{report['command']}`): {', '.join(reached)}."
    )


def launch() -> str:
    reports = [report_of(f"launch_cuda_{driver}") for driver in ("pycuda", "cuda_bindings")]
    drivers = [report["results"] for report in reports]
    times = " and ".join(f"{one['host_us']:.1f} us through {one['driver']}" for one in drivers)
    return (
        f"**A prepared launch** takes the host {times}, {reports[0]['device']}; the driver's own function, called "
        f"bare, takes {drivers[0]['bare_driver_us']:.1f} us. In a CUDA graph a launch takes "
        f"{drivers[0]['in_a_graph_us']:.1f} us "
        "(`python benchmarks/launch.py --device cuda`)."
    )


def survived() -> str:
    """What runs survived, a line each."""
    report = report_of("reliability_cpu")
    found = report["results"]
    told = (
        ("kill -9 at any moment", "resumed to the same bits", "kills", "resumed", "kills"),
        ("kill -9 within a save of a replay store", "resumed to the same bits", "replay_kills", "resumed", "kills"),
        ("the same, most of it in files of a tier", "resumed to the same bits", "tier_kills", "resumed", "kills"),
        ("Ctrl-C, SIGTERM, SIGHUP, a second Ctrl-C", "can be resumed", "stops", "resumable", "stops"),
        ("processes that want one run folder", "refused but for one", "locks", "refused_with_its_number", "processes"),
        ("flipped bits and cut files", "refused by name, the one before taken", "corruptions", "refused_and_fell_back",
         "corruptions"),
        ("flipped bits in a replay store's files", "refused by name, the newest without them taken, or none",
         "replay_flips", "refused", "flipped"),
        ("a full disk at each step of a save", "training goes on", "disk_full", "survived", "times"),
        ("iterations whose tier of files lies on a disk too small for it", "trained, said once, resumed",
         "tiers_full", "trained", "iterations"),
        ("NaNs planted", "stopped and dumped, none saved", "nans", "stopped_and_dumped", "planted"),
        ("configs of `examples/` stopped", "resumed to the same bits", "resumes", "same_bits", "configs"),
        ("10^12 and 2^40 env steps, 2^32 of an env, a day at full speed",
         "checkpoints, pruning, schedules, metrics, plots and random numbers go on", "far_steps", "crossed", "places"),
        ("run folders with links, pipes, files without end", "refused in a line, nothing elsewhere is touched",
         "folders", "refused", "tried"),
        ("compiled kernels cut, exchanged or forged", "built anew", "kernels", "built_again", "tried"),
        ("memory, by tests", "saves stream, estimates are what runs take", "memory", "passed", "tests"),
        ("saves, by tests", "by default something is saved, and at a signal", "saves", "passed", "tests"),
        ("imports, by tests", "nothing is imported, unpickled or listened to that was not asked for", "imports",
         "passed", "tests"),
        ("changes, by tests", "a resume says what changed, and refuses what is another run", "changes", "passed",
         "tests"),
        ("formats, by tests", "checkpoints of older versions go on", "formats", "passed", "tests"),
        ("distribution, by tests", "texts name our own; its wheel trains in an empty environment", "distribution",
         "passed", "tests"),
    )  # fmt: skip
    rows = [(what, how, f"{found[key][good]} of {found[key][of]}") for what, how, key, good, of in told if key in found]
    for name in ("P5", "P6"):
        saved = report_of(f"saving_{name}_cuda")["results"]
        what = f"a save a minute of {name} on an H200, {saved['checkpoint_mb']:,.0f} MB"
        more = max(saved["memory_during_over_training"].values()) - 1
        figure = f"{100 * saved['share_at_one_a_minute']:.2f} % and {100 * more:.1f} %"
        rows.append((what, "at most 1 % of the time, and 5 % more memory", figure))
    for place, on in (("cpu", "a CPU"), ("cuda", "H200s")):
        ranks = report_of(f"rank_faults_{place}")["results"]
        what = f"of {ranks['ranks']} ranks on {on} one killed, stopped, asleep, out of memory, cut off"
        what += ", or killed with a replay store" if "store" in ranks["each"] else ""
        figure = f"{ranks['resumed_to_the_same_bits']} of {ranks['faults']}, {ranks['most_seconds_until_ended']:.0f} s"
        rows.append((what, "all end within a minute, and go on to the same bits; the longest", figure))
    if (gpu := read(RESULTS, "gpu_faults_cuda.json", "results")) is not None:
        what = "an H200 out of memory or unusable; kill -9 in a graph's capture and in the first compile"
        figure = f"{gpu['results']['same_bits']} of {gpu['results']['faults']}"
        rows.append((what, "told in a line, and resumed to the same bits", figure))
    return f"On {report['device']} ({made(report)}):\n\n{table('', 'promise', 'figure', rows=rows)}"


WRITTEN = (
    ("docs/replay.md", "demand", tables_of_replay.demand),
    ("docs/replay.md", "handover", tables_of_replay.handover),
    ("docs/replay.md", "cycles", tables_of_replay.cycles),
    ("docs/replay.md", "share", tables_of_replay.share),
    ("docs/replay.md", "tiers", tables_of_replay.tiers),
    ("docs/replay.md", "buffer sizes", tables_of_replay.buffer_size),
    ("README.md", "results", comparison),
    ("docs/results.md", "results", results),
    ("docs/algorithms.md", "scores", scores),
    ("docs/algorithms.md", "defaults", defaults),
    ("docs/algorithms.md", "default keys", default_keys),
    ("docs/results.md", "survived", survived),
    ("docs/performance.md", "limits", limits),
    ("docs/performance.md", "training", training),
)
"""File, name of the part of it that is written here, and what it says."""


def main() -> int:
    is_stale = False
    for name, part, text_of in WRITTEN:
        path = ROOT / name
        start, end = f"<!-- {part}: written by benchmarks/tables.py -->", f"<!-- end of {part} -->"
        text = path.read_text()
        before, _, rest = text.partition(start)
        _, _, after = rest.partition(end)
        try:
            new = f"{before}{start}\n{text_of()}\n{end}{after}"
        except ResultError as error:
            raise SystemExit(f"{error}. Take the file from git, or measure anew.") from None
        if "--check" not in sys.argv:
            path.write_text(new)
        elif new != text:
            print(f"{name}, {part}: differs from benchmarks/results. Run python benchmarks/tables.py.")
            is_stale = True
    return int(is_stale)


if __name__ == "__main__":
    sys.exit(main())
