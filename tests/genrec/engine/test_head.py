"""What turns states of a ranker into scores, against its sum written out."""

import numpy as np
import pytest

from genrec.rank.head import RankerHead


@pytest.mark.parametrize(("items", "levels", "hidden"), [(0, 3, 8), (1, 1, 8), (25, 3, 384), (7, 4, 33)])
def test_a_score_is_the_state_times_the_sum_of_its_rows(items, levels, hidden):
    draw = np.random.default_rng(0)
    rows = draw.standard_normal((50, hidden)).astype(np.float32)
    states = draw.standard_normal((items, hidden)).astype(np.float32)
    codes = draw.integers(0, 50, (items, levels)).astype(np.int32)
    wanted = (states * rows.astype(np.float64)[codes].sum(1)).sum(1)
    np.testing.assert_allclose(RankerHead(rows).scores(states, codes), wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("token", [-1, 50])
def test_a_token_without_a_row_is_refused(token):
    head = RankerHead(np.ones((50, 8), np.float32))
    with pytest.raises(IndexError, match="without a row"):
        head.scores(np.ones((1, 8), np.float32), np.array([[3, token]], np.int32))
