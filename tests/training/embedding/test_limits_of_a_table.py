"""Where a table ends: look-ups beyond what is counted, more rows than there are numbers for, and none to keep."""

from __future__ import annotations

import numpy as np
import pytest

from genrec.errors import InputError
from tests.training.embedding.test_table import KINDS, random_ids
from training.embedding import table as tables
from training.embedding.arrays import LINE
from training.embedding.index import MAX_LOAD, Index
from training.embedding.kernels import Kernels
from training.embedding.table import DynamicTable, Rows

MOST = 2**32 - 1  # look-ups that a row counts


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_that_is_looked_up_more_often_than_is_counted_stays_the_last_to_go(kind: type[Kernels]) -> None:
    table, ids = DynamicTable(1, kernels=kind()), np.array([1, 2], np.int64)
    marks = np.array([[MOST - 2, 1], [MOST - 3, 1]], np.uint32)
    table.put(Rows(ids, np.zeros((2, 1), np.float32), np.zeros((2, 1), np.float32), marks))
    for stamp in (7, 8):
        table.rows_of(np.array([1, 1, 2, 1], np.int64), stamp)
    (part,) = table.export()
    assert part.marks.tolist() == [[MOST, 8], [MOST - 1, 8]]
    assert table.evict(1, "lfu").tolist() == [2]


def test_ids_beyond_the_most_rows_are_refused_and_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MOST_ROWS", 3)
    table = DynamicTable(1)
    table.rows_of(np.array([1, 2], np.int64))
    with pytest.raises(InputError, match=r"ids: would make 4 rows \(accepted: 3 rows in a table\)"):
        table.rows_of(np.array([3, 4], np.int64))
    assert len(table) == 2
    assert table.rows_of(np.array([3], np.int64)).tolist() == [2]


def test_all_rows_may_go_but_not_more() -> None:
    table = DynamicTable(1)
    table.rows_of(np.array([1, 2], np.int64))
    assert table.evict(2).tolist() == []
    with pytest.raises(InputError, match="evict: is 'lru' to -1 rows"):
        table.evict(-1)
    assert sorted(table.evict(0).tolist()) == [1, 2] and len(table) == 0


@pytest.mark.parametrize("room", [1, 6, 7, 12, 13, 1000, 6144, 6145])
def test_as_many_ids_as_there_is_room_for_fit_without_doubling(room: int) -> None:
    """And no more memory is taken than that needs."""
    table = DynamicTable(1, room=room)
    slots = table.index.lines.slots
    table.rows_of(np.arange(room))
    assert table.index.lines.slots == slots <= max(2 * room / MAX_LOAD, LINE)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_that_was_given_again_is_free_no_more(kind: type[Kernels]) -> None:
    """Or two ids would share it once others are removed."""
    index = Index(kind())
    for first in (0, 10, 20):
        rows, _ = index.insert(np.arange(first, first + 10))
        assert len(set(rows.tolist())) == 10
        index.remove(rows[:5])


@pytest.mark.parametrize("kind", KINDS)
def test_a_doubling_moves_every_id_once(kind: type[Kernels]) -> None:
    """However few lines go over at a time."""
    index, ids = Index(kind(), room=500), random_ids(2000)
    for each in np.split(ids, len(ids)):
        index.insert(each)
    assert np.array_equal(np.sort(index.items()[0]), ids)
