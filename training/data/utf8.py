"""What a file that cannot be read is told by: text that is not UTF-8 by its line, else what its reader says."""

from __future__ import annotations

from codecs import getincrementaldecoder
from contextlib import suppress
from pathlib import Path

from genrec.errors import InputError

PART = 1 << 20  # bytes that are read at a time


def unreadable(path: Path, problem: str, accepted: str) -> InputError:
    """The error of a file of text whose reader found a `problem`."""
    if found := _not_utf8(path):
        return InputError(str(path), found, f"{accepted}, text in UTF-8")
    return InputError(str(path), problem, accepted)


def _not_utf8(path: Path) -> str:
    """Where a text is not UTF-8; "" where all of it is, or it cannot be read at all.

    A file of one line alone is not held in memory either.
    """
    decoder = getincrementaldecoder("utf-8")()
    number, column = 1, 0  # of the last byte that was read
    with suppress(OSError), path.open("rb") as file:
        while True:
            part = file.read(PART)
            held = decoder.getstate()[0]  # the beginning of a character: bytes of the same line
            try:
                decoder.decode(part, final=not part)
            except UnicodeDecodeError as error:
                lines = (held + part)[: error.start].split(b"\n")
                column = len(lines[-1]) + (column - len(held) if len(lines) == 1 else 0)
                at = f"byte {column + 1} of line {number + len(lines) - 1} is 0x{(held + part)[error.start]:02x}"
                return f"is text that is not UTF-8: {at}"
            if not part:
                break
            lines = part.split(b"\n")
            number, column = number + len(lines) - 1, len(lines[-1]) + (column if len(lines) == 1 else 0)
    return ""
