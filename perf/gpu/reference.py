"""What requests on a GPU are held against: the generator itself, in float32, over every beam's whole sequence.

No KV is kept and no prompt is shared there, so nothing is in common with the fast path but the weights, the tree and
the step of beam search, which has twins of its own.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from genrec.engine.cuda.beams import DeviceBeams, DeviceTree, expand, first_beams, nothing_blocked
from genrec.engine.cuda.generate import DeviceGenerator, Generated
from genrec.nn.model import Generator

ROWS = 64  # sequences of one pass
SAMPLE = 16  # beams of a request whose logits are compared
NEAR = 4  # times the worst difference of scores: two that are so near may be in either order


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

    def beams(self, prompt: Tensor, counts: list[int]) -> tuple[DeviceBeams, list[float]]:
        """The beams [1, W] of one request by the reference's logits alone, and each level's least score that was kept.

        Where a level keeps all that there is, that is -inf.
        """
        beams, masks, cuts = first_beams(1, prompt.device), nothing_blocked(self._tree, 1), []
        for level, count in enumerate(counts, 1):
            logits = self.logits(level, prompt, beams.paths[0])[None]
            candidates = self._tree.pointers[level - 1].diff()[beams.nodes[beams.nodes >= 0]].sum()
            beams = expand(self._tree, level, logits, beams, count, masks[level - 1])
            cuts.append(float(beams.scores[beams.nodes >= 0].min()) if candidates > count else -torch.inf)
        return beams, cuts

    def scores(self, prompt: Tensor, paths: Tensor) -> Tensor:
        """Log-probabilities [L, n] of the first 1 to L codes of n whole paths; -inf from where a path is no item's."""
        sizes = self._tree.sizes
        node, so_far = torch.zeros_like(paths), torch.zeros_like(paths)
        total, found = torch.zeros(len(paths), device=paths.device), []
        for level, size in enumerate(sizes, 1):
            code = paths // math.prod(sizes[level:]) % size
            logits = self.logits(level, prompt, so_far)
            family = torch.full_like(logits, -torch.inf)
            children = torch.full(logits.shape, -1, device=paths.device)
            for row, parent in enumerate(node.tolist()):
                if parent >= 0:
                    own = slice(*self._tree.pointers[level - 1][parent : parent + 2].tolist())
                    codes = self._tree.codes[level - 1][own]
                    family[row, codes] = logits[row, codes]
                    children[row, codes] = torch.arange(own.start, own.stop, device=paths.device)
            at = code[:, None]
            total = total + family.log_softmax(1).gather(1, at)[:, 0].nan_to_num(nan=-torch.inf)
            node, so_far = children.gather(1, at)[:, 0], so_far * size + code
            found.append(total)
        return torch.stack(found)


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
    """Answers have the scores that the reference gives their paths; the worst difference.

    And they are those that it would keep, but for paths so near to what a level keeps last that these decide.
    """
    limit, worst = TOLERANCES[dtype].score, 0.0
    for b, length in enumerate(lengths.tolist()):
        prompt = tokens[b, :length]
        want, cuts = reference.beams(prompt, counts)
        kept = found.alive[b]
        ours = dict(zip(found.paths[b][kept].tolist(), found.scores[b][kept].tolist(), strict=True))
        paths = sorted({*ours, *want.paths[want.nodes >= 0].tolist()})
        scores = reference.scores(prompt, torch.tensor(paths, device=prompt.device)).cpu()
        apart = [
            abs(ours.get(path, score) - score) for path, score in zip(paths, scores[-1].tolist(), strict=True)
        ]
        off = float(np.max(apart))  # Python's own may lose NaN
        assert off <= limit, f"scores are {off} from the reference's, at most {limit} is the arithmetic's"
        within = (scores - torch.tensor(cuts)[:, None]).amin(0)
        for path, margin in zip(paths, within.tolist(), strict=True):
            assert -NEAR * off <= margin if path in ours else margin <= NEAR * off, (
                f"request {b}: {path} is {'a' if path in ours else 'no'} beam, and {margin} from what is kept"
            )
        worst = max(worst, off)
    return worst
