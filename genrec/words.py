"""Numbers with their nouns, and commands as they are typed, for people."""

from __future__ import annotations

import shlex
from pathlib import Path


def counted(number: int, noun: str, many: str = "") -> str:
    """`1 item`, `2 items`; `many` is the plural where an s does not make it."""
    return f"{number} {noun if number == 1 else many or f'{noun}s'}"


def command(verb: str, artifact: Path, options: str = "") -> str:
    """`genrec train artifacts/mine --ranker`, with its backticks, of a verb and options."""
    return f"`genrec {verb} {shlex.quote(str(artifact))}{options and ' '}{options}`"
