"""Constrained beam search against a twin that enumerates items, masks whole rows and sorts everything."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genrec.catalogue.answerable import THESE_ALONE, Choice, of_groups
from genrec.catalogue.groups import Groups
from genrec.catalogue.validity import ValidityIndex
from genrec.errors import InputError
from genrec.search.constraint import Constraint
from genrec.search.expand import Beams, expand, ranked
from genrec.search.scratch import Scratch
from tests.oracles.semantic_id import codes_of


def make_index(rng, sizes, items):
    """A catalogue of random codes; some semantic IDs are shared by several items."""
    codes = np.stack([rng.integers(0, t, items) for t in sizes], axis=1).astype(np.int32)
    index = ValidityIndex.build(codes, sizes, rng.integers(0, 9, items), rng.permutation(items))
    return index, codes


def twin_step(ids, every, logits, beams, width):
    """ids: the set of allowed tuples, of `every` in the catalogue. beams: list of (path, score), None at level 1.

    Sorted by path.
    """
    out = []
    for parent, (path, score) in enumerate([((), 0.0)] if beams is None else beams):
        n = len(path)
        valid = sorted({t[n] for t in ids if t[:n] == path})
        mask = np.full(logits.shape[1], -np.inf)
        mask[sorted({t[n] for t in every if t[:n] == path})] = 0
        masked = logits[parent].astype(np.float64) + mask
        if not valid:
            continue
        top = masked.max()
        norm = top + np.log(np.exp(masked - top).sum())
        out += [(np.float32(masked[c] - norm + score), (*path, c), parent) for c in valid]
    kept = sorted(out, key=lambda e: (-e[0], e[1]))[:width]
    return sorted(kept, key=lambda e: e[1])


def search(index, rng, width, blocked=None, scale=3.0, scratch=None):
    """All levels with random logits; yields (level, logits, beams before, beams after)."""
    beams = None
    for level, size in enumerate(index.codebook_sizes, 1):
        rows = 1 if beams is None else len(beams)
        logits = (rng.standard_normal((rows, size)) * scale).astype(np.float32)
        after = expand(Constraint(index, blocked), level, logits, beams, width, scratch=scratch)
        yield level, logits, beams, after
        beams = after


def last(steps):
    return list(steps)[-1][-1]


sizes_of = st.lists(st.integers(1, 7), min_size=1, max_size=5)


@settings(max_examples=150, deadline=None)
@given(
    sizes_of,
    st.integers(1, 60),
    st.integers(1, 40),
    st.floats(0, 1),
    st.sampled_from([0, 0.25, 3]),
    st.booleans(),
    st.integers(),
)
def test_equals_the_twin(sizes, items, width, share, scale, alone, seed):
    """Scale 0 makes every logit equal: then only the order of ties decides."""
    rng = np.random.default_rng(seed % 2**32)
    index, codes = make_index(rng, sizes, items)
    excluded = np.flatnonzero(rng.random(items) < share)
    others = [THESE_ALONE, *np.setdiff1d(np.arange(items), excluded)]
    blocked = index.blocked(others if alone else excluded)
    every = {tuple(c) for c in codes.tolist()}
    allowed = {tuple(c) for c in np.delete(codes, excluded, axis=0).tolist()}
    work = Scratch()
    for level, logits, before, after in search(index, rng, width, blocked, scale, work):
        known = (
            None
            if before is None
            else list(
                zip(
                    map(tuple, codes_of(before.paths, sizes[: level - 1]).tolist()),
                    before.scores,
                    strict=True,
                )
            )
        )
        want = twin_step(allowed, every, logits, known, width)
        assert len(after) == len(want) == min(width, len(want))
        # float32 scores may differ in the last bit between the twins, so compare what is not near the edge
        np.testing.assert_allclose(np.sort(after.scores), np.sort([w[0] for w in want]), rtol=1e-5, atol=1e-5)
        got = [tuple(c) for c in codes_of(after.paths, sizes[:level]).tolist()]
        edge = after.scores.min() + 1e-4 if len(after) else 0
        sure = {w[1] for w in want if w[0] > edge}
        assert sure <= set(got)
        if scale == 0 and level == 1:
            assert got == [w[1] for w in want]
        assert all(any(t[:level] == g for t in allowed) for g in got)
        assert (np.diff(after.parents) >= 0).all() and (np.diff(after.paths) > 0).all()
        np.testing.assert_array_equal(index.paths(level)[after.nodes], after.paths)
        if before is not None:
            np.testing.assert_array_equal(after.paths // sizes[level - 1], before.paths[after.parents])


@settings(max_examples=60, deadline=None)
@given(sizes_of, st.integers(1, 80), st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_a_beam_as_wide_as_the_catalogue_finds_every_leaf(sizes, items, share, seed):
    rng = np.random.default_rng(seed)
    index, codes = make_index(rng, sizes, items)
    excluded = np.flatnonzero(rng.random(items) < share)
    beams = last(search(index, rng, items, index.blocked(excluded)))
    allowed = {tuple(c) for c in np.delete(codes, excluded, axis=0).tolist()}
    assert {tuple(c) for c in codes_of(beams.paths, sizes).tolist()} == allowed and len(beams) == len(allowed)
    total = np.exp(beams.scores.astype(np.float64)).sum()
    assert abs(total - 1) < 1e-4 if len(allowed) == index.node_count(index.levels) else total < 1 + 1e-4


@settings(max_examples=100, deadline=None)
@given(
    sizes_of,
    st.integers(1, 60),
    st.integers(1, 40),
    st.floats(0, 1),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_groups_are_as_the_list_of_their_items(sizes, items, width, share, alone, seed):
    """Rows excluded beside a choice hide nodes among those that it leaves."""
    rng = np.random.default_rng(seed)
    index, _ = make_index(rng, sizes, items)
    named = np.flatnonzero(rng.random(items) < rng.random()).astype(np.int32)
    index.groups = Groups(["named"], [named], items)
    choice = Choice((0,)) if alone else Choice(none_of=(0,))
    excluded = np.flatnonzero(rng.random(items) < share)
    every = np.arange(items)
    left = np.setdiff1d(named if alone else np.setdiff1d(every, named), excluded)
    ways = [np.concatenate((of_groups(choice), excluded)), [THESE_ALONE, *left]]
    both = [last(search(index, np.random.default_rng(seed), width, index.blocked(way))) for way in ways]
    for field in ("paths", "nodes", "scores", "parents"):
        np.testing.assert_array_equal(*(getattr(beams, field) for beams in both))


def test_two_thousand_requests_are_valid_distinct_and_full():
    rng = np.random.default_rng(7)
    index, codes = make_index(rng, (24, 24, 24), 3000)
    semantic_ids = index.paths(3)
    valid = total = 0
    for _ in range(2000):
        width = int(rng.integers(1, 40))
        excluded = rng.integers(0, len(codes), int(rng.integers(0, 2900)))
        blocked = index.blocked(excluded)
        beams = last(search(index, rng, width, blocked))
        valid += np.isin(beams.paths, semantic_ids).sum()
        total += len(beams)
        assert len(np.unique(beams.paths)) == len(beams)
        assert not np.isin(beams.nodes, blocked.at(3)).any()
        # Every path kept has an unblocked leaf, so only the catalogue can make beams few.
        assert len(beams) == min(width, len(semantic_ids) - len(blocked.at(3)))
    assert valid == total > 0


def test_a_few_leaves_under_many_levels_never_starve():
    """Width 3, but the best path holds one leaf only: the others must still be found."""
    codes = np.array([[0, 0], [1, 0], [1, 1], [2, 0]])
    index = ValidityIndex.build(codes, (3, 2), np.ones(4, int), np.arange(4))
    first = expand(Constraint(index), 1, np.array([[9, 0, 0]], np.float32), None, 3)
    assert first.nodes.tolist() == [0, 1, 2]
    blocked = index.blocked(np.array([0]))
    first = expand(Constraint(index, blocked), 1, np.array([[9, 0, 0]], np.float32), None, 3)
    assert first.nodes.tolist() == [1, 2]
    assert np.allclose(np.exp(first.scores), 1 / (np.exp(9) + 2)), (
        "what is excluded makes nothing else likelier"
    )
    assert len(expand(Constraint(index, blocked), 2, np.zeros((2, 2), np.float32), first, 3)) == 3


def test_ties_go_to_the_smaller_path_and_repeat_exactly():
    codes = np.array([[a, b] for a in range(4) for b in range(4)])
    index = ValidityIndex.build(codes, (4, 4), np.ones(16, int), np.arange(16))
    for _ in range(3):
        first = expand(Constraint(index), 1, np.zeros((1, 4), np.float32), None, 4)
        second = expand(Constraint(index), 2, np.zeros((4, 4), np.float32), first, 6)
        assert second.paths.tolist() == [0, 1, 2, 3, 4, 5] and second.parents.tolist() == [
            0,
            0,
            0,
            0,
            1,
            1,
        ]
    shuffled = Beams(
        np.array([5, 2, 9]), np.zeros(3, np.int32), np.array([-1, -2, -1], np.float32), np.zeros(3, np.int32)
    )
    assert ranked(shuffled).tolist() == [0, 2, 1]


def test_selection_of_many_candidates_equals_a_sort():
    rng = np.random.default_rng(3)
    codes = np.array([[a, b] for a in range(64) for b in range(512)])
    index = ValidityIndex.build(codes, (64, 512), np.ones(len(codes), int), np.arange(len(codes)))
    for decimals, width in ((6, 512), (0, 512), (1, 1024), (2, 1), (3, 32767), (3, 32768), (3, 40000)):
        first = expand(Constraint(index), 1, rng.standard_normal((1, 64)).astype(np.float32), None, 64)
        logits = rng.standard_normal((64, 512)).round(decimals).astype(np.float32)
        every = expand(Constraint(index), 2, logits, first, len(codes))
        best = np.sort(np.lexsort((every.paths, -every.scores))[:width])
        some = expand(Constraint(index), 2, logits, first, width)
        np.testing.assert_array_equal(some.paths, every.paths[best])
        np.testing.assert_array_equal(some.scores, every.scores[best])
        np.testing.assert_array_equal(some.parents, every.parents[best])


def test_logits_of_minus_infinity_rank_last_and_nan_is_refused():
    codes = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    index = ValidityIndex.build(codes, (2, 2), np.ones(4, int), np.arange(4))
    none = np.full((1, 2), -np.inf, np.float32)
    first = expand(Constraint(index), 1, none, None, 2)
    assert first.nodes.tolist() == [0, 1] and (first.scores == -np.inf).all()
    second = expand(Constraint(index), 2, np.array([[0, 0], [-np.inf, -np.inf]], np.float32), first, 3)
    assert second.nodes.tolist() == [0, 1, 2] and (second.scores == -np.inf).all()
    half = expand(Constraint(index), 1, np.array([[-np.inf, 5]], np.float32), None, 2)
    assert half.scores.tolist() == [-np.inf, 0.0]
    huge = expand(Constraint(index), 1, np.array([[-3e38, 3e38]], np.float32), None, 2)
    assert huge.scores.tolist() == [-np.inf, 0.0]
    assert expand(Constraint(index), 2, np.zeros((2, 2), np.float32), half, 2).nodes.tolist() == [2, 3]
    for row in (0, 1):  # also where the beams behind it are sound
        nan = np.where(np.arange(2)[:, None] == row, np.nan, np.zeros((2, 2))).astype(np.float32)
        with pytest.raises(InputError, match="logits"):
            expand(Constraint(index), 2, nan, first, 4)


@pytest.mark.parametrize("excluded", [[], [0], [35, 36], [69]])
def test_wherever_the_best_or_a_bad_logit_of_a_long_family_stands(excluded):
    """Long ones are read in vectors, with a rest."""
    size = 70
    index = ValidityIndex.build(np.arange(size)[:, None], (size,), np.ones(size, int), np.arange(size))
    constraint = Constraint(index, index.blocked(np.array(excluded, np.int64)))
    left = np.setdiff1d(np.arange(size), excluded)
    logits = np.random.default_rng(0).standard_normal((1, size)).astype(np.float32)
    for place in range(size):
        one = logits.copy()
        one[0, place] = 200.0  # no float32 holds e^200
        found = expand(constraint, 1, one, None, size)
        wide = one[0].astype(np.float64)
        assert found.nodes.tolist() == left.tolist()
        np.testing.assert_allclose(found.scores, wide[left] - np.logaddexp.reduce(wide), rtol=1e-6, atol=1e-6)
        for bad in (np.nan, np.inf):
            one[0, place] = bad
            with pytest.raises(InputError, match="logits"):
                expand(constraint, 1, one, None, size)


def test_what_is_refused():
    index = ValidityIndex.build(np.array([[0, 0], [1, 1]]), (3, 2), np.ones(2, int), np.arange(2))
    fine = np.zeros((1, 3), np.float32)
    first = expand(Constraint(index), 1, fine, None, 2)
    for bad in (np.nan, np.inf):
        with pytest.raises(InputError, match="logits"):
            expand(Constraint(index), 1, np.array([[0, bad, 0]], np.float32), None, 2)
        # Code 2 belongs to no item: what stands there is never read.
        assert len(expand(Constraint(index), 1, np.array([[0, 0, bad]], np.float32), None, 2)) == 2
        with pytest.raises(InputError, match="beams"):
            wrong = Beams(first.paths, first.nodes, np.array([0, bad], np.float32), first.parents)
            expand(Constraint(index), 2, np.zeros((2, 2), np.float32), wrong, 2)
    for nodes in ([0, 2], [-1, 0], [1, 0], [0, 0], [0, 2**31 - 1], [0]):
        with pytest.raises(InputError, match=r"beams|logits"):
            wrong = Beams(first.paths, np.array(nodes, np.int32), first.scores, first.parents)
            expand(Constraint(index), 2, np.zeros((2, 2), np.float32), wrong, 2)
    for level, logits, beams, width in (
        (0, fine, None, 2),
        (3, fine, first, 2),
        (1, fine, first, 2),
        (2, fine, None, 2),
        (1, fine, None, 0),
        (1, fine[:, :2], None, 2),
        (1, fine.astype(np.float64), None, 2),
    ):
        with pytest.raises(InputError):
            expand(Constraint(index), level, logits, beams, width)
    nothing = expand(Constraint(index, index.blocked(np.array([0, 1]))), 1, fine, None, 2)
    assert len(nothing) == 0
    assert len(expand(Constraint(index), 2, np.zeros((0, 2), np.float32), nothing, 2)) == 0


def test_strided_and_read_only_logits_give_the_same():
    rng = np.random.default_rng(1)
    index, _ = make_index(rng, (5, 6), 20)
    wide = rng.standard_normal((5, 11)).astype(np.float32)
    wide.flags.writeable = False
    first = expand(Constraint(index), 1, wide[:1, :5], None, 5)
    got = expand(Constraint(index), 2, wide[: len(first), 2:8], first, 4)
    want = expand(Constraint(index), 2, wide[: len(first), 2:8].copy(), first, 4)
    assert got.paths.tolist() == want.paths.tolist() and got.scores.tolist() == want.scores.tolist()
