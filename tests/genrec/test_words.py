"""One of something is no plural."""

from __future__ import annotations

import pytest

from genrec.words import counted


@pytest.mark.parametrize(
    ("number", "nouns", "says"),
    [
        (1, ("item",), "1 item"), (0, ("item",), "0 items"), (2, ("item",), "2 items"),
        (1, ("entry", "entries"), "1 entry"), (3, ("entry", "entries"), "3 entries"),
    ],
)  # fmt: skip
def test_counted(number: int, nouns: tuple[str, ...], says: str) -> None:
    assert counted(number, *nouns) == says
