"""What a system cannot do, in the words that stand in its cell."""

from __future__ import annotations

from genrec.errors import GenrecError

LONGEST = 160  # characters of a cell


class Refusal(GenrecError):
    """A system does not do a cell. `limit`: it ran out of time or memory, so a larger cell need not be tried."""

    def __init__(self, reason: str, limit: bool = False) -> None:
        self.reason, self.limit = reason, limit
        super().__init__(reason)


def last_line(text: str) -> str:
    """The last line of an output that says something, cut to LONGEST characters."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[-1] if lines else "no output")[:LONGEST]
