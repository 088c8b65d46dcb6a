"""One step of beam search that can only reach items.

xGR section 6, with the constraint BEFORE the top-k (section 6.1): a mask laid over the result of a top-k
leaves duplicates and too few beams. Only valid children of a beam are read, so a step costs what the
catalogue's tree is wide there, never W x T. Section 6.2 selects with a heap; here a heap or a radix selection
finds the score of the last beam kept, whichever was faster when the process started (`genrec.search.select`).
Section 6.3: work arrays are reused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from genrec.catalogue.validity import ValidityIndex, frozen
from genrec.errors import InputError
from genrec.search.constraint import Constraint
from genrec.search.scratch import Scratch, of_thread
from genrec.search.select import learn, threshold

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Beams:
    """The beams of one request after a level, sorted by parent, then code: all four arrays have length W.

    Because every step keeps this order, nodes and paths ascend too, and parents never decrease, which is
    what lets `genrec.kv.reorder` move the unshared KV in place.
    """

    paths: npt.NDArray[np.int64]  # the codes so far, as genrec.catalogue.semantic_id packs them
    nodes: npt.NDArray[np.int32]  # the same path as a node of the validity index
    scores: npt.NDArray[np.float32]  # log-probability, renormalised over what is valid, blocked or not
    parents: npt.NDArray[np.int32]  # index of the beam that was extended; 0 at level 1

    def __len__(self) -> int:
        return len(self.nodes)

    def copy(self) -> Beams:
        """In memory of their own."""
        return Beams(self.paths.copy(), self.nodes.copy(), self.scores.copy(), self.parents.copy())


def zeros(count: int) -> Beams:
    """Beams of code 0 and probability 1: the root, where a request has no beams, and for rehearsals."""
    whole = np.zeros(count, np.int32)
    return Beams(np.zeros(count, np.int64), whole, np.zeros(count, np.float32), whole)


_ROOT = zeros(1)
_TYPES = tuple(np.dtype(t) for t in (np.int64, np.int32, np.float32, np.int32))  # of the fields of Beams
_NOTHING = frozen(np.empty(0, np.int32))
_NO_ROW = -2


def learn_selection(index: ValidityIndex, width: int) -> None:
    """Find the faster selection of `width` beams at every level of the index. A second at most, once per process."""
    sizes = enumerate(index.codebook_sizes, 1)
    learn(width, max(min(index.node_count(level), width * size) for level, size in sizes))


def expand(
    constraint: Constraint,
    level: int,
    logits: npt.NDArray[np.float32],
    beams: Beams | None,
    width: int,
    scored: npt.NDArray[np.int64] | None = None,
    scratch: Scratch | None = None,
) -> Beams:
    """Extend beams of level-1 by one code and keep the `width` best; fewer only if fewer are valid.

    `logits` is float32 [W, T_level], a row per beam; at level 1 it is [1, T_1] and `beams` is None. Where `scored`
    int64[W'] is given, ascending, only the beams at these places have a row, and the others must have one child each.

    An only child has its parent's score, whatever its logit. The score of another child is its logit - logsumexp(the
    logits of its siblings and itself) + the beam's score; the sum runs in float64, over blocked siblings too: what a
    request excludes must not make the rest of a family likelier. Best is by float32 score descending, then path
    ascending. Logits that belong to no valid child are never read. A logit of -inf is probability 0: the child ranks
    behind every other with score -inf, but it still counts, so that beams never starve. NaN or +inf raises InputError.

    The result lies in `scratch` when one is given: then a step allocates no array at all.
    """
    index, parent = constraint.valid, _ROOT if beams is None else beams
    work = of_thread() if scratch is None else scratch
    work.fit(len(parent), 0)
    rows = work.all_beams[: len(parent)] if scored is None else scored
    nodes, scores, paths, total = _checked(index, level, logits, beams, width, rows)
    pointers, codes = index.children_into(level), index.codes[level - 1]
    size = index.codebook_sizes[level - 1]
    work.fit(len(parent), total)
    blocked = constraint.blocked
    hidden = _NOTHING if blocked is None else _as(blocked.at(level), np.int32)
    alone = None if blocked is None else blocked.open_at(level)
    given = _NOTHING if alone is None else _as(alone, np.int32)
    found = _gather(
        _view(logits), _as(rows, np.int64), nodes, pointers, codes, hidden, given, alone is not None,
        work.starts, work.families, work.best, work.child, work.logit, work.weight,
    )  # fmt: skip
    if found == _NO_ROW:
        problem = "does not name every beam of several children, in their order"
        raise InputError("scored", problem, f"places 0 to {len(parent) - 1}")
    if found < 0:
        raise InputError("logits", "has NaN or +inf at a valid code", "finite numbers or -inf")
    np.exp(work.weight[:total], out=work.weight[:total])  # NumPy's exp is vectorised, numba's is not
    _score(work.starts, work.families, work.best, scores, work.logit, work.weight)
    kept = min(width, found)
    floor, ties = -np.inf, found
    if kept < found:
        floor, ties = threshold(work.logit, found, kept, work.keys, work.histogram)
    take = np.empty if scratch is None else scratch.take
    out = Beams(*(take((kept,), kind) for kind in _TYPES))
    _emit(
        floor, ties, work.starts, work.child, work.logit, codes, size, paths,
        out.paths, out.nodes, out.scores, out.parents,
    )  # fmt: skip
    return out


def _checked(
    index: ValidityIndex, level: int, logits: Array, beams: Beams | None, width: int, rows: Array
) -> tuple[Array, Array, Array, int]:
    """Of the beams to extend nodes int32[W], scores float32[W], paths int64[W], and how many children all of them have.

    `rows`: the places of those that logits have a row for. Raises InputError.
    """
    if not 1 <= level <= index.levels or (level == 1) != (beams is None):
        raise InputError("level", f"is {level}", f"1 to {index.levels}, with beams from level 2 on")
    if width < 1:
        raise InputError("width", f"is {width}", "at least 1")
    size = index.codebook_sizes[level - 1]
    if logits.dtype != np.float32 or logits.shape != (len(rows), size):
        have = f"is {logits.dtype}{list(logits.shape)}"
        raise InputError("logits", have, f"float32[{len(rows)}, {size}]")
    parent, pointers = _ROOT if beams is None else beams, index.children_into(level)
    nodes, scores = _as(parent.nodes, np.int32), _as(parent.scores, np.float32)
    paths = _as(parent.paths, np.int64)
    total = _family_sizes(nodes, scores, pointers) if len(nodes) == len(scores) == len(paths) else -1
    if total < 0:
        problem = f"are not ascending nodes of level {level - 1}, each with a path and a finite or -inf score"
        raise InputError("beams", problem, f"nodes 0 to {len(pointers) - 2}")
    return nodes, scores, paths, total


def ranked(beams: Beams) -> npt.NDArray[np.int64]:
    """The order of an answer: score descending, then path ascending -> int64[W] indices into beams."""
    return np.lexsort((beams.paths, -beams.scores))


def _view(array: Array) -> Array:
    """Read-only whatever the caller's is (a mapped arena, a Triton tensor): one type, one compilation."""
    view = array.view()
    view.flags.writeable = False
    return view


def _as(array: Array, kind: type[np.generic]) -> Array:
    return _view(np.ascontiguousarray(array, kind))


@njit(cache=True, nogil=True)
def _family_sizes(nodes: Array, scores: Array, pointers: Array) -> int:
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
def _gather(
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
            return _NO_ROW
        h += np.searchsorted(hidden[h:], first)
        g += np.searchsorted(given[g:], first)
        top = np.float32(-np.inf)
        for c in range(first, end):
            x = np.float32(0.0) if alone else logits[row, codes[c]]
            bad |= not x < np.inf
            top = max(top, x)
            weight[m] = x
            m += 1
            reached = not these
            if these and g < len(given) and given[g] == c:  # a hidden one too may be among these
                reached = True
                g += 1
            if h < len(hidden) and hidden[h] == c:
                reached = False
                h += 1
            if not reached:
                continue
            child[n] = c
            logit[n] = x
            n += 1
        best[b] = top
        for k in range(families[b], m):
            weight[k] -= top  # NaN where top is -inf; `_score` does not read those
    if row + 1 < len(scored):
        return _NO_ROW
    starts[len(nodes)] = n
    families[len(nodes)] = m
    return -1 if bad else n


@njit(cache=True, nogil=True, fastmath={"reassoc"})
def _sum(values: Array) -> float:
    """Sum of float32[n] in float64, in any order: the freedom to reorder is what lets it use vectors."""
    total = 0.0
    for value in values:
        total += value
    return total


@njit(cache=True, nogil=True)
def _score(starts: Array, families: Array, best: Array, scores: Array, logit: Array, weight: Array) -> None:
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
def _emit(
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
