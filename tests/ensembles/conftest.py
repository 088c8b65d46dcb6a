"""Fixtures of the local runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from genrec.catalogue.items import Catalogue
from genrec.models.prompt import window_start
from genrec.nn.ranker_checkpoint import load_ranker
from tests.ensembles.rankings import Scores


@pytest.fixture(scope="module")
def by_torch(tiny_ranker: Path) -> Scores:
    """Item -> score of every candidate, all of it computed."""
    ranker, catalogue = load_ranker(tiny_ranker / "model"), Catalogue.load(tiny_ranker / "catalogue.parquet")
    codes = torch.from_numpy(catalogue.codes + np.array(ranker.config.code_offsets)).long()

    @torch.no_grad()
    def scores(history: Sequence[int], candidates: Sequence[int], order: str = "split") -> dict[int, float]:
        kept = catalogue.rows_of(history)
        kept = kept[window_start(len(kept), ranker.config.max_history) :]
        user, items = codes[kept].reshape(1, -1), codes[catalogue.rows_of(candidates)][None]
        found = ranker(user, torch.tensor([user.shape[1]]), items, items, order)[0]
        return dict(zip(candidates, found.tolist(), strict=True))

    return scores
