"""What a table of README or docs is made of: fields of saved results. One number per cell.

A path names a field of a result, as `arms/by tokens/highest_rate`; `*` is each entry of a table in turn. What is said
of figures has fields of their result in braces, so that it is true of whatever was saved: `{settings[artifact]}`, and
`{words[model]}` of what `words` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

MOCK = "31 M parameters"  # what is measured where no model is named
OF_PEERS = {"30m": MOCK, "100m": "101 M parameters"}
PEERS = {"openvino-genai": "OpenVINO GenAI"}


def words(settings: Mapping[str, Any]) -> dict[str, str]:
    """What settings come to that may say nothing."""
    model, items, models = settings.get("model"), settings.get("item_tokens"), settings.get("models") or ()
    peers = settings.get("peers") or ()
    users = f"users of {of}" if (of := settings.get("histories")) else f"shape of {settings.get('data')}"
    return {
        "artifact": settings.get("artifact") or MOCK,
        "data": users + (f" with items of {items} tokens" if items else ""),
        "model": f"in the paper's proportion, model {model}" if model else MOCK,
        "models": " and ".join(OF_PEERS.get(each, each) for each in models),
        "peers": PEERS.get(peers[0], peers[0]) if len(peers) == 1 else "the fastest peer",
        "seen": f"seen items {'kept' if settings.get('keep_seen') else 'removed'}",
    }


class Figure(NamedTuple):
    """One figure, of every machine that has the file `results/<machine>/<file>.json`."""

    what: str
    file: str
    path: str
    form: str = "{:.1f}"


class Column(NamedTuple):
    """A field of every row."""

    head: str
    path: str
    form: str = "{:.1f}"


class Table(NamedTuple):
    """A row for each entry of the dict or list at `entries`; a dict's keys are the first column, headed `name`.

    `about` is said above it.
    """

    file: str
    about: str
    entries: str
    columns: tuple[Column, ...]
    name: str = ""


class Grid(NamedTuple):
    """Entries of a list, laid out by what `row` and `column` say of them; an entry without `path` says why."""

    file: str
    about: str
    entries: str
    row: str
    column: str
    path: str
    form: str = "{:.1f}"
