"""The draft head and the search inside it, against a plain float64 twin over whole catalogues."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from genrec.catalogue.answerable import THESE_ALONE
from genrec.catalogue.hashset import SemanticIdSet
from genrec.catalogue.semantic_id import pack
from genrec.catalogue.validity import ValidityIndex
from genrec.draft.head import Drafter
from genrec.draft.options import DraftConfig
from genrec.draft.search import draft
from genrec.errors import ArtifactError, InputError
from genrec.models.config import ModelConfig
from genrec.nn.draft_checkpoint import load_draft, save_draft, save_serving, serving_tensors
from genrec.nn.model import Generator
from genrec.search.scratch import largest
from tests.oracles.draft_twin import plain_logits, score_tuples
from tests.tiny import random_head, tiny_catalogue

VARIANTS = [DraftConfig(t, p) for t, p in product(("gru", "add", "none"), (True, False))]
# Of the last, few codes follow any other: their logits are computed one by one (`Drafter.valid_logits`).
SHAPES = {(30,): 20, (6, 5): 20, (5, 4, 6): 40, (3, 3, 3, 3): 30, (7, 60): 20}


def model(sizes, options):
    torch.manual_seed(0)
    config = ModelConfig(sizes, 8, hidden_size=16, num_hidden_layers=1, head_dim=8, intermediate_size=16)
    generator = Generator(config).eval()
    head = random_head(config, options)
    return generator, head, Drafter(config, options, serving_tensors(generator, head))


def world(sizes, options):
    generator, head, drafter = model(sizes, options)
    catalogue = tiny_catalogue(SHAPES[sizes], sizes)
    index = ValidityIndex.build(catalogue.codes, sizes, catalogue.popularity, catalogue.item_ids)
    states = np.random.default_rng(1).standard_normal((1 + drafter.placeholders, 16)).astype(np.float32)
    return generator, head, drafter, catalogue, index, SemanticIdSet.build(index.paths(len(sizes))), states


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_served_head_equals_the_twin(options):
    """Every beam's logits after any codes, for every variant of Table 4; the twin is float64."""
    generator, head, drafter = model((7, 6, 5), options)
    draw = np.random.default_rng(2)
    states = draw.standard_normal((1 + drafter.placeholders, 16)).astype(np.float32)
    state, paths = drafter.start(states), [()]
    for level in (1, 2, 3):
        logits = drafter.logits(level, states, state)
        want = [plain_logits(generator, head, states.astype(np.float64), path) for path in paths]
        assert np.allclose(logits, want, atol=2e-5)
        if level < 3:
            parents = np.sort(draw.integers(0, len(paths), 9)).astype(np.int32)
            codes = draw.integers(0, (7, 6)[level - 1], 9)
            state = drafter.advance(level, state, parents, codes)
            paths = [(*paths[p], int(c)) for p, c in zip(parents, codes, strict=True)]


@torch.no_grad()
@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_torch_head_equals_the_served_one(options):
    generator, head, drafter = model((7, 6, 5), options)
    states = torch.randn(1 + drafter.placeholders, 16)
    hidden, state = states[None], states[:1]
    served = drafter.start(states.numpy())
    for level, code in ((1, 4), (2, 0), (3, None)):
        assert np.allclose(
            head.logits(level, hidden, state), drafter.logits(level, states.numpy(), served), atol=2e-5
        )
        if code is not None:
            embedded = generator.embed_tokens.weight[generator.config.code_offsets[level - 1] + code]
            state = head.advance(level, state, embedded[None])
            served = drafter.advance(level, served, np.zeros(1, np.int32), np.array([code]))


@pytest.mark.parametrize("sizes", SHAPES, ids=str)
@pytest.mark.parametrize("options", [VARIANTS[0], VARIANTS[5]], ids=str)
def test_a_beam_as_wide_as_the_catalogue_scores_it_exactly(sizes, options):
    generator, head, drafter, catalogue, index, valid, states = world(sizes, options)
    excluded = np.arange(0, len(catalogue), 3)
    left = {tuple(map(int, c)) for row, c in enumerate(catalogue.codes) if row not in set(excluded)}
    found = draft("every", drafter, states, index, valid, 256, index.blocked(excluded))
    every = {tuple(map(int, c)) for c in catalogue.codes}
    truth = score_tuples(generator, head, states.astype(np.float64), every)
    want = {int(pack([t], sizes)[0]): score for t, score in truth.items() if t in left}
    assert sorted(want) == found.semantic_ids.tolist()
    assert np.allclose(found.scores, [want[i] for i in found.semantic_ids], atol=5e-5)
    assert (found.candidates, found.lost) == (len(want), 0)


@pytest.mark.parametrize("times", [1, 60], ids=["usual", "large"])
@pytest.mark.parametrize("sizes", SHAPES, ids=str)
def test_verified_at_the_last_level_only_what_is_no_item_is_lost(sizes, times):
    """Also of large states: no float32 holds the exponentials of what they give."""
    generator, head, drafter, catalogue, index, valid, states = world(sizes, DraftConfig())
    states *= times
    found = draft("last", drafter, states, index, valid, int(np.prod(sizes)))
    truth = score_tuples(generator, head, states.astype(np.float64))
    want = {
        int(pack([t], sizes)[0]): s for t, s in truth.items() if tuple(t) in set(map(tuple, catalogue.codes))
    }
    assert sorted(want) == found.semantic_ids.tolist()
    assert np.allclose(found.scores, [want[i] for i in found.semantic_ids], atol=5e-5 * times)
    assert (found.candidates, found.lost) == (len(truth), len(truth) - len(want))


@settings(max_examples=30)
@given(st.sampled_from(sorted(SHAPES)), st.booleans(), st.sets(st.integers(0, 19)), st.integers(1, 9))
def test_verified_at_the_last_level_what_may_not_be_answered_takes_no_place(sizes, alone, named, width):
    """Among all candidates; of one level, in a narrow draft too."""
    *_, drafter, catalogue, index, valid, states = world(sizes, DraftConfig())
    wide = int(np.prod(sizes))
    left = [row for row in range(len(catalogue)) if (row in named) == alone]
    may = set(pack(catalogue.codes[left], sizes).tolist()) if left else set()
    blocked = index.blocked(np.array([THESE_ALONE] * alone + sorted(named), np.int32))
    every = draft("last", drafter, states, index, valid, wide)
    want = [
        (-score, name) for name, score in zip(every.semantic_ids, every.scores, strict=True) if name in may
    ]
    found = draft("last", drafter, states, index, valid, wide, blocked)
    assert found.semantic_ids.tolist() == sorted(name for _, name in want)
    if len(sizes) == 1:
        found = draft("last", drafter, states, index, valid, width, blocked)
        assert found.semantic_ids.tolist() == sorted(name for _, name in sorted(want)[:width])


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(SHAPES)), st.integers(1, 60), st.integers(0, 2**32 - 1), st.data())
def test_narrow_drafts_are_distinct_items_and_enough_of_them(sizes, width, seed, data):
    *_, drafter, catalogue, index, valid, _ = world(sizes, data.draw(st.sampled_from(VARIANTS)))
    states = np.random.default_rng(seed).standard_normal((1 + drafter.placeholders, 16)).astype(np.float32)
    real = set(pack(catalogue.codes, sizes).tolist())
    every, last = (draft(mode, drafter, states, index, valid, width) for mode in ("every", "last"))
    for found in (every, last):
        ids = found.semantic_ids.tolist()
        assert set(ids) <= real
        assert len(set(ids)) == len(ids) <= width
        assert ids == sorted(ids)
    assert len(every.semantic_ids) == min(width, len(real))
    assert last.candidates == min(width, int(np.prod(sizes))) and 0 <= last.lost <= last.candidates
    assert len(last.semantic_ids) >= last.candidates - last.lost


@given(st.lists(st.sampled_from([-np.inf, -3.5, -1.0, 0.0, 2.0, 7.0]), max_size=50), st.integers(1, 60))
def test_largest_keeps_the_first_of_equals(values, kept):
    score = np.array(values, np.float32)
    want = np.sort(np.lexsort((np.arange(len(score)), -score))[:kept])
    assert largest(score, kept).tolist() == want.tolist()


def test_what_is_refused(tmp_path):
    _, _, drafter, _, index, valid, states = world((6, 5), DraftConfig())
    with pytest.raises(InputError, match="verify"):
        draft("never", drafter, states, index, valid, 4)
    for bad in (states[:2], np.full_like(states, np.nan)):
        with pytest.raises(InputError, match="states"):
            draft("every", drafter, bad, index, valid, 4)
    with pytest.raises(InputError, match="transition"):
        DraftConfig("lstm")
    with pytest.raises(ArtifactError, match="nowhere"):
        Drafter.load(tmp_path / "nowhere", drafter.config)


def test_a_head_knows_its_generator_and_its_shape(tmp_path):
    generator, head, drafter = model((6, 5), DraftConfig())
    generator.config.save(tmp_path / "config.json")
    (tmp_path / "model.safetensors").write_bytes(b"one generator")
    save_draft(head, tmp_path)
    loaded = load_draft(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(head.parameters(), loaded.parameters(), strict=True))
    (tmp_path / "model.safetensors").write_bytes(b"another one")
    with pytest.raises(ArtifactError, match="another generator"):
        load_draft(tmp_path)
    save_serving(generator, head, tmp_path / "head")
    again = Drafter.load(tmp_path / "head", generator.config)
    states = np.ones((3, 16), np.float32)
    assert (again.logits(1, states, states[:1]) == drafter.logits(1, states, states[:1])).all()
    other = ModelConfig((6, 7), 8, hidden_size=16)
    with pytest.raises(ArtifactError, match="hidden_2"):
        Drafter.load(tmp_path / "head", other)
