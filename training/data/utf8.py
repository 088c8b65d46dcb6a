"""What a file that cannot be read is told by: text that is not UTF-8 by its line, else what its reader says."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from genrec.errors import InputError


def unreadable(path: Path, problem: str, accepted: str) -> InputError:
    """The error of a file of text whose reader found a `problem`."""
    if found := _not_utf8(path):
        return InputError(str(path), found, f"{accepted}, text in UTF-8")
    return InputError(str(path), problem, accepted)


def _not_utf8(path: Path) -> str:
    """Where a text is not UTF-8; "" where all of it is, or it cannot be read at all."""
    with suppress(OSError), path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                at = f"byte {error.start + 1} of line {number} is 0x{line[error.start]:02x}"
                return f"is text that is not UTF-8: {at}"
    return ""
