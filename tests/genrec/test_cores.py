"""Cores and memory that a container's limits leave: by files as both versions of control groups have them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from genrec import cores
from genrec.cores import ROOT, V1, core_limit, cores_of_time, memory_left, usable_cores


def of_files(folder: Path, cgroups: str, **files: str) -> int:
    """The limit, where /proc/self/cgroup says `cgroups`; a file's name is its path, with __ for a slash."""
    for name, text in files.items():
        place = name.replace("__", "/").replace("cfs", "cpu.cfs").replace("max", "cpu.max")
        path = folder / "fs" / "cgroup" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    (folder / "cgroups").write_text(cgroups)
    return cores_of_time(folder / "fs" / "cgroup", folder / "cgroups")


@pytest.mark.parametrize(
    ("quota", "want"),
    [
        ("max 100000", 0),
        ("200000 100000", 2),
        ("250000 100000", 2),
        ("50000 100000", 1),
        ("15000 5000", 3),
        ("", 0),
    ],
)
def test_the_second_version_s_limit_is_whole_cores(tmp_path: Path, quota: str, want: int) -> None:
    assert of_files(tmp_path, "0::/pod\n", pod__max=quota) == want


def test_the_narrowest_of_the_groups_that_hold_it_counts(tmp_path: Path) -> None:
    files = {"max": "800000 100000", "pods__max": "300000 100000", "pods__one__max": "max 100000"}
    assert of_files(tmp_path, "0::/pods/one\n", **files) == 3


def test_a_container_that_is_told_its_path_of_the_host_finds_its_own_limit(tmp_path: Path) -> None:
    assert of_files(tmp_path, "0::/kubepods/burstable/pod7\n", max="400000 100000") == 4


def test_a_group_s_name_may_have_colons(tmp_path: Path) -> None:
    """As systemd's slices of containerd have."""
    name = "pods.slice:cri-containerd:7"
    assert of_files(tmp_path, f"0::/{name}\n", **{f"{name}__max": "200000 100000"}) == 2


@pytest.mark.parametrize("mount", V1)
def test_the_first_version_s_limit(tmp_path: Path, mount: str) -> None:
    files = {f"{mount}__a__cfs_quota_us": "150000", f"{mount}__a__cfs_period_us": "50000"}
    of_others = {name.replace("__a__", "__other__"): "50000" for name in files}
    cgroups = "12:memory:/other\n3:cpu,cpuacct:/a\n1:name=systemd:/a\n0::/\n"
    assert of_files(tmp_path, cgroups, **files, **of_others) == 3
    assert of_files(tmp_path, cgroups, **files | {f"{mount}__a__cfs_quota_us": "-1"}) == 0


def test_where_nothing_is_said_there_is_no_limit(tmp_path: Path) -> None:
    assert of_files(tmp_path, "") == 0
    assert cores_of_time(tmp_path, tmp_path / "there-is-no-proc") == 0


def group(folder: Path, **files: str) -> None:
    """A control group of memory, with 20 of its 60 bytes in files; `stat` ends so."""
    files = {"stat": "anon 40\ninactive_file 15\nactive_file 5\n", **files}
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / f"memory.{name}").write_text(text)


@pytest.mark.parametrize(
    ("limit", "inner", "left"),
    [("100", "max", 60), ("100", "90", 50), ("max", "max", sys.maxsize), ("30", "max", 0)],
)
def test_memory_that_the_second_version_s_limits_leave(
    tmp_path: Path, limit: str, inner: str, left: int
) -> None:
    """Files that were read may be dropped. The narrowest of the groups counts."""
    group(tmp_path / "fs" / "cgroup", max=limit, current="60")
    group(tmp_path / "fs" / "cgroup" / "pod", max=inner, current="60")
    (tmp_path / "cgroups").write_text("0::/pod\n")
    assert memory_left(tmp_path / "fs" / "cgroup", tmp_path / "cgroups") == left


def test_memory_that_the_first_version_s_limit_leaves(tmp_path: Path) -> None:
    """Which counts files of the groups within in totals alone."""
    stat = "inactive_file 0\nactive_file 0\ntotal_inactive_file 15\ntotal_active_file 5\n"
    group(tmp_path / "fs" / "cgroup" / "memory" / "pod", limit_in_bytes="100", usage_in_bytes="60", stat=stat)
    (tmp_path / "cgroups").write_text("9:cpu:/\n4:memory:/pod\n0::/\n")
    assert memory_left(tmp_path / "fs" / "cgroup", tmp_path / "cgroups") == 60
    assert memory_left(tmp_path, tmp_path / "there-is-no-proc") == sys.maxsize


@pytest.mark.parametrize(("time", "limit", "usable"), [(0, 0, 4), (3, 3, 3), (4, 0, 4), (9, 0, 4)])
def test_time_of_more_cores_than_it_may_run_on_is_no_limit(
    monkeypatch: pytest.MonkeyPatch, time: int, limit: int, usable: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    monkeypatch.setattr(cores, "cores_of_time", lambda: time)
    assert (core_limit(), usable_cores()) == (limit, usable)


@pytest.fixture
def one_core_of_time() -> Iterator[Path]:
    """A group of the kernel's with one core's time, where this process may make one."""
    mount = next((ROOT / each for each in V1 if (ROOT / each / "cgroup.procs").exists()), ROOT)
    group = mount / f"genrec-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    try:
        if mount == ROOT:
            (group / "cpu.max").write_text("100000 100000")
        else:
            (group / "cpu.cfs_quota_us").write_text("100000")
        yield group
    except OSError as error:
        pytest.skip(f"this control group limits no CPU time: {error}")
    finally:
        group.rmdir()


ASK = """
import os, sys
from pathlib import Path
Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
sys.argv = ["genrec", "--version"]
from genrec.__main__ import main
try:
    main()
finally:
    import numba, torch
    from genrec.cores import usable_cores
    print(usable_cores(), os.environ["OMP_NUM_THREADS"], torch.get_num_threads(), numba.get_num_threads())
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="one core is all there is")
def test_a_command_in_a_limited_group_starts_no_more_threads(one_core_of_time: Path) -> None:
    said = subprocess.run(
        [sys.executable, "-c", ASK, str(one_core_of_time)], capture_output=True, text=True, check=True,
        env={name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")},
    )  # fmt: skip
    assert said.stdout.splitlines()[-1] == "1 1 1 1"
