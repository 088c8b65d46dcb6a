"""HSTU rankers on a GPU, in float32: a user's whole pass, and rankings over his KV, are captured graphs.

A shape is padded to one of a few (`graphs.padded`). What is padded is seen by nobody, and not read.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from genrec.engine.cuda import read_engine
from genrec.engine.cuda.graphs import Replayed, graph_pool, padded
from genrec.engine.cuda.host import PageLocked, tensor_of
from genrec.engine.interface import Array, HstuPasses
from genrec.nn.hstu import HstuRanker
from genrec.nn.hstu_graphs import HstuRankGraph, HstuUserGraph, NextRankGraph, NextUserGraph
from genrec.nn.hstu_next import HstuNext
from genrec.rank.hstu import HstuConfig, NextConfig
from genrec.rank.hstu_weights import CODES_OF_ITEMS, HstuWeights
from genrec.settings import SPAN

LEAST_CANDIDATES = 16
MOST_GRAPHS = 128  # of rankings; those of users are one per span, and stay
# Between two captures of a rehearsal: else whoever waits for the lock might get it only at the end.
PAUSE_S = 0.001
MODULES: dict[str, tuple[Any, Any, Any]] = {
    HstuConfig.kind.name: (HstuRanker, HstuUserGraph, HstuRankGraph),
    NextConfig.kind.name: (HstuNext, NextUserGraph, NextRankGraph),
}


class Shared(NamedTuple):
    """What passes of all weights have in common."""

    device: torch.device
    # One pass or capture at a time: graphs of a delta are captured by another thread than that which ranks.
    lock: threading.Lock
    locked: PageLocked  # the memory where the pool has users


class _Bucket(NamedTuple):
    """Fixed inputs of one shape, and what is captured of them."""

    given: list[Tensor]
    replayed: Replayed[Tensor]


class CudaHstu:
    """See `genrec.engine.interface.HstuPasses`."""

    def __init__(self, shared: Shared, config: HstuConfig, weights: HstuWeights) -> None:
        """`weights` are copied to the device."""
        (self._device, self._lock, self._locked), self._config = shared, config
        self._weights = {
            f"ranker.{name}": tensor_of(each).to(self._device)
            for name, each in weights.arrays.items()
            if name != CODES_OF_ITEMS
        }
        self._user, self._rank = _graphs(config)
        self._users: dict[int, _Bucket] = {}
        self._rankings: dict[tuple[int, int], _Bucket] = {}  # the least recently used first
        longest = padded(config.longest, SPAN)
        # All buckets' users and marks lie here, as they never run at once.
        self._kv = self._zeros(math.prod(self._entry(longest)), dtype=torch.float32)
        self._marks = self._zeros(3 * longest * longest)
        self._pool = graph_pool(self._device)
        self.captured = 0

    def rehearse(self, candidates: int) -> None:
        """See `HstuPasses.rehearse`. The largest come first: what they leave of the memory the others fit into."""
        spans = {padded(end, SPAN) for end in range(1, self._config.longest + 1)}
        for span in sorted(spans, reverse=True):
            for capture in (
                partial(self.bucket_of_user, span),
                partial(self.bucket_of_ranking, candidates, span),
            ):
                with self._lock:
                    capture()
                time.sleep(PAUSE_S)

    def hold(self, memory: Array) -> None:
        """See `HstuPasses.hold`: it is page-locked."""
        with self._lock:
            self._locked.hold(memory)

    def user(
        self, tokens: Array, marks: Array, past_marks: Array, past: Sequence[Array], new: Sequence[Array]
    ) -> None:
        """See `HstuPasses.user`. Behind a past, whose shapes are many, nothing is captured."""
        with self._lock:
            if past_marks.any():
                there = [self._there(each) for each in (tokens, marks, past_marks)]
                found = self._made(*there, self._together(past))
            else:
                bucket = self.bucket_of_user(len(tokens))
                for place, each in zip(bucket.given[:2], (tokens, marks), strict=True):
                    _fill(place, self._there(each))
                found = bucket.replayed()[:, :, :, : len(tokens)].contiguous()
            self._locked.hold(new[0])
            for into, tensor in zip(new, found, strict=True):
                tensor_of(into).copy_(tensor, non_blocking=True)
            if self._device.type == "cuda":
                torch.cuda.synchronize()

    def logits(self, asked: Sequence[Array], marks: Array, user: Sequence[Array]) -> NDArray[np.float32]:
        """See `HstuPasses.logits`. The user's KV is copied to the device; the host waits once."""
        count = len(asked[-1])
        with self._lock:
            bucket = self.bucket_of_ranking(count, marks.shape[1])
            *places, kv = bucket.given
            for place, each in zip(places, (*asked, marks), strict=True):
                _fill(place, self._there(each))
            _fill(kv, self._together(user))
            found: NDArray[np.float32] = bucket.replayed()[:count].cpu().numpy()
            return found

    def bucket_of_user(self, tokens: int) -> _Bucket:
        """Of so many tokens, nothing before them; captured."""
        span = padded(tokens, SPAN)
        if span not in self._users:
            self.captured += 1  # also where it fails
            read = self._config.read(np.zeros((span, self._config.token_size), np.int32))
            marks = self._marks[: 3 * span * span].view(3, span, span)
            nobody = self._zeros(3, span, 1), self._zeros(*self._entry(1), dtype=torch.float32)
            self._users[span] = self._captured([self._there(read), marks, *nobody], self._made)
        return self._users[span]

    def bucket_of_ranking(self, candidates: int, tokens: int) -> _Bucket:
        """Of so many candidates and tokens of a user; captured."""
        many, span = key = padded(candidates, LEAST_CANDIDATES), padded(tokens, SPAN)
        bucket = self._rankings.pop(key, None)
        if bucket is None:
            if len(self._rankings) == MOST_GRAPHS:
                del self._rankings[next(iter(self._rankings))]
            self.captured += 1
            kv = self._kv[: math.prod(self._entry(span))].view(self._entry(span))
            asked = [self._there(each) for each in _nothing_asked(self._config, many)]
            bucket = self._captured([*asked, self._zeros(3, span), kv], self._scored)
        self._rankings[key] = bucket
        return bucket

    def _captured(self, given: list[Tensor], work: Callable[..., Tensor]) -> _Bucket:
        return _Bucket(given, Replayed(lambda: work(*given), self._device, self._pool))

    def _made(self, *given: Tensor) -> Tensor:
        """KV [2N, 1, H, Q, D] of tokens; `given` ends with that of those before them [2N, 1, H, P, D]."""
        return torch.stack(self._run(self._user, given))

    def _scored(self, *given: Tensor) -> Tensor:
        """Logits [C, outputs]; `given` ends with the user's KV [2N, 1, H, S, D]."""
        scores: Tensor = self._run(self._rank, given)
        return scores

    def _run(self, graph: nn.Module, given: Sequence[Tensor]) -> Any:
        *others, kv = given
        return functional_call(graph, self._weights, (*others, list(kv)))

    def _entry(self, tokens: int) -> tuple[int, ...]:
        """The shape of a user's KV."""
        c = self._config
        return 2 * c.layers, 1, c.heads, tokens, c.hidden_size // c.heads

    def _zeros(self, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self._device)

    def _there(self, array: Array) -> Tensor:
        """On the device; of memory that stays as it is until the host has waited."""
        return tensor_of(array).to(self._device, non_blocking=True)

    def _together(self, kv: Sequence[Array]) -> Tensor:
        """[2N, 1, H, S, D] on the device."""
        self._locked.hold(kv[0])
        there = torch.empty((len(kv), *kv[0].shape), device=self._device)
        for into, each in zip(there, kv, strict=True):
            into.copy_(tensor_of(each), non_blocking=True)
        return there


def _graphs(config: HstuConfig) -> tuple[nn.Module, nn.Module]:
    """The user's and the ranking's, without weights of their own."""
    ranker, user, rank = MODULES[config.kind.name]
    no_codes = torch.zeros(0, len(config.codebook_sizes), dtype=torch.int64)  # no graph reads them
    with torch.device("meta"):
        model = ranker(config, no_codes).eval()
    return user(model), rank(model)


def _nothing_asked(config: HstuConfig, candidates: int) -> list[NDArray[np.int64]]:
    """As of a query, all zeros."""
    levels = len(config.codebook_sizes)
    rows = np.zeros((1, config.token_size), np.int32), np.zeros((candidates, 1 + levels), np.int32)
    return config.query(*rows, 0).rows


def _fill(place: Tensor, given: Tensor) -> None:
    """`given` at the beginning of every axis, zeros behind: of what others left, 0 times NaN would be NaN."""
    if place.shape != given.shape:
        place.zero_()
    place[tuple(slice(size) for size in given.shape)] = given


def load_hstu(
    folder: Path, config: HstuConfig, kv_type: str, threads: int
) -> Callable[[HstuWeights], HstuPasses]:
    """See `genrec.engine.openvino_ranker.load_hstu`. Raises ArtifactError."""
    device, _ = read_engine(folder)
    return partial(CudaHstu, Shared(device, threading.Lock(), PageLocked(device)), config)
