"""Whole rankings in one process: entries of users and items from the pool or computed, then the candidates' scores.

BAT, sections 4 and 5. What was found is read where it lies; what was missing is computed and, if the plan says so,
kept. An answer never depends on what was found: entries that changed while they were read are computed instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from genrec.engine.interface import Array, RankPasses
from genrec.engine.pre_infer import PartByPart, PreInferences
from genrec.engine.rank_users import RankUsers
from genrec.engine.users import UserKv, Users
from genrec.kv.entries import EntryLayout
from genrec.nodes.item_store import ItemStore
from genrec.pool.keys import Words, item_keys, words
from genrec.pool.look import absent
from genrec.pool.pool import Pool
from genrec.rank.head import RankerHead
from genrec.search.scratch import Scratch


class RankRequest(NamedTuple):
    """A user and C candidates."""

    owner: int | None  # whose history it is; None: nobody's in particular
    tokens: NDArray[np.int32]  # [S], of the history
    candidates: NDArray[np.int32]  # [C, t], the items' tokens
    codes: NDArray[np.int32]  # [C, L], tokens of their semantic IDs
    deadline_s: float | None = None  # on the monotonic clock
    forgets: int | None = None  # how often the pool had forgotten anybody when it came, if it names a user


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


class _Items(NamedTuple):
    table: Array
    rows: NDArray[np.int32]
    generations: NDArray[np.int64]  # of rows in the pool, -1 elsewhere
    reused: int
    copied: int


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
        self._store = store
        self._whole = whole
        self.one_core = one_core
        self._by_user = RankUsers(passes, layout, model)
        self.ahead = (
            PartByPart(self._by_user, ahead, one_core._by_user if one_core else None) if ahead else None
        )
        self._users = Users(self._by_user, pool, self.ahead)
        self._passes, self._head, self._layout, self._model, self._pool = passes, head, layout, model, pool
        self._scratch = Scratch()
        self._alone = RankExecutor(passes, head, layout, model, None, whole) if pool else self

    def scores(self, request: RankRequest, plan: RankPlan) -> tuple[NDArray[np.float32], Reuse]:
        """float32[C], one per candidate, and what it took."""
        if plan.order == "whole":
            return self._alone.scores(request, RankPlan(self._whole, False, False))
        self._scratch.clear()
        run: dict[str, Callable[[RankRequest, RankPlan], tuple[Array, Reuse]]] = {
            "split": self._split, "user": self._user_first, "item": self._item_first,
        }  # fmt: skip
        states, reuse = run[plan.order](request, plan)
        return self._head.scores(states, request.codes), reuse

    @property
    def item_tokens(self) -> int:
        """Of an item."""
        return self._layout.item_tokens

    @property
    def item_bytes(self) -> int:
        """Of an item's KV."""
        return self._layout.item_bytes

    @property
    def item_places(self) -> int:
        """Items that the pool has room for."""
        return len(self._pool.items_memory) // self._layout.item_bytes if self._pool else 0

    def item_words(self, tokens: NDArray[np.int32]) -> Words:
        """uint64[C, 2]: keys of items with tokens int32[C, t]. Of the tokens themselves: whoever named a key could
        have others read his items under it.
        """
        return words(item_keys(self._model, self._layout.name, tokens))

    def absent(self, keys: Words) -> NDArray[np.bool_]:
        """bool[C]: which items the pool has not."""
        return absent(self._pool, keys) if self._pool else np.ones(len(keys), bool)

    def keep_items(
        self, tokens: NDArray[np.int32], heat: NDArray[np.float64] | None = None
    ) -> NDArray[np.bool_]:
        """Compute and keep those of the items with tokens int32[C, t] that the pool has not; bool[C], which ones.

        `heat` float64[C] is of items that nobody waits for: what does not find a colder row is not computed.
        """
        assert self._pool is not None
        self._scratch.clear()
        taken = self._pool.write_items(self.item_words(tokens), heat)
        kept = taken >= 0
        if kept.any():
            with self._abandoned(taken):
                entries = self._item_entries(tokens[kept])
                self._layout.items(self._pool.items_memory)[taken[kept]] = entries
            self._pool.commit_items(taken)
        return kept

    def item_rows(self, tokens: NDArray[np.int32]) -> NDArray[np.uint8]:
        """uint8[C, bytes]: what the pool's rows of items with tokens int32[C, t] hold, computed."""
        self._scratch.clear()
        return self._item_entries(tokens).reshape(len(tokens), -1).view(np.uint8).copy()

    @contextmanager
    def _abandoned(self, taken: NDArray[np.int32]) -> Iterator[None]:
        """Rows that this does not end well with are nobody's."""
        assert self._pool is not None
        try:
            yield
        except BaseException:
            self._pool.abandon_items(taken)
            raise

    def _keep(self, keys: Words, entries: Array) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Write entries to rows of the pool; the rows and their generations, -1 for what found none.

        The generations are read while the rows are this process's: once they can be found, others may refill them.
        """
        assert self._pool is not None
        taken = self._pool.write_items(keys)
        with self._abandoned(taken):
            filled = taken >= 0
            self._layout.items(self._pool.items_memory)[taken[filled]] = entries[filled]
            generations = self._pool.item_generations(taken)
        self._pool.commit_items(taken)
        return taken, generations

    def _split(self, request: RankRequest, plan: RankPlan) -> tuple[Array, Reuse]:
        length = len(request.tokens)
        found = self._items(request, plan.keep_items)
        with self._user(request, plan) as user:
            states = self._passes.split(found.table, found.rows, length, user.kv)
            if self._changed(found):
                found = self._computed_items(request)
                states = self._passes.split(found.table, found.rows, length, user.kv)
        total = length + request.candidates.size
        reused = user.reused + found.reused
        return states, Reuse(user.reused, found.reused, total - reused, user.copied + found.copied)

    def _user_first(self, request: RankRequest, plan: RankPlan) -> tuple[Array, Reuse]:
        length, candidates = len(request.tokens), request.candidates.astype(np.int64)
        with self._user(request, plan) as user:
            states = self._passes.user_first(candidates, length, user.kv)
        return states, Reuse(user.reused, 0, length - user.reused + candidates.size, user.copied)

    def _item_first(self, request: RankRequest, plan: RankPlan) -> tuple[Array, Reuse]:
        tokens = request.tokens.astype(np.int64)[None]
        found = self._items(request, plan.keep_items)
        states = self._passes.item_first(tokens, found.table, found.rows)
        if self._changed(found):
            found = self._computed_items(request)
            states = self._passes.item_first(tokens, found.table, found.rows)
        computed = tokens.size + request.candidates.size - found.reused
        return states, Reuse(0, found.reused, computed, found.copied)

    def _user(self, request: RankRequest, plan: RankPlan) -> AbstractContextManager[UserKv]:
        return self._users.kv_of(request.owner, request.tokens, plan.keep_user, request.forgets)

    # The items.

    def _items(self, request: RankRequest, keep: bool) -> _Items:
        pool, layout = self._pool, self._layout
        if pool is None or not len(pool.items_memory):
            return self._computed_items(request)
        keys = self.item_words(request.candidates)
        rows, generations = pool.find_items(keys)
        table = layout.items(pool.items_memory)
        missing = np.flatnonzero(rows < 0)
        if len(missing) and self._store and self._store.bring(pool, keys[missing], request.deadline_s):
            rows[missing], generations[missing] = pool.find_items(keys[missing])
            missing = np.flatnonzero(rows < 0)
        reused = (len(rows) - len(missing)) * layout.item_tokens
        if not len(missing):
            return _Items(table, rows, generations, reused, 0)
        begun = time.monotonic()
        computed = self._item_entries(request.candidates[missing])
        if self._store:
            self._store.computed(len(missing), time.monotonic() - begun)
        if keep:
            rows[missing], generations[missing] = self._keep(keys[missing], computed)
        copied = int((rows[missing] >= 0).sum()) * layout.item_bytes
        if (rows >= 0).all():
            return _Items(table, rows, generations, reused, copied)
        there = np.ones(len(rows), bool)
        there[missing] = False
        mine = self._scratch.take((len(rows), *table.shape[1:]), layout.dtype)
        mine[there], mine[missing] = table[rows[there]], computed
        if not pool.unchanged(rows[there], generations[there]):
            return self._computed_items(request)
        nowhere = np.full(len(rows), -1)
        return _Items(
            mine, np.arange(len(rows), dtype=np.int32), nowhere, reused, copied + reused * layout.token_bytes
        )

    def _computed_items(self, request: RankRequest) -> _Items:
        count = len(request.candidates)
        nowhere = np.full(count, -1)
        return _Items(self._item_entries(request.candidates), np.arange(count, dtype=np.int32), nowhere, 0, 0)

    def _item_entries(self, tokens: Array) -> Array:
        """Entries [C, 2N, G, t, D] of items with tokens int32[C, t]."""
        c, layout = self._layout.config, self._layout
        shape = (len(tokens), c.num_key_value_heads, layout.item_tokens, c.head_dim)
        kv = [self._scratch.take(shape, layout.dtype) for _ in range(2 * c.num_hidden_layers)]
        self._passes.entries(tokens.astype(np.int64), kv)
        whole = self._scratch.take((len(tokens), len(kv), *shape[1:]), layout.dtype)
        return np.stack(kv, 1, out=whole)

    def _changed(self, found: _Items) -> bool:
        """Whether a row that was read has meanwhile become another item's."""
        return self._pool is not None and not self._pool.unchanged(found.rows, found.generations)
