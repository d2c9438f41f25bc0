"""How much memory a process may take, by files as Linux writes them: of machines, containers and jobs in them."""

from pathlib import Path

import pytest
import torch

from trainers.run.free_memory import free_bytes

GIB = 2**30
MACHINE = {"proc/meminfo": f"MemTotal: 99999999 kB\nMemFree: 1 kB\nMemAvailable:   {64 * 2**20} kB\n"}
NO_LIMIT = 9223372036854771712
"""What version 1 says where there is none."""
MOUNTED = {
    1: "35 31 0:32 {top} {place} rw,relatime shared:9 - cgroup cgroup rw,memory",
    2: "30 24 0:26 {top} {place} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate",
}


def group(version, limit, used, files=0, **more):
    """The files of one control group; sizes in GiB."""
    names = {1: ("limit_in_bytes", "usage_in_bytes", "total_inactive_file"), 2: ("max", "current", "inactive_file")}
    limit = limit if isinstance(limit, str) else int(limit * GIB)
    told = {names[version][2]: int(files * GIB), **more}
    contents = (limit, int(used * GIB), "".join(f"{name} {number}\n" for name, number in told.items()))
    files = (*(f"memory.{name}" for name in names[version][:2]), "memory.stat")
    return {name: f"{content}\n" for name, content in zip(files, contents, strict=True)}


def process(version, path, top="/", place="/sys/fs/cgroup"):
    """What a process reads of itself: the path of its group; and which group is mounted where."""
    line = f"4:cpu,memory:{path}\n2:cpu:/x" if version == 1 else f"0::{path}"
    mounts = "23 1 0:22 / /proc rw - proc proc rw\n" + MOUNTED[version].format(top=top, place=place)
    return {"proc/self/cgroup": f"{line}\n", "proc/self/mountinfo": f"{mounts}\n"}


V2 = "sys/fs/cgroup"
CASES = {
    "no groups": (64, {}),
    "a group without a limit": (64, process(2, "/"), {V2: group(2, "max", 3)}),
    "a container that sees itself as the top": (6, process(2, "/"), {V2: group(2, 8, 3, 1)}),
    "a job in a group of its own": (5, process(2, "/slurm/job_7"),
                                    {f"{V2}/slurm": group(2, 40, 3), f"{V2}/slurm/job_7": group(2, 7, 2)}),
    "a limit around it": (3, process(2, "/a/b/c"),
                          {f"{V2}/a": group(2, 9, 6), f"{V2}/a/b": group(2, "max", 2), f"{V2}/a/b/c": group(2, 30, 1)}),
    "siblings that take what is left": (1, process(2, "/a/b"),
                                        {f"{V2}/a": group(2, 9, 8), f"{V2}/a/b": group(2, 9, 1)}),
    "a line that is none": (64, {"proc/self/cgroup": "4\n0::/\n", "proc/self/mountinfo": "x\n1 2 - cgroup2 y\n\n"}),
    "more used than is allowed": (0, process(2, "/"), {V2: group(2, 2, 3)}),
    "a container that is told its path outside": (2, process(2, "/docker/abc/job", top="/docker/abc"),
                                                  {V2: group(2, 50, 1), f"{V2}/job": group(2, 3, 1)}),
    "a path out of sight": (4, process(2, "/../../other"), {V2: group(2, 5, 1)}),
    "mounted elsewhere, with a blank": (4, process(2, "/", place="/mnt/c\\040g"), {"mnt/c g": group(2, 5, 1)}),
    "version 1": (5, process(1, "/job", place="/cg/memory"), {"cg/memory": group(1, NO_LIMIT / GIB, 30),
                                                               "cg/memory/job": group(1, 8, 4, 1)}),
    "version 1 without a limit": (64, process(1, "/"), {V2: group(1, NO_LIMIT / GIB, 3)}),
    "version 1 with a limit out of sight": (2, process(1, "/pod/box", top="/pod/box"),
                                            {V2: group(1, NO_LIMIT / GIB, 4, hierarchical_memory_limit=6 * GIB)}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_free_memory_is_what_the_machine_and_every_group_around_the_process_leave(tmp_path, case):
    left, told, *groups = CASES[case]
    files = {**MACHINE, **told}
    for one in groups:
        files |= {f"{folder}/{name}": content for folder, names in one.items() for name, content in names.items()}
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    assert free_bytes(torch.device("cpu"), tmp_path) == left * GIB


def test_ranks_of_one_machine_share_its_memory_and_nobody_may_know(tmp_path, monkeypatch):
    assert free_bytes(torch.device("cpu"), tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text(MACHINE["proc/meminfo"])
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert free_bytes(torch.device("cpu"), Path(tmp_path)) == 16 * GIB
