"""How many cores this process has: those it may run on, as far as its container may use their time; and its memory.

Kubernetes and `docker --cpus` limit time, not cores. Libraries see all cores of the machine then, start a thread on
each, and the kernel stops all of them for the rest of every tenth of a second, once the time is used up.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
V1 = "cpu", "cpu,cpuacct"  # where its controller is mounted
PROC = Path("/proc/self/cgroup")
FILES = "inactive_file", "active_file"  # bytes of files that may be dropped; /dev/shm's are not among them


def usable_cores() -> int:
    """Cores on which threads that work together are not stopped; 1 at least."""
    return core_limit() or len(os.sched_getaffinity(0))


def core_limit() -> int:
    """Cores whose time it has, 0 unless those are fewer than it may run on."""
    most = cores_of_time()
    return most if most < len(os.sched_getaffinity(0)) else 0


def cores_of_time(root: Path = ROOT, cgroups: Path = PROC) -> int:
    """Whole cores of time that the control groups of this process leave it, 1 at least; 0 where there is no limit."""
    limits = [limit for folder in _groups("cpu", V1, root, cgroups) if (limit := _limit(folder))]
    return max(int(min(limits)), 1) if limits else 0


def memory_left(root: Path = ROOT, cgroups: Path = PROC) -> int:
    """Bytes that the control groups of this process leave it: with more its processes are killed. Where there is no
    limit, more than any machine has.
    """
    return min(map(_memory_left, _groups("memory", ("memory",), root, cgroups)), default=sys.maxsize)


def _groups(controller: str, mounts: tuple[str, ...], root: Path, cgroups: Path) -> Iterator[Path]:
    """The group of this process and those that it is in, of each hierarchy that may have the controller."""
    try:
        lines = cgroups.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        controllers, path = line.split(":", 2)[1:]
        if controllers and controller not in controllers.split(","):
            continue
        for mount in [root / each for each in mounts] if controllers else [root]:
            inner = mount / path.lstrip("/")
            # A container may see its own group as the root of all, and be told the path that the host has for it.
            for folder in [inner, *inner.parents]:
                if folder == root.parent:
                    break
                yield folder


def _limit(folder: Path) -> float:
    """Cores of time, 0 for all of it: `cpu.max` of version 2, or version 1's pair of files."""
    try:
        if (both := folder / "cpu.max").exists():
            quota, period = both.read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{each}_us").read_text() for each in ("quota", "period"))
        return max(int(quota) / int(period), 0.0)
    except (OSError, ValueError):  # no such file, or "max"
        return 0.0


def _memory_left(folder: Path) -> int:
    """Of one group: `memory.max` of version 2, or version 1's file."""
    second = (folder / "memory.max").exists()
    try:
        names = ("max", "current") if second else ("limit_in_bytes", "usage_in_bytes")
        limit, used = (int((folder / f"memory.{name}").read_text()) for name in names)
        of = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        # Of version 1 those of the groups within are in the total alone.
        files = sum(int(of.get(f"total_{name}", of[name])) for name in FILES)
        return max(limit - used + files, 0)
    except (OSError, ValueError, KeyError):  # no such file, or "max"
        return sys.maxsize
