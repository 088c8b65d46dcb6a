"""What of a history is found, beside what a look at all entries finds, whoever leaves."""

from __future__ import annotations

import random

import numpy as np
import pytest

from genrec.pool import lead
from genrec.pool.forget import forget
from genrec.pool.keys import owner_key
from genrec.pool.mapping import EVERY
from genrec.pool.user_rows import BOUNDARIES, EXPIRES, READY, START, STATE
from tests.pool.entries import STEP, find, hashes, write

ITEMS = 3  # so few that histories begin alike


def test_who_began_alike_is_found_when_a_newer_one_has_left(pool, clock):
    for newest in (1, 2):
        clock.go(1)
        assert write(pool, 7, [1, 2, 3, newest], 3000, fill=newest)
    find(pool, 7, [1, 2, 3, 1])
    assert find(pool, 7, [1, 2, 3, 9]) == (9, 12, 2)
    clock.go(1)
    assert find(pool, 7, [1, 2, 3, 1]) == (12, 12, 1)
    assert write(pool, 8, [5], 5000)  # in place of the one that was used least recently
    assert find(pool, 7, [1, 2, 3, 2]) == (9, 12, 1)
    assert find(pool, 7, [1, 2, 3, 1, 4]) == (12, 12, 1), "who comes again with one item more"


def indexed(boundary, last):
    return boundary % EVERY == 0 or boundary == last or boundary & (boundary - 1) == 0


def may_be_found(pool, asked):
    """Tokens of what agrees at the highest boundary that the index has of both: none where nothing does."""
    agreements, last = [], len(asked) - 1
    for row in pool._map.table.entries:
        if row[STATE] == READY and row[EXPIRES] > pool.clock():
            start, count = row[START] + 8 * lead.FIRST_HASH, row[BOUNDARIES]
            own = pool._map.users[start : start + 16 * count].view(np.uint64).reshape(-1, 2)
            pairs = zip(own.tolist(), asked.tolist(), strict=False)
            agreed = sum(one == other for one, other in pairs) - 1
            known = [b for b in range(1, agreed + 1) if indexed(b, last) and indexed(b, count - 1)]
            agreements.append((max(known, default=0), agreed))
    highest = max((known for known, _ in agreements), default=0)
    return {agreed * STEP for known, agreed in agreements if known == highest} if highest else {0}


@pytest.mark.parametrize("seed", range(12))
def test_what_agrees_as_far_as_the_index_knows_is_found_whoever_leaves(pool, clock, seed):
    drawn, sizes = random.Random(seed), set()

    def history():
        return [drawn.randrange(ITEMS) for _ in range(drawn.randint(1, 12))]

    held = []
    for _ in range(150):
        clock.go(drawn.choice((1, 1, 1, 90)))
        user = drawn.choice((1, 1, None))
        asked = hashes(pool, user, history())
        writing = pool.write_user(
            asked, STEP * (len(asked) - 1), drawn.randint(500, 3000), owner_key(pool.secret, user)
        )
        if writing:
            pool.commit(writing, drawn.choice((np.inf, 5.0)))
        if drawn.random() < 0.3 and held:
            pool.release(held.pop())
        if drawn.random() < 0.02:
            forget(pool, owner_key(pool.secret, user))
        for _ in range(4):
            asked = hashes(pool, user, history())
            may, entry = may_be_found(pool, asked), pool.find_user(asked, STEP)
            assert (entry.tokens if entry else 0) in may
            sizes |= may
            if entry and len(held) < 2 and drawn.random() < 0.2:
                held.append(entry)
            elif entry:
                pool.release(entry)
    assert len(sizes) > 5
