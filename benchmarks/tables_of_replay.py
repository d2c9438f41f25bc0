"""The tables of docs/replay.md; tables.py writes them."""

from read_results import made, report_of, table


def demand() -> str:
    """Published rates of replay, and what one device sustains of them."""
    report = report_of("replay_demand_cuda")
    rows = [
        (
            name,
            one["needs"] or "nothing",
            f"{one['published']['added']:,} and {one['published']['drawn']:,}",
            f"{one['store_bytes'] / 1e9:.1f}",
            f"{one['num_envs']:,} and {one['batch']:,}",
            f"{one['multiple']:,.0f}",
            f"{one['limited_by']}, {100 * one['share_of_it']:.0f} %",
            f"{one['resource']}, {100 * one['memory_share']:.0f} %",
        )
        for name, one in report["results"]["rows"].items()
    ]
    names = ("algorithm, env", "needs", "added and drawn a second", "GB", "envs that add and items a draw")
    names += ("times that sustained", "most time", "limit")
    seconds = {one["seconds"] for one in report["results"]["rows"].values()}
    together = report["results"]["together"]
    text = (
        f"Each rate was held for {max(seconds):g} seconds, by those numbers of envs and items, of all that were tried "
        "(the JSON has the others), that sustain most. A limit is memory where the bytes read and written are more "
        f"than half of what a copy moves, {report['results']['copied_GB_a_second']:,.0f} GB a second; else it is how "
        f"long small calls take one after another. All the stores at once, {together['bytes'] / 1e9:.0f} GB on one "
        f"device, sustain {together['multiple']:,.0f} times all of these rates together."
    )
    return f"{report['device']} ({made(report)}):\n\n{table(*names, rows=rows)}\n\n{text}"


def tiers() -> str:
    """Updates from a store in tiers: read as fast as can be, and at a pace that files keep."""
    found = []
    for name in ("replay_tiers_cuda", "replay_tiers_paced_cuda"):
        report, rows = report_of(name), []
        for kind, one in report["results"].items():
            stalled = f"{100 * one['stalled']:.1f} %" if "stalled" in one else "-"
            files = f"{one['MB_a_second_from_files'] / 1e3:.1f} GB/s" if kind == "file" else "-"
            is_same = "yes" if one["same_losses"] else "no"
            rows.append((kind, f"{one['us_an_update'] / 1e3:.1f} ms", stalled, files, is_same))
        names = ("kept in", "an update takes", "waited for", "read from files", "the same losses, bit for bit")
        found.append(f"{report['device']} ({made(report)}):\n\n{table(*names, rows=rows)}")
    return "\n\n".join(found)


def buffer_size() -> str:
    """Scores of DQN over the number of transitions kept."""
    report = report_of("buffer_size_cpu")
    envs, rows = report["results"]["envs"], []
    for env, sizes in envs.items():
        for size, one in sizes.items():
            cells = [f"{one[name]['iqm']:.1f}" for name in ("score", "mean_while_training")]
            each_of = ", ".join(f"{run['score']:.1f}" for run in one["runs"])
            rows.append((env, f"{int(size):,}", *cells, each_of))
    names = ("env", "kept", "greedy return at the end", "mean return while training", "at the end, by seed")
    return (
        f"DQN, {report['results']['env_steps']:,} env steps, all else alike ({made(report)}):\n\n"
        f"{table(*names, rows=rows)}"
    )


def cycles() -> str:
    """Prioritised cycles beside what other libraries take for theirs, of one run."""
    report = report_of("replay_cuda")
    results, rows = report["results"], []
    for row, size in (("R1", "2^20"), ("R2", "2^24"), ("R3", "2^27")):
        others = results[row].get("peers", {})
        for batch, one in results[row].items():
            if batch == "peers":
                continue
            cells = [f"{one[name]:,.1f} us" for name in ("ours_us", "dense_us", "torchrl_us")]
            for peer in ("flashbax", "cpprb"):
                cells.append(f"{others[peer][batch]['us']:,.0f} us" if peer in others else "-")
            rows.append((size, f"{int(batch):,}", *cells))
    names = ("transitions", "at once", "ours", "torch: all summed", "TorchRL's kernels", "flashbax", "cpprb, on a host")
    share, row = results["R6"]["4096"], results["R4"]
    text = (
        f"Of an update of DQN by torch, 4,096 at once, ours takes {share['share_percent']:.1f} %, sums of all "
        f"{share['dense_share_percent']:.0f} %, TorchRL's kernels {share['torchrl_share_percent']:.0f} %. Priorities "
        f"of a row of 65,536 new transitions take {row['ours_us']:.1f} us, with the step that adds them "
        f"{row['with_the_step_us']:.1f} us; flashbax's add {row['peers']['flashbax']['us']:,.0f} us."
    )
    return f"{report['device']} ({made(report)}):\n\n{table(*names, rows=rows)}\n\n{text}"


def share() -> str:
    """What drawing and new priorities take of an update of DQN, by torch and by the trainer's own kernels."""
    report, rows = report_of("replay_cuda"), []
    for batch, one in report["results"]["R6"].items():
        ours = one["trainer"]
        torchs = f"{one['share_percent']:.1f} % of {one['whole_us']:,.0f} us"
        rows.append((f"{int(batch):,}", torchs, f"{ours['percent']:.1f} % of {ours['whole_us']:,.0f} us"))
    names = ("transitions of an update", "of torch's update", f"of the trainer's own, {ours['path']}")
    return f"{report['device']} ({made(report)}):\n\n{table(*names, rows=rows)}"


def handover() -> str:
    """Windows from rank to rank, alone and beside a learner."""
    report, rows = report_of("handover_cuda"), []
    for window, one in report["results"].items():
        times = (f"{one[name]:,.0f} us" for name in ("alone_us", "learner_us", "together_us"))
        rows.append((window, f"{one['bytes'] / 1e6:.1f} MB", *times))
    names = ("window", "bytes", "handed over alone", "the learner alone", "both")
    return f"Two of {report['device']} ({made(report)}):\n\n{table(*names, rows=rows)}"
