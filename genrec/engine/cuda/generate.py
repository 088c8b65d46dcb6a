"""A whole request on the GPU: prefill, beam search and decode of every level, without a word from the host.

xGR, section 7: the device-side operations are captured as graphs and launched at once; a bucket (batch, padded prompt
length) has two: behind the first, KV of prompts that are kept goes to the host while the other runs. Buckets are few,
and their graphs share one pool of memory, so that they take what the largest one takes. Validity is checked inside
beam search on the device (section 9.5), by a tree that lies where graphs read it: catalogue versions share them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genrec.engine.cuda.beams import DeviceBeams, DeviceTree, block, first_beams, nothing_blocked
from genrec.engine.cuda.forward import Forward
from genrec.engine.cuda.graphs import Replayed, graph_pool, padded
from genrec.engine.cuda.tree_room import TreeRoom
from genrec.engine.interface import BringPrompt, Past, ShowPrompt
from genrec.errors import InputError
from genrec.search.constraint import Constraint
from genrec.settings import SPAN, padded_rows

if TYPE_CHECKING:
    from genrec.catalogue.blocked import Blocked
    from genrec.catalogue.validity import ValidityIndex
    from genrec.engine.interface import Array
    from genrec.search.expand import Beams

log = logging.getLogger("genrec.cuda")
MOST_GRAPHS = 128  # all that batches of prompts up to 6,000 tokens need are 104


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
    """Fixed inputs of one shape, and what is captured of them."""

    prefill: Replayed[None]
    search: Replayed[DeviceBeams]

    def __init__(self, batch: int, span: int, blocked: list[Tensor], forward: Forward) -> None:
        self.tokens = torch.zeros(batch, span, dtype=torch.int64, device=forward.device)
        self.lengths = torch.ones(batch, dtype=torch.int64, device=forward.device)
        first = forward.config.codebook_sizes[0]
        self.logits = torch.empty(batch, 1, first, dtype=torch.float32, device=forward.device)
        self.blocked, self.kv = blocked, forward.prompts.of(batch, span)


class DeviceGenerator:
    """Constrained generation with fixed shapes; buckets are captured when first used or by `prepare`."""

    def __init__(self, forward: Forward, tree: DeviceTree, width: int, most: int = MOST_GRAPHS) -> None:
        """At most `most` graphs are kept: the least recently used goes. Answers are of `tree` until the next `use`."""
        self.forward, self.width, self._most, self.captured = forward, width, most, 0
        self._buckets: dict[tuple[int, int], _Bucket] = {}  # the least recently used first
        self._blocked: dict[int, list[Tensor]] = {}  # by batch: all its buckets read the same masks
        self._enter(TreeRoom(tree))

    def use(self, tree: DeviceTree) -> None:
        """From now on answers are of `tree`. Where it has no room, all graphs go: they read where there is too little.

        On the stream that runs the graphs, so that each finds what was meant for it.
        """
        if not self._room.fits(tree):
            room = TreeRoom(tree, self._room)  # without memory for it all stays as it was
            self._buckets.clear()
            self._blocked.clear()
            torch.cuda.empty_cache()  # of the graphs' memory, which no other pool takes
            self._enter(room)
        self._room.hold(tree)

    def _enter(self, room: TreeRoom) -> None:
        self._room, self.tree, self.counts = room, room.tree, room.tree.beam_counts(self.width)
        self._pool = graph_pool(self.forward.device)

    def prepare(self, batch: int, span: int) -> _Bucket:
        """The bucket that B requests of S tokens run in, its graph captured."""
        key = padded_rows(batch), padded(span, SPAN)
        bucket = self._buckets.pop(key, None)
        if bucket is None:
            if len(self._buckets) == self._most:
                del self._buckets[next(iter(self._buckets))]
            masks = self._blocked.setdefault(key[0], nothing_blocked(self.tree, key[0]))
            bucket = _Bucket(*key, masks, self.forward)
            self.captured += 1  # also where it fails: that is no usual batch either
            self.capture(bucket)
        self._buckets[key] = bucket
        return bucket

    def generate(
        self, tokens: NDArray[np.int64], lengths: NDArray[np.int64], blocked: list[Blocked],
        prompts: ShowPrompt | None = None,
    ) -> Generated:  # fmt: skip
        """tokens [B, S] padded right, lengths [B] >= 1. The host waits once, for the answer; and for KV of prompts that
        go to `prompts` (see `Executor.answers`).

        Raises InputError when a logit of a valid code is NaN or +inf.
        """
        bucket, count = self.prepare(*tokens.shape), len(tokens)
        rows = np.arange(len(bucket.tokens)) % count  # those too many are thrown away
        bucket.tokens[:, : tokens.shape[1]].copy_(torch.from_numpy(tokens[rows]))
        bucket.lengths.copy_(torch.from_numpy(lengths[rows]))
        block(bucket.blocked, [blocked[row] for row in rows])
        bucket.prefill()
        self.forward.prompts.filled()
        found = bucket.search()
        if prompts:
            self._show(bucket, lengths, prompts)
        beams = DeviceBeams(*(x[:count].cpu() for x in found))
        if beams.bad.any():
            raise InputError("logits", "has NaN or +inf at a valid code", "finite numbers or -inf")
        return Generated(
            beams.paths.numpy(),
            beams.nodes.numpy().astype(np.int32),
            beams.scores.numpy(),
            beams.parents.numpy().astype(np.int32),
        )

    def _show(self, bucket: _Bucket, lengths: NDArray[np.int64], prompts: ShowPrompt) -> None:
        """KV of prompts, while the device searches. Where that has no memory left for it, none is kept."""
        room = self.forward.prompts
        try:
            sound = room.sound(bucket.logits)
            for row, length in enumerate(lengths.tolist()):
                if sound[row]:
                    prompts(row, partial(room.bring, bucket.kv, row, length))
        except torch.cuda.OutOfMemoryError as error:
            log.warning("cuda: KV of prompts is not kept: %s", error)

    @torch.no_grad()
    def prefill(self, bucket: _Bucket) -> None:
        """Logits of the first level, and KV, of its prompts."""
        logits, _ = self.forward.prefill(bucket.tokens, bucket.lengths, bucket.kv)
        bucket.logits.copy_(logits)

    @torch.no_grad()
    def search(self, bucket: _Bucket) -> DeviceBeams:
        """All that comes behind prefill."""
        logits, lengths, shared = bucket.logits, bucket.lengths, list(bucket.kv)
        beams = first_beams(len(logits), logits.device)
        own: Tensor | None = None
        for level, count in enumerate(self.counts, 1):
            if level > 1:
                own = self.inherit(own, beams.parents)
                codes = beams.paths % self.tree.sizes[level - 2]
                logits = self.forward.decode(level, codes, lengths, shared, own)
            blocked = bucket.blocked[level - 1]
            beams = self.forward.operations.expand(self.tree, level, logits, beams, count, blocked)
        return beams

    def inherit(self, own: Tensor | None, parents: Tensor) -> Tensor:
        """Room for one more token behind the parents' KV.

        own [2N, B, W', U, G, D], parents [B, W] -> [2N, B, W, U + 1, G, D].
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
            self.forward.operations.inherit(own, parents, room)
        return room

    def capture(self, bucket: _Bucket) -> None:
        """Its graphs, in the memory that all of them share: they never run at once."""
        device = self.forward.device
        bucket.prefill = Replayed(partial(self.prefill, bucket), device, self._pool)
        bucket.search = Replayed(partial(self.search, bucket), device, self._pool)


class CudaExecutor:
    """See `genrec.engine.interface.Executor`. Catalogue versions share all but their trees."""

    captures, resumes = True, False

    def __init__(self, forward: Forward, width: int) -> None:
        self._forward, self._width = forward, width
        self._trees: WeakKeyDictionary[ValidityIndex, DeviceTree] = WeakKeyDictionary()
        self._generator: DeviceGenerator | None = None

    def answers(
        self, tokens: Array, lengths: Array, constraints: list[Constraint], *,
        prompts: ShowPrompt | None = None, pasts: Sequence[Past] = (),
    ) -> list[Beams]:  # fmt: skip
        """See `Executor.answers`. Every beam is scored: graphs of a device have fixed shapes. Nobody has `pasts`."""
        answers: dict[int, Beams] = {}
        for index in {constraint.valid for constraint in constraints}:
            rows = [row for row, constraint in enumerate(constraints) if constraint.valid is index]
            free = index.blocked(np.array([-1], np.int32))
            blocked = [constraints[row].blocked or free for row in rows]
            show = prompts and partial(_show_as, prompts, rows)
            found = self._of(index).generate(tokens[rows], lengths[rows], blocked, show)
            answers |= {row: found.row(place) for place, row in enumerate(rows)}
        return [answers[row] for row in range(len(constraints))]

    @property
    def captured(self) -> int:
        """See `Executor.captured`."""
        return self._generator.captured if self._generator else 0

    def rehearse(self, rows: int, span: int, valid: ValidityIndex, past: Past | None = None) -> None:
        """See `Executor.rehearse`."""
        self._of(valid).prepare(rows, span)

    def _of(self, index: ValidityIndex) -> DeviceGenerator:
        """The generator, with the tree of this version."""
        if index not in self._trees:
            self._trees[index] = DeviceTree.of(index, self._forward.device)
        tree = self._trees[index]
        if self._generator is None:
            self._generator = DeviceGenerator(self._forward, tree, self._width)
        self._generator.use(tree)
        return self._generator


def _show_as(prompts: ShowPrompt, rows: list[int], place: int, bring: BringPrompt) -> None:
    prompts(rows[place], bring)
