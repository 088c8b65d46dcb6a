"""What a client is given that is no list of numbers, and no text: no server needed."""

from __future__ import annotations

import re
from typing import Any

import pytest

from clients import rank_wire, request, wire
from genrec.errors import InputError


class Unreadable:
    """A list that NumPy cannot read, as a tensor of a GPU, or of gradients."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __array__(self, *_: Any, **__: Any) -> None:
        raise self.error


@pytest.mark.parametrize("error", [TypeError("can't convert"), RuntimeError("use detach()")], ids=str)
def test_what_numpy_cannot_read_is_told_by_its_name(error: Exception) -> None:
    given = Unreadable(error)
    for field in ("history", "exclude", "only"):
        with pytest.raises(
            InputError, match=f"^{field}: is not one list of numbers: {re.escape(str(error))} "
        ):
            request.request_tensors(**{"history": [1], field: given})
    with pytest.raises(InputError, match=r"^candidates: is not one list of numbers: "):
        rank_wire.rank_tensors([1], given, 1, None, None, None)
    with pytest.raises(InputError, match=r"^scores: are not numbers: "):
        rank_wire.rank_tensors([1], [2], 1, given, None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("header", [b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01", 5, True], ids=str)
def test_a_traceparent_is_text(header: Any) -> None:
    """Not bytes, as a web server has headers."""
    with pytest.raises(InputError, match=r"^traceparent: is "):
        wire.headers_of(None, header)
