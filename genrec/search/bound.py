"""How few beams a pass can score and still give the answer that all of them would give.

A child never scores more than its beam, for probabilities are at most 1. So a beam that scores less than the last one
kept has no child that will be kept; and one that scores less than the last item of the answer has no item in it, once
so many items are found. A pass first scores the likeliest beams, as many as nearly all requests needed of late; only
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
from genrec.search.room import Room
from genrec.search.select import threshold
from genrec.search.undecided import Int64
from genrec.search.workspace import of_thread

Array = npt.NDArray[Any]

WORTH = 0.5  # of the beams of a pass: to score more than that first gains little, and costs much in vain
# Steps of the memory, whatever the distance: where both balance, one request in twenty needs more.
FIRST, UP, DOWN = 1.5, 1.2, 0.99


def floor_of(beams: Beams, still: Int64, width: int, wanted: int) -> float:
    """The score that a beam left out must have to matter to these, its level's or the next one's; -inf where any may.

    `still` are the places of those that are no items yet, `wanted` items are the answer, `width` beams are kept.

    Exact. Of `width` beams, the last one's score is out of reach for every child of a beam that scores less. Of
    `wanted` items, be I the last one's score. If `width` candidates score I or more, the beams kept are all among them,
    whatever scores less; if fewer do, the items are kept, and what comes of a candidate below I ranks behind them.
    """
    floor = float(beams.scores.min()) if len(beams) == width else -np.inf
    if wanted <= len(beams) - len(still):
        work = of_thread()
        work.fit(1, len(beams))
        items = _others(beams.scores, still, work.logit)
        floor = max(floor, threshold(work.logit, items, wanted, work.keys, work.histogram)[0])
    return floor


def above(beams: Beams, places: Int64, floor: float, room: Room) -> Int64:
    """Of the beams at `places`, those that score `floor` or more."""
    out = room.take(places.shape, places.dtype)
    return out[: _choose(beams.scores, places, floor, len(places), out)]


def best_of(beams: Beams, places: Int64, count: int, room: Room) -> Int64:
    """Of the beams at `places`, the `count` that score most, in their order."""
    if count >= len(places):
        return places
    work = of_thread()
    work.fit(1, len(places))
    np.take(beams.scores, places, out=work.logit[: len(places)], mode="clip")
    floor, ties = threshold(work.logit, len(places), count, work.keys, work.histogram)
    out = room.take(places.shape, places.dtype)
    return out[: _choose(beams.scores, places, floor, ties, out)]


def without(beams: Beams, still: Int64, asked: Int64, room: Room) -> tuple[Beams, Int64]:
    """Beams less those that are neither items nor `asked`, and where the `asked` ones are now."""
    if len(asked) == len(still):
        return beams, asked
    stays, now = room.take((len(beams),), asked.dtype), room.take(asked.shape, asked.dtype)
    stays = stays[: _stay(len(beams), still, asked, stays, now)]
    fields = (
        np.take(each, stays, out=room.take(stays.shape, each.dtype), mode="clip")
        for each in (beams.paths, beams.nodes, beams.scores, beams.parents)
    )
    return Beams(*fields), now


class Lately:
    """How many of the likeliest beams passes needed of late, by level and by the size of the answer."""

    def __init__(self) -> None:
        self._needed: dict[tuple[int, int], float] = {}

    def needed(self, level: int, wanted: int, count: int) -> int:
        """Of `count` beams, all where nothing is known."""
        return min(max(ceil(self._needed.get((level, wanted.bit_length()), count)), 1), count)

    def learn(self, level: int, wanted: int, needed: int) -> None:
        """So many would have been enough."""
        key = level, wanted.bit_length()
        lately = self._needed.get(key)
        step = FIRST * needed if lately is None else lately * (UP if needed > lately else DOWN)
        self._needed[key] = max(step, 1.0)


@njit(cache=True, nogil=True)
def _others(scores: Array, still: Array, out: Array) -> int:
    """Scores float32[W] but for those at `still`, ascending, into out float32; their number."""
    n = s = 0
    for b in range(len(scores)):
        if s < len(still) and still[s] == b:
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
def _stay(beams: int, still: Array, asked: Array, stays: Array, now: Array) -> int:
    """Places that are not in `still`, or are in `asked`; where these are among them. All ascending; their number."""
    n = s = a = 0
    for b in range(beams):
        open_ = s < len(still) and still[s] == b
        s += open_
        if a < len(asked) and asked[a] == b:
            now[a] = n
            a += 1
        elif open_:
            continue
        stays[n] = b
        n += 1
    return n
