"""Passes whose prompts or beams go through the engine in slices, against all at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ensembles.local import LocalRecommender
from tests.tiny import tiny_catalogue


@pytest.mark.parametrize("decoder", ["beam", "staged", "draft"])
@pytest.mark.parametrize("least", [1, 5, 32])
def test_slices_change_nothing(
    tiny_of_nodes: Path, monkeypatch: pytest.MonkeyPatch, decoder: str, least: int
) -> None:
    items = [int(i) for i in tiny_catalogue().item_ids]
    histories = [items[:3], items[5:9], items[20:36], items[40:43]]
    with LocalRecommender(tiny_of_nodes, 32, decoder=decoder) as local:
        want = local.recommend(histories, 10)
        monkeypatch.setattr("genrec.engine.openvino.MOST_TOKENS", 64)  # two of the four prompts
        monkeypatch.setattr("genrec.engine.openvino.MOST_SCORES", 1)
        monkeypatch.setattr("genrec.engine.openvino.LEAST_BEAMS", least)
        got = local.recommend(histories, 10)
    for mine, theirs in zip(got, want, strict=True):
        assert isinstance(mine, dict) and isinstance(theirs, dict)
        np.testing.assert_array_equal(mine["item_ids"], theirs["item_ids"])
        np.testing.assert_allclose(mine["scores"], theirs["scores"], atol=1e-5)
