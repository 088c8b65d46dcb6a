"""A request as tensors. The signatures are in docs/contracts.md; every tensor has Triton's leading batch axis of 1."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clients.errors import BadRequest
from genrec.catalogue.group_number import group_number, unknown_group
from genrec.errors import GenrecError, InputError
from genrec.settings import MOST_VALUES

GroupNames = Iterable[str] | Iterable[int]
SHOWN = 100  # characters of what is no group's name
# What NumPy raises where it makes no array of numbers; the last of tensors that are a GPU's, or have gradients
UNREADABLE = (ValueError, OverflowError, TypeError, RuntimeError)


def request_tensors(
    history: ArrayLike | None,
    top_k: int = 10,
    *,
    user_id: int | None = None,
    deadline_ms: int | None = None,
    exclude_history: bool = False,
    exclude: ArrayLike | None = None,
    only: ArrayLike | None = None,
    exclude_groups: GroupNames | None = None,
    only_groups: GroupNames | None = None,
) -> dict[str, NDArray[Any]]:
    """The request as tensors, each [1, n]. Raises InputError for what the tensor types cannot hold.

    What a deployment accepts beyond that (largest top_k, ...) only the server knows. `exclude_history` is
    always sent: Triton batches requests with the same set of inputs only.
    """
    tensors: dict[str, NDArray[Any]] = {
        **user_tensors(history, user_id),
        "top_k": integer("top_k", top_k, np.int32),
        "exclude_history": np.array([[_flag(exclude_history)]]),
    }
    if deadline_ms is not None:
        tensors["deadline_ms"] = integer("deadline_ms", deadline_ms, np.int32)
    for name, items in (("exclude", exclude), ("only", only)):
        if items is not None:
            tensors[name] = whole_numbers(name, items)
    for name, groups in (("exclude_groups", exclude_groups), ("only_groups", only_groups)):
        if groups is not None:
            tensors[name] = whole_numbers(name, _group_numbers(name, groups))
    return tensors


def user_tensors(history: ArrayLike | None, user_id: int | None) -> dict[str, NDArray[Any]]:
    """What a user did, and who he is, each [1, n]: one of both at least. Raises InputError."""
    if history is None and user_id is None:
        limit = "item ids, or the user_id of one whose history the server has"
        raise InputError("history", "is None, and user_id too", limit)
    tensors = {} if history is None else {"history": whole_numbers("history", history)}
    if user_id is not None:
        tensors["user_id"] = integer("user_id", user_id, np.int64)
    return tensors


def whole_numbers(
    field: str, values: ArrayLike, dtype: type[np.signedinteger[Any]] = np.int64
) -> NDArray[Any]:
    """A list, of item ids say, as dtype[1, n]. Raises InputError."""
    accepted = f"a sequence of whole numbers, {_range(dtype)}"
    try:
        items = np.asarray(values)
    except UNREADABLE as error:
        raise InputError(field, f"is not one list of numbers: {error}", accepted) from error
    if items.ndim != 1:
        raise InputError(field, f"has {items.ndim} dimensions", "1: a request holds one list")
    if len(items) > MOST_VALUES:
        raise InputError(field, f"has {len(items)} items", f"at most {MOST_VALUES}")
    if items.dtype.kind in "fO":  # what NumPy makes of whole numbers of more than 64 bits
        for value in values if isinstance(values, Iterable) else ():
            if isinstance(value, int) and not -(2**63) <= value < 2**63:
                raise InputError(field, f"holds {value}", accepted)
    if len(items) and items.dtype.kind not in "iu":
        raise InputError(field, f"holds values of type {items.dtype}", accepted)
    # Beside a number NumPy takes True for 1
    if isinstance(values, list | tuple) and not {bool, np.bool_}.isdisjoint(map(type, values)):
        raise InputError(field, "holds values of type bool", accepted)
    for value in (int(items.min()), int(items.max())) if len(items) else ():
        if not np.iinfo(dtype).min <= value <= np.iinfo(dtype).max:
            raise InputError(field, f"holds {value}", accepted)
    return items.astype(dtype)[None]


def integer(field: str, value: int, dtype: type[np.signedinteger[Any]]) -> NDArray[Any]:
    """A whole number as dtype[1, 1]. Raises InputError."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or not np.iinfo(dtype).min <= int(value) <= np.iinfo(dtype).max:
        raise InputError(field, f"is {value!r}", f"a whole number, {_range(dtype)}")
    return np.array([[value]], dtype)


def _group_numbers(field: str, groups: GroupNames) -> list[int]:
    """Of names and whole numbers the numbers. Raises InputError."""
    accepted = "a list of names, or of whole numbers"
    try:
        given = None if isinstance(groups, str | bytes | bytearray | Mapping) else list(groups)
    except TypeError:  # a number, or an array that is one
        given = None
    if given is None:
        raise InputError(field, f"is {groups!r}"[:SHOWN], accepted)
    for each in given:
        if not isinstance(each, str | int | np.integer) or isinstance(each, bool):
            raise InputError(field, f"holds {each!r}"[:SHOWN], accepted)
    return [group_number(each if isinstance(each, str) else int(each)) for each in given]


def by_name(error: GenrecError, *asked: GroupNames | None) -> GenrecError:
    """The error of a request for groups, with the name that was asked for in the place of its number: a server knows no
    other. Names of an iterator are gone by now, and an error about one keeps the number.
    """
    if not isinstance(error, InputError):
        return error
    for name in (each for groups in asked if groups is not None for each in groups):
        if isinstance(name, str) and error.problem == unknown_group(group_number(name)):
            told = InputError(error.field, unknown_group(repr(str(name))[:SHOWN]), error.limit)
            return BadRequest(str(told)) if isinstance(error, BadRequest) else told
    return error


def _flag(exclude_history: bool) -> bool:
    if not isinstance(exclude_history, bool | np.bool_):
        raise InputError("exclude_history", f"is {exclude_history!r}", "True or False")
    return bool(exclude_history)


def _range(dtype: type[np.signedinteger[Any]]) -> str:
    return f"{np.iinfo(dtype).min} to {np.iinfo(dtype).max}"
