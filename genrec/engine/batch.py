"""Requests that go through the passes of the generator together: their KV, and one pass over some of their beams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np

from genrec.engine.interface import Array, DecodePass, KnownPass, KnownPasses, Passes, Past, ResumePasses
from genrec.kv.reorder import reorder_in_place
from genrec.models.config import ModelConfig
from genrec.search.expand import Beams
from genrec.search.known import Known
from genrec.search.scratch import Scratch
from genrec.search.undecided import LEAST, Int64, pass_size, rows_of_parents

_INT64 = np.dtype(np.int64)


class UnsharedSnapshot(NamedTuple):
    """Whose unshared KV a batch had, and a copy of it."""

    scored: list[Int64]
    beams: int
    kv: list[list[Array]]


class PassBatch:
    """The prompts' KV, once per request, and the unshared KV of the beams that the last pass scored (xGR, section 5.1).

    All memory is of `scratch`, and as others left it: KV behind a prompt is set to 0, as 0 times NaN is NaN.
    """

    def __init__(
        self, passes: Passes, config: ModelConfig, width: int, kv_type: np.dtype[np.generic], scratch: Scratch
    ) -> None:
        self._passes, self._config, self._scratch = passes, config, scratch
        self._width, self._kv_type = width, kv_type
        self._scored: list[Int64] = []  # places, among a request's beams, of those that the last pass scored
        self._count = 1  # of them in a row of the KV, padding included

    def prefill(self, tokens: Array, lengths: Array, pasts: Sequence[Past] = ()) -> Array:
        """tokens int64[B, S], lengths int64[B] -> logits float32[B, 1, T_1]; KV of the last rows is there in part."""
        c, (batch, span) = self._config, tokens.shape
        tensors, self._lengths = range(2 * c.num_hidden_layers), lengths
        logits = self._logits(batch, 1, 1)
        heads = c.num_key_value_heads
        shape = (batch, self._width, heads, c.head_dim)
        self._unshared = [
            [self._scratch.take(shape, self._kv_type) for _ in range(c.levels - 2)] for _ in tensors
        ]
        if batch == 1 and pasts and pasts[0].logits is not None:  # alone it is read where it lies
            self.shared, logits[0, 0] = list(pasts[0].kv), pasts[0].logits
            return logits
        self.shared = [self._scratch.take((batch, heads, span, c.head_dim), self._kv_type) for _ in tensors]
        whole = batch - len(pasts)
        if whole and pasts:
            self._prefill_first(tokens[:whole], lengths[:whole], logits[:whole])
        elif whole:
            self.shared = list(self._passes.prefill(tokens, lengths, logits, self.shared, lends=True))
        for row, past in enumerate(pasts, whole):
            self._resume(tokens[row : row + 1, : lengths[row]], past, logits[row : row + 1], row)
        return logits

    def _prefill_first(self, tokens: Array, lengths: Array, logits: Array) -> None:
        """The prompts of the first rows, which those that go on behind a past may be much longer than."""
        longest = int(lengths.max())
        shapes = [(len(tokens), kv.shape[1], longest, kv.shape[3]) for kv in self.shared]
        new = [self._scratch.take(shape, self._kv_type) for shape in shapes]
        self._passes.prefill(np.ascontiguousarray(tokens[:, :longest]), lengths, logits, new)
        for whole, mine in zip(self.shared, new, strict=True):
            whole[: len(tokens), :, :longest] = mine
            whole[: len(tokens), :, longest:] = 0

    def _resume(self, tokens: Array, past: Past, logits: Array, row: int) -> None:
        """The prompt of one row, int64[1, length], whose first tokens are there, or all of it."""
        (_, end), start, c = tokens.shape, past.tokens, self._config
        shape = (1, c.num_key_value_heads, end - start, c.head_dim)
        new = [self._scratch.take(shape, self._kv_type) for _ in self.shared]
        if past.logits is None:
            cast(ResumePasses, self._passes).resume(tokens[:, start:], past, logits, new)
        else:
            logits[0, 0] = past.logits
        for mine, old, newest in zip(self.shared, past.kv, new, strict=True):
            mine[row, :, :start] = old[0, :, :start]
            mine[row, :, start:end] = newest[0]
            mine[row, :, end:] = 0

    def bring(self, row: int, entry: Array) -> None:
        """KV of a row's prompt into [2N, G, S', D], zeros behind it."""
        length = self._lengths[row]
        for place, tensor in zip(entry, self.shared, strict=True):
            place[:, :length] = tensor[row, :, :length]
            place[:, length:] = 0  # memory is as others left it, and 0 times NaN is NaN

    def score(self, level: int, beams: list[Beams], scored: list[Int64]) -> Array:
        """One pass over the beams of level - 1 at the places `scored`: logits float32[B, W', T_level], with padding."""
        batch, count = len(beams), pass_size(max(len(places) for places in scored), self._width)
        logits = self._logits(batch, count, level)
        if count:
            if level > 2:
                parents = self._parents(beams, scored, count)
                for each in self._unshared:
                    _inherit(each[: level - 2], parents, self._count)
            views = [[_first(kept, batch, count) for kept in each] for each in self._unshared]
            codes = self._codes(level, beams, scored, count)
            given = DecodePass(level, codes, self._lengths, self.shared, views, logits, lends=True)
            logits = self._passes.decode(given)
        self._scored, self._count = scored, count
        return logits

    def score_all(self, known: Known) -> list[Array]:
        """One pass over the beams of all levels, of a batch of one: logits float32[W_l', T_(l+1)] of each."""
        sizes = [pass_size(max(len(each), 1), max(self._width, LEAST)) for each in known.codes]
        codes = [self._rows([each], size) for each, size in zip(known.codes, sizes, strict=True)]
        parents = [self._rows([each], size)[0] for each, size in zip(known.parents, sizes[1:], strict=True)]
        given = KnownPass(codes, parents, self._lengths, self.shared)
        return [each[0] for each in cast(KnownPasses, self._passes).decode_all(given)]

    def snapshot(self, level: int) -> UnsharedSnapshot:
        """To restore, before a pass of `level` that may not be the last of its level."""
        read = [
            [_first(kept, len(self._lengths), self._count) for kept in each[: level - 2]]
            for each in self._unshared
        ]
        return UnsharedSnapshot(self._scored, self._count, [[kept.copy() for kept in each] for each in read])

    def restore(self, snapshot: UnsharedSnapshot) -> None:
        """Have what was there then."""
        self._scored, self._count, kv = snapshot
        for mine, saved in zip(self._unshared, kv, strict=True):
            for tensor, copy in zip(mine, saved, strict=False):  # the latest token's is written anew
                _first(tensor, len(copy), self._count)[:] = copy

    def _codes(self, level: int, beams: list[Beams], scored: list[Int64], count: int) -> Array:
        """int64[B, W'], the last code of every beam that the pass of `level` scores."""
        paths = [
            np.take(found.paths, places, out=self._scratch.take(places.shape, _INT64), mode="clip")
            for found, places in zip(beams, scored, strict=True)
        ]
        codes = self._rows(paths, count)
        return np.remainder(codes, self._config.codebook_sizes[level - 2], out=codes)

    def _parents(self, beams: list[Beams], scored: list[Int64], count: int) -> Array:
        """int64[B, W'], rows of the pass before."""
        rows = [
            rows_of_parents(found.parents, places, former, self._scratch)
            for found, places, former in zip(beams, scored, self._scored, strict=True)
        ]
        return self._rows(rows, count)

    def _rows(self, values: list[Array], count: int) -> Array:
        """int64[B, W'] of a row of up to W' values each. Padding repeats the last, so that no pass ever reads what was
        left over; 0 where there is none.
        """  # fmt: skip
        out = self._scratch.take((len(values), count), _INT64)
        for row, found in zip(out, values, strict=True):
            row[: len(found)] = found
            row[len(found) :] = found[-1] if len(found) else 0
        return out

    def _logits(self, batch: int, count: int, level: int) -> Array:
        shape = (batch, count, self._config.codebook_sizes[level - 1])
        return self._scratch.take(shape, np.dtype(np.float32))


def _inherit(kept: list[Array], parents: Array, before: int) -> None:
    """Let every beam's unshared KV be its parent's, in place (section 5.1).

    kept [B, W, G, D] holds [B, before, G, D] at its start, then [B, W', G, D]; parents [B, W'].
    """
    batch, count = parents.shape
    wide = max(before, count)
    # Where beams have become more, a row moves up into space that is done with, the last one first.
    rows = range(batch - 1, -1, -1) if before < count else range(batch)
    for tensor in kept:
        was, now, both = (_first(tensor, batch, beams) for beams in (before, count, wide))
        for row in rows:
            if row and before < count:
                now[row, :before] = was[row]
            reorder_in_place(both[row].reshape(wide, -1), parents[row])
            if row and before > count:
                now[row] = was[row, :count]


def _first(tensor: Array, batch: int, count: int) -> Array:
    """The start of the memory of [B, W, G, D] as [B, W', G, D], W' <= W."""
    shape = (batch, count, *tensor.shape[2:])
    return tensor.reshape(-1)[: int(np.prod(shape))].reshape(shape)
