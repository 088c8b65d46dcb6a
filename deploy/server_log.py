"""The server's log, of bounded size whatever it writes: with no descriptor left Triton fills 46 MB of it a second."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

MOST = 16 << 20  # bytes, of which the last half is kept beside it when the file begins anew
BEFORE = ".1"  # ends the name of what was before


def rotate(log_file: Path) -> bool:
    """Begin the log anew when it is over its size; whether it was.

    The file is emptied, not renamed: the server appends to it without ever opening it again, and needs no one to read
    it, so it is never held up.
    """
    try:
        size = log_file.stat().st_size
    except FileNotFoundError:
        return False
    if size <= MOST:
        return False
    with log_file.open("rb") as log:
        log.seek(size - MOST // 2)
        tail = log.read(MOST // 2)
    os.truncate(log_file, 0)
    before = log_file.with_name(log_file.name + BEFORE)
    with (
        suppress(OSError),  # a full disk
        os.fdopen(os.open(before, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as kept,
    ):
        kept.write(tail)
    return True
