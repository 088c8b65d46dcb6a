"""How many a retrieval may find where a ranking follows."""

import numpy as np
import pytest

from genrec.errors import InputError
from genrec.rank.options import MOST_CANDIDATES, USUAL_CANDIDATES
from genrec.steps.encode_history import EncodeHistory


@pytest.mark.parametrize(("field", "most"), [("retrieve", MOST_CANDIDATES), ("top_k", 1024)])
def test_no_more_are_retrieved_than_are_ranked(field, most):
    step = object.__new__(EncodeHistory)
    step._width = 1024

    def asked(count):
        return step._top_k({field: np.array([[count]], np.int32)}, 5000)

    assert asked(most) == most
    with pytest.raises(
        InputError, match=rf"{field}: is {most + 1} \(accepted: 1 to {most}: the beam width is 1024"
    ):
        asked(most + 1)


@pytest.mark.parametrize(
    ("width", "items", "answered", "found"),
    [(1024, 5000, 10, USUAL_CANDIDATES), (128, 60, 10, 60), (16, 5000, 10, 16), (1024, 5000, 200, 200),
     (128, 5000, 200, 128), (1024, 5000, 1000, MOST_CANDIDATES), (128, 5000, 0, USUAL_CANDIDATES)],
)  # fmt: skip
def test_where_nobody_says_how_many_it_is_the_usual_number_as_far_as_there_are_so_many(
    width, items, answered, found
):
    step = object.__new__(EncodeHistory)
    step._width = width
    assert step._top_k({"rank_top_k": np.array([[answered]], np.int32)}, items) == found


def test_a_number_that_is_missing_is_named():
    step = object.__new__(EncodeHistory)
    step._width = 16
    with pytest.raises(InputError, match="top_k: is missing"):
        step._top_k({}, 60)
    with pytest.raises(InputError, match="top_k: is of type int64"):
        step._top_k({"rank_top_k": np.array([[4]])}, 60)
