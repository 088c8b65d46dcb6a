"""Beam search inside the draft head, and its verification (NEZHA, Algorithm 3 and section 3.3).

Mode `every`: the validity index constrains every level before its top-k, as in `genrec.search.expand`, so there are
never too few items. Mode `last`, the paper's: beams go where the head leads, and the candidates of the last
level are looked up in the set of valid semantic IDs, all W x T_L at once; what is no item is lost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from genrec.catalogue.blocked import Blocked
from genrec.catalogue.hashset import SemanticIdSet
from genrec.catalogue.validity import ValidityIndex
from genrec.draft.head import Drafter
from genrec.errors import InputError
from genrec.search.constraint import Constraint
from genrec.search.expand import expand
from genrec.search.scratch import largest

MODES = ("every", "last")
Array = NDArray[np.float32]


@dataclass(frozen=True)
class Draft:
    """Semantic IDs int64[W], ascending, and their scores float32[W]; all of them valid.

    `candidates` are the beams of the last level before verification, `lost` those of them that are no item.
    """

    semantic_ids: NDArray[np.int64]
    scores: Array
    candidates: int
    lost: int


def draft(
    mode: str,
    drafter: Drafter,
    states: Array,
    index: ValidityIndex,
    valid: SemanticIdSet,
    width: int,
    blocked: Blocked | None = None,
) -> Draft:
    """The `width` best semantic IDs after states float32[1 + L, d], best by float32 score, then semantic ID.

    None is `blocked`. Scores are log-probabilities, renormalised over what is valid in mode `every`, over all codes in
    mode `last`.
    """
    if mode not in MODES:
        raise InputError("verify", f"is {mode!r}", f"one of {', '.join(MODES)}")
    wanted = (1 + drafter.placeholders, drafter.config.hidden_size)
    if states.shape != wanted or not np.isfinite(states).all():
        raise InputError("states", f"is {list(states.shape)}, perhaps not finite", f"float32{list(wanted)}")
    states = states.copy()  # a request's are read-only: one type for the compiler, which then compiles once
    if mode == "every":
        return _every(drafter, states, Constraint(index, blocked), width)
    return _last(drafter, states, valid, width, blocked)


def _every(drafter: Drafter, states: Array, constraint: Constraint, width: int) -> Draft:
    """Constrained at every level: nothing can be lost."""
    state = drafter.start(states)
    beams = expand(constraint, 1, drafter.logits(1, states, state), None, width)
    for level in range(2, drafter.config.levels + 1):
        codes = beams.paths % drafter.config.codebook_sizes[level - 2]
        state = drafter.advance(level - 1, state, beams.parents, codes)
        logits = drafter.valid_logits(level, states, state, beams.nodes, constraint.valid)
        beams = expand(constraint, level, logits, beams, width)
    return Draft(beams.paths, beams.scores, len(beams), 0)


def _last(
    drafter: Drafter, states: Array, valid: SemanticIdSet, width: int, blocked: Blocked | None
) -> Draft:
    """Unconstrained, then equation 5 over all candidates of the last level; Algorithm 3, lines 14 to 29."""
    state, levels = drafter.start(states), drafter.config.levels
    paths, scores = np.zeros(1, np.int64), np.zeros(1, np.float32)
    for level in range(1, levels + 1):
        size = drafter.config.codebook_sizes[level - 1]
        logits = drafter.logits(level, states, state)
        # Beams ascend by path and codes within a beam, so a candidate's place orders it among equals.
        candidates = (paths[:, None] * size + np.arange(size)).reshape(-1)
        # No -0.0 (see `largest`): the first scores are 0.0, to which -0.0 adds up to 0.0
        extended = (_log_softmax(logits) + scores[:, None]).reshape(-1)
        kept = largest(extended, width)
        if level == levels:
            leaves = valid.find(candidates)
            items = np.flatnonzero(leaves >= 0)
            if blocked:
                items = items[~blocked.closes(leaves[items])]
            best = items[largest(extended[items], width)]
            lost = int((leaves[kept] < 0).sum())
            return Draft(candidates[best], extended[best], len(kept), lost)
        paths, scores = candidates[kept], extended[kept]
        state = drafter.advance(level, state, (kept // size).astype(np.int32), kept % size)
    raise AssertionError("the last level returns")


def _log_softmax(logits: Array) -> Array:
    """float32[W, T] -> the same, each row's exponentials summing to 1; sums in float64."""
    top = logits.max(axis=1, keepdims=True)
    total = np.exp(logits - top).sum(axis=1, keepdims=True, dtype=np.float64)
    return logits - (top + np.log(total)).astype(np.float32)
