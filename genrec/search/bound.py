"""How few beams a pass can score and still give the answer that all of them would give.

A child never scores more than its beam, for probabilities are at most 1. So a beam that scores less than the last one
kept has no child that will be kept; and one that scores less than the last item of the answer has no item in it, once
so many items are found. A pass first scores the likeliest beams, as many as nearly all requests needed lately; only
where a beam left out could still matter, all that could are scored. xGR's early termination (section 6.2), of passes
instead of sorting.
"""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from genrec.search.expand import Beams
from genrec.search.scratch import Scratch
from genrec.search.select import threshold
from genrec.search.undecided import Int64

Array = npt.NDArray[Any]

WORTH = 0.5  # of the beams of a pass: to score more than that first gains little, and costs much in vain
# Steps of the memory, whatever the distance: where both balance, one pass in twenty needs more.
FIRST, UP, DOWN = 1.5, 1.2, 0.99


def floor_of(beams: Beams, undecided: Int64, width: int, wanted: int, scratch: Scratch) -> float:
    """The least score at which an omitted beam could still change the kept beams, of its level or the next.

    -inf if any could.

    `undecided` are the places of those that are no items yet, `wanted` items are the answer, `width` beams are kept.

    Exact. Of `width` beams, the last one's score is out of reach for every child of a beam that scores less. Of
    `wanted` items, be I the last one's score. If `width` candidates score I or more, the beams kept are all among them,
    whatever scores less; if fewer do, the items are kept, and what comes of a candidate below I ranks behind them.
    """
    floor = float(beams.scores.min()) if len(beams) == width else -np.inf
    if wanted <= len(beams) - len(undecided):
        scratch.fit(1, len(beams))
        items = _others(beams.scores, undecided, scratch.logit)
        floor = max(floor, threshold(scratch.logit, items, wanted, scratch.keys, scratch.histogram)[0])
    return floor


def at_least(beams: Beams, places: Int64, floor: float, scratch: Scratch) -> Int64:
    """Of the beams at `places`, those that score `floor` or more."""
    out = scratch.take(places.shape, places.dtype)
    return out[: _choose(beams.scores, places, floor, len(places), out)]


def best_of(beams: Beams, places: Int64, count: int, scratch: Scratch) -> Int64:
    """Of the beams at `places`, the `count` that score most, in their order."""
    if count >= len(places):
        return places
    scratch.fit(1, len(places))
    np.take(beams.scores, places, out=scratch.logit[: len(places)], mode="clip")
    floor, ties = threshold(scratch.logit, len(places), count, scratch.keys, scratch.histogram)
    out = scratch.take(places.shape, places.dtype)
    return out[: _choose(beams.scores, places, floor, ties, out)]


def drop_unscored(beams: Beams, undecided: Int64, scored: Int64, scratch: Scratch) -> tuple[Beams, Int64]:
    """Beams less those that are neither items nor `scored`, and where the `scored` ones are now."""
    if len(scored) == len(undecided):
        return beams, scored
    fields = (beams.paths, beams.nodes, beams.scores, beams.parents)
    count = len(beams) - len(undecided) + len(scored)
    stay = tuple([scratch.take((count,), each.dtype) for each in fields])
    now = scratch.take(scored.shape, scored.dtype)
    _drop(fields, undecided, scored, stay, now)
    return Beams(*stay), now


class NeededBeams:
    """How many of the likeliest beams passes needed lately, by level and by the size of the answer."""

    def __init__(self) -> None:
        self._needed: dict[tuple[int, int], float] = {}

    def expect(self, level: int, wanted: int, count: int) -> int:
        """Of `count` beams, all where nothing is known."""
        return min(max(ceil(self._needed.get((level, wanted.bit_length()), count)), 1), count)

    def learn(self, level: int, wanted: int, needed: int) -> None:
        """So many would have been enough."""
        key = level, wanted.bit_length()
        before = self._needed.get(key)
        step = FIRST * needed if before is None else before * (UP if needed > before else DOWN)
        self._needed[key] = max(step, 1.0)


@njit(cache=True, nogil=True)
def _others(scores: Array, undecided: Array, out: Array) -> int:
    """Scores float32[W] but for those at `undecided`, ascending, into out float32; their number."""
    n = s = 0
    for b in range(len(scores)):
        if s < len(undecided) and undecided[s] == b:
            s += 1
        else:
            out[n] = scores[b]
            n += 1
    return n


@njit(cache=True, nogil=True)
def _choose(scores: Array, places: Array, floor: float, ties: int, out: Array) -> int:
    """Of int64[any] places those whose score is above `floor`, and the first `ties` that equal it; their number."""
    n = 0
    for place in places:
        if scores[place] > floor or (scores[place] == floor and ties > 0):
            ties -= scores[place] == floor
            out[n] = place
            n += 1
    return n


@njit(cache=True, nogil=True)
def _drop(
    fields: tuple[Array, ...], undecided: Array, scored: Array, stay: tuple[Array, ...], now: Array
) -> None:
    """Into `stay` of the fields of beams what is not in `undecided`, or is in `scored`; `now`, where that is then.

    All places ascend, and `scored` are some of `undecided`: `stay` has room for no more.
    """
    paths, nodes, scores, parents = fields
    n = s = a = 0
    for b in range(len(nodes)):
        open_ = s < len(undecided) and undecided[s] == b
        s += open_
        if a < len(scored) and scored[a] == b:
            now[a] = n
            a += 1
        elif open_:
            continue
        stay[0][n], stay[1][n], stay[2][n], stay[3][n] = paths[b], nodes[b], scores[b], parents[b]
        n += 1
