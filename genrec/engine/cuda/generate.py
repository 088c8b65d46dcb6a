"""A whole request on the GPU: prefill, beam search and decode of every level, without a word from the host.

xGR, section 7: the device-side operations are captured as one graph and launched at once; a bucket (batch,
padded prompt length) is one graph. Validity is checked inside beam search on the device (section 9.5).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genrec.engine.cuda.beams import DeviceBeams, DeviceTree, blocked_tensors, expand, first_beams
from genrec.engine.cuda.forward import Forward
from genrec.errors import InputError
from genrec.search.constraint import Constraint

if TYPE_CHECKING:
    from genrec.catalogue.validity import Blocked, ValidityIndex
    from genrec.engine.interface import Array
    from genrec.search.expand import Beams

MOST_BLOCKED = 1024
WARM_UPS = 3  # runs before a capture, so that libraries have chosen and allocated what they need


class Generated(NamedTuple):
    """Answers of B requests: paths int64, nodes and parents int32, scores float32, each [B, W], by path.

    A node below 0 is no beam.
    """

    paths: NDArray[np.int64]
    nodes: NDArray[np.int32]
    scores: NDArray[np.float32]
    parents: NDArray[np.int32]

    @property
    def alive(self) -> NDArray[np.bool_]:
        """bool[B, W]."""
        return self.nodes >= 0

    def row(self, b: int) -> Beams:
        """The beams of one request."""
        from genrec.search.expand import Beams  # imports numba, which a device needs for nothing else

        alive = self.alive[b]
        return Beams(*(each[b][alive] for each in self))


class _Bucket:
    """Fixed inputs and outputs of one shape, and the graph between them (none on a CPU)."""

    def __init__(self, batch: int, span: int, levels: int, blocked: int, device: torch.device) -> None:
        self.tokens = torch.zeros(batch, span, dtype=torch.int64, device=device)
        self.lengths = torch.ones(batch, dtype=torch.int64, device=device)
        self.blocked = [torch.zeros(batch, blocked, dtype=torch.int64, device=device) for _ in range(levels)]
        self.graph: torch.cuda.CUDAGraph | None = None
        self.beams: DeviceBeams | None = None


class DeviceGenerator:
    """Constrained generation with fixed shapes; buckets are captured when first used or by `prepare`."""

    def __init__(
        self, forward: Forward, tree: DeviceTree, width: int, most_blocked: int = MOST_BLOCKED
    ) -> None:
        """`most_blocked` nodes of a level may be blocked per request: E, a shape of the graphs."""
        self.forward, self.width, self.most_blocked = forward, width, most_blocked
        self.tree = tree
        self.counts = tree.beam_counts(width)
        self._buckets: dict[tuple[int, int], _Bucket] = {}

    def prepare(self, batch: int, span: int) -> _Bucket:
        """The bucket of B requests padded to S tokens, its graph captured."""
        key = (batch, span)
        if key not in self._buckets:
            bucket = _Bucket(batch, span, len(self.counts), self.most_blocked, self.forward.device)
            if self.forward.device.type == "cuda":
                self._capture(bucket)
            self._buckets[key] = bucket
        return self._buckets[key]

    def generate(
        self, tokens: NDArray[np.int64], lengths: NDArray[np.int64], blocked: list[Blocked]
    ) -> Generated:
        """tokens [B, S] padded right, lengths [B] >= 1. The host waits once, for the answer.

        Raises InputError when a logit of a valid code is NaN or +inf.
        """
        bucket = self.prepare(*tokens.shape)
        bucket.tokens.copy_(torch.from_numpy(tokens))
        bucket.lengths.copy_(torch.from_numpy(lengths))
        for into, nodes in zip(
            bucket.blocked, blocked_tensors(blocked, len(self.counts), self.most_blocked), strict=True
        ):
            into.copy_(nodes)
        if bucket.graph is None:
            bucket.beams = self.run(bucket.tokens, bucket.lengths, bucket.blocked)
        else:
            bucket.graph.replay()
        assert bucket.beams is not None
        beams = DeviceBeams(*(x.cpu() for x in bucket.beams))
        if beams.bad.any():
            raise InputError("logits", "has NaN or +inf at a valid code", "finite numbers or -inf")
        return Generated(
            beams.paths.numpy(),
            beams.nodes.numpy().astype(np.int32),
            beams.scores.numpy(),
            beams.parents.numpy().astype(np.int32),
        )

    @torch.no_grad()
    def run(self, tokens: Tensor, lengths: Tensor, blocked: list[Tensor]) -> DeviceBeams:
        """The whole chain on device tensors: tokens [B, S], lengths [B], blocked per level [B, E]."""
        logits, shared = self.forward.prefill(tokens, lengths)
        beams = first_beams(len(tokens), tokens.device)
        own: Tensor | None = None
        for level, count in enumerate(self.counts, 1):
            if level > 1:
                own = self.inherit(own, beams.parents)
                codes = beams.paths % self.tree.sizes[level - 2]
                logits = self.forward.decode(level, codes, lengths, shared, own)
            beams = expand(self.tree, level, logits, beams, count, blocked[level - 1])
        return beams

    def inherit(self, own: Tensor | None, parents: Tensor) -> Tensor:
        """Room for one more token behind the parents' KV.

        own [2N, B, W', U, G, D], parents [B, W] -> [2N, B, W, U + 1, G, D]. One gather for all layers; a second
        buffer is cheaper on a GPU than the in-place order of section 5.1.
        """
        config, (batch, beams) = self.forward.config, parents.shape
        earlier = 0 if own is None else own.shape[3]
        shape = (
            2 * config.num_hidden_layers,
            batch,
            beams,
            earlier + 1,
            config.num_key_value_heads,
            config.head_dim,
        )
        room = torch.empty(shape, dtype=self.forward.dtype, device=self.forward.device)
        if own is not None:
            rows = parents + torch.arange(batch, device=parents.device)[:, None] * own.shape[2]
            gathered = own.flatten(1, 2).index_select(1, rows.flatten())
            room[:, :, :, :-1] = gathered.unflatten(1, (batch, beams))
        return room

    def _capture(self, bucket: _Bucket) -> None:
        for nodes in bucket.blocked:
            nodes.fill_(2**31 - 1)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                self.run(bucket.tokens, bucket.lengths, bucket.blocked)
        torch.cuda.current_stream().wait_stream(side)
        bucket.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(bucket.graph):
            bucket.beams = self.run(bucket.tokens, bucket.lengths, bucket.blocked)


class CudaExecutor:
    """See `genrec.engine.interface.Executor`. Catalogue versions share the weights; graphs are a version's own."""

    most_blocked = MOST_BLOCKED

    def __init__(self, forward: Forward, width: int) -> None:
        self._forward, self._width = forward, width
        self._of: WeakKeyDictionary[ValidityIndex, DeviceGenerator] = WeakKeyDictionary()

    def answers(
        self, tokens: Array, lengths: Array, constraints: list[Constraint], *,
        prompts: Callable[[list[Array]], None] | None = None,
    ) -> list[Beams]:  # fmt: skip
        """See `Executor.answers`. Batches are filled up to a power of two with rows that are thrown away.

        Every beam is scored: graphs of a device have fixed shapes. No ranker runs here, so nobody asks for `prompts`.
        """
        answers: dict[int, Beams] = {}
        for index in {constraint.valid for constraint in constraints}:
            mine = [row for row, constraint in enumerate(constraints) if constraint.valid is index]
            rows = [mine[n % len(mine)] for n in range(1 << (len(mine) - 1).bit_length())]
            free = index.blocked(np.array([-1], np.int32))
            blocked = [constraints[row].blocked or free for row in rows]
            found = self._generator(index).generate(tokens[rows], lengths[rows], blocked)
            answers |= {row: found.row(place) for place, row in enumerate(mine)}
        return [answers[row] for row in range(len(constraints))]

    def rehearse(self, rows: int, span: int, valid: ValidityIndex) -> None:
        """See `Executor.rehearse`."""
        self.answers(np.zeros((rows, span), np.int64), np.ones(rows, np.int64), [Constraint(valid)] * rows)

    def _generator(self, index: ValidityIndex) -> DeviceGenerator:
        if index not in self._of:
            tree = DeviceTree.of(index, self._forward.device)
            self._of[index] = DeviceGenerator(self._forward, tree, self._width)
        return self._of[index]
