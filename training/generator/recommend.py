"""A generator as a recommender callable, for the figures: constrained beam search in torch."""

from __future__ import annotations

import numpy as np

from genrec.catalogue.items import Catalogue
from genrec.models.prompt import Start, newest_start, prompt_of
from genrec.nn.beam import Tree, beam_search, rank_items
from genrec.nn.device import device_of
from genrec.nn.model import Generator
from training.generator.evaluate import PAD, Recommender
from training.padding import padded


def model_recommender(
    model: Generator,
    catalogue: Catalogue,
    beam_width: int,
    tree: Tree | None = None,
    start: Start = newest_start,
) -> Recommender:
    """Rank by constrained beam search over `max_history` known items at most, as serving does.

    `start` says which items are read.
    """
    config, tree = model.config, tree or Tree.of(catalogue).to(device_of(model))
    offsets = np.array(config.code_offsets)

    def recommend(histories: list[np.ndarray], k: int, remove_seen: bool) -> np.ndarray:
        rows = [catalogue.rows_of(h) for h in histories]
        rows = [r[r >= 0].astype(np.int64) for r in rows]
        newest = [r[start(len(r), config.max_history) :] for r in rows]
        tokens, lengths = padded([prompt_of(config, catalogue.codes[r] + offsets) for r in newest])
        excluded = [np.unique(r) if remove_seen else r[:0] for r in rows]
        # An empty history has no last position; it reads the padding and its answer means nothing.
        leaves, scores = beam_search(model, tree, tokens, lengths.clamp(min=1), excluded, beam_width)
        found, _ = rank_items(tree, leaves, scores, excluded, k)
        return np.where(found >= 0, catalogue.item_ids[found], PAD)

    return recommend
