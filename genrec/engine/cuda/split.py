"""Rankings in order `split` on a GPU: up to RANKINGS users and their candidates as one pass of a captured graph.

A shape is padded to one of a few (`graphs.padded`). What is padded is computed and not read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genrec.engine.cuda.discriminant import Discriminant
from genrec.engine.cuda.graphs import Replayed, graph_pool, padded
from genrec.rank.options import MOST_CANDIDATES
from genrec.settings import padded_rows

RANKINGS = 8
LEAST_CANDIDATES, LEAST_TOKENS = 16, 256
MOST_GRAPHS = 128


class OnDevice(NamedTuple):
    """A ranking whose KV is there."""

    user: Tensor  # [2N, G, S', D], S' >= length
    length: int  # tokens of the user's prefix
    rows: NDArray[np.int64]  # [C], of the table of items


class _Bucket:
    """Fixed inputs of one shape, and what is captured of them."""

    def __init__(self, users: Tensor, many: int) -> None:
        batch, device = users.shape[1], users.device
        self.users = users  # [2N, B, G, S, D]
        self.rows = torch.zeros(batch, many, dtype=torch.int64, device=device)
        # [2, B]: tokens that count, and those of the prefix.
        self.lengths = torch.ones(2, batch, dtype=torch.int64, device=device)
        self.replayed: Replayed[Tensor] | None = None


class SplitPasses:
    """Buckets over one table of items; each is captured when first used, and the least recently used leaves."""

    def __init__(
        self, discriminant: Discriminant, items: Tensor, longest: int, reach: int, hidden: int
    ) -> None:
        """`items` [2N, M, t, G, D]; users have `longest` tokens at most. With a `reach` a discriminant token sees so
        many of a user's newest.
        """
        self._discriminant, self._items, self._reach = discriminant, items, reach
        self._buckets: dict[tuple[int, int, int], _Bucket] = {}  # the least recently used first
        tensors, _, _, heads, size = items.shape
        self._longest = max(min(longest, reach or longest), 1)
        most = padded(self._longest, LEAST_TOKENS)
        # All buckets' users lie here, as they never run at once. Zeros: what lies behind a user's end counts nothing,
        # and 0 times NaN is NaN.
        self._users = items.new_zeros(tensors * RANKINGS * heads * most * size)
        states = RANKINGS * padded(MOST_CANDIDATES, LEAST_CANDIDATES) * hidden
        self._states = torch.empty(states, dtype=torch.float32, pin_memory=items.is_cuda)
        self._pool = graph_pool(items.device)
        self.captured = 0

    def rehearse(self, many: int) -> None:
        """Capture all shapes of rankings of so many candidates, each in a tenth or two of a second. The largest come
        first: what they leave of the memory the others fit into.
        """
        ends = range(LEAST_TOKENS, self._longest + LEAST_TOKENS, LEAST_TOKENS)
        spans = {padded(min(end, self._longest), LEAST_TOKENS) for end in ends}
        batches = {padded_rows(count) for count in range(1, RANKINGS + 1)}
        for batch, span in sorted(product(batches, spans), key=math.prod, reverse=True):
            self.bucket(batch, many, span)

    def wipe(self) -> None:
        """Nothing of the users of earlier passes is left."""
        self._users.zero_()

    def states(self, rankings: Sequence[OnDevice]) -> list[NDArray[np.float32]]:
        """[C, hidden] of each ranking, valid until the next call. The host waits once."""
        seen = [min(each.length, self._reach or each.length) for each in rankings]
        bucket = self.bucket(len(rankings), max(len(each.rows) for each in rankings), max(seen))
        for b, (each, count) in enumerate(zip(rankings, seen, strict=True)):
            newest = each.user[:, :, each.length - count : each.length]
            _wide(bucket.users)[:, b, :, :count] = _wide(newest)
        batch, many = bucket.rows.shape
        filled = np.zeros((len(rankings), many), np.int64)
        for own, each in zip(filled, rankings, strict=True):
            own[: len(each.rows)] = each.rows
        lengths = np.array([seen, [each.length for each in rankings]])
        others = np.arange(batch) % len(rankings)  # rankings too many are of the first again
        bucket.rows.copy_(torch.from_numpy(filled[others]))
        bucket.lengths.copy_(torch.from_numpy(lengths[:, others]))
        assert bucket.replayed is not None
        found = bucket.replayed()[: len(rankings)]
        host = self._states[: found.numel()].view(found.shape)
        host.copy_(found)
        return [states[: len(each.rows)] for each, states in zip(rankings, host.numpy(), strict=True)]

    def bucket(self, batch: int, many: int, span: int) -> _Bucket:
        """Of so many rankings, candidates and tokens of a user that count; captured."""
        key = padded_rows(batch), padded(many, LEAST_CANDIDATES), padded(span, LEAST_TOKENS)
        bucket = self._buckets.pop(key, None)
        if bucket is None:
            if len(self._buckets) == MOST_GRAPHS:
                del self._buckets[next(iter(self._buckets))]
            self.captured += 1  # also where it fails
            bucket = self._captured(*key)
        self._buckets[key] = bucket
        return bucket

    def _captured(self, batch: int, many: int, span: int) -> _Bucket:
        tensors, _, _, heads, size = self._items.shape
        shape = tensors, batch, heads, span, size
        bucket = _Bucket(self._users[: math.prod(shape)].view(shape), many)

        def work() -> Tensor:
            seen, ends = bucket.lengths
            return self._discriminant.states(bucket.users, seen, ends, self._items, bucket.rows)

        bucket.replayed = Replayed(work, self._items.device, self._pool)
        return bucket


def _wide(x: Tensor) -> Tensor:
    """The same memory in elements of 8 bytes, of which a copy moves four times as many at once as of 2."""
    return x.view(torch.int64) if x.shape[-1] * x.itemsize % 8 == 0 else x
