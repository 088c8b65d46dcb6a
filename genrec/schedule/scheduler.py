"""Batching by token capacity (xGR, section 7).

Requests of a recommender differ a hundredfold in length, so a batch is counted in tokens, padding included, not in
requests. It goes when it is full or when its oldest request has waited for company, on one of several streams;
while one computes, the host prepares the next, unless the only one is lent to who brings requests. A
request whose deadline the queue ahead of it already takes is refused when it is submitted: answering it late would cost
those behind it their deadlines too. Estimates are held to what became of them: beyond capacity a third of the answers
came too late without that.

Who is first is the oldest, or the one that is due first (RelayGR: work ahead of time waits for what is due sooner).
What is offered runs when nothing is queued, a piece at a time, and counts in no estimate.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Generic, TypeVar

from genrec import metrics
from genrec.batch_cost import BatchCost
from genrec.errors import DeadlineExceeded, QueueFull
from genrec.schedule.batches import Alike, Rows, Running, Waiting, nearest, tokens_of, whole_rows
from genrec.schedule.lateness import Lateness

T = TypeVar("T")
LIMIT = 1024  # requests that wait: seconds of work, so whoever came later would hardly stay for the answer
GRACE_S = 0.002  # a guest who left requests in the queue comes back within, if Triton has more
log = logging.getLogger("genrec.scheduler")


class Scheduler(Generic[T]):
    """Queue, threads that run batches, and the estimate of what waits. Every method may be called by any thread."""

    def __init__(
        self,
        run: Sequence[Callable[[list[T]], bool | None]],
        capacity: int,
        wait_s: float,
        most: int,
        clock: Callable[[], float] = time.monotonic,
        patience_s: float | None = None,
        roomy_s: float = 0.0,
        lends: bool = False,
        rows: Rows | None = None,
        alike: Alike[T] | None = None,
    ) -> None:
        """One thread per function of `run`; a batch has at most `capacity` tokens and `most` requests, all `alike`.

        Of more tokens than that, it may have as many as it is expected to be done with in `roomy_s`.
        With `lends` its only stream runs batches in the thread of a `guest` too. A batch runs as so many `rows`: in
        place of padding it may be smaller.

        With `patience_s` the request that is due first goes first; one without a deadline is due so long after it came.

        A stream that is free waits `wait_s` for company before it takes a request. A request of more tokens runs alone.
        `run` answers its items itself. Estimates learn nothing from what it answers False for.
        """
        self._capacity, self._wait_s, self._most, self._clock = capacity, wait_s, most, clock
        self._patience_s, self._roomy_s, self._rows = patience_s, roomy_s, rows
        self._alike = alike
        self._queue: list[Waiting[T]] = []
        self._running: list[Running[T]] = []
        self._offered: list[tuple[Waiting[T], float]] = []  # with how long each waits after the last batch
        self._last = clock()  # when a batch last ended
        self._cost = BatchCost()
        self._lateness = Lateness()
        self._changed = threading.Condition()
        self._closed = False
        self._runs, self._lends = run, lends
        self._guest, self._guest_left = False, -math.inf  # whether one is there, and when the last one left
        self._threads = [threading.Thread(target=self._work, args=(each,), daemon=True) for each in run]
        for thread in self._threads:
            thread.start()

    @property
    def streams(self) -> int:
        """Batches that run at once."""
        return len(self._threads)

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._queue)

    def submit(
        self, item: T, tokens: int, deadline_s: float | None = None, due_s: float | None = None
    ) -> None:
        """Queue an item; `deadline_s` is on the clock. Raises QueueFull, DeadlineExceeded when it is hopeless.

        `due_s`: when it is due, for the order alone; else its deadline.
        """
        now = self._clock()
        with self._changed:
            if self._closed and not self._running:  # who runs looks into the queue once more
                raise QueueFull("queue: takes nothing any more, the server is ending")
            if len(self._queue) >= LIMIT:
                raise QueueFull(f"queue: has {LIMIT} requests (accepted: at most {LIMIT})")
            due = self._due(now, deadline_s if due_s is None else due_s)
            first = self._first(due)
            # Other streams do not make it shorter itself.
            estimate = max(self._until_done(now, [*first, tokens]), self._cost.seconds(1, tokens))
            needed = estimate + self._lateness.margin_s(now)
            # With nothing ahead nobody else is made late.
            ahead = first or self._running
            if deadline_s is not None and ahead and now + needed > deadline_s:
                left = 1000 * max(deadline_s - now, 0.0)
                raise DeadlineExceeded(
                    f"deadline_ms: {left:.1f} ms are left and {1000 * needed:.1f} ms are needed, with what is queued"
                )
            # Whoever is due sooner overtakes what only has its place: that is no lateness of an estimate.
            expected = now + estimate if due_s is None else math.inf
            self._queue.append(Waiting(item, tokens, now, due, expected))
            metrics.QUEUE_REQUESTS.set(len(self._queue))
            if not self._guest:  # it looks itself, and tells the stream when it leaves
                self._changed.notify()

    def offer(self, item: T, tokens: int, pause_s: float) -> None:
        """Run an item once nothing is queued or runs, and no batch has ended for `pause_s`; never, once closed."""
        with self._changed:
            self._offered.append((Waiting(item, tokens, self._clock(), math.inf, math.inf), pause_s))
            self._changed.notify()

    def withdraw(self, item: T) -> None:
        """Take back an item, if it waits still."""
        with self._changed:
            self._queue = [each for each in self._queue if each.item is not item]
            metrics.QUEUE_REQUESTS.set(len(self._queue))

    def hasten(self, item: T, due_s: float) -> None:
        """An item is due then, if it waits still."""
        with self._changed:
            self._queue = [replace(each, due=due_s) if each.item is item else each for each in self._queue]

    def ahead_s(self, due_s: float) -> float:
        """What one that is due then would wait."""
        with self._changed:
            return self._until_done(self._clock(), self._first(due_s))

    def _due(self, now: float, deadline_s: float | None) -> float:
        """What the queue is ordered by: when it came, or when it is due."""
        if self._patience_s is None:
            return now
        return now + self._patience_s if deadline_s is None else deadline_s

    def _first(self, due: float) -> list[int]:
        """Tokens of each that goes before a request that is due then."""
        return [each.tokens for each in self._queue if each.due <= due]

    def _until_done(self, now: float, sizes: list[int]) -> float:
        """Seconds that the streams take for what runs, and for requests of so many tokens in full batches."""
        running = sum(
            max(self._cost.seconds(1, each.tokens) - (now - each.begun), 0.0) for each in self._running
        )
        full = max(math.ceil(sum(sizes) / self._room()), math.ceil(len(sizes) / self._most))
        queued = self._cost.seconds(min(full, len(sizes)), sum(sizes))
        return (running + queued) / len(self._threads)

    def _room(self) -> int:
        """Tokens of a full batch."""
        return max(self._capacity, self._cost.tokens(self._roomy_s))

    def close(self) -> None:
        """Run what is queued, then end the threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self, run: Callable[[list[T]], bool | None]) -> None:
        while batch := self._take():
            self._run(run, batch)
            # Not kept while this waits: its requests may hold parts of a catalogue that was swapped.
            del batch

    @contextmanager
    def guest(self) -> Iterator[None]:
        """Submit requests within; then the next batch runs in this thread, if there is a stream to lend.

        For one thread at a time. So Triton's thread gives the answers back together, where one of ours would pay a
        round trip for each. And it brings no requests while a batch runs: it holds the interpreter's lock for a round
        trip whenever it does, which at 430 a second was a fifth of the time.
        """
        if not self._lends:
            yield
            return
        with self._changed:
            self._guest = True
        try:
            yield
            if batch := self._take_as_guest():
                self._run(self._runs[0], batch)
        finally:
            with self._changed:
                self._guest, self._guest_left = False, self._clock()
                self._changed.notify_all()

    def _take_as_guest(self) -> Running[T] | None:
        with self._changed:
            self._changed.wait_for(lambda: not self._running)
            return self._choose() if self._queue and self._left() <= 0 else None

    def _run(self, run: Callable[[list[T]], bool | None], batch: Running[T]) -> None:
        try:
            usual = run([each.item for each in batch.requests]) is not False
        except Exception:  # the stream must live on, and the batch must not stand as running
            log.exception("scheduler: a batch raised")
            usual = False
        done = self._clock()
        if not batch.offered:
            self._count(batch, done)
        with self._changed:
            self._running.remove(batch)
            self._last = done
            if usual and not batch.offered:
                self._learn(batch, done)
            if self._guest:
                self._changed.notify_all()

    def _count(self, batch: Running[T], done: float) -> None:
        for each in batch.requests:
            metrics.QUEUE_SECONDS.observe(batch.begun - each.since)
        metrics.BATCH_REQUESTS.observe(len(batch.requests))
        metrics.BATCH_TOKENS.observe(batch.tokens)
        metrics.BATCH_SECONDS.observe(done - batch.begun)

    def _learn(self, batch: Running[T], done: float) -> None:
        if self._cost.known:  # the first estimates were of nothing
            late = [done - each.expected for each in batch.requests if each.expected < math.inf]
            self._lateness.add(done, late)
        self._cost.learn(batch.tokens, done - batch.begun)

    def _take(self) -> Running[T] | None:
        """The next batch, which runs now; None once closed and drained."""
        with self._changed:
            while True:
                if self._guest:
                    self._changed.wait()
                elif self._queue:
                    left = max(self._left(), self._guest_left + GRACE_S - self._clock())
                    if left <= 0 or self._closed:
                        return self._choose()
                    self._changed.wait(left)
                elif self._closed:
                    return None
                elif self._offered and not self._running:
                    left = self._last + self._offered[0][1] - self._clock()
                    if left <= 0:
                        return self._run_offered()
                    self._changed.wait(left)
                else:
                    self._changed.wait()

    def _run_offered(self) -> Running[T]:
        waiting, _ = self._offered.pop(0)
        running = Running([waiting], waiting.tokens, self._clock(), offered=True)
        self._running.append(running)
        return running

    def _left(self) -> float:
        """Seconds that what is queued may still wait for company; none once it fills a batch."""
        if sum(each.tokens for each in self._queue) >= self._room():
            return 0.0
        return min(each.since for each in self._queue) + self._wait_s - self._clock()

    def _choose(self) -> Running[T]:
        """The request that is first, with those that go with it."""
        self._queue.sort(key=lambda each: each.due)  # in order already unless deadlines decide
        batch = nearest(self._queue, self._most, self._room(), self._alike)
        if self._rows:
            batch = whole_rows(batch, self._rows, self._cost)
        running = Running(batch, tokens_of(batch, self._rows), self._clock())
        self._running.append(running)
        chosen = {id(each) for each in batch}
        self._queue = [each for each in self._queue if id(each) not in chosen]
        metrics.QUEUE_REQUESTS.set(len(self._queue))
        if self._queue:
            self._changed.notify()  # another stream may be free for the rest
        return running
