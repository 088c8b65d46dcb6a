"""Semantic IDs of sixty bits: what holds a path of them must be as wide from the first step to the items."""

import numpy as np

from genrec.catalogue.hashset import SemanticIdSet
from genrec.catalogue.semantic_id import pack
from genrec.catalogue.validity import ValidityIndex
from genrec.search.constraint import Constraint
from genrec.search.expand import expand
from genrec.search.lookup import lookup

SIZES = (2**16, 2**16, 2**16, 2**12)


def test_items_are_found_by_their_codes():
    draw = np.random.default_rng(0)
    codes = np.stack([draw.integers(0, size, 20) for size in SIZES], axis=1)
    codes[1:3, :3] = codes[0, :3]  # a family to the last level
    codes[3] = [size - 1 for size in SIZES]
    index = ValidityIndex.build(codes, SIZES, np.ones(20, int), np.arange(20))
    beams = None
    for level, size in enumerate(SIZES, 1):
        logits = np.zeros((1 if beams is None else len(beams), size), np.float32)
        beams = expand(Constraint(index), level, logits, beams, 20)
        assert beams.paths.tolist() == sorted(set(pack(codes[:, :level], SIZES[:level]).tolist()))
    found = lookup(index, SemanticIdSet.build(index.paths(4)), np.arange(20), beams.paths, beams.scores, 20)
    assert (sorted(found.item_ids.tolist()), found.invalid) == (list(range(20)), 0)
