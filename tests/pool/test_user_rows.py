"""What is looked for in all rows at once equals what numpy says of them, whatever the table holds."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from genrec.pool import user_rows
from genrec.pool.mapping import ENTRY_WORDS
from genrec.pool.user_rows import (
    EXPIRES,
    FREE,
    GENERATION,
    KEY,
    KEY_2,
    LEAVING,
    OWNER,
    OWNER_2,
    READY,
    SEEN,
    SPAN,
    STATE,
    WRITER,
    WRITING,
)

PROCESSES, NOW = 4, 5


@st.composite
def tables(draw):
    """Entries in any state, with keys, writers and ends that meet by chance, and who reads them."""
    count = draw(st.integers(0, 12))
    seed = draw(st.integers(0, 2**32 - 1))
    draws = np.random.default_rng(seed)
    rows = np.zeros((count, ENTRY_WORDS), np.int64)
    rows[:, STATE] = draws.integers(0, 4, count)
    rows[:, [KEY, KEY_2]] = draws.integers(0, 2, (count, 2))
    # A damaged table names processes that there are not
    rows[:, WRITER] = draws.integers(-1, PROCESSES + 1, count)
    rows[:, EXPIRES] = draws.integers(NOW - 2, NOW + 3, count)
    rows[:, [SEEN, SPAN, OWNER, OWNER_2]] = draws.integers(0, 9, (count, 4))
    pins = draws.integers(0, 2, (count, PROCESSES)) * draws.integers(0, 2, (count, 1))
    return rows, pins.astype(np.int16), draws.integers(0, 2, PROCESSES).astype(bool)


@settings(max_examples=200, deadline=None)
@given(tables())
def test_equals_numpy(table):
    rows, pins, dead = table
    state, read = rows[:, STATE], pins.any(1)
    used = np.flatnonzero(state != FREE)
    assert user_rows.used(rows).tolist() == used.tolist()
    assert user_rows.first_free(rows) == next(iter(np.flatnonzero(state == FREE)), -1)
    may = np.flatnonzero(((state == READY) & ~read)[used])
    his = rows[used[may]]
    standing = user_rows.standing(rows, pins, used, NOW)
    wanted = may, (NOW - his[:, SEEN]) / 1e9, his[:, SPAN], his[:, [OWNER, OWNER_2]]
    assert [column.tolist() for column in standing] == [column.tolist() for column in wanted]
    living = np.isin(state, (WRITING, READY))
    for key in ((0, 0), (0, 1), (1, 1), (2, 0)):
        assert user_rows.known(rows, *key) == bool((living & (rows[:, [KEY, KEY_2]] == key).all(1)).any())
    over = (
        ((state == WRITING) & np.isin(rows[:, WRITER], np.flatnonzero(dead)))
        | ((state == READY) & (rows[:, EXPIRES] <= NOW))
        | ((state == LEAVING) & ~read)
    )
    assert user_rows.over(rows, pins, dead, NOW).tolist() == np.flatnonzero(over).tolist()


def test_who_reads_an_entry_no_more_takes_nothing_from_another_in_its_place():
    rows, pins = np.zeros((1, ENTRY_WORDS), np.int64), np.zeros((1, PROCESSES), np.int16)
    rows[0, [STATE, GENERATION]], pins[0, 1] = (LEAVING, 5), 2
    assert not user_rows.unpin(rows, pins, 0, 4, 1) and not user_rows.unpin(rows, pins, 0, 5, 0)
    assert pins.tolist() == [[0, 2, 0, 0]], "an older entry's reader, and one who had none"
    assert not user_rows.unpin(rows, pins, 0, 5, 1) and user_rows.unpin(rows, pins, 0, 5, 1)
    assert not pins.any(), "the last one of an entry that leaves frees it"
