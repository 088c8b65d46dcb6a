"""One step of beam search on the device: the constraint before top-k, fixed shapes, no question to the host.

The torch form of `genrec.search.expand.expand` (its slow twin in the tests) over the same flat tree. Beams of a request
are as many as the level can have; where a catalogue or a blocked set leaves fewer, the rest are dead: node -1,
score -inf, behind the living ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:  # what runs on a device needs no numba
    from genrec.catalogue.validity import Blocked, ValidityIndex

NO_NODE = 2**31 - 1  # behind every node in an ascending list of blocked ones


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


def blocked_tensors(blocked: list[Blocked], levels: int, size: int) -> list[Tensor]:
    """Per level the blocked nodes of B requests, int64 [B, E] ascending, E = `size`, padded. ValueError when more."""
    out = []
    for level in range(1, levels + 1):
        nodes = torch.full((len(blocked), size), NO_NODE, dtype=torch.int64)
        for b, request in enumerate(blocked):
            own = request.at(level)
            if len(own) > size:
                raise ValueError(f"a request blocks {len(own)} nodes of level {level}; at most {size} fit")
            nodes[b, : len(own)] = torch.from_numpy(own.astype("int64"))
        out.append(nodes)
    return out


def expand(
    tree: DeviceTree, level: int, logits: Tensor, beams: DeviceBeams, width: int, blocked: Tensor | None
) -> DeviceBeams:
    """logits float32 [B, W', T_level], beams [B, W'] of the level before, blocked [B, E] -> beams [B, width].

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
        place = torch.searchsorted(blocked, child.flatten(1)).clamp(max=blocked.shape[1] - 1)
        left = valid & (blocked.gather(1, place) != child.flatten(1)).view(child.shape)
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
    return (
        logit.double() - shift + before.double().unsqueeze(-1)
    ).float() + 0.0  # no -0.0: equals are equal bits


def _best(score: Tensor, valid: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The `width` best candidates [B, C] in ascending order, and which are real: int64 and bool [B, width].

    One integer orders them all: the score's bits above, the candidate's place, counted from the end, below. So
    ties go to the smaller path on every device, which top-k of floats does not promise.
    """
    bits = score.view(torch.int32).to(torch.int64)
    order = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    place = torch.arange(score.shape[1], device=score.device)
    key = (order << 32) + (score.shape[1] - place)
    key = key.masked_fill(~valid, torch.iinfo(torch.int64).min)
    chosen = key.topk(width, dim=1, sorted=False).indices
    chosen = chosen.masked_fill(~valid.gather(1, chosen), score.shape[1]).sort(dim=1).values
    alive = chosen < score.shape[1]
    return chosen.masked_fill(~alive, 0), alive
