"""A user's KV made by a ranker's passes, in whatever memory: at once, or part after part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from genrec.engine.interface import Array, RankPasses
from genrec.kv.entries import EntryLayout
from genrec.pool.keys import Words
from genrec.pool.pool import Pool
from genrec.pool.users import UserEntry, Writing
from genrec.search.scratch import Scratch
from genrec.settings import SPAN


def padded(tokens: int) -> int:
    """Equal shapes are faster, so entries end on the same steps as prompts do."""
    return -(-tokens // SPAN) * SPAN


@contextmanager
def held(
    pool: Pool, hashes: Words, step: int, tokens: int, size: int, owner: bytes, keep: bool
) -> Iterator[tuple[UserEntry | None, Writing | None]]:
    """What the pool has of a user of `tokens` tokens, `step` to a boundary; room for all of them if that is less.

    Of `size` bytes, and only to `keep`. Both stay in their places until this ends; what was written can be found then.
    """
    found, writing = pool.find_user(hashes, step), None
    try:
        if keep and not (found and found.tokens == tokens):
            writing = pool.write_user(hashes, padded(tokens), size, owner)
        try:
            yield found, writing
        except BaseException:
            if writing:
                pool.abandon(writing)
            raise
        if writing:  # only now, as nothing else holds it in its place
            pool.commit(writing)
    finally:
        if found:
            pool.release(found)


def fill(
    passes: RankPasses, layout: EntryLayout, scratch: Scratch, tokens: Array, kv: Sequence[Array], past: int,
    end: int,
) -> None:  # fmt: skip
    """Compute tokens int32[S] from `past` to `end` into 2N kv [1, G, span, D], which hold those before `past`."""
    c, span = layout.config, kv[0].shape[2]
    if not past and end == len(tokens):
        whole = np.zeros((1, span), np.int64)
        whole[0, :end] = tokens
        passes.entries(whole, kv)
        return
    given = tokens[None, past:end].astype(np.int64)
    shape = (1, c.num_key_value_heads, end - past, c.head_dim)
    behind = [scratch.take(shape, layout.dtype) for _ in kv]
    if past:
        passes.extend(given, [np.ascontiguousarray(each[:, :, :past]) for each in kv], behind)
    else:
        passes.entries(given, behind)
    for whole, newest in zip(kv, behind, strict=True):
        whole[:, :, past:end] = newest


def copy_past(found: Sequence[Array], kv: Sequence[Array], tokens: int) -> None:
    """The first `tokens` of an entry into another."""
    for whole, old in zip(kv, found, strict=True):
        whole[:, :, :tokens] = old[:, :, :tokens]
