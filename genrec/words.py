"""Numbers with their nouns, for people."""

from __future__ import annotations


def counted(number: int, noun: str, many: str = "") -> str:
    """`1 item`, `2 items`; `many` is the plural where an s does not make it."""
    return f"{number} {noun if number == 1 else many or f'{noun}s'}"
