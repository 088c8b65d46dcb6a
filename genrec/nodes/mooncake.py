"""The pools of several nodes as one, over Mooncake Store: what one node has computed another may fetch.

BAT, section 5.1: cache workers and a central index. Here a node's own pool stays what requests read, and the store is
behind it: entries are sent to it after they were computed and brought from it into the own pool, both off the
request's way. A key is never written twice with other bytes (all keys are of what was hashed), so nothing in the store
grows stale; what comes back is checked against a checksum.

Servers share items alone: a router keeps a user at one node. `send_user`, `bring_user` and `forget` are what it would
take to share users, too; `genrec bench relay_fetch` measures the first two. Users are found on other nodes only where
the pools were made with one secret, and by whole entries among the newest boundaries.

Needs `mooncake-transfer-engine-non-cuda` and a running `mooncake_master`. Its calls may hang for seconds when the
master or a node is gone: each runs on a thread of its own, one that brings and one other at a time, and nobody waits
longer than he said.
"""

from __future__ import annotations

import logging
import os
import threading
import zlib
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genrec.errors import InputError
from genrec.pool.items import NONE, Rows
from genrec.pool.keys import Keys, Words, words
from genrec.pool.pool import Pool

log = logging.getLogger("genrec.pool")
LOOK_BACK = 32  # newest boundaries of a history that are asked for
TRAILER = 32  # bytes behind each object: its key, its size and a checksum
# Mooncake's own limits are half a minute and more.
LIMITS = {
    "MC_TCP_PROGRESS_TIMEOUT_SEC": "2", "MC_SLICE_TIMEOUT": "2", "MC_HANDSHAKE_CONNECT_TIMEOUT": "1",
    "MC_RPC_TIMEOUT_MS": "3000", "MC_RPC_CONNECT_TIMEOUT_MS": "1000",
}  # fmt: skip
Bytes = NDArray[np.uint8]


class Mooncake:
    """One node's way into the store."""

    def __init__(self, master: str, host: str, segment_bytes: int, buffer_bytes: int = 64 << 20) -> None:
        """Join with `segment_bytes` of memory of this node. `master` and `host` are host:port. Raises InputError."""
        if find_spec("mooncake") is None:
            raise InputError("mooncake", "is not installed", "pip install mooncake-transfer-engine-non-cuda")
        for name, value in LIMITS.items():
            os.environ.setdefault(name, value)
        from mooncake.store import MooncakeDistributedStore, ReplicateConfig

        self._store: Any = MooncakeDistributedStore()
        failed = self._store.setup(host, "P2PHANDSHAKE", segment_bytes, buffer_bytes, "tcp", "", master)
        if failed:
            raise InputError(
                "mooncake", f"setup failed with {failed}", f"a master at {master}, a free port {host}"
            )
        self._here: Any = ReplicateConfig()  # what this node puts lies on its own memory
        self._here.preferred_segments = [host]
        self._reading, self._writing = threading.Lock(), threading.Lock()

    def put_items(self, keys: Keys, rows: Bytes, timeout_s: float) -> NDArray[np.bool_] | None:
        """Put items of these rows uint8[n, bytes] into the store. bool[n]: which it took; None where that was not told
        in time.
        """
        named, taken = words(keys), list[bool]()
        if not self._ask(
            lambda: taken.extend(self._put([_item(key) for key in named], named, list(rows))), timeout_s
        ):
            return None
        return np.array(taken, np.bool_)

    def have_items(self, keys: Keys, timeout_s: float) -> NDArray[np.bool_] | None:
        """bool[n]: which are in the store, or None if that was not told in time. It keeps them for seconds more."""
        named, found = words(keys), []
        if not self._ask(
            lambda: found.extend(self._store.batch_is_exist([_item(k) for k in named])), timeout_s
        ):
            return None
        return np.array(found, int) == 1

    def bring_items(self, pool: Pool, keys: Keys, timeout_s: float, spared: Rows = NONE) -> bool:
        """See `genrec.nodes.item_store.Store`."""
        wanted = words(keys)

        def bring() -> None:
            absent = wanted[pool.item_rows(wanted) < 0]
            names = [_item(key) for key in absent]
            absent = absent[np.array(self._store.batch_is_exist(names) if names else [], int) == 1]
            rows = pool.write_items(absent, spared=spared)
            taken = np.flatnonzero(rows >= 0)
            if not len(taken):
                return
            whole = np.zeros(len(taken), bool)
            try:
                whole = self._get(
                    [_item(absent[i]) for i in taken], absent[taken], [_rows(pool)[rows[i]] for i in taken]
                )
                pool.commit_items(rows[taken][whole])
            finally:
                # Not what was committed: that may have gone, and be another's to fill by now.
                pool.abandon_items(rows[taken][~whole])

        return self._ask(bring, timeout_s, brings=True)

    def send_user(
        self, pool: Pool, hashes: Keys, tokens_per_boundary: int, owner: bytes, timeout_s: float
    ) -> bool:
        """Put the longest entry that agrees, if it does so as a whole, into the store. Whether that ended in time."""
        named = words(hashes)

        def send() -> None:
            entry = pool.find_user(named, tokens_per_boundary)
            if entry is None:
                return
            try:
                if entry.tokens == entry.span:
                    key = named[entry.tokens // tokens_per_boundary]
                    self._put([_user(owner, key)], key[None], [entry.memory])
            finally:
                pool.release(entry)

        return self._ask(send, timeout_s)

    def bring_user(
        self, pool: Pool, hashes: Keys, tokens_per_boundary: int, owner: bytes, timeout_s: float
    ) -> bool:
        """Fetch the store's longest entry that agrees, if the pool's is shorter. Whether that ended in time."""
        named = words(hashes)

        def bring() -> None:
            have = pool.find_user(named, tokens_per_boundary)
            least = have.tokens // tokens_per_boundary if have else 0
            if have:
                pool.release(have)
            boundaries = range(len(named) - 1, max(least, len(named) - 1 - LOOK_BACK), -1)
            names = [_user(owner, named[i]) for i in boundaries]
            found = self._store.batch_is_exist(names) if names else []
            boundary = next((i for i, there in zip(boundaries, found, strict=True) if there == 1), 0)
            size = self._store.get_size(_user(owner, named[boundary])) - TRAILER if boundary else 0
            if size <= 0:
                return
            writing = pool.write_user(named[: boundary + 1], boundary * tokens_per_boundary, size, owner)
            if writing is None:
                return
            came = False
            try:
                came = self._get([_user(owner, named[boundary])], named[boundary][None], [writing.memory])[0]
            finally:
                (pool.commit if came else pool.abandon)(writing)

        return self._ask(bring, timeout_s, brings=True)

    def forget(self, owner: bytes, timeout_s: float) -> bool:
        """Delete a user's entries from the store; every node's own pool has to forget him too."""
        return self._ask(lambda: self._store.remove_by_regex(f"^{_user(owner)}", True), timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Leave; what lies on this node is lost to the others. Whether that ended in time."""
        return self._ask(self._store.close, timeout_s)

    def _ask(self, work: Callable[[], object], timeout_s: float, brings: bool = False) -> bool:
        """Do it on a thread and wait so long at most. While one still hangs, no other of its kind is begun."""
        busy = self._reading if brings else self._writing
        if not busy.acquire(blocking=False):
            return False
        done = threading.Event()

        def run() -> None:
            try:
                work()
            except Exception:  # a store that is gone fails in many ways; requests do without
                log.exception("kv pool: the distributed store failed")
            else:
                done.set()
            finally:
                busy.release()

        thread = threading.Thread(target=run, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no thread to give
            log.exception("kv pool: the distributed store was not asked")
            busy.release()
            return False
        thread.join(timeout_s)
        return done.is_set()

    def _put(self, names: Sequence[str], keys: Words, memories: Sequence[Bytes]) -> NDArray[np.bool_]:
        """bool[n]: which the store took; it refuses what it has no room for."""
        if not names:
            return np.zeros(0, bool)
        trailers = [_trailer(key, memory) for key, memory in zip(keys, memories, strict=True)]
        failed = self._store.batch_put_from_multi_buffers(names, *_places(memories, trailers), self._here)
        taken = np.array(failed, int) == 0
        if not taken.all():
            log.warning("kv pool: the distributed store took %d of %d", taken.sum(), len(names))
        return taken

    def _get(self, names: Sequence[str], keys: Words, memories: Sequence[Bytes]) -> NDArray[np.bool_]:
        """bool[n]: which came whole."""
        trailers = [np.zeros(TRAILER, np.uint8) for _ in names]
        got = self._store.batch_get_into_multi_buffers(names, *_places(memories, trailers))
        whole = [
            size == len(memory) + TRAILER and (trailer == _trailer(key, memory)).all()
            for size, key, memory, trailer in zip(got, keys, memories, trailers, strict=True)
        ]
        if not all(whole):
            log.warning("kv pool: %d of %d came whole from the distributed store", sum(whole), len(whole))
        return np.array(whole, bool)


def _rows(pool: Pool) -> Bytes:
    """uint8[item_rows, item_row_bytes]."""
    return pool.items_memory.reshape(-1, pool.item_row_bytes)


def _item(key: Words) -> str:
    return f"item_{key.tobytes().hex()}"


def _user(owner: bytes, key: Words | None = None) -> str:
    return f"user_{owner.hex()}_{'' if key is None else key.tobytes().hex()}"


def _trailer(key: Words, memory: Bytes) -> Bytes:
    """uint8[TRAILER]: that these are all the bytes, and this key's."""
    numbers = np.array([len(memory), zlib.crc32(np.ascontiguousarray(memory).data)], np.uint64)
    return np.concatenate((key.view(np.uint8), numbers.view(np.uint8)))


def _places(memories: Sequence[Bytes], trailers: Sequence[Bytes]) -> tuple[list[list[int]], list[list[int]]]:
    """Addresses and sizes: an object's memory, then its trailer."""
    pairs = list(zip(memories, trailers, strict=True))
    return [[a.ctypes.data, b.ctypes.data] for a, b in pairs], [[len(a), len(b)] for a, b in pairs]
