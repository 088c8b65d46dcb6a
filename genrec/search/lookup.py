"""From semantic IDs to the items of an answer, and what to answer when there is no history.

NEZHA section 3.3, equation 5: every semantic ID is verified in the hash set before it may become items. After
constrained beam search all of them pass; after drafting (section 3.2) some do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from genrec.catalogue.answerable import Listed
from genrec.catalogue.hashset import SemanticIdSet
from genrec.catalogue.items import log_shares
from genrec.catalogue.validity import ValidityIndex
from genrec.errors import InputError

Array = npt.NDArray[Any]
NOTHING = Listed(np.zeros(0, np.int32), alone=False)  # is excluded
FEW = 32  # of the catalogue's items: with more, the next popular one that is wanted is not far
LOOKED_AT = 4  # items at first, for each that is wanted
Items = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]  # item ids [at most K], best first, and scores


class RankedItems(NamedTuple):
    """The items of a request, best first."""

    item_ids: npt.NDArray[np.int64]  # [at most K]
    scores: npt.NDArray[np.float32]  # the same length, log-probabilities
    invalid: int  # semantic IDs that were no item's and were dropped


def lookup(
    index: ValidityIndex,
    hash_set: SemanticIdSet,
    catalogue_item_ids: npt.NDArray[np.int64],
    semantic_ids: npt.NDArray[np.int64],
    scores: npt.NDArray[np.float32],
    top_k: int,
    excluded_rows: npt.ArrayLike = (),
) -> RankedItems:
    """The first `top_k` items of semantic_ids int64[W] with scores float32[W].

    Order: score descending, semantic ID ascending, popularity descending, item id ascending. A semantic ID
    that comes twice counts once, with its better score. `excluded_rows` is int[any], as `listed` has them;
    `catalogue_item_ids` is int64[n] by row. `hash_set` is built from `index.paths(L)`.
    """
    if top_k < 0:
        raise InputError("top_k", f"is {top_k}", "at least 0")
    if semantic_ids.ndim != 1 or semantic_ids.shape != scores.shape or np.isnan(scores).any():
        raise InputError(
            "scores", f"are {list(scores.shape)}, perhaps NaN", f"a number for each of {semantic_ids.shape}"
        )
    if len(catalogue_item_ids) != index.items:
        raise InputError("catalogue_item_ids", f"are {len(catalogue_item_ids)}", f"{index.items}, as indexed")
    order = np.lexsort((semantic_ids, -scores))
    leaves = hash_set.find(semantic_ids[order])
    valid = np.flatnonzero(leaves >= 0)
    valid = valid[np.sort(np.unique(leaves[valid], return_index=True)[1])]  # the first, best, of each leaf
    chosen = leaves[valid]
    if chosen.size and int(chosen.max()) >= index.node_count(index.levels):
        raise InputError("hash_set", "has leaves the index has not", "the hash set of this index")
    given = index.listed(excluded_rows)
    grouped = index.groups.listed(given.choice) if given.choice else NOTHING
    rows = np.empty(min(top_k, index.items), np.int32)
    beam = np.empty(len(rows), np.int64)
    found = _items(chosen, index.first_child[-1], index.rows, *given[:2], *grouped[:2], rows, beam)
    item_ids = np.asarray(catalogue_item_ids, np.int64)[rows[:found]]
    return RankedItems(
        item_ids, scores[order[valid[beam[:found]]]].astype(np.float32), int((leaves < 0).sum())
    )


@dataclass(frozen=True)
class PopularityRanking:
    """The whole catalogue by popularity: made once per catalogue, so that no answer sorts it."""

    item_ids: npt.NDArray[np.int64]  # [n], popularity descending, then item id ascending
    rows: npt.NDArray[np.int32]  # [n], their catalogue rows
    scores: npt.NDArray[np.float32]  # [n], `genrec.catalogue.items.log_shares`
    places: npt.NDArray[np.int32]  # [n], of a catalogue row in these

    @classmethod
    def build(cls, popularity: npt.ArrayLike, item_ids: npt.ArrayLike) -> PopularityRanking:
        """From int[n] counts >= 0 and int64[n]. Where nothing was ever counted all items share alike."""
        count, ids = np.asarray(popularity, np.int64), np.asarray(item_ids, np.int64)
        if count.ndim != 1 or count.shape != ids.shape or (count.size and int(count.min()) < 0):
            raise InputError(
                "popularity", f"has shape {list(count.shape)}", f"counts >= 0 for {ids.shape} items"
            )
        rows = np.lexsort((ids, -count))
        places = np.empty(len(rows), np.int32)
        places[rows] = np.arange(len(rows))
        return cls(ids[rows], rows.astype(np.int32), log_shares(count)[rows], places)

    def top(self, top_k: int, given: Listed = NOTHING, chosen: Listed = NOTHING) -> Items:
        """The first `top_k` that are `given` to answer; where a choice of groups is made, of what is `chosen`."""
        if top_k < 0:
            raise InputError("top_k", f"is {top_k}", "at least 0")
        alone = [each.rows for each in (given, chosen) if each.alone]  # never both: see `listed`
        # Few are sorted by popularity; else the popular are looked at until enough of them may be answered
        few = alone and len(alone[0]) * FEW < len(self.rows)
        best = self.rows[np.sort(self.places[alone[0]])] if few else self.rows
        kept, start, end = best[:0], 0, LOOKED_AT * top_k
        while len(kept) < top_k and start < len(best):
            some = best[start:end]
            kept = np.append(kept, some[given.allows(some) & chosen.allows(some)])
            start, end = end, 2 * end
        places = self.places[kept[:top_k]]
        return self.item_ids[places], self.scores[places]


@njit(cache=True, nogil=True)
def _items(
    leaves: Array, first: Array, rows: Array, given: Array, alone: bool, chosen: Array, chosen_alone: bool,
    out: Array, beam: Array,
) -> int:  # fmt: skip
    """Rows of leaves int32[W], in order, until out int32[K] is full; none of `given`, or these `alone`, and of `chosen`
    likewise.

    given is int64[E], chosen int32[E'], ascending; first is int32[P_L + 1] into rows int32[n]; beam int64[K] says which
    of the leaves a row came from.
    """
    n = 0
    for w in range(len(leaves)):
        for position in range(first[leaves[w]], first[leaves[w] + 1]):
            if n == len(out):
                return n
            row = rows[position]
            at = np.searchsorted(given, row)
            if (at < len(given) and given[at] == row) != alone:
                continue
            at = np.searchsorted(chosen, row)
            if (at < len(chosen) and chosen[at] == row) != chosen_alone:
                continue
            out[n] = row
            beam[n] = w
            n += 1
    return n
