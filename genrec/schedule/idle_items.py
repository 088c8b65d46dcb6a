"""Items worked on, a small batch after the other, while no ranking is there to run."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from genrec.engine.ranking import RankExecutor
from genrec.schedule.scheduler import Scheduler

MOST = 256  # items of a batch
SHARE = 0.25  # of the time in which no ranking runs: a generator may run on the same cores
Places = NDArray[np.int64]
# How many items were computed, and whether to go on with the next batch; None: `go_on` or `end` will be called, from
# another thread.
Work = Callable[[RankExecutor, Places], tuple[int, bool | None]]
log = logging.getLogger("genrec.items_ahead")


class IdleBatch(NamedTuple):
    """What stands in the rankings' queue."""

    of: IdleItems
    places: Places
    work: Work


class IdleItems:
    """Batches of what is left to do, each offered once the one before is done with."""

    def __init__(
        self, scheduler: Scheduler[Any], item_tokens: int, batch_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """A batch is to take `batch_s` at most: a ranking may have to wait for it."""
        self._scheduler, self._item_tokens, self._batch_s = scheduler, item_tokens, batch_s
        self._clock = clock
        self._left: Places = np.zeros(0, np.int64)
        self._work: Work = lambda executor, places: (0, False)
        self._offered: Work = self._work  # what the batch under way is of
        self._size, self._pause_s = 1, 0.0  # of the next batch, and before it
        self._under_way = False  # from the offer of a batch until it is done with
        self._lock = threading.Lock()

    def begin(self, places: Places, work: Work) -> None:
        """Do this, by places in what `work` knows, instead of what is left."""
        with self._lock:
            self._left, self._work = places, work
            if not self._under_way:
                self._offer()

    def go_on(self) -> None:
        """A batch is done with: the next one."""
        with self._lock:
            self._offer()

    def end(self) -> None:
        """A batch is done with, and what is left of its work need not be tried; of work begun meanwhile it is."""
        with self._lock:
            if self._offered is self._work:
                self._left = self._left[:0]
            self._offer()

    @property
    def idle(self) -> bool:
        """Whether nothing is left and nothing is under way."""
        with self._lock:
            return not self._under_way and not len(self._left)

    def _offer(self) -> None:
        places, self._left = self._left[: self._size], self._left[self._size :]
        self._under_way = bool(len(places))
        self._offered = self._work
        if self._under_way:
            tokens = len(places) * self._item_tokens
            self._scheduler.offer(IdleBatch(self, places, self._work), tokens, self._pause_s)

    def run(self, executor: RankExecutor, batch: IdleBatch) -> None:
        """One that comes from the queue, by the thread that took it; raises nothing."""
        begun = self._clock()
        try:
            items, on = batch.work(executor, batch.places)
        except Exception:  # the thread must live on
            log.exception("items ahead")
            items, on = 0, False
        self._learn(items, self._clock() - begun)
        if on is not None:
            (self.go_on if on else self.end)()

    def _learn(self, items: int, seconds: float) -> None:
        """Twice as many next time while that is fast enough; half as many where it was too slow. So many items were
        computed: those that found no place say nothing.
        """
        with self._lock:
            self._pause_s = seconds * (1 / SHARE - 1)
            if items and seconds > self._batch_s:
                self._size = max(items // 2, 1)
            elif 2 * seconds < self._batch_s and items == self._size:
                self._size = min(2 * items, MOST)
