"""Whole rankings in one process: entries of users and items from the pool or computed, then the candidates' scores.

BAT, sections 4 and 5. What was found is read where it lies; what was missing is computed and, if the plan says so,
kept. An answer never depends on what was found: entries that changed while they were read are computed instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from genrec.engine.interface import Array, RankPasses, Split
from genrec.engine.pre_infer import PartByPart, PreInferences
from genrec.engine.rank_items import ItemsKv, RankItems
from genrec.engine.rank_users import RankUsers
from genrec.engine.users import UserKv, Users
from genrec.kv.entries import EntryLayout
from genrec.nodes.item_store import ItemStore
from genrec.pool.pool import Pool
from genrec.rank.head import RankerHead


class RankRequest(NamedTuple):
    """A user and C candidates."""

    owner: int | None  # whose history it is; None: nobody's in particular
    tokens: NDArray[np.int32]  # [S], of the history
    candidates: NDArray[np.int32]  # [C, t], the items' tokens
    codes: NDArray[np.int32]  # [C, L], tokens of their semantic IDs
    deadline_s: float | None = None  # on the monotonic clock
    came_ns: int | None = None  # when it came, on the monotonic clock, if it names a user


class RankPlan(NamedTuple):
    """What `prefix_choice` decided: the order, and which new entries are kept; `whole` reuses and keeps none."""

    order: str
    keep_user: bool
    keep_items: bool


class Reuse(NamedTuple):
    """Tokens whose KV was there, tokens that were computed, and bytes of KV copied; discriminant tokens left out."""

    user: int
    items: int
    computed: int
    copied: int


Scored = tuple[NDArray[np.float32], Reuse]


class RankExecutor:
    """One per stream. Without a pool everything is computed."""

    def __init__(
        self, passes: RankPasses, head: RankerHead, layout: EntryLayout, model: str, pool: Pool | None = None,
        whole: str = "split", ahead: PreInferences | None = None, store: ItemStore | None = None,
        one_core: RankExecutor | None = None,
    ) -> None:  # fmt: skip
        """`model` names the weights that KV comes from; `whole` is the order where nothing is reused.

        `ahead`: the pre-inferences of this process, if it makes any. `store`: of several nodes, where items may lie
        that the pool has not. `one_core`: the same on one core, for what is short or has time.
        """
        self._whole = whole
        self.one_core = one_core
        self._by_user = RankUsers(passes, layout, model)
        self.ahead = (
            PartByPart(self._by_user, ahead, one_core._by_user if one_core else None) if ahead else None
        )
        self._users = Users(self._by_user, pool, self.ahead)
        self.items = RankItems(passes, layout, model, pool, store)
        self.most = passes.most  # rankings of `together`
        self._passes, self._head, self._layout = passes, head, layout
        self._alone = RankExecutor(passes, head, layout, model, None, whole) if pool else self

    @property
    def captured(self) -> int:
        """See `RankPasses.captured`."""
        return self._passes.captured

    def rehearse(self, candidates: int) -> None:
        """Of order `split`, before the first one; other numbers of candidates may be slow when they first come."""
        self._passes.rehearse(candidates)
        self.items.rehearse()

    def rehearse_users(self) -> None:
        """Likewise, whichever order rankings have: see `Users.rehearse`."""
        self._users.rehearse()

    def scores(self, request: RankRequest, plan: RankPlan) -> Scored:
        """float32[C], one per candidate, and what it took."""
        if plan.order == "whole":
            return self._alone.scores(request, RankPlan(self._whole, False, False))
        if plan.order == "split":
            return self.together([(request, plan)])[0]
        run = self._user_first if plan.order == "user" else self._item_first
        states, reuse = run(request, plan)
        return self._head.scores(states, request.codes), reuse

    def together(self, asked: Sequence[tuple[RankRequest, RankPlan]]) -> list[Scored]:
        """Rankings in order `split`, up to `most`, as one pass: the weights are read once. Items are kept if the first
        plan says so.
        """
        requests = [request for request, _ in asked]
        candidates = np.concatenate([request.candidates for request in requests])
        parts = np.cumsum([0, *(len(request.candidates) for request in requests)])
        deadlines = [request.deadline_s for request in requests if request.deadline_s is not None]
        found = self.items.kv_of(candidates, asked[0][1].keep_items, min(deadlines, default=None))
        with ExitStack() as stack:
            users = [stack.enter_context(self._user(request, plan)) for request, plan in asked]
            states = self._split(found, requests, parts, users)
            if self.items.changed(found):
                found = self.items.computed(candidates)
                states = self._split(found, requests, parts, users)
        scored = []
        for n, (request, user) in enumerate(zip(requests, users, strict=True)):
            items, copied = found.share(parts[n], parts[n + 1])
            computed = len(request.tokens) + request.candidates.size - user.reused - items
            reuse = Reuse(user.reused, items, computed, user.copied + copied)
            scored.append((self._head.scores(states[n], request.codes), reuse))
        return scored

    def _split(
        self, found: ItemsKv, requests: list[RankRequest], parts: NDArray[np.int64], users: list[UserKv]
    ) -> list[Array]:
        rankings = [
            Split(
                found.rows[start:end], len(request.tokens), self._whole_entry(user), user.name,
                None if found.names is None else found.names[start:end], lambda: not self.items.changed(found),
            )
            for request, user, start, end in zip(requests, users, parts, parts[1:], strict=False)
        ]  # fmt: skip
        return self._passes.split(found.table, rankings)

    def _whole_entry(self, user: UserKv) -> Array:
        return self._layout.whole(user.memory, user.kv[0].shape[2])

    def _user_first(self, request: RankRequest, plan: RankPlan) -> tuple[Array, Reuse]:
        length, candidates = len(request.tokens), request.candidates.astype(np.int64)
        with self._user(request, plan) as user:
            states = self._passes.user_first(candidates, length, user.kv)
        return states, Reuse(user.reused, 0, length - user.reused + candidates.size, user.copied)

    def _item_first(self, request: RankRequest, plan: RankPlan) -> tuple[Array, Reuse]:
        tokens = request.tokens.astype(np.int64)[None]
        found = self.items.kv_of(request.candidates, plan.keep_items, request.deadline_s)
        states = self._passes.item_first(tokens, found.table, found.rows)
        if self.items.changed(found):
            found = self.items.computed(request.candidates)
            states = self._passes.item_first(tokens, found.table, found.rows)
        reused, copied = found.share(0, len(request.candidates))
        return states, Reuse(0, reused, tokens.size + request.candidates.size - reused, copied)

    def _user(self, request: RankRequest, plan: RankPlan) -> AbstractContextManager[UserKv]:
        return self._users.kv_of(request.owner, request.tokens, plan.keep_user, request.came_ns)
