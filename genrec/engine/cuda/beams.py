"""One step of beam search on the device: the constraint before top-k, fixed shapes, no question to the host.

The torch form of `genrec.search.expand.expand` (its slow twin in the tests) over the same flat tree. Beams of a request
are as many as the level can have; where a catalogue or a blocked set leaves fewer, the rest are dead: node -1,
score -inf, behind the living ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:  # what runs on a device needs no numba
    from genrec.catalogue.blocked import Blocked
    from genrec.catalogue.validity import ValidityIndex

LEAST = torch.iinfo(torch.int32).min  # behind the bits of every score


class DeviceBeams(NamedTuple):
    """Beams of B requests, each sorted by parent, then code: four tensors [B, W] and one [B]."""

    paths: Tensor  # int64, as genrec.catalogue.semantic_id packs them
    nodes: Tensor  # int64; -1 is dead
    scores: Tensor  # float32
    parents: Tensor  # int64, index of the beam that was extended
    bad: Tensor  # bool [B]: a logit of a valid code was NaN or +inf


def first_beams(batch: int, device: torch.device) -> DeviceBeams:
    """The root of the tree as the one beam of every request."""
    zero = torch.zeros(batch, 1, dtype=torch.int64, device=device)
    return DeviceBeams(zero, zero, zero.float(), zero, torch.zeros(batch, dtype=torch.bool, device=device))


@dataclass(frozen=True, eq=False)
class DeviceTree:
    """The validity index on a device: per level pointers int64 [P_{l-1} + 1], codes int64 [P_l], widest family F_l."""

    sizes: tuple[int, ...]
    pointers: list[Tensor]
    codes: list[Tensor]
    families: list[int]

    @classmethod
    def of(cls, index: ValidityIndex, device: torch.device) -> DeviceTree:
        """Copy what `expand` reads; int64, because indices of torch are."""
        levels = range(1, index.levels + 1)
        pointers = [torch.tensor(index.children_into(n), dtype=torch.int64) for n in levels]
        codes = [torch.from_numpy(index.codes[n - 1].astype("int64")).to(device) for n in levels]
        families = [int(p.diff().max()) for p in pointers]
        return cls(index.codebook_sizes, [p.to(device) for p in pointers], codes, families)

    def beam_counts(self, width: int) -> list[int]:
        """Beams kept after every level: never more than the level has nodes or the beams before have children."""
        counts, last = [], 1
        for codes, family in zip(self.codes, self.families, strict=True):
            last = min(width, len(codes), last * family)
            counts.append(last)
        return counts


def nothing_blocked(tree: DeviceTree, batch: int) -> list[Tensor]:
    """Room for what B requests block: per level bool [B, P_l], all false."""
    return [torch.zeros(batch, len(codes), dtype=torch.bool, device=codes.device) for codes in tree.codes]


def block(masks: list[Tensor], blocked: list[Blocked]) -> None:
    """Make masks [B, P_l] true at what each request blocks and nowhere else. Any number of nodes; they alone travel."""
    for level, mask in enumerate(masks, 1):
        mask.zero_()
        opened = [request.open_at(level) for request in blocked]
        for b, alone in enumerate(opened):
            if alone is not None:
                mask[b] = True
        _fill(mask, opened, False)
        _fill(mask, [request.at(level) for request in blocked], True)


def _fill(mask: Tensor, nodes: list[NDArray[np.int32] | None], value: bool) -> None:
    """Set mask [B, P_l] to `value` at nodes of each request, int32[any], where it has some."""
    own = [each.astype(np.int64) + b * mask.shape[1] for b, each in enumerate(nodes) if each is not None]
    places = torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *own]))
    if len(places):
        mask.view(-1).index_fill_(0, places.to(mask.device), value)


def expand(
    tree: DeviceTree, level: int, logits: Tensor, beams: DeviceBeams, width: int, blocked: Tensor | None
) -> DeviceBeams:
    """logits float32 [B, W', T_level], beams [B, W'] of the level before, blocked bool [B, P_l] -> beams [B, width].

    Scores and order are those of `genrec.search.expand.expand`: float32 score descending, then path ascending.
    """
    pointers, codes, family = tree.pointers[level - 1], tree.codes[level - 1], tree.families[level - 1]
    batch = len(logits)
    living = beams.nodes >= 0
    node = beams.nodes.clamp(min=0)
    child = pointers[node].unsqueeze(-1) + torch.arange(family, device=logits.device)  # [B, W', F]
    valid = (child < pointers[node + 1].unsqueeze(-1)) & living.unsqueeze(-1)
    child = child.clamp(max=len(codes) - 1)
    left = valid
    if blocked is not None:
        left = valid & ~blocked.gather(1, child.flatten(1)).view(child.shape)
    alone = valid.sum(-1, keepdim=True) == 1  # an only child has its parent's score, whatever its logit
    logit = logits.gather(2, codes[child]).masked_fill(alone, 0.0)
    bad = beams.bad | (valid & ~(logit < torch.inf)).flatten(1).any(1)
    score = _scores(logit, valid, beams.scores).flatten(1)
    kept, alive = _best(score, left.flatten(1), width)
    parents = kept // family
    nodes = child.flatten(1).gather(1, kept)
    paths = beams.paths.gather(1, parents) * tree.sizes[level - 1] + codes[nodes]
    scores = score.gather(1, kept).masked_fill(~alive, -torch.inf)
    return DeviceBeams(paths.reshape(batch, -1), nodes.masked_fill(~alive, -1), scores, parents, bad)


def _scores(logit: Tensor, valid: Tensor, before: Tensor) -> Tensor:
    """logit, valid [B, W', F], scores before [B, W'] -> float32 [B, W', F]; sums in float64, as on the CPU.

    What is blocked is valid too: it takes its share of the probability.
    """
    logit = logit.masked_fill(~valid, -torch.inf)
    best = logit.amax(-1, keepdim=True)
    known = best.masked_fill(best == -torch.inf, 0.0)  # a family without probability stays at -inf, not NaN
    total = (logit - known).exp().double().sum(-1, keepdim=True)
    shift = known.double() + total.log().masked_fill(best == -torch.inf, 0.0)
    # No -0.0: equals are equal bits
    return (logit.double() - shift + before.double().unsqueeze(-1)).float() + 0.0


def _best(score: Tensor, valid: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The `width` best candidates [B, C] in ascending order, and which are real: int64 and bool [B, width].

    Two steps, since top-k promises no order among equals: the least score that is kept, then the candidates above it
    and, in the order of their places, as many of its equals as there is room for. So ties go to the smaller path.
    """
    count, bits = score.shape[1], score.view(torch.int32)
    key = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).masked_fill(~valid, LEAST)
    last = key.topk(width, dim=1, sorted=False).values.amin(1, keepdim=True)
    above, equal = key > last, (key == last) & valid
    room = width - above.sum(1, keepdim=True)
    kept = above | (equal & (equal.cumsum(1) <= room))
    # What is not kept goes to a place that nobody reads.
    place = (kept.cumsum(1) - 1).masked_fill(~kept, width)
    chosen = torch.full((len(score), width + 1), count, device=score.device)
    chosen.scatter_(1, place, torch.arange(count, device=score.device).expand_as(place))
    chosen = chosen[:, :width]
    alive = chosen < count
    return chosen.masked_fill(~alive, 0), alive
