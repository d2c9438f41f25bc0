"""Writes the README's results from the JSONs in benchmarks/results: `python benchmarks/tables.py`.

`--check` writes nothing and exits 1 if the README says anything else.
"""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
START, END = "<!-- results: written by benchmarks/tables.py -->", "<!-- end of results -->"


def read(name: str) -> dict:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def command(report: dict) -> str:
    return f"`{report['command']}`"


def results() -> str:
    return "\n\n".join([training(), envs(), sampler(), cpu(), learning(), launch()])


def training() -> str:
    report, peer = read("throughput_tag_gridworld_cuda"), read("peers")["warpdrive"]["tag_gridworld, 2,000 x 5"]
    ours = report["results"]
    lines = [
        f"**{report['device']}**, `tag_gridworld.yaml` as published: {ours['num_envs']:,} envs x {ours['num_agents']} "
        f"agents, 32x32 network, A2C, {ours['num_steps']} steps an iteration, float32, eager launches "
        f"(commit {report['commit']}, {command(report)}). WarpDrive 2.7.1 was measured on the same kind of machine.",
        "",
        "| | ours, us a step | WarpDrive, us a step | times | ours, env steps/s |",
        "|---|---|---|---|---|",
    ]
    for name, what in (("env", "env alone"), ("rollout", "env + policy"), ("train", "env + policy + learner")):
        us, rate = ours[name]["us_a_step"], ours[name]["env_steps_per_s"] / 1e6
        lines.append(f"| {what} | {us:.1f} | {peer[name]} | {peer[name] / us:.1f} | {rate:.1f} M |")
    return "\n".join(lines)


def envs() -> str:
    report, peers = read("env_step_cuda"), read("peers")["env alone"]
    lines = [
        f"**Envs alone**, {report['device']}, launches replayed from a CUDA graph (commit {report['commit']}, "
        f"{command(report)}). The limit is the time that the bytes of a step need at 4.3 TB/s; the pair distances of "
        "continuous Tag are not in it.",
        "",
        "| env | step, us | with random actions and reset, us | limit, us | others' step, us |",
        "|---|---|---|---|---|",
    ]
    for name, one in report["results"].items():
        us = one["us"]
        lines.append(
            f"| {name} | {us['step']:.1f} | {us['random_actions_step_and_reset']:.1f} | {one['limit_us']:.2f} | "
            f"{peers.get(name, '')} |"
        )
    return "\n".join(lines)


def sampler() -> str:
    report = read("sampler_cuda")
    ours = report["results"]
    return (
        f"**Sampler**, {ours['num_envs']:,} x {ours['num_agents']:,} agents, {ours['num_actions']} actions, "
        f"{report['device']}: {ours['sampler_us']:.0f} us with log-probability and entropy, against "
        f"{ours['multinomial_us']:.0f} us for softmax and `torch.multinomial` alone: {ours['times_faster']:.1f} times "
        f"(chi-square {ours['chi_square']:.1f} at {ours['degrees_of_freedom']} degrees of freedom; {command(report)})."
    )


def cpu() -> str:
    report = read("cpu_env_step")
    full, partial = report["results"]["full"], report["results"]["partial"]
    return (
        f"**One CPU core**, grid-world step at {full['num_envs']:,} x {full['num_agents']}: "
        f"{full['kernel_ns_an_agent_step']:.0f} ns an agent step with full observations, "
        f"{full['times_faster_than_numpy']:.1f} times as fast as vectorised numpy of the same rules in the same run; "
        f"{partial['times_faster_than_numpy']:.1f} times with partial ones ({command(report)})."
    )


def learning() -> str:
    report = read("learning_tag_cpu")
    runs = report["results"]["runs"]
    names = list(runs[0]["returns"])
    lines = [
        f"**`make train`** on {report['device']}: {report['results']['env_steps']:,} env steps ({command(report)}). "
        "Mean returns of an episode, from the first report to the last:",
        "",
        "| seed | seconds | " + " | ".join(names) + " |",
        "|---" * (2 + len(names)) + "|",
    ]
    for run in runs:
        pairs = [f"{first:+.2f} to {last:+.2f}" for first, last in run["returns"].values()]
        lines.append(f"| {run['seed']} | {run['seconds']:.0f} | " + " | ".join(pairs) + " |")
    rise = report["results"]["least_rise"]["tagger"]
    return "\n".join([*lines, "", f"The taggers' mean return rises by at least {rise:.1f}, whatever the seed."])


def launch() -> str:
    drivers = [read(f"launch_cuda_{driver}")["results"] for driver in ("pycuda", "cuda_bindings")]
    times = " and ".join(f"{one['host_us']:.1f} us through {one['driver']}" for one in drivers)
    return (
        f"**A prepared launch** takes the host {times} on that machine; the driver's own function, called bare, takes "
        f"{drivers[0]['bare_driver_us']:.1f} us. In a CUDA graph a launch takes {drivers[0]['in_a_graph_us']:.1f} us "
        "(`python benchmarks/launch.py --device cuda`)."
    )


def main() -> int:
    text = README.read_text()
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    new = f"{before}{START}\n{results()}\n{END}{after}"
    if "--check" in sys.argv:
        return int(new != text)
    README.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
