"""Items as recommenders on language models publish them: JSON {item: {"title": ..., ...}}."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from genrec.errors import ArtifactError, InputError
from training.data.json_object import read_each_once
from training.data.utf8 import unreadable

# Of an item, the first that it has
CATEGORY = ("categories", "category", "genres", "genre", "class")
ACCEPTED = 'JSON {item: {"title": "..."}, ...}'


def read_json_items(path: Path) -> pa.Table:
    """Columns item, title and category, all strings, empty where an item has none. Raises InputError."""
    try:
        items = read_each_once(path, "item", ACCEPTED)
    except ArtifactError as error:
        raise unreadable(path, error.problem, ACCEPTED) from error
    if not isinstance(items, dict):
        raise InputError(str(path), "is no object with an item under every name", ACCEPTED)
    columns: dict[str, list[str]] = {"item": list(items), "title": [], "category": []}
    for item, facts in items.items():
        if not isinstance(facts, dict):
            raise InputError(f"{path}, item {item!r}", f"is {facts!r}", ACCEPTED)
        columns["title"].append(_text(facts.get("title")))
        columns["category"].append(_text(next((facts[name] for name in CATEGORY if name in facts), None)))
        try:
            "".join((item, columns["title"][-1], columns["category"][-1])).encode()
        except UnicodeEncodeError as error:
            raise InputError(f"{path}, item {item!r}", f"is no text: {error}", ACCEPTED) from error
    return pa.table(columns)


def _text(value: object) -> str:
    """Of a list, as several categories are, what is in it with | between, as tables have it."""
    if isinstance(value, list):
        return "|".join(filter(None, map(_text, value)))
    return "" if value is None else str(value)
