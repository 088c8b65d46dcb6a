"""A JSON object with a user or an item under every name: each is there once, which JSON itself does not ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from genrec.errors import InputError
from genrec.files import read_json


def read_each_once(path: Path, what: str, accepted: str) -> Any:
    """What the file holds. Raises ArtifactError, and InputError naming the first `what` that is there again."""
    again: str | None = None

    def noted(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal again
        found: dict[str, Any] = {}
        again = None  # of objects within: the outermost one is made last
        for name, value in pairs:
            if again is None and name in found:
                again = name
            found[name] = value
        return found

    read = read_json(path, noted)
    if again is not None:
        raise InputError(str(path), f"has the {what} {again!r} again", accepted)
    return read
