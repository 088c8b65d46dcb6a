"""How far a history agrees with an entry is found to the item, though the index knows one boundary in `EVERY`."""

import pytest

from genrec.pool.forget import forget
from genrec.pool.keys import owner_key
from genrec.pool.mapping import EVERY
from tests.pool.entries import STEP, find, write

SIZES = 1, EVERY - 1, EVERY, EVERY + 1, 2 * EVERY - 1, 2 * EVERY, 3 * EVERY + 5
OTHER = [99] * 30


@pytest.mark.parametrize("kept", SIZES)
def test_agreement_is_found_to_the_item(pool, kept):
    items = list(range(kept))
    write(pool, 7, items)
    for agree in range(kept + 1):
        for more in (0, 1, EVERY, 30):
            found = find(pool, 7, items[:agree] + OTHER[:more])
            assert found == ((agree * STEP, kept * STEP, 7) if agree else None)


@pytest.mark.parametrize("kept", SIZES)
@pytest.mark.parametrize("more", [1, EVERY - 1, EVERY, EVERY + 1])
def test_an_entry_leaves_for_a_longer_one_whatever_their_lengths(pool, kept, more):
    items = list(range(kept + more))
    write(pool, 7, items[:kept], fill=1)
    write(pool, 7, items, fill=2)
    assert pool.usage()["entries"] == 1
    assert find(pool, 7, items[:kept]) == (kept * STEP, len(items) * STEP, 2)


@pytest.mark.parametrize("kept", SIZES)
def test_of_an_entry_that_left_the_index_knows_nothing(pool, kept):
    write(pool, 7, list(range(kept)))
    places = pool._map.table.user_index[:, 2]
    assert 1 <= (places > 0).sum() <= 4 + kept // EVERY
    forget(pool, owner_key(pool.secret, 7))
    assert not places.any()


def test_histories_that_part_are_told_apart(pool):
    """The newest answers where both agree; each is found by its own end."""
    begun = list(range(EVERY))
    first, second = [*begun, 50, 51, 52], [*begun, 60, 61]
    write(pool, 7, first, fill=1)
    write(pool, 7, second, fill=2)
    assert find(pool, 7, first) == (len(first) * STEP, len(first) * STEP, 1)
    assert find(pool, 7, second) == (len(second) * STEP, len(second) * STEP, 2)
    assert find(pool, 7, begun) == (len(begun) * STEP, len(second) * STEP, 2)
