"""What this machine has: the memory that may still be taken, under the limits of control groups, shells and Slurm."""

import resource
from pathlib import Path

import pytest
import torch

from bnrecon.runtime.hardware import available_memory
from bnrecon.runtime.memory import headroom

MB = 2**20
NONE_V1 = 9223372036854771712  # what version 1 writes for no limit


@pytest.fixture
def proc(tmp_path):
    """A /proc of a machine with 1,000 MB available, of which this process holds 100."""
    folder = tmp_path / "proc"
    (folder / "self").mkdir(parents=True)
    (folder / "meminfo").write_text(
        f"MemTotal: {4000 * 1024} kB\nMemAvailable:   {1000 * 1024} kB\n"
    )
    (folder / "self" / "status").write_text(
        f"Name: größe\nVmSize:\t {300 * 1024} kB\nVmRSS:\t {100 * 1024} kB\n", "utf-8"
    )
    return folder


def mounted(proc, groups, *mounts):
    """Say which groups the process is in, and what is mounted: (type, root, mount point, options)."""
    (proc / "self" / "cgroup").write_text("\n".join(groups) + "\n")
    lines = [
        f"{31 + i} 23 0:{i} {root} {point} rw,relatime shared:9 - {kind} {kind} {options}"
        for i, (kind, root, point, options) in enumerate(mounts)
    ]
    (proc / "self" / "mountinfo").write_text(
        "23 1 0:22 / / rw - ext4 /dev/sda rw\n" + "\n".join(lines) + "\n"
    )


def group(folder, limit, used, cached=0, version=2, high="max"):
    """Write a group's files; sizes in MB."""
    folder.mkdir(parents=True, exist_ok=True)
    if version == 2:
        texts = {
            "max": limit if limit == "max" else limit * MB,
            "high": high if high == "max" else high * MB,
            "current": used * MB,
            "stat": f"anon 1\ninactive_file {cached * MB}\nactive_file {77 * MB}",
        }
    else:
        texts = {
            "limit_in_bytes": limit if limit == NONE_V1 else limit * MB,
            "usage_in_bytes": used * MB,
            "stat": f"inactive_file 5\ntotal_inactive_file {cached * MB}",
        }
    for name, text in texts.items():
        (folder / f"memory.{name}").write_text(f"{text}\n")


def left(proc, **environment):
    return headroom(proc, environment) / MB


def test_a_machine_without_limits_has_what_it_says(proc):
    assert left(proc) == 1000


def test_the_limit_of_the_own_group_counts_less_what_is_used_with_cached_files_as_free(
    proc, tmp_path
):
    mounted(proc, ["0::/job.slice/job"], ("cgroup2", "/", tmp_path / "cg", "rw"))
    group(tmp_path / "cg" / "job.slice" / "job", 500, 200, cached=50)
    assert left(proc) == 350


def test_the_least_of_all_groups_above_counts_and_the_root_has_none(proc, tmp_path):
    mounted(proc, ["0::/a/b/c"], ("cgroup2", "/", tmp_path / "cg", "rw"))
    group(tmp_path / "cg" / "a", 600, 590, cached=20)
    group(tmp_path / "cg" / "a" / "b", "max", 10)
    group(tmp_path / "cg" / "a" / "b" / "c", 900, 10)
    assert left(proc) == 30
    group(
        tmp_path / "cg" / "a" / "b", "max", 100, high=120
    )  # from here on the kernel slows the group down
    assert left(proc) == 20


def test_what_lies_beside_or_above_the_mount_does_not_count(proc, tmp_path):
    mounted(proc, ["0::/a"], ("cgroup2", "/", tmp_path / "host" / "cg", "rw"))
    group(tmp_path / "host", 5, 1)
    group(tmp_path / "host" / "cg" / "b", 5, 1)
    group(tmp_path / "host" / "cg" / "a", 700, 100)
    assert left(proc) == 600


def test_a_group_over_its_limit_leaves_nothing_rather_than_less(proc, tmp_path):
    mounted(proc, ["0::/a"], ("cgroup2", "/", tmp_path / "cg", "rw"))
    group(tmp_path / "cg" / "a", 100, 130)
    assert left(proc) == 0


@pytest.mark.parametrize("seen", ["/", "/docker/0a1b", "/docker/0a1b/gone", "/../sibling"])
def test_in_a_container_the_mount_is_the_own_group(proc, tmp_path, seen):
    mounted(proc, [f"0::{seen}"], ("cgroup2", "/docker/0a1b", tmp_path / "cg", "rw"))
    group(tmp_path / "cg", 400, 100)
    group(tmp_path / "sibling", 5, 1)
    assert left(proc) == 300


def test_a_group_within_a_container_is_found_by_the_mounts_root(proc, tmp_path):
    mounted(proc, ["0::/docker/0a1b/inner"], ("cgroup2", "/docker/0a1b", tmp_path / "cg", "rw"))
    group(tmp_path / "cg", 400, 100)
    group(tmp_path / "cg" / "inner", 90, 10)
    assert left(proc) == 80


def test_version_1_counts_by_its_memory_controller_alone(proc, tmp_path):
    mounted(
        proc,
        ["5:cpu,cpuacct:/tight", "4:memory:/slurm/job", "1:name=systemd:/tight"],
        ("cgroup", "/", tmp_path / "cg" / "cpu", "rw,cpu,cpuacct"),
        ("cgroup", "/", tmp_path / "cg" / "memory", "rw,memory"),
    )
    group(tmp_path / "cg" / "cpu" / "tight", 1, 1, version=1)
    group(tmp_path / "cg" / "memory", NONE_V1, 3000, version=1)
    group(tmp_path / "cg" / "memory" / "slurm", 800, 500, cached=100, version=1)
    group(tmp_path / "cg" / "memory" / "slurm" / "job", NONE_V1, 200, version=1)
    assert left(proc) == 400


def test_on_a_hybrid_machine_both_versions_count(proc, tmp_path):
    mounted(
        proc,
        ["4:memory:/one", "0::/two"],
        ("cgroup", "/", tmp_path / "cg" / "memory", "rw,memory"),
        ("cgroup2", "/", tmp_path / "cg" / "unified", "rw"),
    )
    group(tmp_path / "cg" / "memory" / "one", 700, 100, version=1)
    assert left(proc) == 600
    group(tmp_path / "cg" / "unified" / "two", 300, 100)
    assert left(proc) == 200


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"SLURM_MEM_PER_NODE": "250"}, 150),
        ({"SLURM_MEM_PER_CPU": "125", "SLURM_CPUS_ON_NODE": "4"}, 400),
        ({"SLURM_MEM_PER_NODE": "0"}, 1000),
        ({"SLURM_MEM_PER_CPU": "125"}, 1000),
        ({"SLURM_MEM_PER_NODE": ""}, 1000),
    ],
)
def test_what_slurm_granted_counts_less_what_the_process_holds(proc, environment, expected):
    assert left(proc, **environment) == expected


@pytest.mark.parametrize("which", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_the_shells_limit_of_this_process_counts(which):
    which, size = getattr(resource, which), {"RLIMIT_AS": "VmSize", "RLIMIT_DATA": "VmData"}[which]
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("no /proc here")
    taken = next(
        int(line.split()[1]) * 1024
        for line in status.read_text().splitlines()
        if line.startswith(f"{size}:")
    )
    before = resource.getrlimit(which)
    resource.setrlimit(which, (taken + 64 * MB, before[1]))
    try:
        found = available_memory(torch.device("cpu"))
    finally:
        resource.setrlimit(which, before)
    assert 0 < found <= 64 * MB
    assert available_memory(torch.device("cpu")) > 64 * MB
