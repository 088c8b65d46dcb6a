"""What a JSON file says, held against what is expected: an error names the file, the field and the problem."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from genrec.errors import ArtifactError, InputError

T = TypeVar("T")
WORDS = {
    int: "a whole number", float: "a number", bool: "true or false", str: "a text", dict: "an object",
    list: "a list", tuple: "a list",
}  # fmt: skip


def check_fields(said: Any, kinds: Mapping[str, Any], path: Path, within: str = "") -> dict[str, Any]:
    """`said`, where it is an object that has fields of these `kinds`; others too. `within` is the field that holds it,
    where it is not all of the file. Raises ArtifactError.
    """
    held = f"{within}: " if within else ""
    if not isinstance(said, dict):
        raise ArtifactError(path, f"{held}is {said!r}"[:100] + ", where an object is expected")
    for name, kind in kinds.items():
        accepted = _words(kind)
        if name not in said:
            raise ArtifactError(path, f"{held}{name}: is missing (accepted: {accepted})")
        if not _is(said[name], kind):
            raise ArtifactError(path, f"{held}{name}: is {said[name]!r}"[:200] + f" (accepted: {accepted})")
    return said


def made_of(kind: type[T], said: Any, path: Path, within: str = "") -> T:
    """A dataclass of an object with its fields and no other, those with a default where they are there.

    `within`: see `check_fields`. Raises ArtifactError.
    """
    hints, own = get_type_hints(kind), fields(kind)  # type: ignore[arg-type]
    given = check_fields(said, {}, path, within)
    wanted = [each for each in own if each.name in given or each.default is each.default_factory is MISSING]
    check_fields(given, {each.name: hints[each.name] for each in wanted}, path, within)
    if unknown := sorted(given.keys() - {each.name for each in own}):
        names = ", ".join(each.name for each in own)
        raise ArtifactError(path, f"{unknown[0]}: is no field of it (accepted: {names})")
    tuples = {name for name, hint in hints.items() if get_origin(hint) is tuple}
    try:
        return kind(**{name: tuple(value) if name in tuples else value for name, value in given.items()})
    except InputError as error:
        raise ArtifactError(path, str(error)) from error


def _is(value: Any, kind: Any) -> bool:
    whole, parts = get_origin(kind) or kind, get_args(kind)
    if whole in (list, tuple):
        return isinstance(value, list | tuple) and all(_is(each, parts[0]) for each in value if parts)
    return type(value) in (int, float) if whole is float else type(value) is whole


def _words(kind: Any) -> str:
    whole, parts = get_origin(kind) or kind, get_args(kind)
    of = f", each {WORDS[get_origin(parts[0]) or parts[0]]}" if whole in (list, tuple) and parts else ""
    return f"{WORDS[whole]}{of}"
