"""Choosing the W best of W beams x K candidates: the xGR paper's heap (section 6.2), NumPy and the two that serve.

    genrec bench selection [--beam-widths 32,128,512,1024] [--candidates 32,128,512,2048] [--repeats 15]

`heap` is the paper's: candidates of a beam come in descending order, and a beam is left as soon as its next candidate
cannot enter a full min-heap of W entries. On the paper's device the lists come sorted; on a host they do not, so it is
timed both with the sort of the lists and (`heap, sorted`) without. `argpartition` is NumPy's; `one heap` over lists as
they come and `counting` are those that `genrec.search.select` decides between at load; a heap that gives up is
charged the counting after it. All answer the same cell in turn, interleaved, and are held to the same answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from statistics import median
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from genrec.errors import InputError
from genrec.progress import counting
from genrec.search.scratch import chosen
from genrec.search.select import by_counting, by_heap
from perf.kit import report
from perf.kit.turns import in_turns, timed

Scores = NDArray[np.float32]  # [W, K], no NaN, no -0.0
Chosen = NDArray[np.int64]  # [W] flat indices, ascending
MOST = 1 << 20  # candidates of one selection
GIVEN = "heap, sorted"  # its lists are sorted before the clock starts
INPUTS: dict[str, Callable[[np.random.Generator, int, int], NDArray[np.floating[Any]]]] = {
    "random": lambda draw, width, k: draw.standard_normal((width, k)),
    "few values": lambda draw, width, k: draw.integers(0, 4, (width, k)).astype(float),
    # Every candidate beats all of the beams before: each one enters the heap.
    "ascending": lambda draw, width, k: draw.random(k) + np.arange(width)[:, None],
    "one list": lambda draw, width, k: (
        draw.random((width, k)) + 2.0 * (np.arange(width) == width // 2)[:, None]
    ),
    "all equal": lambda draw, width, k: np.ones((width, k)),
    "mostly -inf": lambda draw, width, k: np.where(
        draw.random((width, k)) < 0.9, -np.inf, draw.random((width, k))
    ),
}


def scores_of(name: str, width: int, candidates: int, seed: int = 0) -> Scores:
    """An input of INPUTS."""
    return INPUTS[name](np.random.default_rng(seed), width, candidates).astype(np.float32)


def sorted_lists(scores: Scores) -> tuple[Scores, NDArray[np.int64]]:
    """Every beam's candidates [W, K], the best first and of equals the first, and their flat indices [W, K]."""
    bits = scores.view(np.int32)
    # Integers that ascend as scores descend, the index below them: one sort, no stable argsort.
    falling = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).astype(np.int64) ^ -1
    keys = (falling << 32) + np.arange(scores.size).reshape(scores.shape)
    keys.sort(axis=1)
    order = keys & 0xFFFFFFFF
    return scores.reshape(-1)[order], order


@njit(cache=True, nogil=True)
def _sink(score: Scores, index: Chosen, place: int) -> None:
    """Let an entry of the heap down to where it belongs; the root is the lowest score, of equals the last index."""
    moved, number = score[place], index[place]
    while 2 * place + 1 < len(score):
        child = 2 * place + 1
        other = child + 1
        if other < len(score) and (
            score[other] < score[child] or (score[other] == score[child] and index[other] > index[child])
        ):
            child = other
        if moved < score[child] or (moved == score[child] and number > index[child]):
            break
        score[place], index[place] = score[child], index[child]
        place = child
    score[place], index[place] = moved, number


@njit(cache=True, nogil=True)
def heap(ranked: Scores, order: NDArray[np.int64]) -> Chosen:
    """The W best of `sorted_lists`, with early termination."""
    width, candidates = ranked.shape
    score, index = np.empty(width, np.float32), np.empty(width, np.int64)
    held = 0
    for beam in range(width):
        for k in range(candidates):
            if held < width:
                score[held], index[held] = ranked[beam, k], order[beam, k]
                held += 1
                if held == width:
                    for place in range(width // 2 - 1, -1, -1):
                        _sink(score, index, place)
                continue
            # An equal score does not enter: whatever came before it has a smaller index.
            if ranked[beam, k] <= score[0]:
                break
            score[0], index[0] = ranked[beam, k], order[beam, k]
            _sink(score, index, 0)
    return np.sort(index)


def argpartition(scores: Scores) -> Chosen:
    """The W best; which of the equals it leaves in is NumPy's whim, so those at the edge are looked up."""
    flat, kept = scores.reshape(-1), len(scores)
    best = np.argpartition(flat, flat.size - kept)[flat.size - kept :]
    floor = flat[best[0]]
    above = best[flat[best] > floor]
    return np.sort(np.append(above, np.flatnonzero(flat == floor)[: kept - len(above)]))


def ways(scores: Scores) -> dict[str, Callable[[], Chosen]]:
    """Every way to choose, on one input."""
    lists, flat = sorted_lists(scores), scores.reshape(-1)
    keys, histogram = np.empty(flat.size, np.uint32), np.empty(2048, np.int32)

    def counting() -> Chosen:
        return chosen(flat, *by_counting(flat, flat.size, len(scores), keys, histogram))

    def one_heap() -> Chosen:
        floor, ties = by_heap(flat, flat.size, len(scores), keys)
        return chosen(flat, floor, ties) if ties else counting()

    return {
        GIVEN: lambda: heap(*lists),
        "heap": lambda: heap(*sorted_lists(scores)),
        "argpartition": lambda: argpartition(scores),
        "one heap": one_heap,
        "counting": counting,
    }


def measure(scores: Scores, repeats: int) -> dict[str, float]:
    """Median microseconds by way."""
    made = ways(scores)
    truth = made["counting"]()

    def turn(name: str) -> float:
        seconds, found = timed(made[name])
        if not np.array_equal(found, truth):
            raise AssertionError(f"{name} chooses otherwise")
        return seconds * 1e6

    taken = in_turns({name: partial(turn, name) for name in made}, repeats, warm_ups=1)
    return {name: round(median(each), 1) for name, each in taken.items()}


def fastest(us: dict[str, float], given: bool) -> str:
    """The fastest way; the heap over lists that came sorted takes part only where that is `given`."""
    return min((name for name in us if given or name != GIVEN), key=us.__getitem__)


def table(cells: list[dict[str, Any]]) -> str:
    """Two lines per W x K: the random input, and of every way its own slowest other input."""
    names = list(cells[0]["us"])
    lines = [f"{'BW':>5}{'K':>6}  {'input':12}" + "".join(f"{name:>15}" for name in names) + "  fastest"]
    for shape in dict.fromkeys((cell["beam_width"], cell["candidates"]) for cell in cells):
        here = {c["input"]: c["us"] for c in cells if (c["beam_width"], c["candidates"]) == shape}
        random = here.pop("random")
        worst = {name: max(us[name] for us in here.values()) for name in names}
        for label, us in (("random", random), ("adversarial", worst)):
            figures = "".join(f"{us[name]:15.1f}" for name in names)
            lines.append(f"{shape[0]:5}{shape[1]:6}  {label:12}{figures}  {fastest(us, given=False)}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table and, last, one JSON object."""
    parser = report.arguments("selection", __doc__)
    parser.add_argument("--beam-widths", default="32,128,512,1024")
    parser.add_argument("--candidates", default="32,128,512,2048")
    parser.add_argument("--repeats", type=int, default=15)
    a = parser.parse_args(argv)
    widths, lists = (report.numbers_of(a, name) for name in ("beam_widths", "candidates"))
    asked = [*product(widths, lists)]
    shapes = [(width, k) for width, k in asked if width * k <= MOST]
    if not shapes:
        raise InputError(
            "candidates", f"is {a.candidates!r} of each of {a.beam_widths} beams", f"{MOST} in all"
        )
    run, cells = report.begin(a), []
    for width, k in sorted({*asked} - {*shapes}):
        print(f"left out: {width} beams of {k} candidates, which are more than {MOST} in all")
    each = list(product(shapes, INPUTS))
    for (width, k), name in counting("selection", len(each), "cell", iterable=each):
        us = measure(scores_of(name, width, k), a.repeats)
        cells.append({"beam_width": width, "candidates": k, "input": name, "us": us})
    print(
        f"\nmedian microseconds of {a.repeats}; adversarial: each way's own slowest of {len(INPUTS) - 1} inputs"
    )
    print(table(cells))
    counts = {
        "fastest": Counter(fastest(cell["us"], given=False) for cell in cells),
        "fastest_if_sorted": Counter(fastest(cell["us"], given=True) for cell in cells),
    }
    print("\n" + ", ".join(f"{name}: {dict(count)} of {len(cells)} cells" for name, count in counts.items()))
    run.publish({**counts, "cells": cells}, repeats=a.repeats)


if __name__ == "__main__":
    main()
