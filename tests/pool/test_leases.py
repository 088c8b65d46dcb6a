"""Entries made before anybody asked for them: they stay for a lease, and as long as others once they are used."""

from __future__ import annotations

import pytest

from genrec.pool.forget import forget
from genrec.pool.keys import owner_key
from genrec.pool.look import hold
from genrec.pool.owner import TTL_S
from tests.pool.entries import STEP, find, hashes, write

LEASE_S = 2.0


def lend(pool, user, items):
    """A committed entry on a lease."""
    name = hashes(pool, user, items)
    writing = pool.write_user(name, len(items) * STEP, 1000, owner_key(pool.secret, user))
    writing.memory[:] = user
    pool.commit(writing, LEASE_S)


def ends(pool):
    usage = pool.usage()
    return usage["leases_used"], usage["leases_unused"]


def test_one_that_nobody_uses_is_gone_after_its_lease(pool, clock):
    lend(pool, 7, [1, 2])
    clock.go(LEASE_S + 0.1)
    assert find(pool, 7, [1, 2]) is None
    assert pool.usage()["entries"] == 0 and ends(pool) == (0, 1)


def test_one_that_is_used_lives_as_long_as_any_other(pool, clock):
    lend(pool, 7, [1, 2])
    clock.go(LEASE_S / 2)
    assert find(pool, 7, [1, 2]) == (6, 6, 7) and ends(pool) == (1, 0)
    clock.go(TTL_S - LEASE_S)
    assert find(pool, 7, [1, 2]) == (6, 6, 7) and ends(pool) == (1, 0)
    clock.go(LEASE_S)
    assert find(pool, 7, [1, 2]) is None and ends(pool) == (1, 0)


def test_a_lease_begins_when_the_entry_is_ready_and_never_outlives_its_owner_s_limit(pool, clock):
    name = hashes(pool, 7, [1])
    writing = pool.write_user(name, STEP, 1000, owner_key(pool.secret, 7))
    clock.go(LEASE_S * 3)
    writing.memory[:] = 7
    pool.commit(writing, LEASE_S)
    clock.go(LEASE_S / 2)
    assert find(pool, 7, [1]) == (3, 3, 7)
    writing = pool.write_user(hashes(pool, 8, [1]), STEP, 1000, owner_key(pool.secret, 8))
    clock.go(LEASE_S)
    pool.commit(writing)
    clock.go(TTL_S - LEASE_S)
    assert pool.usage()["entries"] == 0


def test_one_in_the_place_of_what_was_used_stays_as_long_as_that_would_have(pool, clock):
    write(pool, 7, [1, 2])
    clock.go(TTL_S / 2)
    lend(pool, 7, [1, 2, 3])
    clock.go(TTL_S / 2 - 0.1)
    assert pool.usage()["entries"] == 1 and ends(pool) == (0, 0)
    clock.go(0.2)
    assert pool.usage()["entries"] == 0 and ends(pool) == (0, 1)


def test_one_that_lives_shorter_than_what_it_takes_the_place_of_stays_as_long_as_that(pool, clock):
    """A prompt that nobody named, behind what a ranking that nobody named has left."""
    write(pool, 7, [1, 2])
    name = hashes(pool, 7, [1, 2, 3])
    writing = pool.write_user(name, 3 * STEP, 1000, owner_key(pool.secret, 7), lives_s=LEASE_S)
    writing.memory[:] = 7
    pool.commit(writing, LEASE_S)
    clock.go(TTL_S - 0.1)
    assert find(pool, 7, [1, 2]) == (6, 9, 7) and pool.usage()["entries"] == 1
    clock.go(0.2)
    assert pool.usage()["entries"] == 0


def test_its_own_lease_counts_where_that_is_longer(pool, clock):
    write(pool, 7, [1, 2])
    clock.go(TTL_S - LEASE_S / 2)
    lend(pool, 7, [1, 2, 3])
    clock.go(LEASE_S - 0.1)
    assert pool.usage()["entries"] == 1
    clock.go(0.2)
    assert pool.usage()["entries"] == 0


def test_once_it_is_used_it_lives_as_long_as_any_other(pool, clock):
    write(pool, 7, [1, 2])
    clock.go(1)
    lend(pool, 7, [1, 2, 3])
    clock.go(TTL_S / 2)
    assert find(pool, 7, [1, 2, 3, 4]) == (9, 9, 7) and ends(pool) == (1, 0)
    clock.go(TTL_S / 2 - 0.5)
    assert find(pool, 7, [1, 2, 3]) == (9, 9, 7)


@pytest.mark.parametrize("common", [1, 9, 18])
def test_one_that_parts_from_what_was_used_and_goes_unused_takes_nothing_of_it(pool, clock, common):
    items = list(range(20))
    write(pool, 7, items, fill=1)
    lend(pool, 7, [*items[:common], *range(100, 120 - common)])
    clock.go(LEASE_S + 0.1)
    assert pool.usage()["entries"] == 1 and ends(pool) == (0, 1)
    assert find(pool, 7, [*items, 20]) == (60, 60, 1)
    assert find(pool, 7, [*items[:common], 99]) == (STEP * common, 60, 1)


def test_one_that_lives_shorter_takes_nothing_of_what_it_parts_from(pool, clock):
    """A prompt that nobody named lives for a lease, whether or not a ranking uses it."""
    items, other = list(range(20)), [*range(18), 100, 101]
    write(pool, 7, items, fill=1)
    name = hashes(pool, 7, other)
    writing = pool.write_user(name, 60, 1000, owner_key(pool.secret, 7), lives_s=LEASE_S)
    writing.memory[:] = 7
    pool.commit(writing, LEASE_S)
    assert find(pool, 7, other) == (60, 60, 7)
    clock.go(LEASE_S + 0.1)
    assert find(pool, 7, [*items, 20]) == (60, 60, 1)


def test_one_that_parts_from_what_was_used_is_the_newest_once_it_is_used(pool, clock):
    write(pool, 7, list(range(20)), fill=1)
    other = [*range(18), 100, 101]
    lend(pool, 7, other)
    assert find(pool, 7, [*other, 102]) == (54, 60, 1)
    assert find(pool, 7, other) == (60, 60, 7)
    assert find(pool, 7, [*other, 102]) == (60, 60, 7)


def test_one_that_leaves_for_another_counts_as_unused(pool, clock):
    lend(pool, 1, [1])
    forget(pool, owner_key(pool.secret, 1))
    assert ends(pool) == (0, 1)


def test_holding_on_to_one_begins_its_lease_anew_and_uses_nothing(pool, clock):
    lend(pool, 7, [1, 2])
    before = pool.usage()
    clock.go(LEASE_S / 2)
    assert hold(pool, hashes(pool, 7, [1, 2, 3]), STEP, LEASE_S) == 6
    assert hold(pool, hashes(pool, 8, [1]), STEP, LEASE_S) == 0
    clock.go(LEASE_S * 0.8)
    assert hold(pool, hashes(pool, 7, [1, 2]), STEP, 0.0) == 6, "who asks for less takes nothing away"
    assert pool.usage() == before
    clock.go(LEASE_S * 0.3)
    assert pool.usage()["entries"] == 0


def test_who_holds_on_to_one_does_not_make_it_live_longer(pool, clock):
    lend(pool, 7, [1, 2])
    assert hold(pool, hashes(pool, 7, [1, 2]), STEP, 2 * TTL_S) == 6
    clock.go(TTL_S)
    assert pool.usage()["entries"] == 0


def test_one_that_is_held_on_to_leaves_after_what_came_before_that(pool, clock):
    lend(pool, 7, [1])
    for user in range(10, 17):  # there is no room for more
        clock.go(LEASE_S / 20)
        write(pool, user, [1])
    clock.go(LEASE_S / 20)
    assert hold(pool, hashes(pool, 7, [1]), STEP, LEASE_S) == 3
    write(pool, 20, [1])
    assert find(pool, 10, [1]) is None and find(pool, 7, [1]) == (3, 3, 7)
