"""Items' KV computed before anybody asks, while the engine has nothing to do (BAT, section 5.2).

What ought to be in the pool is what is asked for most, and of the rest the most popular: at the start of a server,
after a change of the catalogue and, as requests are counted, now and then. Missing items are computed in small batches
at the lowest priority of the rankings' queue. Of a full pool, only what is clearly colder leaves.

Of several nodes, each has the hot ones in its pool and puts its own share of all into their store (`shard`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from genrec import metrics
from genrec.engine.ranking import RankExecutor
from genrec.nodes.placement import EVERYWHERE
from genrec.pool.item_heat import ItemHeat
from genrec.pool.keys import Words
from genrec.rank.item_tokens import DistinctItems
from genrec.schedule.idle_items import IdleItems, Places
from genrec.schedule.scheduler import Scheduler
from genrec.schedule.shard import Shard

LOOK_S = 0.5  # between two looks whether there is something to plan
PLAN_S = 5.0  # between two plans at least
PLAN_SHARE = 0.01  # of a core that plans may take: a large catalogue's takes a second
KEYS = 1024  # made at a time: requests should not wait for the interpreter
log = logging.getLogger("genrec.items_ahead")


class KnownItems(NamedTuple):
    """Items of a catalogue version, their keys uint64[m, 2], and which the version before had not."""

    version: int
    items: DistinctItems
    keys: Words
    new: NDArray[np.bool_]


class ItemsAhead:
    """Plans on a thread of its own; the rankings' threads compute."""

    def __init__(
        self, executor: RankExecutor, scheduler: Scheduler[Any], current: Callable[[], tuple[int, DistinctItems]],
        batch_s: float, shard: Shard | None = None, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """`current`: the catalogue version of new requests and its items. `shard`: of several nodes, this one's."""
        self._executor, self._current, self._shard, self._clock = executor, current, shard, clock
        self._heat = ItemHeat(clock)
        self.work = IdleItems(scheduler, executor.items.tokens, batch_s, clock)
        self._known: KnownItems | None = None
        # What had been asked for when it last planned, and when it may again.
        self._planned, self._next = 0, 0.0
        self._cut_short = False  # the plan, as the pool's table was not to be had
        self._stop = threading.Event()

    def start(self) -> None:
        """From now on."""
        threading.Thread(target=self._keep_looking, name="genrec-items", daemon=True).start()

    def close(self) -> None:
        """Plan no more."""
        self._stop.set()

    def see(self, user_tokens: int, tokens: NDArray[np.int32]) -> None:
        """A ranking of a user of so many tokens asked for these items, int32[C, t]."""
        self._heat.see(tokens)
        if self._shard:
            self._shard.see(user_tokens, len(tokens))

    def _keep_looking(self) -> None:
        while not self._stop.wait(LOOK_S):
            try:
                self.look()
            except Exception:  # what is computed ahead is no condition of an answer
                log.exception("items ahead")
                self._next = self._clock() + PLAN_S

    def look(self) -> None:
        """Plan if the catalogue is another one, or if requests came since the last plan."""
        version, items = self._current()
        known = self._known
        if known is None or known.version != version:
            known = self._know(version, items)
        elif self._clock() < self._next or not self._more_to_plan():
            return
        begun, seen = self._clock(), self._heat.seen
        # A plan that fails is made again, whether requests come or not.
        self._known, self._planned, self._cut_short = known, -1, False
        self._plan(known)
        self._planned = seen
        ended = self._clock()
        self._next = ended + max(PLAN_S, (ended - begun) / PLAN_SHARE)

    def _more_to_plan(self) -> bool:
        wanted = self._heat.seen != self._planned or self._cut_short
        return wanted or (self._shard is not None and self._shard.lacks)

    def _know(self, version: int, items: DistinctItems) -> KnownItems:
        """New items count as if each had been asked for once: nobody can have done so yet."""
        keys = self._keys(items.tokens)
        new = np.zeros(len(keys), bool)
        if self._known is not None:
            before = self._known.keys.view([("", np.uint64)] * 2).reshape(-1)
            new = ~np.isin(keys.view(before.dtype).reshape(-1), before)
            self._heat.see(items.tokens[new])
        return KnownItems(version, items, keys, new)

    def _keys(self, tokens: NDArray[np.int32]) -> Words:
        made = [np.zeros((0, 2), np.uint64)]
        for start in range(0, len(tokens), KEYS):
            made.append(self._executor.items.words(tokens[start : start + KEYS]))
            time.sleep(1e-4)
        return np.concatenate(made)

    def _plan(self, known: KnownItems) -> None:
        """Which items ought to be in the pool and are not, the hottest first; and in the store."""
        heat, popularity = self._heat.of(known.items.tokens), known.items.popularity
        hottest = np.lexsort((-popularity, -heat))
        wanted = hottest
        if self._shard:
            # Before anything is counted, popularity is all that is known: all of it counts as one request.
            placed = self._shard.place(heat + popularity / max(popularity.sum(), 1), known.keys)
            wanted = hottest[placed[hottest] == EVERYWHERE]
        wanted = wanted[: self._executor.items.places]
        self.work.begin(
            wanted[self._executor.items.absent(known.keys[wanted])], partial(self._compute, known)
        )
        if self._shard:
            self._shard.plan(known.items.tokens, known.keys, hottest)

    def _compute(self, known: KnownItems, executor: RankExecutor, places: Places) -> tuple[int, bool]:
        """A batch into the pool. Where none finds a place, colder ones will not either."""
        tokens = known.items.tokens[places]
        heat = self._heat.of(tokens)
        kept = executor.items.keep(tokens, heat)
        if not kept.any() and not executor.items.reachable:
            self._cut_short = True
        reasons = np.where(known.new[places], "new", np.where(heat > 0, "hot", "popular"))
        for reason, count in zip(*np.unique(reasons[kept], return_counts=True), strict=True):
            metrics.ITEMS_AHEAD.add(int(count), reason=str(reason))
        return int(kept.sum()), bool(kept.any())
