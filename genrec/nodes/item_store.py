"""Items' KV of other nodes, behind this node's own pool (BAT, section 5.2).

An item that is cold lies with one node, which puts it into the store, on memory of its own. A ranking that misses it
asks the store, for no longer than computing it would take; a store that does not answer is left alone for a while. So a
node or a master that is gone costs time, never an answer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from genrec import metrics
from genrec.batch_cost import BatchCost
from genrec.pool.items import NONE, Rows
from genrec.pool.keys import Words
from genrec.pool.look import absent
from genrec.pool.pool import Pool

RETRY_S = 5.0  # between two tries to join, and how long a store that did not answer is left alone
PUT_S = 5.0  # that putting a batch may take; nobody waits for it
log = logging.getLogger("genrec.pool")


class Store(Protocol):
    """What `Mooncake` does for items; nothing raises, and nothing takes longer than it is told."""

    def bring_items(self, pool: Pool, keys: Words, timeout_s: float, spared: Rows = NONE) -> bool:
        """Fetch the items that the pool lacks and the store has, in the place of others than the rows `spared`. Whether
        that ended in time.
        """
        raise NotImplementedError

    def put_items(self, keys: Words, rows: NDArray[np.uint8], timeout_s: float) -> NDArray[np.bool_] | None:
        """Put items of these rows uint8[n, bytes]. bool[n]: which it took; None where no answer came in time."""
        raise NotImplementedError

    def have_items(self, keys: Words, timeout_s: float) -> NDArray[np.bool_] | None:
        """bool[n]: which are there; None where no answer came in time."""
        raise NotImplementedError

    def close(self, timeout_s: float) -> bool:
        """Leave. Whether that ended in time."""
        raise NotImplementedError


class ItemStore:
    """One node's way to the items of all. Joins in the background, again and again until it has."""

    def __init__(
        self, join: Callable[[], Store], item_tokens: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`join` raises while there is no store to be had. `item_tokens`: of an item."""
        self._join, self._item_tokens, self._clock = join, item_tokens, clock
        self.store: Store | None = None
        self._rest_until = 0.0
        self._compute, self._fetch = BatchCost(), BatchCost()  # of items
        self._computing = threading.Lock()  # rankings of several streams compute at once
        self._asking = threading.Lock()  # rankings of other streams need not wait for this one's
        self._stop = threading.Event()

    def start(self) -> None:
        """Join, now or as soon as that can be."""
        threading.Thread(target=self._keep_joining, name="genrec-store", daemon=True).start()

    def _keep_joining(self) -> None:
        told = ""
        while self.store is None:
            try:
                self.store = self._join()
                log.info("kv pool: joined the store of all nodes")
                if self._stop.is_set():  # that took longer than this node was wanted
                    self.store.close(1.0)
            except Exception as error:  # whatever its library says: a node that is alone goes on
                if str(error) != told:
                    told = str(error)
                    log.warning("kv pool: goes on without the store of all nodes: %s", told)
            if self._stop.wait(RETRY_S):
                return

    def close(self) -> None:
        """Leave."""
        self._stop.set()
        if self.store:
            self.store.close(1.0)

    @property
    def tokens_a_second(self) -> float:
        """KV that the network carries to this node, as measured; 0 as long as nothing came."""
        return self._item_tokens / max(self._fetch.seconds(0, 1), 1e-9) if self._fetch.known else 0.0

    @property
    def fetch_s(self) -> float:
        """What a fetch takes whatever comes."""
        return self._fetch.seconds(1, 0)

    @property
    def ready(self) -> bool:
        """Whether it may be asked now."""
        return self.store is not None and self._clock() >= self._rest_until

    def computed(self, items: int, seconds: float) -> None:
        """So many items of a ranking were computed in so long. A node that has not joined learns nothing of it: the
        first pass of a graph, a rehearsal, takes many times as long as the next.
        """
        if self.store is not None:
            with self._computing:
                self._compute.learn(items, seconds)

    def most_s(self, items: int, deadline_s: float | None) -> float:
        """How long bringing so many items may take: no longer than computing them, and so that this is in time too."""
        with self._computing:
            computing = self._compute.seconds(1, items)
        if deadline_s is None:
            return computing
        return min(computing, deadline_s - self._clock() - computing)

    def bring(self, pool: Pool, keys: Words, deadline_s: float | None, spared: Rows = NONE) -> bool:
        """Fetch items that a ranking, due at `deadline_s` on the clock, misses. Whether that ended in time.

        `spared` int32[n] are rows of the pool that it has found, which stay.
        """
        most_s, begun = self.most_s(len(keys), deadline_s), self._clock()
        if self.store is None or not self.ready or most_s <= 0:
            return False
        if self._fetch.known and most_s <= self._fetch.seconds(1, len(keys)):
            self._rest(begun)
            return False
        if not self._asking.acquire(blocking=False):
            return False
        try:
            return self._bring(self.store, pool, keys, most_s, spared)
        finally:
            self._asking.release()

    def _bring(self, store: Store, pool: Pool, keys: Words, most_s: float, spared: Rows) -> bool:
        begun = self._clock()
        if not store.bring_items(pool, keys, most_s, spared):
            self._rest(begun)
            metrics.ITEM_FETCHES.add(len(keys), end="late")
            return False
        found = int((~absent(pool, keys)).sum())
        if found:
            self._fetch.learn(found, self._clock() - begun)
        metrics.ITEM_FETCHES.add(found, end="brought")
        metrics.ITEM_FETCHES.add(len(keys) - found, end="absent")
        return True

    def _rest(self, now: float) -> None:
        """It was too slow, or would have been: after a while it may be faster."""
        self._rest_until = now + RETRY_S
        self._fetch.forgive()
