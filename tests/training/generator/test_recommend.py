"""The torch beam search equals scoring every item one by one, seen items pruned, ties in the stated order."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from genrec.catalogue.items import Catalogue
from genrec.models.config import ModelConfig
from genrec.nn.beam import Tree, beam_search, rank_items
from genrec.nn.model import Generator
from tests.tiny import tiny_catalogue
from training.generator.evaluate import PAD
from training.generator.recommend import model_recommender

SIZES = (5, 4, 6)


def generator(sizes: tuple[int, ...] = SIZES, max_history: int = 6) -> Generator:
    torch.manual_seed(1)
    model = Generator(ModelConfig(sizes, max_history, 16, 2, 4, 2, 8, 16)).eval()
    with torch.no_grad():
        model.lm_head.weight.normal_(std=1.0)
    return model


@torch.no_grad()
def item_scores(
    model: Generator, catalogue: Catalogue, history: np.ndarray, excluded: set[int]
) -> np.ndarray:
    """Log-probability of every item's semantic ID, renormalised over the catalogue, of what is left of it: float[n]."""
    offsets = np.array(model.config.code_offsets)
    prompt = (catalogue.codes[history] + offsets).ravel()
    left = [row for row in range(len(catalogue)) if row not in excluded]
    scores = np.full(len(catalogue), -np.inf)
    for row in left:
        scores[row] = 0.0
        for level in range(catalogue.levels):
            path = catalogue.codes[row, :level]
            tokens = np.concatenate((prompt, path + offsets[:level]))
            logits = (
                model.head(model.prefill(torch.from_numpy(tokens[None]))[0][0, -1], level + 1)
                .double()
                .numpy()
            )
            valid = {
                int(catalogue.codes[r, level])
                for r in range(len(catalogue))
                if (catalogue.codes[r, :level] == path).all()
            }
            scores[row] += logits[catalogue.codes[row, level]] - np.log(sum(np.exp(logits[c]) for c in valid))
    return scores


@pytest.mark.parametrize("remove_seen", [True, False])
def test_wide_beam_equals_every_item(remove_seen: bool) -> None:
    catalogue, model = tiny_catalogue(60, SIZES), generator()
    draw = np.random.default_rng(2)
    histories = [catalogue.item_ids[draw.integers(0, 60, n)] for n in (1, 4, 9)]
    got = model_recommender(model, catalogue, 200)(histories, 12, remove_seen)
    for history, answer in zip(histories, got, strict=True):
        rows = catalogue.rows_of(history)
        scores = item_scores(model, catalogue, rows[-6:], set(rows.tolist()) if remove_seen else set())
        order = sorted(
            (r for r in range(60) if scores[r] > -np.inf),
            key=lambda r: (
                -round(scores[r], 4),
                tuple(catalogue.codes[r]),
                -catalogue.popularity[r],
                catalogue.item_ids[r],
            ),
        )
        assert answer.tolist() == catalogue.item_ids[order[:12]].tolist()


def test_scores_are_probabilities_over_the_catalogue_of_what_is_left() -> None:
    catalogue, model = tiny_catalogue(60, SIZES), generator()
    tree, excluded = Tree.of(catalogue), [np.arange(20), np.arange(0)]
    tokens = torch.randint(0, 5, (2, 3))
    leaves, scores = beam_search(model, tree, tokens, torch.tensor([3, 3]), excluded, 200)
    assert 0 < scores[0].exp().sum() < 1
    np.testing.assert_allclose(scores[1].exp().sum(), 1, rtol=1e-5)
    for request, gone in enumerate(excluded):
        alive = {tuple(catalogue.codes[r]) for r in range(60) if r not in gone}
        assert int((scores[request] > -torch.inf).sum()) == len(alive)
    rows, values = rank_items(tree, leaves, scores, excluded, 60)
    assert sorted(rows[0][rows[0] >= 0]) == list(range(20, 60))
    assert (np.diff(values[0][:40]) <= 0).all() and (values[0][40:] == -np.inf).all()


def test_narrow_beam_gives_valid_distinct_items_and_padding() -> None:
    catalogue, model = tiny_catalogue(60, SIZES), generator()
    got = model_recommender(model, catalogue, 4)([catalogue.item_ids[:3]], 60, True)[0]
    found = got[got != PAD]
    assert 4 <= len(found) < 60 and len(set(found.tolist())) == len(found)
    assert not set(found.tolist()) & set(catalogue.item_ids[:3].tolist())
    assert (catalogue.rows_of(found) >= 0).all()


def test_unknown_items_are_passed_over() -> None:
    catalogue, model = tiny_catalogue(60, SIZES), generator()
    recommend = model_recommender(model, catalogue, 60)
    known = catalogue.item_ids[:3]
    mixed = np.array([-5, known[0], known[1], 2**60, known[2]])
    np.testing.assert_array_equal(recommend([known], 5, True), recommend([mixed], 5, True))
