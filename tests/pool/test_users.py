"""Users' entries: what is found is what was committed, within the limit, and never under a reader's hands."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genrec.errors import InputError
from genrec.pool import user_rows
from genrec.pool.forget import forget
from genrec.pool.keys import owner_key
from genrec.pool.owner import TTL_S
from genrec.pool.pool import Pool
from genrec.pool.users import Wanted
from tests.pool.entries import STEP, find, hashes, write


def test_what_is_committed_is_found_by_another_mapping(pool, folder):
    write(pool, 7, [1, 2, 3])
    other = Pool(folder, pool.clock)
    assert find(other, 7, [1, 2, 3]) == (9, 9, 7)
    assert find(other, 8, [1, 2, 3]) is None and find(other, None, [1, 2, 3]) is None


def test_the_longest_agreeing_boundary_is_found(pool):
    write(pool, 7, [1, 2, 3, 4])
    assert find(pool, 7, [1, 2, 3, 4, 5, 6]) == (12, 12, 7)
    assert find(pool, 7, [1, 2, 9, 4]) == (6, 12, 7)
    assert find(pool, 7, [1]) == (3, 12, 7)
    assert find(pool, 7, [9, 1, 2]) is None and find(pool, 7, []) is None


@pytest.mark.parametrize(("asked", "there"), [([1, 2], 6), ([1, 2, 3], 6), ([9], 0)])
@pytest.mark.parametrize("keeps", [True, False])
def test_room_is_taken_for_what_is_not_whole(pool, asked, there, keeps):
    write(pool, 7, [1, 2])
    tokens = len(asked) * STEP
    wanted = Wanted(tokens, 1000, owner_key(pool.secret, 7)) if keeps else None
    found, writing = pool.hold_user(hashes(pool, 7, asked), STEP, tokens, wanted)
    assert (found.tokens if found else 0) == there and (writing is not None) == (keeps and there < tokens)


def test_a_grown_history_takes_the_place_of_what_it_holds(pool):
    write(pool, 7, [1, 2], fill=1)
    write(pool, 7, [1, 2, 3], fill=2)
    assert find(pool, 7, [1, 2]) == (6, 9, 2)
    assert pool.usage()["entries"] == 1


def test_nothing_is_seen_before_the_commit_or_after_it_was_abandoned(pool):
    name, owner = hashes(pool, 7, [1]), owner_key(pool.secret, 7)
    writing = pool.write_user(name, 3, 100, owner)
    assert pool.find_user(name, STEP) is None
    pool.abandon(writing)
    pool.commit(writing)
    assert pool.find_user(name, STEP) is None and pool.usage()["entries"] == 0
    other = pool.write_user(hashes(pool, 8, [1]), 3, 100, owner)
    pool.commit(writing)
    assert other.entry == writing.entry and find(pool, 7, [1]) is None is find(pool, 8, [1])


def test_one_entry_is_computed_once(pool):
    name, owner = hashes(pool, 7, [1]), owner_key(pool.secret, 7)
    writing = pool.write_user(name, 3, 100, owner)
    assert pool.write_user(name, 3, 100, owner) is None
    pool.commit(writing)
    assert pool.write_user(name, 3, 100, owner) is None
    assert pool.write_user(hashes(pool, 7, [1, 2]), 6, 100, owner) is not None


def test_every_key_of_a_full_pool_is_found(tmp_path):
    """However small a token's KV is: twice as many keys as an index for pages would hold."""
    Pool.create(tmp_path / "pool", 1 << 22, 0, 0, key_bytes=256)
    pool = Pool(tmp_path / "pool")
    items, users = list(range(64)), range(230)
    for user in users:
        assert write(pool, user, items, size=64 * 256)
    assert pool.usage()["entries"] == len(users)
    assert [find(pool, user, items) for user in users] == [(64 * STEP, 64 * STEP, user) for user in users]


def test_the_least_recently_used_leave_and_only_as_many_as_must(pool, clock):
    for user in range(8):
        clock.go(1)
        assert write(pool, user, [1])
    clock.go(1)
    assert find(pool, 0, [1])
    write(pool, 8, [1], size=2000)
    assert [user for user in range(9) if find(pool, user, [1])] == [0, 3, 4, 5, 6, 7, 8]
    assert pool.usage()["evictions"] == 2


def test_an_entry_that_is_read_stays(pool, clock):
    write(pool, 1, [1], size=4000)
    entry = pool.find_user(hashes(pool, 1, [1]), STEP)
    clock.go(1)
    for user in range(2, 20):
        write(pool, user, [1], size=4000)
        assert (entry.memory == 1).all()
    assert write(pool, 30, [1], size=9000) is None
    pool.release(entry)
    assert write(pool, 30, [1], size=9000)


def test_a_hit_copies_nothing_and_cannot_be_written_to(pool):
    write(pool, 1, [1])
    first, second = (pool.find_user(hashes(pool, 1, [1]), STEP) for _ in range(2))
    assert np.shares_memory(first.memory, second.memory)
    assert first.memory.ctypes.data % 64 == 0 and not first.memory.flags.writeable


def test_two_readers_release_one_by_one(pool):
    write(pool, 1, [1], size=9000)
    first, second = (pool.find_user(hashes(pool, 1, [1]), STEP) for _ in range(2))
    pool.release(first)
    assert write(pool, 2, [1], size=9000) is None
    pool.release(second)
    pool.release(second)
    assert write(pool, 2, [1], size=9000)


def test_an_entry_expires(pool, clock):
    write(pool, 1, [1], size=9000)
    clock.go(TTL_S - 1)
    assert find(pool, 1, [1])
    clock.go(1)
    assert find(pool, 1, [1]) is None
    assert pool.usage()["entries"] == 0


def test_a_user_is_forgotten_and_his_bytes_are_cleared(pool):
    for items in ([1], [2]):
        write(pool, 7, items)
    write(pool, 8, [1])
    entry = pool.find_user(hashes(pool, 7, [1]), STEP)
    writing = pool.write_user(hashes(pool, 7, [3]), 3, 100, owner_key(pool.secret, 7))
    assert forget(pool, owner_key(pool.secret, 7)) == 3
    assert find(pool, 7, [1]) is None and find(pool, 7, [2]) is None and find(pool, 8, [1])
    assert (entry.memory == 7).all(), "cleared while it was read"
    pool.release(entry)
    writing.memory[:] = 7
    pool.commit(writing)
    assert find(pool, 7, [3]) is None
    assert pool.usage()["entries"] == 1
    # Headers and hashes hold a 7 here and there; a run of them is what was written.
    assert bytes([7] * 8) not in pool._map.users.tobytes()
    assert forget(pool, owner_key(pool.secret, 7)) == 0


@pytest.mark.parametrize("piece", [64, 1000, 1 << 20])
def test_what_is_left_of_a_users_older_entries_is_cleared_too(pool, clock, monkeypatch, piece):
    monkeypatch.setattr("genrec.pool.forget.PIECE", piece)
    write(pool, 7, [1])
    write(pool, 8, [1])
    write(pool, 7, [1, 2])  # it holds what the first one held, which leaves
    write(pool, 9, [1, 2])
    clock.go(1)
    assert pool.usage()["entries"] == 3
    held = [pool.find_user(hashes(pool, user, [1]), STEP) for user in (8, 9)]
    assert bytes([7] * 8) in pool._map.users.tobytes()
    assert forget(pool, owner_key(pool.secret, 7)) == 1
    assert bytes([7] * 8) not in pool._map.users.tobytes()
    assert [set(entry.memory.tolist()) for entry in held] == [{8}, {9}]
    assert find(pool, 8, [1]) and find(pool, 9, [1, 2]), "the lead of another's entry"


def test_only_this_user_may_read_it_and_nobody_is_named(pool, folder):
    write(pool, 123456789, [4242])
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    everything = b"".join(path.read_bytes() for path in folder.iterdir())
    assert (123456789).to_bytes(4, "little") not in everything and (4242).to_bytes(
        4, "little"
    ) not in everything


def test_a_torn_header_is_dropped_and_said(pool, caplog):
    for byte in (0, 8, 30, 70):  # magic, the pool's id, the generation, a hash
        write(pool, 7, [1, 2])
        row = pool._map.table.entries[pool._map.table.entries[:, user_rows.STATE] == user_rows.READY][0]
        pool._map.users[row[user_rows.START] + byte] ^= 1
        assert find(pool, 7, [1, 2]) is None
        assert "torn" in caplog.text
        caplog.clear()
        assert pool.usage()["entries"] == 0


def test_an_index_that_points_to_another_entry_is_not_believed(pool):
    write(pool, 7, [1, 2])
    write(pool, 8, [1, 2])
    places = pool._map.table.user_index
    taken = np.flatnonzero(places[:, 2])
    answers = places[taken, 2].copy()
    for wrong in (
        (answers - 1 ^ 1) + 1,
        answers[::-1],
        answers ^ 1 << 32,
        answers + 1000,
        answers + (1 << 40),
    ):
        places[taken, 2] = wrong
        for user in (7, 8):
            assert find(pool, user, [1, 2]) in (None, (3, 6, user), (6, 6, user))


@pytest.mark.parametrize("length", [*range(1, 13), 40])
def test_a_history_of_any_length_is_found_as_far_as_it_agrees(pool, length):
    """By its last boundary and by few before it; the rest is compared in the entry."""
    items = list(range(length))
    write(pool, 7, items)
    for more in range(1, 10):
        assert find(pool, 7, items + [99] * more)[:2] == (STEP * length, STEP * length)
    for cut in range(1, length):
        near = find(pool, 7, [*items[:cut], 99])
        assert near[0] == STEP * cut if near else cut == 0
        shorter = find(pool, 7, items[:cut])
        assert shorter[:2] == (STEP * cut, STEP * length)
    assert find(pool, 7, [99]) is None


@pytest.mark.parametrize("length", range(1, 13))
@pytest.mark.parametrize("more", range(1, 7))
def test_an_entry_whose_beginning_is_another_s_whole_leaves(pool, length, more):
    items = list(range(length + more))
    write(pool, 7, items[:length])
    write(pool, 7, items)
    assert pool.usage()["entries"] == 1 and find(pool, 7, items)[0] == STEP * len(items)


def test_two_that_part_are_both_found(pool):
    one, other = [*range(9), 20, 21, 22], [*range(9), 30, 31]
    write(pool, 7, one, fill=1)
    write(pool, 7, other, fill=2)
    assert find(pool, 7, one) == (36, 36, 1) and find(pool, 7, other) == (33, 33, 2)
    assert find(pool, 7, [*range(9), 40]) == (27, 33, 2), "by what both have the index knows the newer one"


def test_limits(pool, tmp_path):
    assert write(pool, 1, [1], size=10_240) is None
    assert write(pool, 1, [1], size=10_240 - 64 - 64)
    with pytest.raises(InputError, match="user_bytes"):
        Pool.create(tmp_path / "bad", -1, 0, 0)
    free = os.statvfs(tmp_path)
    with pytest.raises(InputError, match="MiB free"):
        Pool.create(tmp_path / "huge", 2 * free.f_bavail * free.f_frsize, 0, 0)
    Pool.create(tmp_path / "none", 0, 0, 0)
    assert write(Pool(tmp_path / "none"), 1, [1]) is None


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["write", "write", "find", "find", "pin", "release", "forget", "wait"]),
        st.integers(0, 2),  # user
        st.lists(st.integers(0, 1), min_size=1, max_size=11),  # history
        st.integers(1, 5000),  # bytes
    ),
    max_size=40,
)


@settings(max_examples=80, deadline=None)
@given(MOVES)
def test_any_order_of_moves(tmp_path_factory, moves):
    """Against a plain model: every find is of bytes committed for that history, and what is read does not change."""
    folder = tmp_path_factory.mktemp("pool") / "pool"
    Pool.create(folder, 12_288, 0, 0)
    now = [0]
    pool = Pool(folder, lambda: now[0])
    committed: dict[int, tuple[int, list[int]]] = {}  # fill -> user and history
    pinned: list = []
    for step, (move, user, items, size) in enumerate(moves):
        now[0] += 10**9
        if move == "write" and write(pool, user, items, size, fill=step):
            committed[step] = user, items
        elif move == "find" and (found := find(pool, user, items)):
            whose, held = committed[found[2]]
            tokens = found[0] // STEP
            assert whose == user and held[:tokens] == items[:tokens] and found[1] == STEP * len(held)
        elif move == "pin" and (entry := pool.find_user(hashes(pool, user, items), STEP)):
            pinned.append((entry, entry.memory.copy()))
        elif move == "release" and pinned:
            pool.release(pinned.pop()[0])
        elif move == "forget":
            forget(pool, owner_key(pool.secret, user))
            assert find(pool, user, items) is None
        elif move == "wait":
            now[0] += int(TTL_S / 3 * 1e9)
        for entry, bytes_then in pinned:
            np.testing.assert_array_equal(entry.memory, bytes_then)
        rows = pool._map.table.entries
        rows = rows[rows[:, user_rows.STATE] != user_rows.FREE]
        rows = rows[np.argsort(rows[:, user_rows.START])]
        ends = rows[:, user_rows.START] + rows[:, user_rows.SIZE]
        assert (ends[:-1] <= rows[1:, user_rows.START]).all() and (ends <= 12_288).all()
    for entry, _ in pinned:
        pool.release(entry)
    now[0] += int(TTL_S * 1e9)
    assert pool.usage()["entries"] == 0 and pool.usage()["bytes"] == 0
    assert not pool._map.table.user_index[:, 2].any()
