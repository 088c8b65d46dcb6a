"""The KV arena: nothing leaks, nothing stale is read, whatever is killed."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genrec.errors import ArenaFull, ArtifactError, InputError, StaleHandle
from genrec.kv.arena import FREE, LEASE, LEASE_S, NO_KV, OWNER, SCRATCH, STARTED, STATE, Arena


@pytest.fixture
def arena(tmp_path):
    return Arena.create(tmp_path / "arena", slots=6, slot_bytes=8192)


def test_a_region_is_free_again_when_all_its_rows_are_released(arena):
    region = arena.allocate(3, span=32)
    for handle in region.handles:
        arena.rest(handle)
    first, second, third = region.handles
    for handle in (first, third):
        arena.hold(handle)
        arena.release(handle)
    assert arena.usage() == {"free": 3, "held": 0, "idle": 1, "done": 2}
    with pytest.raises(ArenaFull, match="no 4 adjacent free slots of 6"):
        arena.allocate(4, span=32)
    arena.hold(second)
    arena.release(second)
    assert arena.usage()["free"] == 6


def test_readers_see_what_the_writer_wrote_in_another_mapping(arena):
    region = arena.allocate(2, span=8)
    region.memory[:] = np.arange(len(region.memory)) % 251
    arena.rest(region.handles[1])
    row = Arena(arena.path).hold(region.handles[1])
    assert (row.memory == region.memory).all() and (row.rows, row.span, row.row) == (2, 8, 1)


def test_only_this_user_may_read_it(arena):
    assert arena.path.stat().st_mode & 0o777 == 0o600


def test_stale_and_foreign_handles_are_errors(arena):
    region = arena.allocate(1, span=8)
    (handle,) = region.handles
    with pytest.raises(StaleHandle, match="is held"):
        arena.hold(handle)
    arena.rest(handle)
    with pytest.raises(StaleHandle, match="not held by this process"):
        arena.release(handle)
    arena.hold(handle)
    arena.release(handle)
    with pytest.raises(StaleHandle, match="is free"):
        arena.hold(handle)
    (current,) = arena.allocate(1, span=8).handles
    with pytest.raises(StaleHandle, match="slot 1 has moved on from generation"):
        arena.hold(handle)
    segment, slot, generation, row = handle
    wrong = [
        (segment + 1, slot, generation, row),
        (segment, 99, generation, row),
        (segment, -1, generation, row),
    ]
    for bad in [*wrong, (segment, 0, 0, 0), (segment, slot, current[2], row + 1), NO_KV]:
        with pytest.raises(StaleHandle):
            arena.hold(bad)


def test_a_handle_cannot_be_guessed_nor_asked_for(arena):
    """Any client can call the inner models: what it learns from one handle must not open another's slot."""
    generations = []
    for _ in range(8):
        (handle,) = arena.allocate(1, span=8).handles
        arena.release(handle)
        generations.append(handle[2])
    assert (np.abs(np.diff(generations)) > 2**20).all()
    (handle,) = arena.allocate(1, span=8).handles
    arena.rest(handle)
    segment, slot, generation, row = handle
    for guess in (generations[-1], generations[-1] + 1, 0, 1):
        with pytest.raises(StaleHandle) as refused:
            arena.hold((segment, slot, guess, row))
        assert str(generation) not in str(refused.value)


def test_the_scratch_slot_is_for_everyone_and_never_given_out(arena):
    row = arena.hold(SCRATCH)
    arena.rest(SCRATCH)
    arena.release(SCRATCH)
    row.memory[:] = 7
    regions = [arena.allocate(1, span=1) for _ in range(6)]
    assert not any(np.shares_memory(region.memory, row.memory) for region in regions)


def later(arena):
    """The same arena as it is seen when every lease of now is over."""
    return Arena(arena.path, clock=lambda: time.monotonic_ns() + int(2 * LEASE_S * 1e9))


def test_lost_requests_are_reaped_when_their_lease_ends(arena):
    handles = arena.allocate(6, span=8).handles
    for handle in handles:
        arena.rest(handle)
    with pytest.raises(ArenaFull):
        arena.allocate(1, span=8)
    assert later(arena).allocate(6, span=8).rows == 6
    with pytest.raises(StaleHandle):
        arena.hold(handles[0])


def test_a_living_holder_is_never_reaped(arena):
    region = arena.allocate(6, span=8)
    with pytest.raises(ArenaFull):
        later(arena).allocate(1, span=8)
    arena.rest(region.handles[0])


def test_two_mappings_in_one_process_exclude_each_other(arena):
    """A process has one lock on a file, however often it is open."""
    other, inside, left = Arena(arena.path), threading.Event(), threading.Event()

    def look():
        other.usage()
        assert left.is_set()
        inside.set()

    with arena._locked():
        thread = threading.Thread(target=look)
        thread.start()
        thread.join(0.05)
        left.set()
    thread.join(30)
    assert inside.is_set()


HOLD_AND_WAIT = """
import sys, time
from pathlib import Path
from genrec.kv.arena import Arena
arena = Arena(Path(sys.argv[1]))
region = arena.allocate(4, span=8)
if sys.argv[2] == "locked":
    lock = arena._locked()  # kept: without a name it would be given back at once
    lock.__enter__()
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("state", ["working", "locked"])
def test_kill_9_of_a_process_that_holds_slots_or_the_lock_leaks_nothing(arena, state):
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD_AND_WAIT, str(arena.path), state], stdout=subprocess.PIPE
    )
    assert child.stdout.readline() == b"ready\n"
    if state == "working":
        with pytest.raises(ArenaFull):
            arena.allocate(3, span=8)
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie, which counts as dead
    assert later(arena).allocate(6, span=8).rows == 6
    child.wait()


def test_half_written_allocations_are_reaped(arena):
    """A process killed between two words of an allocation: some rows HELD, some still FREE."""
    arena.allocate(4, span=8)
    table = arena._table
    table[2:4, STATE] = FREE
    table[1:5, [OWNER, STARTED, LEASE]] = 2**22 + 1, 1, 0
    assert arena.usage() == {"free": 6, "held": 0, "idle": 0, "done": 0}


@settings(max_examples=60, deadline=None)
@given(moves=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 10)), max_size=60))
def test_any_order_of_moves_keeps_rows_apart_and_ends_empty(tmp_path_factory, moves):
    """Against a plain model: live rows are a dict handle -> (state, value written)."""
    arena = Arena.create(tmp_path_factory.mktemp("arena") / "arena", slots=5, slot_bytes=4096)
    live: dict = {}
    for move, pick in moves:
        if move == 0:
            try:
                region = arena.allocate(1 + pick % 3, span=4)
            except ArenaFull:
                continue
            for handle in region.handles:
                assert handle not in live
                live[handle] = "held"
                region.memory.reshape(region.rows, -1)[handle[3]] = handle[1] * 16 + handle[2] % 16
        elif live:
            handle = sorted(live)[pick % len(live)]
            wanted, then, call = [
                ("idle", "held", arena.hold),
                ("held", "idle", arena.rest),
                ("held", None, arena.release),
            ][move - 1]
            if live[handle] != wanted:
                with pytest.raises(StaleHandle):
                    call(handle)
                continue
            row = call(handle)
            if row is not None:
                assert (
                    row.memory.reshape(row.rows, -1)[row.row] == np.uint8(handle[1] * 16 + handle[2] % 16)
                ).all()
            live[handle] = then
            if then is None:
                del live[handle]
        usage = arena.usage()
        assert (usage["held"], usage["idle"]) == tuple(list(live.values()).count(s) for s in ("held", "idle"))
    for handle, state in live.items():
        if state == "idle":
            arena.hold(handle)
        arena.release(handle)
    assert arena.usage()["free"] == 5


def test_files_that_are_no_arena_and_sizes_that_do_not_fit_are_refused(tmp_path):
    for content in (b"", b"short", bytes(8192)):
        path = tmp_path / "not"
        path.write_bytes(content)
        with pytest.raises(ArtifactError, match="not a KV arena"):
            Arena(path)
    with pytest.raises(ArtifactError):
        Arena(tmp_path / "missing")
    with pytest.raises(InputError, match=r"slots: .* MiB free"):
        Arena.create(tmp_path / "huge", slots=1 << 20, slot_bytes=1 << 30)
    assert not (tmp_path / "huge").exists()
    arena = Arena.create(tmp_path / "cut", slots=2, slot_bytes=4096)
    os.truncate(arena.path, 8192)
    with pytest.raises(ArtifactError, match="wrong magic or size"):
        Arena(arena.path)
