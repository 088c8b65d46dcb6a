"""One step of beam search that can only reach items.

xGR section 6, with the constraint BEFORE the top-k (section 6.1): a mask laid over the result of a top-k
leaves duplicates and too few beams. Only valid children of a beam are read, so a step costs what the
catalogue's tree is wide there, never W x T. Section 6.2 selects with a heap; here a heap or a radix selection
finds the score of the last beam kept, whichever was faster when the process started (`genrec.search.select`).
Section 6.3: work arrays are reused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from genrec.catalogue.validity import ValidityIndex, frozen
from genrec.errors import InputError
from genrec.search.constraint import Constraint
from genrec.search.kernels import NO_ROW, emit, family_sizes, gather, score_children
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
    hidden = _NOTHING if blocked is None else frozen(blocked.at(level), np.int32)
    alone = None if blocked is None else blocked.open_at(level)
    given = _NOTHING if alone is None else frozen(alone, np.int32)
    found = gather(
        frozen(logits), frozen(rows, np.int64), nodes, pointers, codes, hidden, given, alone is not None,
        work.starts, work.families, work.best, work.child, work.logit, work.weight,
    )  # fmt: skip
    if found == NO_ROW:
        problem = "does not name every beam of several children, in their order"
        raise InputError("scored", problem, f"places 0 to {len(parent) - 1}")
    if found < 0:
        raise InputError("logits", "has NaN or +inf at a valid code", "finite numbers or -inf")
    np.exp(work.weight[:total], out=work.weight[:total])  # NumPy's exp is vectorised, numba's is not
    score_children(work.starts, work.families, work.best, scores, work.logit, work.weight)
    kept = min(width, found)
    floor, ties = -np.inf, found
    if kept < found:
        floor, ties = threshold(work.logit, found, kept, work.keys, work.histogram)
    take = np.empty if scratch is None else scratch.take
    out = Beams(*(take((kept,), kind) for kind in _TYPES))
    emit(
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
    nodes, scores = frozen(parent.nodes, np.int32), frozen(parent.scores, np.float32)
    paths = frozen(parent.paths, np.int64)
    total = family_sizes(nodes, scores, pointers) if len(nodes) == len(scores) == len(paths) else -1
    if total < 0:
        problem = f"are not ascending nodes of level {level - 1}, each with a path and a finite or -inf score"
        raise InputError("beams", problem, f"nodes 0 to {len(pointers) - 2}")
    return nodes, scores, paths, total


def ranked(beams: Beams) -> npt.NDArray[np.int64]:
    """The order of an answer: score descending, then path ascending -> int64[W] indices into beams."""
    return np.lexsort((beams.paths, -beams.scores))
