"""Decode without a shared prompt, from the very same graph: every beam is a request with a copy of the prompt's KV."""

from __future__ import annotations

import numpy as np

from genrec.engine.interface import Array, DecodePass, Passes


class PerBeam:
    """`genrec.engine.interface.Passes` whose decode gives every beam the prompt's KV as its own: [B * W, G, S, D]."""

    def __init__(self, passes: Passes) -> None:
        self._passes = passes
        self.prefill, self.draft_states = passes.prefill, passes.draft_states
        self._copies: list[Array] = []

    def decode(self, given: DecodePass) -> Array:
        """See `Passes.decode`: B requests of W beams are B * W requests of one."""
        beams = given.codes.shape[1]
        # Beams may become more at every level
        if given.level == 2 or len(self._copies[0]) != given.codes.size:
            self._copies.clear()
            self._copies += (np.repeat(tensor, beams, axis=0) for tensor in given.shared)
        alone = [[_alone(tensor) for tensor in each] for each in given.unshared]
        lengths = np.repeat(given.lengths, beams)
        codes, logits = _alone(given.codes), _alone(given.logits)
        found = self._passes.decode(
            DecodePass(given.level, codes, lengths, self._copies, alone, logits, given.lends)
        )
        return found.reshape(given.logits.shape)


def _alone(tensor: Array) -> Array:
    """[B, W, ...] as [B * W, 1, ...]."""
    return tensor.reshape(-1, 1, *tensor.shape[2:])
