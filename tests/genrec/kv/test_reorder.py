import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genrec.errors import InputError
from genrec.kv.reorder import reorder_in_place

DTYPES = (np.uint8, np.uint16, np.float32, np.int64, np.float16)


@settings(deadline=None)  # the first example compiles
@given(
    st.integers(1, 40).flatmap(
        lambda r: st.tuples(st.just(r), st.lists(st.integers(0, r - 1), max_size=r).map(sorted))
    ),
    st.integers(1, 17),
    st.sampled_from(DTYPES),
)
def test_equals_a_gather(case, width, dtype):
    count, source = case
    rows = np.arange(count * width).reshape(count, width).astype(dtype)
    want = rows.copy()
    want[: len(source)] = rows[source]
    written = reorder_in_place(rows, np.array(source, np.int32))
    np.testing.assert_array_equal(rows, want)
    assert written == sum(i != s for i, s in enumerate(source))


def test_beams_that_grow():
    rows = np.zeros((6, 3), np.float32)
    rows[:2] = [[1, 2, 3], [4, 5, 6]]
    reorder_in_place(rows, np.array([0, 0, 1, 1, 1, 1]))
    assert rows[:, 0].tolist() == [1, 1, 4, 4, 4, 4]


@pytest.mark.parametrize("direction", [1, -1])
def test_one_order_alone_is_wrong(direction):
    """Why direct indices are needed: source has rows that move up and rows that move down."""
    source = [0, 0, 1, 4, 5, 5]
    rows = np.arange(6).reshape(6, 1)
    naive = rows.copy()
    for i in range(6)[::direction]:
        naive[i] = naive[source[i]]
    assert naive[:, 0].tolist() != source
    reorder_in_place(rows, source)
    assert rows[:, 0].tolist() == source


def test_a_view_into_a_mapped_buffer():
    """Rows that begin at an odd byte, next to bytes that belong to others."""
    buffer = np.full(1 + 4 * 5 + 3, 7, np.uint8)
    rows = buffer[1:21].reshape(4, 5)
    rows[:] = np.arange(4)[:, None]
    reorder_in_place(rows, [1, 1, 3])
    assert rows[:, 0].tolist() == [1, 1, 3, 3]
    assert buffer[0] == 7 and (buffer[21:] == 7).all()
    words = np.arange(24, dtype=np.uint8)[4:20].reshape(2, 8)  # whole words, but not at a word's address
    reorder_in_place(words, [1, 1])
    assert words[0].tolist() == words[1].tolist() == list(range(12, 20))


def test_what_is_refused_leaves_the_rows_alone():
    rows = np.arange(12).reshape(4, 3)
    before = rows.copy()
    for source in ([1, 0], [-1, 0], [0, 4], [0] * 5, [[0]], [0.0], [2**40]):
        with pytest.raises(InputError, match="source"):
            reorder_in_place(rows, source)
    frozen = rows.copy()
    frozen.flags.writeable = False
    unfit = [
        (rows[:, :2], "not C-contig"),
        (rows.T, "not C-contig"),
        (rows[0], r"shape \[3\]"),
        (frozen, "read-only"),
    ]
    for bad, problem in unfit:
        with pytest.raises(InputError, match=f"rows: .*{problem}"):
            reorder_in_place(bad, [0])
    np.testing.assert_array_equal(rows, before)
    assert reorder_in_place(rows, []) == 0 and reorder_in_place(np.empty((3, 0)), [0, 0]) == 0
