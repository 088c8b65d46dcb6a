"""How many cores this process has: those it may run on, as far as its container may use their time.

Kubernetes and `docker --cpus` limit time, not cores. Libraries see all cores of the machine then, start a thread on
each, and the kernel stops all of them for the rest of every tenth of a second, once the time is used up.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
V1 = "cpu", "cpu,cpuacct"  # where its controller is mounted


def usable_cores() -> int:
    """Cores on which threads that work together are not stopped; 1 at least."""
    return core_limit() or len(os.sched_getaffinity(0))


def core_limit() -> int:
    """Cores whose time it has, 0 unless those are fewer than it may run on."""
    most = cores_of_time()
    return most if most < len(os.sched_getaffinity(0)) else 0


def cores_of_time(root: Path = ROOT, cgroups: Path = Path("/proc/self/cgroup")) -> int:
    """Whole cores of time that the control groups of this process leave it, 1 at least; 0 where there is no limit."""
    try:
        lines = cgroups.read_text().splitlines()
    except OSError:
        return 0
    limits = [limit for line in lines for limit in _limits(root, *line.split(":", 2)[1:])]
    return max(int(min(limits)), 1) if limits else 0


def _limits(root: Path, controllers: str, path: str) -> Iterator[float]:
    """Of one hierarchy: cores of time, of the group and of those that it is in."""
    if controllers and "cpu" not in controllers.split(","):
        return
    for mount in [root / each for each in V1] if controllers else [root]:
        inner = mount / path.lstrip("/")
        # A container may see its own group as the root of all, and be told the path that the host has for it.
        for folder in [inner, *inner.parents]:
            if folder == root.parent:
                break
            limit = _limit(folder)
            if limit:
                yield limit


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
