"""The loops of a step of beam search (`genrec.search.expand`), compiled: children read, scored and kept.

Nodes ascend, so every list of the tree is walked once, from its start to its end.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

Array = npt.NDArray[Any]
NO_ROW = -2


@njit(cache=True, nogil=True)
def family_sizes(nodes: Array, scores: Array, pointers: Array) -> int:
    """Number of all children; -1 if nodes leave the level or do not ascend, or a score is NaN or +inf."""
    total = 0
    last = -1
    for node, score in zip(nodes, scores):  # noqa: B905 (numba has no strict=)
        if node <= last or node >= len(pointers) - 1 or not score < np.inf:
            return -1
        last = node
        total += pointers[node + 1] - pointers[node]
    return total


@njit(cache=True, nogil=True)
def gather(
    logits: Array, scored: Array, nodes: Array, pointers: Array, codes: Array, hidden: Array,
    given: Array, these: bool,
    starts: Array, families: Array, best: Array, child: Array, logit: Array, weight: Array,
) -> int:  # fmt: skip
    """Lay the unblocked children of every beam side by side; their number, or -1 for NaN or +inf, -2 for no row.

    weight is of all children, as `families` has them. An only child's logit counts as 0.

    scored int64[W'], nodes int32[W], pointers int32[P + 1], codes uint16/int32[P_l], hidden int32[any] ascending;
    given int32[any] likewise, none but `these` may be reached where that is so. Nodes ascend, so each is walked once.
    """
    n = 0
    m = 0
    h = 0
    g = 0
    row = -1
    bad = False
    for b in range(len(nodes)):
        starts[b] = n
        families[b] = m
        first, end = pointers[nodes[b]], pointers[nodes[b] + 1]
        alone = end - first == 1
        if row + 1 < len(scored) and scored[row + 1] == b:
            row += 1
        elif not alone:
            return NO_ROW
        family = weight[m : m + end - first]
        m += end - first
        if alone:
            family[0] = 0.0
        else:
            bad |= _read(logits[row], codes[first:end], family)
        h += np.searchsorted(hidden[h:], first)
        g += np.searchsorted(given[g:], first)
        if not these and (h == len(hidden) or hidden[h] >= end):
            for k in range(len(family)):
                child[n + k] = first + k
                logit[n + k] = family[k]
            n += len(family)
        else:
            for c in range(first, end):
                reached = not these
                if these and g < len(given) and given[g] == c:  # a hidden one too may be among these
                    reached = True
                    g += 1
                if h < len(hidden) and hidden[h] == c:
                    reached = False
                    h += 1
                if reached:
                    child[n] = c
                    logit[n] = family[c - first]
                    n += 1
        best[b] = _largest(family)
        for k in range(len(family)):
            family[k] -= best[b]  # NaN where that is -inf; `score_children` does not read those
    if row + 1 < len(scored):
        return NO_ROW
    starts[len(nodes)] = n
    families[len(nodes)] = m
    return -1 if bad else n


@njit(cache=True, nogil=True)
def _read(logits: Array, codes: Array, family: Array) -> bool:
    """family float32[C] = logits[codes]; whether any is NaN or +inf. Nothing else is done, so that reads overlap."""
    bad = 0
    for k in range(len(codes)):
        x = logits[codes[k]]
        family[k] = x
        bad += not x < np.inf
    return bad > 0


@njit(cache=True, nogil=True, fastmath={"nnan", "nsz"})
def _largest(values: Array) -> np.float32:
    """Of float32[n], in any order, which lets it use vectors; anything where one is NaN."""
    top = np.float32(-np.inf)
    for value in values:
        top = max(top, value)
    return top


@njit(cache=True, nogil=True, fastmath={"reassoc"})
def _sum(values: Array) -> float:
    """Sum of float32[n] in float64, in any order: the freedom to reorder is what lets it use vectors."""
    total = 0.0
    for value in values:
        total += value
    return total


@njit(cache=True, nogil=True)
def score_children(
    starts: Array, families: Array, best: Array, scores: Array, logit: Array, weight: Array
) -> None:
    """Turn logit float32[n] into scores, in place; weight holds exp(logit - best of the beam) of every child."""
    for b in range(len(scores)):
        begin, end = starts[b], starts[b + 1]
        if best[b] == -np.inf:
            continue  # every logit is -inf, and so is every score
        shift = np.float64(best[b]) + math.log(_sum(weight[families[b] : families[b + 1]]))
        for k in range(begin, end):
            # + 0.0 turns -0.0 into 0.0: equal scores must be equal bits for the selection.
            logit[k] = np.float32((np.float64(logit[k]) - shift) + scores[b]) + np.float32(0.0)


@njit(cache=True, nogil=True)
def emit(
    floor: float, ties: int, starts: Array, child: Array, score: Array, codes: Array, size: int,
    parents: Array, paths: Array, nodes: Array, scores: Array, parent: Array,
) -> None:  # fmt: skip
    """Write what scores above `floor`, and the first `ties` that equal it, in order of candidates.

    Candidates ascend by path, so the first of equals are those of the smallest path.
    """
    n = 0
    for b in range(len(parents)):
        for k in range(starts[b], starts[b + 1]):
            if score[k] < floor:
                continue
            if score[k] == floor:
                if ties == 0:
                    continue
                ties -= 1
            paths[n] = parents[b] * size + codes[child[k]]
            nodes[n] = child[k]
            scores[n] = score[k]
            parent[n] = b
            n += 1
