"""Lists of names as people type them; without what a client alone has not, such as pyarrow."""

from __future__ import annotations

import csv
import io

from genrec.errors import InputError


def split_keys(text: str, field: str) -> list[str]:
    """Of a list: what is between commas, spaces before it left out; `"salt, pepper"` in quotes is one.

    Raises InputError.
    """
    try:
        return next(csv.reader([text], skipinitialspace=True, strict=True), [])
    except csv.Error as error:
        limit = 'keys with commas between, in "quotes" where they have commas'
        raise InputError(field, f"is {text!r}: {error}", limit) from error


def split_names(text: str, field: str) -> list[str]:
    """Of names of groups of items, likewise, without the spaces around them: no group has any. Raises InputError."""
    try:
        names = [name.strip() for name in split_keys(text, field)]
    except InputError:
        names = []
    if not names or not all(names):
        limit = 'names with commas between, in "quotes" where they have commas'
        raise InputError(field, f"is {text!r}"[:100], limit)
    return names


def as_typed(name: str) -> str:
    """A name as these take it in a list: in quotes where it has a comma or a quote."""
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow([name])
    return out.getvalue()
