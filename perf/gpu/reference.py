"""What requests on a GPU are held against: the generator itself, in float32, over every beam's whole sequence.

No KV is kept and no prompt is shared there, so nothing is in common with the fast path but the weights, the tree and
the step of beam search, which has twins of its own.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from genrec.engine.cuda.beams import DeviceBeams, DeviceTree, expand, first_beams, nothing_blocked
from genrec.engine.cuda.generate import DeviceGenerator, Generated
from genrec.nn.model import Generator

ROWS = 64  # sequences of one pass
SAMPLE = 16  # beams of a request whose logits are compared
BEST = 4  # one of so many of a request's beams is among the best, which both searches must find


class Tolerance(NamedTuple):
    """What the arithmetic of a type may cost: of the norm of a pass's logits, and of an answer's log-probability.

    In bf16 each of some ten roundings a layer is off by 2^-9 at most, and they add up like a random walk: 3 % after 28
    layers. Scores are sums of log-probabilities of logits whose spread is about 1.
    """

    logits: float
    score: float


TOLERANCES = {torch.float32: Tolerance(1e-4, 1e-3), torch.bfloat16: Tolerance(3e-2, 1e-1)}


class Reference:
    """Logits of beams by whole sequences; `generator` in float32."""

    def __init__(self, generator: Generator, tree: DeviceTree) -> None:
        self._generator, self._tree = generator, tree

    @torch.no_grad()
    def logits(self, level: int, prompt: Tensor, paths: Tensor) -> Tensor:
        """prompt [S] of one request, paths [W] of level `level - 1` -> float32 [W, T_level]."""
        config, sequences, left = self._generator.config, [], paths
        for n in reversed(range(level - 1)):
            sequences.insert(0, (left % config.codebook_sizes[n] + config.code_offsets[n])[:, None])
            left = left // config.codebook_sizes[n]
        whole = torch.cat((prompt.expand(len(paths), -1), *sequences), dim=1)
        found = [self._generator.prefill(part)[0][:, -1] for part in whole.split(ROWS)]
        return self._generator.head(torch.cat(found), level).float()

    def beams(self, prompt: Tensor, counts: list[int]) -> DeviceBeams:
        """The beams of one request, by the reference's logits alone: [1, W]."""
        beams, masks = first_beams(1, prompt.device), nothing_blocked(self._tree, 1)
        for level, count in enumerate(counts, 1):
            logits = self.logits(level, prompt, beams.paths[0])[None]
            beams = expand(self._tree, level, logits, beams, count, masks[level - 1])
        return beams


def check_passes(
    generator: DeviceGenerator, reference: Reference, tokens: Tensor, lengths: Tensor
) -> dict[str, float]:
    """Logits of prefill and every decode, of some beams: errors as shares of the norm. AssertionError if too large."""
    forward, tree = generator.forward, generator.tree
    logits, shared = forward.prefill(tokens, lengths)
    beams, own, errors = first_beams(len(tokens), tokens.device), None, {}
    masks, limit = nothing_blocked(tree, len(tokens)), TOLERANCES[forward.dtype].logits
    for level, count in enumerate(generator.counts, 1):
        name = f"decode_{level}" if level > 1 else "prefill"
        if level > 1:
            own = generator.inherit(own, beams.parents)
            logits = forward.decode(level, beams.paths % tree.sizes[level - 2], lengths, shared, own)
        some = slice(None, None, -(-logits.shape[1] // SAMPLE))
        prompts = [row[:length] for row, length in zip(tokens, lengths.tolist(), strict=True)]
        want = torch.stack(
            [reference.logits(level, p, row[some]) for p, row in zip(prompts, beams.paths, strict=True)]
        )
        errors[name] = float((logits[:, some] - want).norm() / want.norm())
        assert errors[name] <= limit, f"{name}: logits are {errors[name]} of their norm off, at most {limit}"
        beams = expand(tree, level, logits, beams, count, masks[level - 1])
    return errors


def check_answers(
    reference: Reference,
    tokens: Tensor,
    lengths: Tensor,
    found: Generated,
    counts: list[int],
    dtype: torch.dtype,
) -> float:
    """The best answers of either search are among the other's beams, their scores alike; the worst difference."""
    worst = 0.0
    for b, length in enumerate(lengths.tolist()):
        want = reference.beams(tokens[b, :length], counts)
        theirs = dict(zip(want.paths[0].tolist(), want.scores[0].tolist(), strict=True))
        ours = dict(zip(found.paths[b].tolist(), found.scores[b].tolist(), strict=True))
        for one, other in ((ours, theirs), (theirs, ours)):
            for path in sorted(one, key=one.__getitem__)[-max(len(one) // BEST, 1) :]:
                assert path in other, (
                    f"request {b}: {path} is among the best beams of one search, and no beam of the other"
                )
                worst = max(worst, abs(one[path] - other[path]))
    limit = TOLERANCES[dtype].score
    assert worst <= limit, f"scores are {worst} from the reference's, at most {limit} is the arithmetic's"
    return worst
