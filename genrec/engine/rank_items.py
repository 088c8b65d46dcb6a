"""KV of a ranking's items: rows of the pool, of other nodes, or computed (BAT, sections 5.1 and 5.2)."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from genrec.engine.interface import Array, RankPasses
from genrec.kv.entries import EntryLayout
from genrec.nodes.item_store import ItemStore
from genrec.pool.items import Generations, Rows
from genrec.pool.keys import Words, item_words
from genrec.pool.look import absent
from genrec.pool.pool import Pool
from genrec.search.scratch import Scratch

log = logging.getLogger("genrec.pool")


class ItemsKv(NamedTuple):
    """Entries of a ranking's C items: rows of `table` [M, 2N, G, t, D]."""

    table: Array
    rows: Rows  # [C]
    generations: Generations  # [C], of rows in the pool, -1 elsewhere
    there: NDArray[np.bool_]  # [C], which ones the pool had
    copied: NDArray[np.bool_]  # [C], which ones were copied
    names: Words | None = None  # [C, 2], where there is a pool

    def share(self, start: int, end: int) -> tuple[int, int]:
        """Of some of the items: tokens whose KV was there, and bytes that were copied."""
        tokens, each = self.table.shape[3], self.table[:1].nbytes
        return int(self.there[start:end].sum()) * tokens, int(self.copied[start:end].sum()) * each


class RankItems:
    """Those of one stream. Without a pool, or over one whose rows are not of these items' size, all are computed."""

    def __init__(
        self, passes: RankPasses, layout: EntryLayout, model: str, pool: Pool | None, store: ItemStore | None
    ) -> None:
        """`model` names the weights that KV comes from. `store`: of several nodes, where items may lie that the pool
        has not.
        """
        self._passes, self._layout, self._model, self._store = passes, layout, model, store
        self._pool, self._scratch = pool, Scratch()
        if pool and pool.item_row_bytes not in (0, layout.item_bytes):
            log.error(
                "kv pool: its rows have %d bytes, an item of these engines %d: items are computed",
                pool.item_row_bytes, layout.item_bytes,
            )  # fmt: skip
            self._pool = None

    @property
    def tokens(self) -> int:
        """Of an item."""
        return self._layout.item_tokens

    @property
    def bytes(self) -> int:
        """Of an item's KV."""
        return self._layout.item_bytes

    @property
    def reachable(self) -> bool:
        """Whether the pool's table is to be had now."""
        return self._pool is not None and self._pool.usage() is not None

    @property
    def places(self) -> int:
        """Items that the pool has room for."""
        return len(self._pool.items_memory) // self.bytes if self._pool else 0

    def rehearse(self) -> None:
        """The way of rows from the pool to a device, whose first one is slow."""
        if self._pool and len(memory := self._pool.items_memory):
            self._passes.hold(memory)

    def words(self, tokens: NDArray[np.int32]) -> Words:
        """uint64[C, 2]: keys of items with tokens int32[C, t]. Of the tokens themselves: whoever named a key could
        have others read his items under it.
        """
        return item_words(self._model, self._layout.name, tokens)

    def absent(self, keys: Words) -> NDArray[np.bool_]:
        """bool[C]: which items the pool has not."""
        return absent(self._pool, keys) if self._pool else np.ones(len(keys), bool)

    def keep(self, tokens: NDArray[np.int32], heat: NDArray[np.float64] | None = None) -> NDArray[np.bool_]:
        """Compute and keep those of the items with tokens int32[C, t] that the pool has not; bool[C], which ones.

        `heat` float64[C] is of items that nobody waits for: what does not find a colder row is not computed.
        """
        self._scratch.clear()
        if self._pool is None:
            return np.zeros(len(tokens), bool)
        memory, taken = self._pool.items_memory, self._pool.write_items(self.words(tokens), heat)
        kept = taken >= 0
        if kept.any():
            with self._abandoned(self._pool, taken):
                self._layout.items(memory)[taken[kept]] = self._entries(tokens[kept])
            self._pool.commit_items(taken)
        return kept

    def rows(self, tokens: NDArray[np.int32]) -> NDArray[np.uint8]:
        """uint8[C, bytes]: what the pool's rows of items with tokens int32[C, t] hold, computed."""
        self._scratch.clear()
        return self._entries(tokens).reshape(len(tokens), -1).view(np.uint8).copy()

    def computed(self, tokens: NDArray[np.int32]) -> ItemsKv:
        """All of them, whatever the pool has. What this or `kv_of` gave before is no longer valid."""
        self._scratch.clear()
        rows = np.arange(len(tokens), dtype=np.int32)
        none = np.zeros(len(tokens), bool)
        return ItemsKv(self._entries(tokens), rows, np.full(len(tokens), -1), none, none)

    def changed(self, found: ItemsKv) -> bool:
        """Whether a row that was read has meanwhile become another item's."""
        return self._pool is not None and not self._pool.unchanged(found.rows, found.generations)

    def kv_of(self, tokens: NDArray[np.int32], keep: bool, deadline_s: float | None = None) -> ItemsKv:
        """Entries of items with tokens int32[C, t]; what the pool has not is brought or computed, and kept or not.

        They are valid until the next call; who has read them asks whether they have `changed`.
        """
        pool, layout = self._pool, self._layout
        # The memory comes before anything is found in it: it outlives a pool that is lost meanwhile.
        if pool is None or not len(memory := pool.items_memory):
            return self.computed(tokens)
        self._scratch.clear()
        keys, table = self.words(tokens), layout.items(memory)
        rows, generations = self._found(pool, keys, deadline_s)
        there = rows >= 0
        if there.all():
            return ItemsKv(table, rows, generations, there, ~there, keys)
        missing = np.flatnonzero(~there)
        first, same = _distinct(keys[missing])
        first = missing[first]
        begun = time.monotonic()
        entries = self._entries(tokens[first])
        if self._store:
            self._store.computed(len(first), time.monotonic() - begun)
        if keep:
            taken, theirs = self._kept(pool, table, keys[first], entries, rows[there])
            rows[missing], generations[missing] = taken[same], theirs[same]
        if (rows >= 0).all():
            return ItemsKv(table, rows, generations, there, ~there, keys)
        mine = self._scratch.take((len(rows), *table.shape[1:]), layout.dtype)
        mine[there], mine[missing] = table[rows[there]], entries[same]
        if not pool.unchanged(rows[there], generations[there]):
            return self.computed(tokens)
        all_rows, nowhere = np.arange(len(rows), dtype=np.int32), np.full(len(rows), -1)
        return ItemsKv(mine, all_rows, nowhere, there, there | (rows >= 0), keys)

    def _found(self, pool: Pool, keys: Words, deadline_s: float | None) -> tuple[Rows, Generations]:
        """Rows and their generations; what the pool misses other nodes are asked for."""
        rows, generations = pool.find_items(keys)
        missing = np.flatnonzero(rows < 0)
        store, spared = self._store, rows[rows >= 0]
        if len(missing) and store and store.bring(pool, keys[missing], deadline_s, spared):
            rows[missing], generations[missing] = pool.find_items(keys[missing])
        return rows, generations

    def _kept(
        self, pool: Pool, table: Array, keys: Words, entries: Array, spared: Rows
    ) -> tuple[Rows, Generations]:
        """Write entries to rows of the pool, but not to the `spared` ones, which this ranking is about to read; the
        rows and their generations, -1 for what found none.

        The generations are read while the rows are this process's: once they can be found, others may refill them.
        """
        taken = pool.write_items(keys, spared=spared)
        with self._abandoned(pool, taken):
            filled = taken >= 0
            table[taken[filled]] = entries[filled]
            generations = pool.item_generations(taken)
        pool.commit_items(taken)
        return taken, generations

    @contextmanager
    def _abandoned(self, pool: Pool, taken: Rows) -> Iterator[None]:
        """Rows that this does not end well with are nobody's."""
        try:
            yield
        except BaseException:
            pool.abandon_items(taken)
            raise

    def _entries(self, tokens: Array) -> Array:
        """Entries [C, 2N, G, t, D] of items with tokens int32[C, t]."""
        c, layout = self._layout.config, self._layout
        shape = (len(tokens), c.num_key_value_heads, layout.item_tokens, c.head_dim)
        kv = [self._scratch.take(shape, layout.dtype) for _ in range(2 * c.num_hidden_layers)]
        self._passes.entries(tokens.astype(np.int64), kv)
        whole = self._scratch.take((len(tokens), len(kv), *shape[1:]), layout.dtype)
        return np.stack(kv, 1, out=whole)


def _distinct(keys: Words) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Of keys uint64[K, 2] the places of one of each, and which of these every key is. `np.unique` takes four times as
    long, and a ranking waits.
    """
    order = np.lexsort(keys.T)
    new = np.append(True, (np.diff(keys[order], axis=0) != 0).any(1))
    same = np.empty(len(keys), np.intp)
    same[order] = np.cumsum(new) - 1
    return order[new], same
