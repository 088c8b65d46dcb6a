"""One way to choose the prefix of rankings: its pool, its rule, and what each ranking took."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from genrec.engine import rank_items, rank_users
from genrec.engine.prefix import PrefixChooser
from genrec.engine.ranking import RankExecutor, RankPlan, RankRequest, Reuse
from genrec.kv.entries import EntryLayout
from genrec.pool.pool import Pool
from perf.rank.operations import Ranked

BATCH = 100  # items that are computed at once
TTL_S = 1e6  # a trace's own time is slow
TOGETHER = "together"  # `split`, several rankings in a pass


class Watch:
    """Counts the seconds that functions take."""

    seconds = 0.0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, counted."""

        def counted(*arguments: Any, **named: Any) -> Any:
            begun = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                self.seconds += time.perf_counter() - begun

        return counted


class Answer(NamedTuple):
    """One ranking: its scores, its order, tokens and what was reused, and the seconds of choice and of all."""

    scores: NDArray[np.float32]
    reuse: Reuse
    ranked: Ranked
    choice_s: float
    total_s: float


class RankWay:
    """One choice of the prefix with a pool of its own."""

    def __init__(
        self,
        name: str,
        make: Callable[[Pool], RankExecutor],
        folder: Path,
        sizes: tuple[int, int],
        layout: EntryLayout,
    ) -> None:
        self.name, self._now = name, 1
        users, rows = sizes
        Pool.create(folder, users, rows, layout.item_bytes, layout.step * layout.token_bytes)
        self._pool, self._watch = Pool(folder, clock=lambda: self._now, ttl_s=TTL_S), Watch()
        self._pool.locked = self._watch.around(self._pool.locked)  # type: ignore[method-assign]
        self._chooser = PrefixChooser("split" if name == TOGETHER else name, layout, "m", self._pool)
        self._executor = make(self._pool)

    def fill(self, items: NDArray[np.int32]) -> None:
        """Compute the KV of all items [n, t], where there is room for items."""
        if self._executor.items.places:
            for start in range(0, len(items), BATCH):
                self._executor.items.keep(items[start : start + BATCH])

    def ask(self, request: RankRequest, now: int) -> Answer:
        """Choose and rank."""
        return self._ask([(request, now)])[0]

    def ask_all(self, asked: Sequence[tuple[RankRequest, int]]) -> list[Answer]:
        """All of a queue, in order: one by one, or as many in a pass as there may be."""
        size = self._executor.most if self.name == TOGETHER else 1
        groups = [asked[first : first + size] for first in range(0, len(asked), size)]
        return [answer for group in groups for answer in self._ask(group)]

    def _ask(self, asked: Sequence[tuple[RankRequest, int]]) -> list[Answer]:
        """One pass, with what the ranker hashes for names counted."""
        watched = (rank_users, "user_words"), (rank_items, "item_words")
        with ExitStack() as stack:
            for module, name in watched:
                counted = self._watch.around(getattr(module, name))
                stack.enter_context(patch.object(module, name, counted))
            return self._timed(asked)

    def _timed(self, asked: Sequence[tuple[RankRequest, int]]) -> list[Answer]:
        """What a pass took is shared by those in it."""
        self._watch.seconds = 0.0
        begun, plans = time.perf_counter(), []
        for request, self._now in asked:
            plan = self._chooser.choose(request.owner, request.tokens, request.candidates, self._now)
            plans.append((request, RankPlan(plan.order, plan.keep_user, plan.keep_items)))
        chosen, inside = time.perf_counter(), self._watch.seconds
        rank = self._executor
        scored = rank.together(plans) if len(plans) > 1 else [rank.scores(*plans[0])]
        share = 1 / len(plans)
        total_s = share * (time.perf_counter() - begun)
        choice_s = share * (chosen - begun + self._watch.seconds - inside)
        answers = []
        for (request, plan), (scores, reuse) in zip(plans, scored, strict=True):
            count, item = request.candidates.shape
            ranked = Ranked(
                plan.order, len(request.tokens), count, item, reuse.user, reuse.items // item, len(scores)
            )
            answers.append(Answer(scores, reuse, ranked, choice_s, total_s))
        return answers
