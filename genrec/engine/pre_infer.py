"""Users' prefixes computed ahead of their rankings, part after part (RelayGR).

A pre-inference is in the table from its admission until its entry is in the pool. Whoever takes it out of the table
has it alone: the ranking that it serves takes what is half done over, and computes the rest itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf

import numpy as np
from numpy.typing import NDArray

from genrec import metrics
from genrec.engine.interface import Array, UserName
from genrec.engine.user_entry import UserEntries, UserPasses, copy_past
from genrec.pool.keys import Words, owner_key
from genrec.pool.look import hold
from genrec.pool.memory import Bytes
from genrec.pool.pool import Pool
from genrec.pool.tier import Tier
from genrec.pool.users import Writing


class PreInference:
    """The prefix of one user, tokens int32[S] or [S, n], for a ranking due at `due_s` on the monotonic clock.

    `entries` are those of the weights that it was admitted with; no others ever make a part of it.
    """

    def __init__(
        self, owner: int | None, tokens: NDArray[np.int32], hashes: Words, due_s: float, entries: UserEntries
    ) -> None:
        self.owner, self.tokens, self.hashes, self.due_s = owner, tokens, hashes, due_s
        self.entries = entries
        self.wanted_s = 0.0  # when its ranking will come; until then there is time
        self.done = 0  # tokens whose KV is in `kv`
        self.awaited_s = 0.0  # until when a ranking waits or is to come, on the monotonic clock
        self.came_ns: int | None = None  # when it was asked for, on the monotonic clock, if that is known
        self.writing: Writing | None = None  # the entry's place, from the first part on
        self.kv: list[Array] = []
        self.size = entries.user_bytes(entries.span(len(tokens)))  # bytes of its entry
        self.expected_s, self.spent_s = 0.0, 0.0  # what it was to take, and what it took
        self.computing = threading.Lock()  # who computes a part has it

    @property
    def key(self) -> bytes:
        """Of the entry that it makes."""
        return self.hashes[-1].tobytes()


class PreInferences:
    """Those of one process."""

    def __init__(
        self, pool: Pool, entries: Callable[[], UserEntries], lease_s: float, tier: Tier | None = None
    ) -> None:
        """`entries`: those of the weights that serve now. One that no ranking has used leaves after `lease_s`.

        `tier`: where entries are that the pool has dropped, if anywhere.
        """
        self.pool, self._entries, self._lease_s, self.tier = pool, entries, lease_s, tier
        self._jobs: dict[bytes, PreInference] = {}
        self._lock = threading.Lock()
        # What to do with one that a ranking has taken; it is called before the ranking looks at it.
        self.taken: Callable[[PreInference], None] = lambda job: None

    def new(self, owner: int | None, tokens: NDArray[np.int32], due_s: float) -> tuple[PreInference, int]:
        """One that is not in the table yet, and how many of its tokens the pool has; they stay for a lease more."""
        entries = self._entries()
        hashes = entries.names(self.pool.secret, owner, tokens)
        job = PreInference(owner, tokens, hashes, due_s, entries)
        return job, hold(self.pool, hashes, entries.step, self._lease_s)

    def kept(self, job: PreInference) -> int:
        """How many tokens of one that is new the second tier has."""
        return self.tier.tokens(job.hashes, job.entries.step) if self.tier else 0

    @contextmanager
    def missing(
        self, owner: int | None, tokens: NDArray[np.int32], deadline_s: float | None = None
    ) -> Iterator[int]:
        """How many of a user's tokens his ranking will have to compute; those that are there stay for a lease more.

        It waits until `deadline_s`. Refused, which is what an error within says, it does not wait.
        """
        wanted, ready = self.new(owner, tokens, 0.0)
        job = self._jobs.get(wanted.key)
        if job is None:
            yield len(tokens) - ready
            return
        before = job.awaited_s
        job.awaited_s = max(before, inf if deadline_s is None else deadline_s)
        try:
            yield len(tokens) - max(ready, job.done)
        except BaseException:
            job.awaited_s = before
            raise

    @property
    def count(self) -> int:
        """How many wait or are computed."""
        return len(self._jobs)

    def holds(self, job: PreInference) -> bool:
        """Whether it is in the table still."""
        return self._jobs.get(job.key) is job

    def go_on(self, job: PreInference, queue: Callable[[PreInference], None], new: bool = False) -> bool:
        """`queue` it, unless it was taken meanwhile; a `new` one unless the table has one of its entry, which is for
        the rankings of both then.
        """
        with self._lock:
            there = self._jobs.get(job.key)
            if new and there:
                self._join(there, job)
            if there is not (None if new else job):
                return False
            self._jobs[job.key] = job
            queue(job)
            return True

    def joins(self, job: PreInference, hasten: Callable[[PreInference], None]) -> bool:
        """Whether the table has one of this new one's entry, which is for the rankings of both then: `hasten` moves it
        in the queue to where the first of them is due.
        """
        with self._lock:
            there = self._jobs.get(job.key)
            if there is None:
                return False
            self._join(there, job)
            hasten(there)
            return True

    @staticmethod
    def _join(there: PreInference, job: PreInference) -> None:
        """Due when the first of both rankings is, and wanted until the last."""
        there.awaited_s = max(there.awaited_s, there.due_s, job.due_s)
        there.due_s, there.wanted_s = min(there.due_s, job.due_s), min(there.wanted_s, job.wanted_s)

    def end(self, job: PreInference) -> bool:
        """Take it out of the table; False if somebody else has done so."""
        with self._lock:
            if self._jobs.get(job.key) is not job:
                return False
            del self._jobs[job.key]
            return True

    def spend(self, job: PreInference, seconds: float) -> bool:
        """A part of it took so long; False if somebody took it out of the table meanwhile, who did not know of that."""
        with self._lock:
            job.spent_s += seconds
            return self.holds(job)

    def take(self, hashes: Words) -> PreInference | None:
        """The one that makes this entry, for the ranking that needs it now."""
        with self._lock:
            job = self._jobs.pop(hashes[-1].tobytes(), None)
            if job:
                self.taken(job)
            return job

    def close(self) -> None:
        """End the second tier."""
        if self.tier:
            self.tier.close()

    def clear(self) -> list[PreInference]:
        """Take all out."""
        with self._lock:
            jobs = list(self._jobs.values())
            self._jobs.clear()
            return jobs

    def reserve(self, job: PreInference) -> bool:
        """A place in the pool for its entry; False where there is none, or somebody was forgotten, perhaps he."""
        span, owner = job.entries.span(len(job.tokens)), owner_key(self.pool.secret, job.owner)
        job.writing = self.pool.write_user(job.hashes, span, job.size, owner, job.came_ns)
        if job.writing:
            job.kv = job.entries.user(job.writing.memory, span)
        return job.writing is not None

    def publish(self, job: PreInference, leased: bool = True) -> None:
        """Its entry can be found."""
        if job.writing:
            self.pool.commit(job.writing, *([self._lease_s] if leased else []))

    def give_up(self, job: PreInference) -> None:
        """What there is of its entry is nobody's."""
        if job.writing:
            self.pool.abandon(job.writing)
        job.writing, job.done, job.kv = None, 0, []


class PartByPart:
    """Pre-inferences by the passes of one stream."""

    def __init__(self, passes: UserPasses, jobs: PreInferences, one_core: UserPasses | None = None) -> None:
        """`one_core`: the same passes where they do not share their work between cores, if there are such."""
        self._passes, self.jobs, self._one_core = passes, jobs, one_core

    def makes(self, job: PreInference) -> bool:
        """Whether it is of the weights of these passes."""
        return job.entries == self._passes.entries

    @property
    def has_one_core(self) -> bool:
        """Whether a part can be computed on one core."""
        return self._one_core is not None

    def advance(self, job: PreInference, most: int, one_core: bool = False) -> int | None:
        """Compute at most `most` more tokens of a job that this thread holds; how many. None: no place for it."""
        if job.writing is None and not self._begin(job):
            return None
        past, end = job.done, min(job.done + most, len(job.tokens))
        if past < end:
            passes = self._one_core if one_core and self._one_core else self._passes
            passes.fill(job.tokens, job.kv, past, end)
            job.done = end  # not before: after an error another stream may take over what is done
        if end == len(job.tokens):
            self._keep(job)
        return end - past

    def _keep(self, job: PreInference) -> None:
        if job.writing:
            name = UserName.of(job.key, job.came_ns, self.jobs.pool.forgot_ns)
            self._passes.keep(name, job.writing.memory, job.entries.span(len(job.tokens)))

    def rehearse(self, tokens: NDArray[np.int32], past: int) -> None:
        """Parts of `tokens`, up to `past` and behind it: the first run of a graph takes a second, which no ranking
        should wait for.
        """
        entries = self._passes.entries
        span = entries.span(len(tokens))
        kv = entries.user(np.zeros(entries.user_bytes(span), np.uint8), span)
        for passes in filter(None, (self._passes, self._one_core)):
            passes.fill(tokens, kv, 0, past)
            passes.fill(tokens, kv, past, len(tokens))

    def _begin(self, job: PreInference) -> bool:
        """A place for its entry, with what the pool or the second tier has of it already."""
        jobs, entries = self.jobs, job.entries
        if not jobs.reserve(job):
            return False

        def copy(memory: Bytes, span: int, tokens: int) -> None:
            copy_past(entries, entries.user(memory, span), job.kv, tokens)
            job.done = tokens

        found = jobs.pool.find_user(job.hashes, entries.step, use=False)  # no ranking uses it by this
        there = found.tokens if found else 0
        try:
            if not (jobs.tier and jobs.tier.restore(job.hashes, entries.step, there, copy)) and found:
                copy(found.memory, found.span, there)
        finally:  # else it would keep its place for good
            if found:
                jobs.pool.release(found)
        return True

    def take_over(self, hashes: Words) -> int:
        """Finish the pre-inference of this entry if one has begun; how many tokens were left to compute.

        One that waits still is dropped: the ranking computes its prefix as if there had been none.
        """
        job = self.jobs.take(hashes)
        if job is None:
            return 0
        with job.computing:  # another stream may be in the middle of a part: it is a small one
            metrics.PRE_INFERENCES.add(end="overtaken" if job.writing else "not_begun")
            if job.writing is None:
                return 0
            left = len(job.tokens) - job.done
            try:
                self.advance(job, left)
            except BaseException:
                self.jobs.give_up(job)
                raise
            self.jobs.publish(job, leased=False)
            return left
