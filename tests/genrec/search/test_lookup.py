import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genrec.catalogue.answerable import THESE_ALONE, Choice, Listed, listed, of_groups
from genrec.catalogue.groups import Groups
from genrec.catalogue.hashset import SemanticIdSet
from genrec.catalogue.semantic_id import pack
from genrec.catalogue.validity import ValidityIndex
from genrec.errors import InputError
from genrec.search.lookup import PopularityRanking, lookup

SIZES = (4, 5)


def make(seed, items):
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.integers(0, t, items) for t in SIZES], axis=1)
    popularity, item_ids = rng.integers(0, 4, items), rng.permutation(items * 3)[:items] - items
    index = ValidityIndex.build(codes, SIZES, popularity, item_ids)
    return rng, index, SemanticIdSet.build(index.paths(2)), pack(codes, SIZES), popularity, item_ids


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(0, 20), st.integers(0, 50), st.floats(0, 1))
def test_equals_a_full_sort(seed, items, width, top_k, share):
    rng, index, known, packed, popularity, item_ids = make(seed, items)
    asked = rng.integers(-2, 24, width)
    scores = rng.integers(-3, 0, width).astype(np.float32)
    excluded = np.flatnonzero(rng.random(items) < share)
    best = {}
    for semantic_id, score in zip(asked.tolist(), scores.tolist(), strict=True):
        best[semantic_id] = max(score, best.get(semantic_id, -math.inf))
    rows = [r for r in range(items) if packed[r] in best and r not in excluded]
    rows.sort(key=lambda r: (-best[packed[r]], packed[r], -popularity[r], item_ids[r]))
    others = [THESE_ALONE, *np.setdiff1d(np.arange(items), excluded)]
    got = lookup(index, known, item_ids, asked, scores, top_k, excluded)
    alike = lookup(index, known, item_ids, asked, scores, top_k, others)
    index.groups = Groups("a", [np.array(others[1:], np.int32)], items)
    grouped = lookup(index, known, item_ids, asked, scores, top_k, of_groups(Choice((0,))))
    index.groups = Groups("a", [excluded[1::2].astype(np.int32)], items)
    without = np.append(of_groups(Choice(None, (0,))), excluded[::2])
    but = lookup(index, known, item_ids, asked, scores, top_k, without)
    for same in (alike, grouped, but):
        assert all(np.array_equal(one, other) for one, other in zip(got, same, strict=True))
    assert got.item_ids.tolist() == [item_ids[r] for r in rows[:top_k]]
    assert got.scores.tolist() == [best[packed[r]] for r in rows[:top_k]]
    assert got.invalid == sum(s not in packed for s in asked)
    assert got.item_ids.dtype == np.int64 and got.scores.dtype == np.float32
    assert len(set(got.item_ids.tolist())) == len(got.item_ids)


def test_infinite_scores_rank_last_and_minus_one_excludes_nothing():
    _, index, known, packed, _, item_ids = make(3, 10)
    asked = np.unique(packed)
    scores = np.full(len(asked), -np.inf, np.float32)
    scores[-1] = -1
    got = lookup(index, known, item_ids, asked, scores, 10, np.array([-1], np.int32))
    assert len(got.item_ids) == 10 and got.scores[0] == -1 and got.scores[-1] == -np.inf


def test_what_is_refused():
    _, index, known, packed, _, item_ids = make(3, 10)
    ids, scores = packed[:2], np.zeros(2, np.float32)
    nan = np.array([0, np.nan], np.float32)
    larger = SemanticIdSet(known.keys, np.where(known.leaves >= 0, known.leaves + 99, -1).astype(np.int32))
    for name, arguments in (
        ("top_k", (index, known, item_ids, ids, scores, -1, ())),
        ("scores", (index, known, item_ids, ids, scores[:1], 1, ())),
        ("scores", (index, known, item_ids, ids, nan, 1, ())),
        ("catalogue_item_ids", (index, known, item_ids[:5], ids, scores, 1, ())),
        ("hash_set", (index, larger, item_ids, ids, scores, 1, ())),
        ("excluded_rows", (index, known, item_ids, ids, scores, 1, [10])),
        ("excluded_rows", (index, known, item_ids, ids, scores, 1, [-3])),
    ):
        with pytest.raises(InputError, match=name):
            lookup(*arguments)


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=30),
    st.integers(0, 40),
    st.floats(0, 1),
    st.integers(0, 2**32 - 1),
)
def test_popular_equals_a_full_sort(popularity, top_k, share, seed):
    rng = np.random.default_rng(seed)
    item_ids = rng.permutation(len(popularity)) * 7
    excluded = np.flatnonzero(rng.random(len(popularity)) < share)
    rows = [r for r in range(len(popularity)) if r not in excluded]
    rows = sorted(rows, key=lambda r: (-popularity[r], item_ids[r]))[:top_k]
    ranking = PopularityRanking.build(popularity, item_ids)
    every = np.arange(len(popularity))
    items, scores = ranking.top(top_k, listed(np.append(excluded, -1), len(every)))
    alike = ranking.top(top_k, listed([THESE_ALONE, *np.setdiff1d(every, excluded)], len(every)))
    some, rest = listed(excluded[::2], len(every)), np.setdiff1d(every, excluded[1::2])
    grouped = ranking.top(top_k, some, Listed(rest, alone=True))
    but = ranking.top(top_k, some, Listed(excluded[1::2], alone=False))
    for same in (alike, grouped, but):
        assert np.array_equal(same[0], items) and np.array_equal(same[1], scores)
    assert items.tolist() == [item_ids[r] for r in rows]
    counts = [max(each, 0.5) for each in popularity]  # finite: a cascade ranks what popularity found
    np.testing.assert_allclose(scores, [math.log(counts[r] / sum(counts)) for r in rows], rtol=1e-6)


class Counted(Listed):
    """Counts the rows that are held against it."""

    looked_at = 0

    def allows(self, rows):
        Counted.looked_at += len(rows)
        return super().allows(rows)


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("many", [0, 5, 200, 5000, 9999, 10_000])
def test_popular_items_of_a_large_group_are_found_without_reading_it(alone, many):
    rng = np.random.default_rng(many)
    popularity = rng.integers(0, 1000, 10_000)
    ranking = PopularityRanking.build(popularity, np.arange(10_000))
    group = np.sort(rng.choice(10_000, many, replace=False)).astype(np.int32)
    allowed = np.zeros(10_000, bool) if alone else np.ones(10_000, bool)
    allowed[group] = alone
    Counted.looked_at = 0
    items, scores = ranking.top(10, chosen=Counted(group, alone))
    wanted = sorted(np.flatnonzero(allowed), key=lambda row: (-popularity[row], row))[:10]
    assert items.tolist() == wanted and len(scores) == len(wanted)
    if allowed.sum() >= 10 and (alone or many <= 5000):
        assert Counted.looked_at <= 200


def test_popular_refuses():
    ranking = PopularityRanking.build([3, 1], [10, 11])
    with pytest.raises(InputError, match="top_k"):
        ranking.top(-1)
    for popularity, ids in (([1], [1, 2]), ([-1, 2], [1, 2]), ([[1]], [[1]])):
        with pytest.raises(InputError, match="popularity"):
            PopularityRanking.build(popularity, ids).top(1)


@pytest.mark.parametrize("excluded", range(60))
def test_no_popular_item_is_passed_over_behind_those_that_are_excluded(excluded):
    """More are looked at, a part after the other."""
    ranking = PopularityRanking.build(np.arange(60, 0, -1), np.arange(60))
    found, _ = ranking.top(2, Listed(np.arange(excluded, dtype=np.int32), alone=False))
    assert found.tolist() == list(range(60))[excluded : excluded + 2]
