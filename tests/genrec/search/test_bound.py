"""Beams that cannot matter are not scored: to the bit the answer of a generator that scores them all."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genrec import metrics
from genrec.catalogue.validity import ValidityIndex
from genrec.engine.host import HostExecutor
from genrec.models.config import ModelConfig
from genrec.search.bound import NeededBeams, at_least, best_of, drop_unscored, floor_of
from genrec.search.constraint import Constraint
from genrec.search.expand import Beams, ranked
from genrec.search.scratch import Scratch


class Scripted:
    """Logits by table of a beam's codes, whatever is scored beside it; the codes lie where the KV would.

    `peak` is how much the likely codes stand out; the prompt's first token shifts the tables.
    """

    def __init__(self, sizes, peak, seed):
        draw = np.random.default_rng(seed)
        self.first = (draw.standard_normal((50, 1, sizes[0])) * peak).astype(np.float32)
        self.tables = [
            [(draw.standard_normal((size, wide)) * peak).astype(np.float32) for size in sizes[: level - 1]]
            for level, wide in enumerate(sizes[1:], 2)
        ]
        self.beams = 0

    def prefill(self, tokens, lengths, logits, kv, lends):
        logits[:] = self.first[tokens[:, 0]]
        return kv

    def decode(self, given):
        self.beams += given.codes.size
        written, kept = given.level - 2, given.unshared[0]
        earlier = [kept[u][:, :, 0, 0].astype(np.int64) for u in range(written)]
        given.logits[:] = 0
        for table, each in zip(self.tables[written], [*earlier, given.codes], strict=True):
            given.logits[:] += table[each]
        if len(kept) > written:
            kept[written][:, :, 0, 0] = given.codes
        return given.logits


def generator_of(sizes, width, peak, seed):
    config = ModelConfig(
        tuple(sizes), max_history=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, head_dim=8, intermediate_size=8,
    )  # fmt: skip
    return HostExecutor(Scripted(sizes, peak, seed), config, width, "f32")


def best(beams, wanted):
    order = ranked(beams)[:wanted]
    return beams.paths[order].tolist(), beams.scores[order].tolist()


@settings(max_examples=120, deadline=None)
@given(
    st.lists(st.integers(2, 12), min_size=2, max_size=5),
    st.integers(1, 400),
    st.integers(1, 60),
    st.sampled_from([0.0, 0.5, 2.0, 6.0]),
    st.lists(st.integers(1, 12), min_size=1, max_size=4),
    st.floats(0, 0.9),
    st.integers(0, 2**32 - 1),
)
def test_the_answer_is_that_of_all_beams(sizes, items, width, peak, wanted, share, seed):
    """Batch after batch, because what was needed of late says what is scored first."""
    draw = np.random.default_rng(seed)
    codes = np.stack([draw.integers(0, t, items) for t in sizes], axis=1)
    index = ValidityIndex.build(codes, sizes, np.ones(items, np.int64), np.arange(items))
    fast, slow = (generator_of(sizes, width, peak, seed) for _ in range(2))
    for _ in range(6):
        tokens, lengths = draw.integers(0, 50, (len(wanted), 4)), np.full(len(wanted), 4)
        blocked = [index.blocked(np.flatnonzero(draw.random(items) < share)) for _ in wanted]
        constraints = [Constraint(index, *each) for each in zip(blocked, wanted, strict=True)]
        got = fast.answers(tokens, lengths, constraints)
        want = slow.answers(tokens, lengths, constraints, every_beam=True)
        for mine, other, count in zip(got, want, wanted, strict=True):
            assert best(mine, count) == best(other, count)


@pytest.mark.parametrize(("peak", "most"), [(6.0, 0.7), (0.0, 1.0)])
@pytest.mark.parametrize("sizes", [(256, 256), (256, 16, 16), (64, 16, 16, 16)], ids=str)
def test_what_is_scored_is_little_where_the_model_is_sure_and_never_more_than_all(sizes, peak, most):
    draw = np.random.default_rng(1)
    codes = np.stack([draw.integers(0, t, 20_000) for t in sizes], axis=1)
    index = ValidityIndex.build(codes, sizes, np.ones(20_000, np.int64), np.arange(20_000))
    fast, slow = (generator_of(sizes, 128, peak, 0) for _ in range(2))
    free = Constraint(index, index.blocked(np.array([-1])), 10)
    for number in range(40):
        tokens = np.full((1, 4), number)
        fast.answers(tokens, np.array([4]), [free])
        slow.answers(tokens, np.array([4]), [free], every_beam=True)
    scored, every = (each._passes.beams for each in (fast, slow))
    assert scored <= most * every + (len(sizes) - 1) * 8, scored / every


def test_a_pass_of_many_requests_is_seldom_repeated():
    """Where the probe is too small for one of them all are scored again, so what is remembered is of passes."""
    draw, sizes = np.random.default_rng(1), (256, 256)
    codes = np.stack([draw.integers(0, t, 20_000) for t in sizes], axis=1)
    index = ValidityIndex.build(codes, sizes, np.ones(20_000, np.int64), np.arange(20_000))
    generator, constraints = generator_of(sizes, 128, 2.0, 0), [Constraint(index, wanted=10)] * 30
    passes, decode = [], generator._passes.decode
    generator._passes.decode = lambda given: passes.append(given.level) or decode(given)
    for _ in range(60):
        generator.answers(draw.integers(0, 50, (30, 4)), np.full(30, 4), constraints)
    assert len(passes) <= 1.1 * 60


def test_a_beam_that_a_second_pass_scores_again_counts_once():
    """Of the beams that a level started from, so many had to be scored."""
    draw, sizes = np.random.default_rng(0), (8, 8, 8)
    codes = np.stack([draw.integers(0, t, 480) for t in sizes], axis=1)
    index = ValidityIndex.build(codes, sizes, np.ones(480, np.int64), np.arange(480))
    generator = generator_of(sizes, 64, 0.5, 0)
    generator._needed.expect = lambda level, wanted, count: 1
    before = [metrics.BEAMS.value(kind=kind) for kind in ("kept", "scored")]
    generator.answers(np.zeros((1, 4), np.int64), np.array([4]), [Constraint(index, wanted=64)])
    kept, scored = np.subtract([metrics.BEAMS.value(kind=kind) for kind in ("kept", "scored")], before)
    assert generator._passes.beams > kept == 8 + 64 >= scored > 8 + 8, "more than the first passes scored"


def beams_of(scores):
    count = len(scores)
    places = np.arange(count, dtype=np.int32)
    return Beams(np.arange(count), places, np.array(scores, np.float32), places)


def test_the_floor_is_the_last_beams_or_the_last_items_score():
    beams, undecided = beams_of([-1, -5, -2, -4, -3]), np.array([0, 3])
    assert floor_of(beams, undecided, 6, 4, Scratch()) == -np.inf, "neither so many beams nor so many items"
    assert floor_of(beams, undecided, 5, 4, Scratch()) == -5
    assert (
        floor_of(beams, undecided, 6, 3, Scratch()) == -5
        and floor_of(beams, undecided, 6, 2, Scratch()) == -3
    )
    assert floor_of(beams, undecided, 5, 1, Scratch()) == -2, "the higher of the two"


def test_beams_are_chosen_in_their_order_and_the_first_of_equals():
    beams, scratch = beams_of([-1, -2, -2, -9, -2, -7]), Scratch()
    places = np.array([1, 2, 3, 4, 5])
    assert at_least(beams, places, -7.0, scratch).tolist() == [1, 2, 4, 5]
    assert at_least(beams, places, -2.0, scratch).tolist() == [1, 2, 4], (
        "a tie goes to the smaller path later"
    )
    assert best_of(beams, places, 2, scratch).tolist() == [1, 2]
    assert best_of(beams, places, 4, scratch).tolist() == [1, 2, 4, 5]
    assert best_of(beams, places, 9, scratch).tolist() == places.tolist()
    kept, now = drop_unscored(beams, places, np.array([2, 5]), scratch)
    assert kept.paths.tolist() == [0, 2, 5] and now.tolist() == [1, 2]
    assert kept.scores.tolist() == [-1, -2, -7]
    assert kept.parents.tolist() == kept.nodes.tolist() == [0, 2, 5]


def test_memory_is_what_all_but_one_in_twenty_need():
    needed_beams = NeededBeams()
    assert needed_beams.expect(2, 10, 128) == 128, "nothing is known"
    needed_beams.learn(2, 10, 16)
    assert needed_beams.expect(2, 10, 128) == 24 and needed_beams.expect(2, 10, 9) == 9
    assert needed_beams.expect(3, 10, 128) == needed_beams.expect(2, 100, 128) == 128, (
        "another level, another answer"
    )
    needed = np.random.default_rng(0).permutation(np.arange(10_000) % 100)
    more = 0
    for number, count in enumerate(needed):
        more += number >= 1000 and count > needed_beams.expect(2, 10, 128)
        needed_beams.learn(2, 10, int(count))
    assert 0.03 < more / 9000 < 0.08
    needed_beams.learn(2, 10, 10**6)
    assert needed_beams.expect(2, 10, 128) < 128, "one that stands out does not matter"
    for _ in range(2000):
        needed_beams.learn(2, 10, 0)
    assert needed_beams.expect(2, 10, 128) == 1, "a pass scores something"
