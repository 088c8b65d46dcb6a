"""The second tier: what the pool drops comes back as it was, once, and no longer than it may."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from genrec import metrics
from genrec.errors import InputError
from genrec.pool.forget import forget
from genrec.pool.keys import owner_key
from genrec.pool.tier import Tier, coldest
from genrec.settings import Settings
from tests.pool.entries import STEP, hashes, write

SIZE = 3000  # of 10,240 bytes: three fit


@pytest.fixture
def tier(pool, tmp_path):
    made = Tier(pool, tmp_path, 1 << 14)
    yield made
    made.close()


def use(pool, user, items):
    """As a ranking does."""
    entry = pool.find_user(hashes(pool, user, items), STEP)
    assert entry is not None
    pool.release(entry)


def visit(pool, clock, user, items, size=SIZE):
    clock.go(1)
    assert write(pool, user, items, size)
    use(pool, user, items)


def restored(tier, pool, user, items, beyond=0):
    """(tokens, span, the byte that all of it is), or None."""
    found = []

    def copy(memory, span, tokens):
        values = np.unique(memory)
        assert len(values) == 1, "the bytes of two entries"
        found.append((tokens, span, int(values[0])))

    tokens = tier.restore(hashes(pool, user, items), STEP, beyond, copy)
    assert (tokens > 0) == bool(found)
    return found[0] if found else None


def while_copied(monkeypatch, happens):
    """While the bytes of a cold entry are read, this happens."""

    class SlowBytes:
        def __init__(self, memory):
            self.memory, self.data = memory, memory.data

        def __len__(self):
            return len(self.memory)

        def __array__(self, *given, **more):
            happens()
            return self.memory

    def slow(*given):
        cold = coldest(*given)
        return cold and cold._replace(entry=replace(cold.entry, memory=SlowBytes(cold.entry.memory)))

    monkeypatch.setattr("genrec.pool.tier.coldest", slow)


def test_what_the_pool_dropped_is_brought_back_as_it_was(pool, clock, tier):
    for user in (1, 2, 3):
        visit(pool, clock, user, [7, 8, user])
    tier.look()
    for user in (4, 5, 6):
        visit(pool, clock, user, [7, 8, user])
    assert pool.find_user(hashes(pool, 1, [7, 8, 1]), STEP) is None, "its place was another's"
    assert tier.tokens(hashes(pool, 1, [7, 8, 1]), STEP) == 9
    assert restored(tier, pool, 1, [7, 8, 1]) == (9, 9, 1)
    assert restored(tier, pool, 1, [7, 8, 1, 5]) == (9, 9, 1), "a grown history as far as it agrees"
    assert restored(tier, pool, 1, [7, 9]) == (3, 9, 1)
    assert restored(tier, pool, 1, [7, 8, 1], beyond=9) is None, "the pool has as much"
    assert restored(tier, pool, 9, [7, 8, 1]) is None, "another's"


def test_a_damaged_entry_does_not_come_back(pool, clock, tier, caplog):
    for user in (1, 2, 3):
        visit(pool, clock, user, [user])
    tier.look()
    (at,) = {kept.start for kept in tier._kept.values() if tier._memory[kept.start] == 1}
    flipped = bytes([1 ^ 16])
    os.pwrite(tier._file.fileno(), flipped, at + SIZE // 2)
    before = metrics.POOL_TIER.value(what="dropped")
    assert restored(tier, pool, 1, [1]) is None and "damaged" in caplog.text
    assert metrics.POOL_TIER.value(what="dropped") == before + 1
    assert tier.tokens(hashes(pool, 1, [1]), STEP) == 0


def test_only_what_grew_cold_and_was_used_is_copied(pool, clock, tier):
    before = metrics.POOL_TIER.value(what="kept")
    visit(pool, clock, 1, [1])
    tier.look()
    assert metrics.POOL_TIER.value(what="kept") == before, "half of the pool is empty"
    clock.go(1)
    assert write(pool, 2, [2], SIZE)  # nobody has used it
    visit(pool, clock, 3, [3])
    tier.look()
    tier.look()
    assert metrics.POOL_TIER.value(what="kept") == before + 1, "once"
    assert restored(tier, pool, 1, [1]) == (3, 3, 1)
    assert restored(tier, pool, 2, [2]) is None and restored(tier, pool, 3, [3]) is None
    assert coldest(pool, (), {}, 1 << 14) is not None and pool.usage()["entries"] == 3


def test_an_entry_is_held_only_while_it_is_copied(pool, clock, tier):
    for user in (1, 2, 3):
        visit(pool, clock, user, [user])
    tier.look()
    for user in (4, 5, 6):  # all of these leave for them
        visit(pool, clock, user, [user])
    assert pool.usage()["entries"] == 3


def test_the_limit_is_never_passed_and_the_least_recently_used_leaves(pool, clock, tier):
    for user in range(1, 12):
        visit(pool, clock, user, [user])
        tier.look()
        assert sum(kept.size for kept in tier._kept.values()) <= 1 << 14
        if user > 4:  # somebody comes again and again
            assert restored(tier, pool, 1, [1]) == (3, 3, 1)
    assert restored(tier, pool, 3, [3]) is None, "it left for others"
    assert restored(tier, pool, 9, [9]) == (3, 3, 9)


def test_nothing_stays_longer_than_a_visit_or_after_its_owner_was_forgotten(pool, clock, tier):
    for user in (1, 2, 3):
        visit(pool, clock, user, [user])
    tier.look()
    assert (tier._memory == 1).any()
    there, before = len(tier._kept), metrics.POOL_TIER.value(what="dropped")
    forget(pool, owner_key(pool.secret, 1))
    tier.look()
    assert metrics.POOL_TIER.value(what="dropped") - before == there > 1
    assert restored(tier, pool, 1, [1]) is None
    assert not (tier._memory == 1).any(), "the bytes are gone too"
    visit(pool, clock, 4, [4])
    visit(pool, clock, 5, [5])
    tier.look()
    assert restored(tier, pool, 2, [2]) == (3, 3, 2)
    clock.go(601)
    assert restored(tier, pool, 2, [2]) is None


def test_nobody_who_is_forgotten_while_his_entry_is_found_is_copied(pool, clock, tier, monkeypatch):
    for user in (1, 2, 3):
        visit(pool, clock, user, [user])

    def found(*given):
        cold = coldest(*given)
        forget(pool, owner_key(pool.secret, 1))
        restored(tier, pool, 9, [9])  # a pre-inference asks: it counts who was forgotten
        return cold

    with monkeypatch.context() as patch:
        patch.setattr("genrec.pool.tier.coldest", found)
        tier.look()
    tier.look()
    assert restored(tier, pool, 1, [1]) is None and not (tier._memory == 1).any()


def test_an_entry_larger_than_the_file_is_passed_over(pool, clock, tmp_path):
    small = Tier(pool, tmp_path, 2048)
    for user, size in ((1, 3000), (2, 1000), (3, 5200)):
        clock.go(1)
        assert write(pool, user, [user], size)
        pool.release(pool.find_user(hashes(pool, user, [user]), STEP))
    small.look()
    assert [small.tokens(hashes(pool, user, [user]), STEP) for user in (1, 2)] == [0, 3]
    small.close()


def test_a_file_with_room_for_less_than_what_is_cold_holds_what_the_pool_drops_next(pool, clock, tmp_path):
    small, before = Tier(pool, tmp_path, 2048), metrics.POOL_TIER.value(what="kept")
    for user in range(1, 9):
        visit(pool, clock, user, [user], 800)
    for user in range(9, 20):
        small.look()
        small.look()
        there = [each for each in range(1, user) if small.tokens(hashes(pool, each, [each]), STEP)]
        assert there and metrics.POOL_TIER.value(what="kept") - before <= user - 1, "each once"
        assert user - pool.usage()["entries"] in there, "the oldest of the pool"
        visit(pool, clock, user, [user], 800)
    small.close()


def test_who_asks_how_much_is_there_waits_for_no_disk(pool, clock, tier):
    for user in (1, 2, 3):
        visit(pool, clock, user, [user])
    tier.look()
    assert tier.tokens(hashes(pool, 1, [1]), STEP) == 3
    with tier._lock:
        assert tier.tokens(hashes(pool, 1, [1]), STEP) == 0
        assert restored(tier, pool, 1, [1]) is None
    assert restored(tier, pool, 1, [1]) == (3, 3, 1)


def test_while_one_entry_is_copied_another_is_brought_back(pool, clock, tier, monkeypatch):
    for user in (1, 2, 3):
        visit(pool, clock, user, [user])
    tier.look()
    seen = []
    visit(pool, clock, 4, [4])
    while_copied(monkeypatch, lambda: seen.append(restored(tier, pool, 1, [1])))
    tier.look()
    assert seen == [(3, 3, 1)] and restored(tier, pool, 2, [2]) == (3, 3, 2)


def test_nobody_who_is_forgotten_while_his_entry_is_copied_stays(pool, clock, tier, monkeypatch):
    """A pre-inference comes meanwhile, and has cleared the file before all of him is there."""
    for user in (1, 2, 3):
        visit(pool, clock, user, [user])
    forgotten = []

    def happens():
        if not forgotten:
            forgotten.append(forget(pool, owner_key(pool.secret, 1)))
            restored(tier, pool, 9, [9])

    while_copied(monkeypatch, happens)
    tier.look()
    assert forgotten == [1]
    assert restored(tier, pool, 1, [1]) is None and not (tier._memory == 1).any()


@pytest.mark.parametrize("why", ["somebody is forgotten", "the pool is lost"])
def test_nor_do_bytes_stay_of_who_left_before(pool, clock, tier, why):
    """Of entries whose time was over, too, or whose place was another's."""
    for user in range(1, 9):
        visit(pool, clock, user, [user])
        tier.look()
    clock.go(601)
    tier.look()
    assert not tier._kept and tier._memory.any()
    if why == "the pool is lost":
        pool.close()
    else:
        forget(pool, owner_key(pool.secret, 1))
    tier.look()
    assert not tier._memory.any()


def test_the_file_has_no_name_and_is_for_nobody_else(pool, tmp_path, tier):
    assert not [path for path in tmp_path.iterdir() if path.is_file()]
    about = os.fstat(tier._file.fileno())
    assert about.st_nlink == 0 and not about.st_mode & 0o077 and about.st_size == 1 << 14


def test_a_folder_that_is_not_there_or_has_no_room_is_named(pool, tmp_path):
    with pytest.raises(InputError, match=r"pool_disk: .*nowhere: No such file.*a folder with 1 MiB free"):
        Tier(pool, tmp_path / "nowhere", 1 << 20)
    with pytest.raises(InputError, match=r"No space left|too large"):
        Tier(pool, Path("/dev/shm"), 1 << 50)


@pytest.mark.parametrize("given", ["nowhere", "{there}/nowhere", "."])
def test_settings_want_a_folder_that_is_there(tmp_path, given):
    with pytest.raises(InputError, match=r"pool_disk: is .*absolute path of a folder that is there"):
        Settings(Path("a"), Path("b"), pool_disk=given.format(there=tmp_path))
    assert Settings(Path("a"), Path("b"), pool_disk=str(tmp_path)).pool_disk


def test_a_pool_that_is_gone_ends_nothing(pool, clock, tier):
    visit(pool, clock, 1, [1])
    pool.close()
    tier.look()
    assert restored(tier, pool, 1, [1]) is None
