"""The server's log, of bounded size whatever it writes: with no descriptor left Triton fills 46 MB of it a second."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from functools import cache
from pathlib import Path

MOST = 16 << 20  # bytes, of which the last half is kept beside it when the file begins anew
log = logging.getLogger("genrec.serve")
BEFORE = ".1"  # ends the name of what was before


def rotate(log_file: Path) -> bool:
    """Begin the log anew when it is over its size; whether it was. One that cannot be is told of once, and grows.

    The file is emptied, not renamed: the server appends to it without ever opening it again, and needs no one to read
    it, so it is never held up.
    """
    try:
        return _rotated(log_file)
    except FileNotFoundError:
        return False
    except OSError as error:
        _warn(f"the server's log {log_file} cannot begin anew: {error}")
        return False


def _rotated(log_file: Path) -> bool:
    size = log_file.stat().st_size
    if size <= MOST:
        return False
    before = log_file.with_name(log_file.name + BEFORE)
    with log_file.open("rb") as whole:
        whole.seek(size - MOST // 2)
        tail = whole.read(MOST // 2)
        kept = _keep(before, tail)  # first: whoever is killed in between has lost nothing
        late = whole.read(MOST // 2)  # what the server wrote meanwhile may be its last words
    os.truncate(log_file, 0)
    if not kept:  # a full disk, which has room now
        _keep(before, tail)
    _keep(before, late, os.O_APPEND)
    return True


def _keep(before: Path, text: bytes, how: int = os.O_TRUNC) -> bool:
    """Write what the log held; whether that could be done."""
    with suppress(OSError):
        with os.fdopen(os.open(before, os.O_WRONLY | os.O_CREAT | how, 0o600), "wb") as kept:
            kept.write(text)
        return True
    return False


@cache
def _warn(text: str) -> None:
    log.warning("%s", text)
