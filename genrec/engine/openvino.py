"""The generator through OpenVINO on a CPU, working in the tensors it is given."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from genrec.engine.interface import Array, DecodePass, KnownPass, Passes, Past
from genrec.engine.openvino_graphs import OpenVinoGraphs, Stream

MOST_TOKENS = 1024  # of one prefill call: more prompts at once only take memory
MOST_SCORES = 400_000  # beams x prompt tokens of one decode call, per head
LEAST_BEAMS = 32  # of a slice: fewer leave the matrix products too thin


def load_passes(folder: Path, kv_type: str, threads: int, streams: int) -> list[Passes]:
    """See `genrec.engine.load.load_passes`."""
    graphs = OpenVinoGraphs(folder, kv_type, threads, streams)
    return [OpenVinoPasses(graphs) for _ in range(streams)]


class OpenVinoPasses(Stream):
    """See `genrec.engine.interface.Passes`."""

    def __init__(self, graphs: OpenVinoGraphs) -> None:
        super().__init__(graphs)
        # Where attention is not one operation, what goes on behind a past writes out all of its scores.
        self.resumes = graphs.has("resume") and not graphs.writes_scores
        self.resumes_drafts = graphs.has("resume_draft") and not graphs.writes_scores
        self.decodes_all = graphs.has("decode_all") and not graphs.writes_scores

    def prefill(
        self, tokens: Array, lengths: Array, logits: Array, kv: Sequence[Array], lends: bool = False
    ) -> Sequence[Array]:  # fmt: skip
        """See `Passes.prefill`. What takes several calls is put together in `kv`. Where a graph has several passes,
        none lends its kv: the next pass to run could end it.
        """
        calls = rows_of_calls(tokens)
        if lends and len(calls) == 1 and not self._graphs.writes_scores:
            return self._infer("prefill", [tokens, lengths], [logits, *(None for _ in kv)])[1:]
        for rows in calls:
            into = [logits[rows], *(each[rows] for each in kv)]
            self._infer("prefill", [tokens[rows], lengths[rows]], into)
        return kv

    def resume(self, tokens: Array, past: Past, logits: Array, new: Sequence[Array]) -> None:
        """See `ResumePasses.resume`."""
        self._infer("resume", [tokens, np.array([past.tokens]), *past.kv], [logits, *new])

    def draft_behind(self, tokens: Array, past: Past, states: Array, new: Sequence[Array]) -> None:
        """See `ResumePasses.draft_behind`."""
        self._infer("resume_draft", [tokens, np.array([past.tokens]), *past.kv], [states, *new])

    def decode(self, given: DecodePass) -> Array:
        """See `Passes.decode`. Where attention is not one operation, many beams over a long prompt go in slices.

        OpenVINO then writes out the scores of a whole attention, W x H x S: at BW 1,024 and S = 3,000 that was twenty
        times the KV. At BW 512 and S = 1,023 two slices take 3 % longer than one, four take 7 %. Results do not differ.
        """
        (batch, beams), span = given.codes.shape, given.shared[0].shape[2]
        if not self._graphs.writes_scores or batch * beams * span <= MOST_SCORES:
            return self._decode(given)
        size = max(ceil(beams / ceil(beams * span / MOST_SCORES)), LEAST_BEAMS)  # all slices alike
        for row in range(batch):
            one = slice(row, row + 1)
            for first in range(0, beams, size):
                part = (one, slice(first, first + size))
                shared = [tensor[one] for tensor in given.shared]
                unshared = [[tensor[part] for tensor in each] for each in given.unshared]
                codes, lengths, logits = given.codes[part], given.lengths[one], given.logits[part]
                self._decode(DecodePass(given.level, codes, lengths, shared, unshared, logits))
        return given.logits

    def _decode(self, given: DecodePass) -> Array:
        inputs, earlier = [given.codes, given.lengths, *given.shared], given.level - 2
        for n in range(0, len(given.shared), 2):  # the graph's order: per layer, per earlier level, k then v
            inputs += [given.unshared[n + kind][u] for u in range(earlier) for kind in (0, 1)]
        written = [each[earlier] for each in given.unshared if len(each) > earlier]
        logits = None if given.lends else given.logits
        return self._infer(f"decode_{given.level}", inputs, [logits, *written])[0]

    def decode_all(self, given: KnownPass) -> Sequence[Array]:
        """See `KnownPasses.decode_all`."""
        read = [given.length, *given.codes, *given.parents, *given.shared]
        return self._infer("decode_all", read, [None for _ in given.codes])

    def draft_states(self, tokens: Array, lengths: Array) -> NDArray[np.float32]:
        """See `Passes.draft_states`."""
        found = []
        for rows in rows_of_calls(tokens):
            (states,) = self._infer("prefill_draft", [tokens[rows], lengths[rows]], [None])
            found.append(states.copy())
        return np.concatenate(found)


def rows_of_calls(tokens: Array) -> list[slice]:
    """Rows of [B, S] for one prefill call each."""
    count = max(MOST_TOKENS // tokens.shape[1], 1)
    return [slice(first, first + count) for first in range(0, len(tokens), count)]
