"""Beams that are items already are not scored: against leaf counts, and against passes that score every beam."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ensembles.local import LocalRecommender
from genrec.artifact import load_config
from genrec.catalogue.indices import load_validity
from genrec.catalogue.load import load_catalogue
from genrec.catalogue.validity import ValidityIndex
from genrec.engine.host import HostExecutor
from genrec.errors import InputError
from genrec.search.constraint import Constraint
from genrec.search.expand import expand
from genrec.search.undecided import pass_size, pass_sizes, rows_of_parents, undecided
from perf.kit.work import leaf_count
from tests.oracles.twin import TwinPasses, twin_artifact

SIZES = st.lists(st.integers(2, 9), min_size=2, max_size=5)


def random_index(sizes, items, seed):
    draw = np.random.default_rng(seed)
    codes = np.stack([draw.integers(0, t, items) for t in sizes], axis=1)
    return ValidityIndex.build(codes, sizes, np.ones(items, np.int64), np.arange(items)), draw


@settings(max_examples=60, deadline=None)
@given(SIZES, st.integers(1, 80), st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_a_step_over_the_undecided_equals_one_over_all_beams(sizes, items, width, seed):
    """To the bit, over all levels; what no pass has scored is NaN for the other."""
    index, draw = random_index(sizes, items, seed)
    beams, former = None, np.zeros(1, np.int64)
    for level, size in enumerate(sizes, 1):
        every = np.arange(1 if beams is None else len(beams))
        asked = every if beams is None else undecided(index, level - 1, beams.nodes)
        if beams is not None:
            leaves = leaf_count(index, level - 1)[beams.nodes]
            np.testing.assert_array_equal(asked, np.flatnonzero(leaves > 1))
        if level > 2:
            rows = rows_of_parents(beams.parents, asked, former)
            np.testing.assert_array_equal(former[rows], beams.parents[asked])
        logits = np.full((len(every), size), np.nan, np.float32)
        logits[asked] = draw.standard_normal((len(asked), size)) * 4
        want = expand(Constraint(index), level, logits, beams, width)
        got = expand(Constraint(index), level, logits[asked], beams, width, scored=asked)
        for mine, other in zip(vars(got).values(), vars(want).values(), strict=True):
            np.testing.assert_array_equal(mine, other)
        beams, former = got, asked


def test_a_beam_of_several_children_needs_a_row():
    index = ValidityIndex.build(
        np.array([[0, 0], [0, 1], [1, 0]]), (2, 2), np.ones(3, np.int64), np.arange(3)
    )
    first = expand(Constraint(index), 1, np.zeros((1, 2), np.float32), None, 2)
    assert undecided(index, 1, first.nodes).tolist() == [0]
    assert (
        len(expand(Constraint(index), 2, np.zeros((1, 2), np.float32), first, 3, scored=np.array([0]))) == 3
    )
    for wrong in ([], [1], [0, 7], [1, 0]):
        with pytest.raises(InputError, match="scored"):
            expand(
                Constraint(index),
                2,
                np.zeros((len(wrong), 2), np.float32),
                first,
                3,
                scored=np.array(wrong, np.int64),
            )


@given(st.integers(1, 5000), st.integers(0, 5000))
def test_a_pass_has_room_for_its_beams_and_little_more(most, short):
    count = max(most - short, 0)
    size = pass_size(count, most)
    assert (size == 0) == (count == 0) and count <= size <= most
    assert size < max(9, 2 * count)
    assert sorted({pass_size(n, most) for n in range(1, most + 1)}) == pass_sizes(most)
    assert len(pass_sizes(most)) <= most.bit_length()


class Counting(TwinPasses):
    """Remembers how many beams every pass had."""

    def __init__(self, *settings):
        super().__init__(*settings)
        self.beams = []

    def decode(self, given):
        self.beams.append(given.codes.shape[1])
        return super().decode(given)


# Most first codes decide the item; beams grow from level to level; they become fewer behind the second code.
SHAPES = {(40, 3): 30, (3, 7, 6, 5): 90, (4, 6, 3, 3, 3): 70, (9, 9, 9): 20}


@pytest.mark.parametrize("sizes", SHAPES, ids=str)
def test_whole_batches_are_answered_as_if_every_beam_were_scored(tmp_path, sizes):
    artifact = twin_artifact(tmp_path / "artifact", sizes, SHAPES[sizes])
    config, index = load_config(artifact), load_validity(artifact, load_config(artifact))
    fast, slow = (Counting(artifact / "engines" / "twin", "f32", 0, 1) for _ in range(2))
    draw = np.random.default_rng(0)
    lengths = np.array([5, 1, 7]) * config.levels
    codes = np.stack([draw.integers(0, t, (3, 7)) for t in sizes], 2) + np.array(config.code_offsets)
    tokens = codes.reshape(3, -1)
    blocked = [draw.integers(0, SHAPES[sizes], n) for n in (0, 3, 12)]
    constraints = [Constraint(index, index.blocked(rows)) for rows in blocked]
    for width in (2, 6, 64):
        got = HostExecutor(fast, config, width, "f32").answers(tokens, lengths, constraints)
        twin = HostExecutor(slow, config, width, "f32")
        want = twin.answers(tokens, lengths, constraints, every_beam=True)
        for mine, other in zip(got, want, strict=True):
            np.testing.assert_array_equal(mine.paths, other.paths)
            np.testing.assert_allclose(mine.scores, other.scores, atol=1e-5)
    assert sum(fast.beams) < sum(slow.beams)


def test_a_catalogue_of_one_item_takes_no_decode_pass(tmp_path):
    artifact = twin_artifact(tmp_path / "artifact", (4, 4, 4), 30)
    config = load_config(artifact)
    index = ValidityIndex.build(np.array([[1, 2, 3]]), (4, 4, 4), np.ones(1, np.int64), np.zeros(1, np.int64))
    passes = Counting(artifact / "engines" / "twin", "f32", 0, 1)
    constraint = Constraint(index, index.blocked(np.array([-1])))
    generator = HostExecutor(passes, config, 5, "f32")
    (beams,) = generator.answers(np.zeros((1, 3), np.int64), np.array([3]), [constraint])
    assert beams.paths.tolist() == [1 * 16 + 2 * 4 + 3] and beams.scores.tolist() == [0.0]
    assert passes.beams == []


def test_the_chain_passes_by_a_decode_that_has_nothing_to_score(tmp_path, monkeypatch):
    """Three items under two first codes."""
    artifact = twin_artifact(tmp_path / "artifact", (30, 3, 3), 3)
    catalogue = load_catalogue(artifact, load_config(artifact))
    assert len(np.unique(catalogue.codes[:, 0])) == 2
    histories = [catalogue.item_ids[:n].tolist() for n in (1, 2, 3)]
    with (
        LocalRecommender(artifact, 12, "twin") as fused,
        LocalRecommender(artifact, 12, "twin", 16, "staged") as chain,
    ):
        monkeypatch.setattr(TwinPasses, "decode", lambda *_: pytest.fail("there is nothing to score"))
        for one, other in zip(fused.recommend(histories, 3), chain.recommend(histories, 3), strict=True):
            assert one["item_ids"].tolist() == other["item_ids"].tolist()
            np.testing.assert_allclose(one["scores"], other["scores"], atol=1e-5)
            assert sorted(one["item_ids"][0]) == sorted(catalogue.item_ids)
