"""Compile what the pool's calls run: on a request's way, with the table locked, it would keep everybody waiting."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from pathlib import Path

import numba
import numpy as np

from genrec.compiled import first_alone
from genrec.pool import index, items, lead, leaving, space, user_kernels, user_rows
from genrec.pool.hotness import Hotness
from genrec.pool.keys import item_words, owner_key, user_words, words
from genrec.pool.mapping import ENTRY_WORDS, HEADER, PROCESSES


@cache
def warm() -> None:
    """Once in a process. It takes some fifteen seconds the first time, which numba keeps, and half a second later."""
    folder = Path(__file__).parent
    of = [numba.__version__, *(each.read_text() for each in sorted(folder.glob("*.py")))]
    first_alone(f"pool_kernels-{sha256(str(folder).encode()).hexdigest()[:16]}", of, _run_all, _forget)


def _forget() -> None:
    """What numba has kept of this room: indices, and the code that one written ahead of its own code would find."""
    for kept in Path(str(index.put.stats.cache_path)).glob("*.nb[ci]"):
        kept.unlink(missing_ok=True)


def _run_all() -> None:
    """Every kernel on a few numbers of the types that it is called with."""
    hashes, answer = user_words(bytes(32), "", "", None, np.zeros(2, np.int32), 1), np.zeros(1, np.int64)
    item_words("", "", np.zeros((1, 1), np.int32))
    places = np.zeros((index.slots_for(1), 3), np.uint64)
    index.put(places, hashes[:1], answer)
    index.find(places, hashes)
    index.find_last(places, hashes, 2)
    row = np.zeros(1, np.int64)
    header, heat = np.zeros(HEADER, np.int64), np.zeros(1, np.float32)
    rows, generations = items.look_up(header, places, hashes, np.zeros(1, np.int8), hashes, heat, row, row, 0)
    items.unchanged(row, rows, generations)
    items.present(places, hashes, np.zeros(1, np.int8), hashes)
    state, held = np.zeros(1, np.int8), np.zeros((1, 2), np.uint64)
    unasked, spared = items.UNASKED, items.NONE
    items.fill(header, places, hashes, state, held, heat, row, row, state.copy(), 0, 0, unasked, spared)
    items.show(state, state, row, rows, generations, 0)
    items.free(header, places, state, held, row, 0)
    index.remove(places, hashes[:1], answer)
    entries, pins = np.zeros((1, ENTRY_WORDS), np.int64), np.zeros((1, PROCESSES), np.int16)
    user_rows.standing(entries, pins, user_rows.used(entries), 0)
    user_rows.use(entries, pins, 0, 0, 0)
    user_rows.unpin(entries, pins, 0, 1, 0)
    memory = np.zeros(lead.bytes_of(2), np.uint8)
    arrays = header, memory, entries, pins, places
    _, used, (may, _, _, _) = user_kernels.survey(*arrays, 0, 0, 0)
    leaving.drop(*arrays, np.zeros(PROCESSES, bool), 0)
    user_kernels.settle(*arrays, used, may, np.zeros(0), 1, 1, (0,) * 10)
    user_kernels.show(*arrays, 0, 1, 0, hashes, 0)
    leaving.end(*arrays, 0)
    lead.find(header, memory, entries, places, hashes, 0)
    user_kernels.find_and_use(*arrays, hashes, 1, 0, 0)
    user_kernels.take_oldest(*arrays, 1, 1, (0,) * 10)
    leaving.vacate(memory, entries, 0)
    space.place(row, row, row, 1, 1)
    owner = words([owner_key(bytes(32), None)])
    hotness = Hotness(owners=8)
    hotness.see(owner[0], 1)
    hotness.frequency(owner, 1)
    hotness.chance(owner, 1)
    hotness.net(0, 1, 1)
    hotness.forget(owner[0])
