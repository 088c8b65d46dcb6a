"""A generator as a recommender callable, for the figures: constrained beam search in torch."""

from __future__ import annotations

import numpy as np
import torch

from genrec.catalogue.items import Catalogue
from genrec.models.prompt import Start, newest_start, prompt_of
from genrec.nn.beam import Tree, beam_search, rank_items
from genrec.nn.model import Generator
from training.evaluate import PAD, Recommender


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
    config, tree = model.config, tree or Tree.of(catalogue)
    offsets = np.array(config.code_offsets)

    def recommend(histories: list[np.ndarray], k: int, remove_seen: bool) -> np.ndarray:
        rows = [catalogue.rows_of(h) for h in histories]
        rows = [r[r >= 0].astype(np.int64) for r in rows]
        newest = [r[start(len(r), config.max_history) :] for r in rows]
        lengths = np.array([config.prompt_length(len(r)) for r in newest])
        tokens = np.zeros((len(rows), max(int(lengths.max()), 1)), np.int64)
        for b, r in enumerate(newest):
            tokens[b, : lengths[b]] = prompt_of(config, catalogue.codes[r] + offsets)
        excluded = [np.unique(r) if remove_seen else r[:0] for r in rows]
        # An empty history has no last position; it reads the padding and its answer means nothing.
        safe = torch.from_numpy(np.maximum(lengths, 1))
        leaves, scores = beam_search(model, tree, torch.from_numpy(tokens), safe, excluded, beam_width)
        found, _ = rank_items(tree, leaves, scores, excluded, k)
        return np.where(found >= 0, catalogue.item_ids[found], PAD)

    return recommend
