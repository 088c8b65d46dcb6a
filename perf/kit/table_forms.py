"""What a table of README or docs is made of: fields of saved results. One number per cell.

A path names a field of a result, as `arms/by tokens/highest_rate`; `*` is each entry of a table in turn.
"""

from __future__ import annotations

from typing import NamedTuple


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

    `about` is said above it, with the fields of the result in braces.
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
