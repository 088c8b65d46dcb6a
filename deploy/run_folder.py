"""Where a server's log and its server.json lie: a folder that no other server has."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

from genrec.errors import InputError


def run_folder(named: Path | None) -> Path:
    """That folder, made if it is not there; a temporary one where nobody names one."""
    if named is None:
        return Path(tempfile.mkdtemp(prefix="genrec-run-"))
    named.mkdir(parents=True, exist_ok=True)
    return named.resolve()


def hold(folder: Path) -> int:
    """A descriptor that says, until it is closed, that a server runs in this folder. Raises InputError if one does."""
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(held)
        raise InputError("run_dir", f"is {folder}, where a server runs", "a folder of its own") from error
    return held
