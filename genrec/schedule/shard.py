"""One node's share of all items, in the store of several nodes (BAT, section 5.2).

Every item has an owner, by its key. The owner computes it while it has nothing else to do and puts it into the store,
on its own memory; hot ones too, for what is hot here may be cold on another node. Which items every node has in its own
pool follows from what is measured (Algorithm 1): the store's bandwidth, the time of a user's tokens, how often items
are asked for.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genrec import metrics
from genrec.engine.ranking import RankExecutor
from genrec.errors import InputError
from genrec.nodes.item_store import PUT_S, ItemStore
from genrec.nodes.node_share import NodeShare
from genrec.nodes.placement import Cluster, owners_of, sharded_share
from genrec.pool.keys import Words
from genrec.schedule.cost import PassCost
from genrec.schedule.idle_items import IdleItems, Places
from genrec.schedule.scheduler import Scheduler

MEMORY = 0.99  # weight of the past in the means over rankings
LOOKED_AT = 64  # of what was put, drawn to see whether the store has it still
ALL_LOST = 0.5  # share of them; with less that is there, all is put again
log = logging.getLogger("genrec.items_ahead")


class Shard:
    """What this node puts into the store, and what it keeps of the hot ones."""

    def __init__(
        self, store: ItemStore, share: NodeShare, pool: Path, most_items: int, cost: PassCost,
        scheduler: Scheduler[Any], item_tokens: int, batch_s: float, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """At most `most_items` are put. `cost`: of rankings, in seconds. What is held is written into `pool`."""
        self._store, self.share, self._pool, self._most, self._cost = store, share, pool, most_items, cost
        self._item_tokens, self._clock = item_tokens, clock
        self.work = IdleItems(scheduler, item_tokens, batch_s, clock)
        self._put: set[bytes] = set()  # keys
        self._user_tokens = self._candidates = 0.0  # of a ranking, on average
        self.lacks = True  # whether something of its share is still to be put, or was lost

    def see(self, user_tokens: int, candidates: int) -> None:
        """A ranking of so many."""
        if not self._candidates:
            self._user_tokens, self._candidates = float(user_tokens), float(candidates)
        self._user_tokens += (1 - MEMORY) * (user_tokens - self._user_tokens)
        self._candidates += (1 - MEMORY) * (candidates - self._candidates)

    def sharded(self) -> float:
        """R of Algorithm 1; 0 as long as something of it was not measured."""
        if not self._candidates or not self._store.tokens_a_second:
            return 0.0
        prefill_s = self._cost.seconds(True, 0, int(self._user_tokens))
        try:
            cluster = Cluster(
                self.share.nodes, self._store.tokens_a_second, prefill_s, max(round(self._candidates), 1),
                self._item_tokens, fetch_s=self._store.fetch_s,
            )  # fmt: skip
        except InputError:  # something that was measured is no number
            return 0.0
        return sharded_share(cluster)

    def place(self, frequencies: NDArray[np.float64], keys: Words) -> NDArray[np.int32]:
        """Where items lie, as `placement.place`, by what was measured; told to who looks at the pool."""
        share = replace(self.share, sharded=self.sharded())
        placed = share.place(frequencies, keys)
        share = share.of(placed)
        if share != self.share:
            self.share = share
            share.save(self._pool)
        return placed

    def plan(self, tokens: NDArray[np.int32], keys: Words, hottest: Places) -> None:
        """Put what of its share is not in the store: of items int32[m, t] with keys uint64[m, 2], hottest first."""
        own = hottest[owners_of(keys[hottest], self.share.nodes) == self.share.node][: self._most]
        names = [key.tobytes() for key in keys[own]]
        self._put &= set(names)
        if self._store.ready:
            self._put -= self._lost(keys[own[np.array([name in self._put for name in names], bool)]])
        missing = own[np.array([name not in self._put for name in names], bool)]
        self.lacks = bool(len(missing))
        if self._store.ready and self.work.idle:
            self.work.begin(missing, partial(self._compute, tokens, keys))

    def _lost(self, keys: Words) -> set[bytes]:
        """Those of what was put that the store has lost: of a sample some, or all, as when its master ended."""
        if not len(keys) or self._store.store is None:
            return set()
        drawn = np.random.default_rng().choice(keys, min(LOOKED_AT, len(keys)), replace=False)
        found = self._store.store.have_items(drawn, PUT_S)
        if found is None:
            return set()
        return {key.tobytes() for key in (drawn[~found] if found.mean() > ALL_LOST else keys)}

    def _compute(
        self, tokens: NDArray[np.int32], keys: Words, executor: RankExecutor, places: Places
    ) -> tuple[int, None]:
        """A batch, which a thread of its own puts: nobody waits for that."""
        rows = executor.items.rows(tokens[places])
        threading.Thread(target=self._send, args=(keys[places], rows), daemon=True).start()
        return len(places), None

    def _send(self, keys: Words, rows: NDArray[np.uint8]) -> None:
        store = self._store.store
        taken = store.put_items(keys, rows, PUT_S) if store is not None else None
        if taken is not None:
            self._put.update(key.tobytes() for key in keys[taken])
            metrics.ITEMS_PUT.add(int(taken.sum()))
        if taken is not None and taken.all():
            self.work.go_on()
        else:
            self.lacks = True
            self.work.end()
