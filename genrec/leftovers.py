"""Names in /dev/shm that say whose they are, and the removal of what the dead left there.

A name is genrec-<pid namespace>-<pid>-<start time>-<nonce>-...: a process that merely got the same pid, or
one of another container that shares /dev/shm, is not taken for the owner.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import shutil
from contextlib import suppress
from pathlib import Path

from genrec.process import lives, started

SHM = Path("/dev/shm")
SWAP = "swap"  # the folder of a server in which its processes agree on a catalogue version
NAME = re.compile(r"genrec-(?P<namespace>\d+)-(?P<pid>\d+)-(?P<started>\d+)-")
log = logging.getLogger("genrec.serve")


def own_prefix() -> str:
    """A new prefix for files of this process, or of one server that it starts."""
    return f"genrec-{_namespace()}-{os.getpid()}-{started(os.getpid())}-{secrets.token_hex(4)}-"


def files_of(prefix: str) -> list[Path]:
    """What lies in /dev/shm under a prefix."""
    return sorted(SHM.glob(f"{prefix}*"))


def remove(prefix: str) -> None:
    """Remove the files and folders of a prefix."""
    for path in filter(_is_mine, files_of(prefix)):
        _remove(path)


def close_to_others(prefix: str) -> None:
    """Take everybody else's rights from a prefix's files: Triton makes its regions 0644, whatever the umask."""
    for path in filter(_is_mine, files_of(prefix)):
        with suppress(FileNotFoundError):
            path.chmod(path.stat().st_mode & 0o700)


def of_the_living(suffix: str) -> list[Path]:
    """What ends with `suffix` and belongs to a living process of this pid namespace."""
    return [path for path, alive in _owned() if alive and path.name.endswith(suffix)]


def remove_of_the_dead() -> list[str]:
    """Remove what belongs to a process of this pid namespace that is gone; returns the names."""
    removed = []
    for path, alive in _owned():
        if not alive:
            _remove(path)
            removed.append(path.name)
    if removed:
        log.warning("removed %d files of processes that are gone from %s", len(removed), SHM)
    return removed


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)  # another may remove the same
    else:
        path.unlink(missing_ok=True)


def _owned() -> list[tuple[Path, bool]]:
    """Everything of owners in this pid namespace, and whether they live.

    Of this user alone: everyone may write to /dev/shm, and a name proves nothing.
    """
    found = []
    for path in sorted(SHM.glob("genrec-*")):
        owner = NAME.match(path.name)
        if owner and int(owner["namespace"]) == _namespace() and _is_mine(path):
            found.append((path, lives(int(owner["pid"]), int(owner["started"]))))
    return found


def _is_mine(path: Path) -> bool:
    try:
        return path.lstat().st_uid == os.geteuid()
    except FileNotFoundError:  # it went while we looked
        return False


def _namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino
