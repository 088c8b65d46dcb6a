"""Names in /dev/shm that say whose they are, and the removal of what the dead left there.

A name is genrec-<pid namespace>-<pid>-<start time>-<nonce>-...: a process that merely got the same pid, or
one of another container that shares /dev/shm, is not taken for the owner.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
from pathlib import Path

SHM = Path("/dev/shm")
NAME = re.compile(r"genrec-(?P<namespace>\d+)-(?P<pid>\d+)-(?P<started>\d+)-")
log = logging.getLogger("genrec.serve")


def own_prefix() -> str:
    """A new prefix for the files of one server started by this process."""
    return f"genrec-{_namespace()}-{os.getpid()}-{_started(os.getpid())}-{secrets.token_hex(4)}-"


def files_of(prefix: str) -> list[Path]:
    """What lies in /dev/shm under a prefix."""
    return sorted(SHM.glob(f"{prefix}*"))


def remove(prefix: str, keep: Path | None = None) -> None:
    """Unlink the files of a prefix, all but `keep`."""
    for path in files_of(prefix):
        if path != keep:
            path.unlink(missing_ok=True)


def remove_of_the_dead() -> list[str]:
    """Unlink files whose owner, a process of this pid namespace, is gone; returns their names."""
    removed = []
    for path in SHM.glob("genrec-*"):
        owner = NAME.match(path.name)
        if not owner or int(owner["namespace"]) != _namespace():
            continue
        if _started(int(owner["pid"])) != int(owner["started"]):
            try:
                path.unlink(missing_ok=True)
            except PermissionError:  # another user's
                continue
            removed.append(path.name)
    if removed:
        log.warning("removed %d files of servers that are gone from %s", len(removed), SHM)
    return removed


def _namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _started(pid: int) -> int:
    """Start time of a process in clock ticks since boot, 0 when there is none."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError):
        return 0
