"""Memory and processors that limits of groups, shells and Slurm allow, and units of CPUs."""

import os
import resource
from types import SimpleNamespace

import psutil
import pytest
import torch

from bnrecon.runtime import hardware
from bnrecon.runtime.errors import UserError
from bnrecon.runtime.hardware import available_memory, processor_count, use_threads
from bnrecon.runtime.limits import available_host_memory

MB = 2**20
NONE_V1 = 9223372036854771712  # version 1's value for no limit


@pytest.fixture
def proc(tmp_path, monkeypatch):
    """The /proc of a machine with 1,000 MB available, of which this process holds 100."""
    used = SimpleNamespace(rss=100 * MB, vms=300 * MB, data=200 * MB)
    machine = SimpleNamespace(available=1000 * MB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: machine)
    monkeypatch.setattr(psutil, "Process", lambda: SimpleNamespace(memory_info=lambda: used))
    folder = tmp_path / "proc"
    (folder / "self").mkdir(parents=True)
    return folder


def write_mounts(proc, groups, *mounts):
    """Write the process's groups and mounts: (type, root, mount point, options)."""
    (proc / "self" / "cgroup").write_text("\n".join(groups) + "\n")
    lines = [
        f"{31 + i} 23 0:{i} {root} {point} rw,relatime shared:9 - {kind} {kind} {options}"
        for i, (kind, root, point, options) in enumerate(mounts)
    ]
    (proc / "self" / "mountinfo").write_text(
        "23 1 0:22 / / rw - ext4 /dev/sda rw\n" + "\n".join(lines) + "\n"
    )


def write_group(folder, limit, used, cached=0, version=2, high="max"):
    """Write a group's files, sizes in MB."""
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


def available(proc, **environment):
    return available_host_memory(proc, environment) / MB


def test_least_of_all_enclosing_groups_counts_and_the_root_has_none(proc, tmp_path):
    write_mounts(proc, ["0::/a/b/c"], ("cgroup2", "/", tmp_path / "cg", "rw"))
    write_group(tmp_path / "cg" / "a", 600, 590, cached=20)
    write_group(tmp_path / "cg" / "a" / "b", "max", 10)
    write_group(tmp_path / "cg" / "a" / "b" / "c", 900, 10)
    assert available(proc) == 30
    # Above ``high`` the kernel slows the group down.
    write_group(tmp_path / "cg" / "a" / "b", "max", 100, high=120)
    assert available(proc) == 20


def test_groups_beside_or_above_the_mount_do_not_count(proc, tmp_path):
    write_mounts(proc, ["0::/a"], ("cgroup2", "/", tmp_path / "host" / "cg", "rw"))
    write_group(tmp_path / "host", 5, 1)
    write_group(tmp_path / "host" / "cg" / "b", 5, 1)
    write_group(tmp_path / "host" / "cg" / "a", 700, 100)
    assert available(proc) == 600


@pytest.mark.parametrize(
    ("seen", "free"),
    [
        *(("/", 300), ("/docker/0a1b", 300), ("/docker/0a1b/gone", 300), ("/../sibling", 300)),
        ("/docker/0a1b/inner", 80),
    ],
)
def test_container_mount_is_the_enclosing_group(proc, tmp_path, seen, free):
    write_mounts(proc, [f"0::{seen}"], ("cgroup2", "/docker/0a1b", tmp_path / "cg", "rw"))
    write_group(tmp_path / "cg", 400, 100)
    write_group(tmp_path / "sibling", 5, 1)
    write_group(tmp_path / "cg" / "inner", 90, 10)
    assert available(proc) == free


def test_version_1_counts_only_its_memory_controller(proc, tmp_path):
    write_mounts(
        proc,
        ["5:cpu,cpuacct:/tight", "4:memory:/slurm/job", "1:name=systemd:/tight"],
        ("cgroup", "/", tmp_path / "cg" / "cpu", "rw,cpu,cpuacct"),
        ("cgroup", "/", tmp_path / "cg" / "memory", "rw,memory"),
    )
    write_group(tmp_path / "cg" / "cpu" / "tight", 1, 1, version=1)
    write_group(tmp_path / "cg" / "memory", NONE_V1, 3000, version=1)
    write_group(tmp_path / "cg" / "memory" / "slurm", 800, 500, cached=100, version=1)
    write_group(tmp_path / "cg" / "memory" / "slurm" / "job", NONE_V1, 200, version=1)
    assert available(proc) == 400


def test_version_1_reports_limits_of_groups_outside_a_container(proc, tmp_path):
    write_mounts(proc, ["4:memory:/"], ("cgroup", "/", tmp_path / "cg", "rw,memory"))
    write_group(tmp_path / "cg", NONE_V1, 100, cached=50, version=1)
    with (tmp_path / "cg" / "memory.stat").open("a") as statistics:
        statistics.write(f"hierarchical_memory_limit {700 * MB}\n")
    assert available(proc) == 650


@pytest.mark.parametrize(
    ("quota", "count"),
    [("max 100000", 8), ("150000 100000", 2), ("50000 100000", 1), ("900000 100000", 8), ("", 8)],
)
def test_cpu_quota_counts_in_processors(proc, tmp_path, monkeypatch, quota, count):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    write_mounts(
        proc,
        ["3:cpu,cpuacct:/one", "0::/two"],
        ("cgroup", "/", tmp_path / "cpu", "rw,cpu,cpuacct"),
        ("cgroup2", "/", tmp_path / "unified", "rw"),
    )
    for folder in (tmp_path / "cpu/one", tmp_path / "unified/two/inner"):
        folder.mkdir(parents=True)
    (tmp_path / "unified/two/cpu.max").write_text(f"{quota}\n")
    assert processor_count(proc, {}) == count
    (tmp_path / "unified/two/cpu.max").unlink()
    for name, value in zip(("quota", "period"), quota.replace("max", "-1").split(), strict=False):
        (tmp_path / f"cpu/one/cpu.cfs_{name}_us").write_text(f"{value}\n")
    assert processor_count(proc, {}) == count


@pytest.mark.parametrize(("granted", "count"), [("3", 3), ("99", 8), ("", 8), ("0", 8), ("x", 8)])
def test_cores_granted_by_slurm_count(proc, monkeypatch, granted, count):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert processor_count(proc, {"SLURM_CPUS_PER_TASK": granted}) == count


def test_both_versions_count_on_a_hybrid_machine(proc, tmp_path):
    write_mounts(
        proc,
        ["4:memory:/one", "0::/two"],
        ("cgroup", "/", tmp_path / "cg" / "memory", "rw,memory"),
        ("cgroup2", "/", tmp_path / "cg" / "unified", "rw"),
    )
    write_group(tmp_path / "cg" / "memory" / "one", 700, 100, version=1)
    assert available(proc) == 600
    write_group(tmp_path / "cg" / "unified" / "two", 300, 100)
    assert available(proc) == 200


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"SLURM_MEM_PER_NODE": "250"}, 150),
        ({"SLURM_MEM_PER_CPU": "125", "SLURM_CPUS_ON_NODE": "4"}, 400),
        ({"SLURM_MEM_PER_GPU": "300", "SLURM_GPUS_ON_NODE": "2"}, 500),
        ({"SLURM_MEM_PER_GPU": "300"}, 1000),
        ({"SLURM_MEM_PER_NODE": "0"}, 1000),
        ({"SLURM_MEM_PER_CPU": "125"}, 1000),
        ({"SLURM_MEM_PER_NODE": ""}, 1000),
    ],
)
def test_memory_granted_by_slurm_counts_less_the_process(proc, environment, expected):
    assert available(proc, **environment) == expected


@pytest.mark.parametrize(("name", "size"), [("RLIMIT_AS", "vms"), ("RLIMIT_DATA", "data")])
def test_shell_limit_counts(name, size):
    used = psutil.Process().memory_info()
    if not hasattr(used, size):
        pytest.skip("this system does not tell the size of the data segment")
    limit, taken = getattr(resource, name), getattr(used, size)
    before = resource.getrlimit(limit)
    resource.setrlimit(limit, (taken + 64 * MB, before[1]))
    try:
        available = available_memory(torch.device("cpu"))
    finally:
        resource.setrlimit(limit, before)
    assert 0 < available <= 64 * MB
    assert available_memory(torch.device("cpu")) > 64 * MB


def test_block_runs_with_its_threads_up_to_the_processors():
    before = torch.get_num_threads()
    with use_threads(1):
        assert torch.get_num_threads() == 1
    with use_threads(None):
        assert torch.get_num_threads() == before
    assert torch.get_num_threads() == before
    most = processor_count()
    with pytest.raises(UserError, match=f"threads={most + 1}: .*give at most {most}"):
        use_threads(most + 1).__enter__()


@pytest.mark.parametrize(
    ("vendor", "family", "flags", "faster"),
    [
        ("AuthenticAMD", 26, "avx2 avx512f", True),
        ("AuthenticAMD", 25, "avx2 avx512f", False),  # Zen 4, whose units have 256 bits
        ("AuthenticAMD", 26, "avx2", False),
        ("GenuineIntel", 26, "avx2 avx512f", False),
    ],
)
def test_onednn_is_faster_where_mkl_uses_half_of_a_unit(
    vendor, family, flags, faster, tmp_path, monkeypatch
):
    info = tmp_path / "cpuinfo"
    info.write_text(f"vendor_id\t: {vendor}\ncpu family\t: {family}\nflags\t: {flags}\n")
    monkeypatch.setattr(hardware, "CPUINFO", info)
    monkeypatch.setattr(hardware.platform, "system", lambda: "Linux")
    for library in (torch.backends.mkldnn, torch.backends.mkl):
        monkeypatch.setattr(library, "is_available", lambda: True)
    assert hardware.onednn_is_faster(torch.device("cpu")) == faster
    assert not hardware.onednn_is_faster(torch.device("cuda"))
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    assert not hardware.onednn_is_faster(torch.device("cpu"))


@pytest.mark.parametrize(
    ("flags", "bfloat16", "int8"),
    [
        ("flags\t\t: fpu avx2 avx512_bf16 avx512_vnni", True, True),
        ("flags\t\t: fpu avx2 avx_vnni", False, True),
        ("flags\t\t: fpu avx2 amx_bf16 amx_int8", True, True),
        ("flags\t\t: fpu avx2 avx512f", False, False),
        ("Features\t: fp asimd bf16 i8mm", True, False),
        ("", False, False),
    ],
)
def test_processor_flags_tell_its_units(flags, bfloat16, int8, tmp_path, monkeypatch):
    info, cpu = tmp_path / "cpuinfo", torch.device("cpu")
    info.write_text(f"processor\t: 0\n{flags}\nbogomips\t: 1\n{flags} avx512_vnni bf16\n")
    monkeypatch.setattr(hardware, "CPUINFO", info)
    monkeypatch.setattr(hardware.platform, "system", lambda: "Linux")
    if not flags:
        info.write_text("processor\t: 0\n")
    monkeypatch.setattr(hardware, "_integer_sums_are_exact", lambda: True)
    assert (hardware.has_fast_bfloat16(cpu), hardware.has_fast_int8(cpu)) == (bfloat16, int8)
    assert not hardware.has_fast_int8(torch.device("meta"))
    monkeypatch.setattr(hardware, "_integer_sums_are_exact", lambda: False)
    assert not hardware.has_fast_int8(cpu)
    monkeypatch.setattr(hardware, "_integer_sums_are_exact", lambda: True)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert not hardware.has_fast_int8(cpu)
    monkeypatch.setattr(hardware.platform, "system", lambda: "Darwin")
    assert not hardware.has_fast_bfloat16(cpu)
