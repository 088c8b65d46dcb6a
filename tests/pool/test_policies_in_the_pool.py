"""Policies over a real pool: its own hotness decides who may come and who leaves."""

import os

import numpy as np
import pytest

from genrec.pool import user_rows
from genrec.pool.forget import forget
from genrec.pool.hotness import Hotness
from genrec.pool.keys import owner_key, words
from genrec.pool.mapping import NAME, USER_BYTES
from genrec.pool.pool import Pool
from genrec.pool.rule import Recency, Standing
from genrec.rank.choice import POLICIES, Request, policy
from tests.pool.entries import STEP, find, hashes, in_a_child, write


def owner(pool, user):
    return words([owner_key(pool.secret, user)])[0]


def test_the_frequency_of_all_processes_decides_who_leaves(pool, folder, clock):
    clock.go(1)
    other = Pool(folder, clock.read)
    pool.rule = policy("past", pool.hotness)
    for user, times in ((1, 3), (2, 1), (3, 2)):
        for _ in range(times):
            clock.go(1)
            other.hotness.see(owner(pool, user), clock.now)
        assert write(pool, user, [1], size=3000)
    assert write(pool, 4, [1], size=3000)
    assert [user for user in (1, 2, 3, 4) if find(pool, user, [1])] == [1, 3, 4]


def test_room_is_what_an_entry_finds(pool, clock):
    clock.go(1)
    pool.rule = policy("past", pool.hotness)
    name = hashes(pool, 1, [1])
    assert pool.room(name, 9000).free and not pool.room(name, 10_240).free
    for _ in range(2):
        pool.hotness.see(owner(pool, 7), clock.now)
    write(pool, 7, [1], size=9000)
    assert (pool.room(name, 9000).free, pool.room(name, 9000).least) == (False, 2.0)
    entry = pool.find_user(hashes(pool, 7, [1]), STEP)
    assert pool.room(name, 9000).least == np.inf, "who is read does not leave"
    pool.release(entry)


def test_a_table_that_says_it_has_more_room_gives_no_entry_outside_of_it(pool):
    """Whoever wrote there had an error for an answer."""
    for user in (1, 2):
        write(pool, user, [1], size=4000)
    pool._map.table.header[USER_BYTES] *= 2
    asked, owner = hashes(pool, 3, [1]), owner_key(pool.secret, 3)
    writing = pool.write_user(asked, STEP, 4000, owner)
    assert len(writing.memory) == 4000 and not pool.room(asked, 4000).free


def test_who_is_forgotten_has_never_come(pool, clock):
    clock.go(1)
    pool.hotness.see(owner(pool, 7), clock.now)
    assert pool.hotness.frequency(owner(pool, 7)[None], clock.now) == 1
    forget(pool, owner_key(pool.secret, 7))
    assert pool.hotness.frequency(owner(pool, 7)[None], clock.now) == 0


@pytest.mark.parametrize("name", ["greedy", "hazard"])
def test_a_pool_that_was_cut_ends_no_process_that_chooses(pool, folder, name):
    """How often users come lies in the file too."""
    rule, name = policy(name, pool.hotness), hashes(pool, 7, [1])

    def choose():
        return rule.choose(Request(STEP, 1, STEP), owner(pool, 7), 1, lambda: pool.room(name, 1000))

    def choose_without():
        os.truncate(folder / NAME, 64)
        return pool.find_user(name, STEP) is None and pool.lost and choose()

    choose()
    assert in_a_child(choose_without)


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_serves_a_random_trace(tmp_path, name):
    """Requests one after another, as a server makes them: what a plan reuses is there, and the limit holds."""
    now = [10**9]
    Pool.create(tmp_path / "pool", 40_000, 0, 0)
    pool = Pool(tmp_path / "pool", lambda: now[0])
    pool.rule = rule = policy(name, pool.hotness)
    draw = np.random.default_rng(0)
    reused = 0
    for _ in range(300):
        now[0] += int(draw.integers(1, 20)) * 10**9
        user = int(draw.zipf(1.5)) % 50
        items = list(range(1 + user % 20))
        tokens = STEP * len(items)
        asked = hashes(pool, user, items)
        entry = pool.find_user(asked, STEP)
        request = Request(tokens, 4, STEP, entry.tokens if entry else 0, 4)
        plan = rule.choose(
            request, owner(pool, user), now[0], lambda a=asked, n=100 * tokens: pool.room(a, n)
        )
        assert plan.user_reused in (0, tokens if entry else 0)
        reused += plan.user_reused
        if entry:
            assert (entry.memory == user).all()
            pool.release(entry)
        elif plan.keep_user:
            write(pool, user, items, size=100 * tokens)
        assert pool.usage()["bytes"] <= 40_000
    assert (reused > 0) == (name not in ("recompute", "item"))


def test_a_lost_pool_has_a_hotness_of_nobody(tmp_path):
    pool = Pool(tmp_path)
    assert isinstance(pool.hotness, Hotness) and pool.room([bytes(16)], 1).free is False


def test_what_candidates_a_ranking_had_is_known_to_whoever_writes(pool, folder, clock):
    clock.go(1)
    pool.rule = policy("hazard", pool.hotness)
    other = Pool(folder, clock.read)
    rule = policy("hazard", other.hotness)
    rule.choose(Request(30, 5, 3), owner(pool, 1), clock.now, lambda: pool.room(hashes(pool, 1, [1]), 1))
    of_half = Standing(clock.now, np.ones(1), np.array([30]), words([owner_key(pool.secret, 1)]))
    assert (pool.rule.worth(of_half) == rule.worth(of_half)).all()
    assert pool.rule.worth(of_half) == 0.5 * pool.hotness.chance(of_half.owner, clock.now) > 0


class InParts(Recency):
    """The same rule, asked as any other is: what is taken in one call by `Recency` itself is taken in two."""


@pytest.mark.parametrize("seed", range(5))
def test_one_call_takes_what_its_parts_take(tmp_path, clock, seed):
    pools = []
    for rule in (Recency(), InParts()):
        folder = tmp_path / type(rule).__name__
        Pool.create(folder, user_bytes=40_000, item_rows=0, item_row_bytes=64)
        pools.append(Pool(folder, clock.read))
        pools[-1].rule = rule
    random = np.random.default_rng(seed)
    for _ in range(200):
        clock.go(1)
        user, size = int(random.integers(12)), int(random.integers(1, 9000))
        did = [write(pool, user, [1, size % 3], size=size) is None for pool in pools]
        found = [find(pool, int(user + 1) % 12, [1]) for pool in pools]
        assert did[0] == did[1] and found[0] == found[1]
    said = [user_rows.START, user_rows.SIZE, user_rows.SPAN, user_rows.SEEN, user_rows.USES]
    one, parts = (pool._map.table.entries[:, said] for pool in pools)
    np.testing.assert_array_equal(one, parts)
    assert pools[0].usage()["evictions"] == pools[1].usage()["evictions"] > 20
