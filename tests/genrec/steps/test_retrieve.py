"""How many a retrieval may find where a ranking follows."""

import numpy as np
import pytest

from genrec.errors import InputError
from genrec.rank.options import MOST_CANDIDATES
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
