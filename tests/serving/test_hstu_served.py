"""An HSTU ranker behind a real tritonserver: its scores are the torch module's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc

from clients.wire import infer_inputs
from deploy.launcher import RunningServer
from genrec.catalogue.items import Catalogue
from genrec.nn.hstu_checkpoint import load_hstu
from tests.oracles.hstu_asked import Asked, logits_of
from tests.serving.servers import brief_server


@pytest.fixture(scope="module")
def ranking(tiny_hstu: Path) -> Iterator[RunningServer]:
    with brief_server(tiny_hstu, beam_width=16, ensembles=("rank", "recommend_and_rank")) as server:
        yield server


def test_scores_are_torch_s(ranking: RunningServer, tiny_hstu: Path) -> None:
    catalogue = Catalogue.load(tiny_hstu / "catalogue.parquet")
    rows, candidates = np.arange(7), np.arange(40, 60)
    asked = Asked(rows, [1, 5, 2, 4, 3, 5, 1], [10, 10, 500, 900, 5000, 10**6, 10**7], 10**7 + 60, [1, 4])
    tensors = {
        "history": catalogue.item_ids[rows][None],
        "candidates": catalogue.item_ids[candidates][None],
        "top_k": np.array([[20]], np.int32),
        "ratings": np.array([asked.ratings], np.int32),
        "times": np.array([asked.times], np.int64),
        "now": np.array([[asked.now]], np.int64),
        "features": np.array([asked.features], np.int32),
    }
    with tritonclient.grpc.InferenceServerClient(ranking.grpc_url) as client:
        result = client.infer("rank", infer_inputs(tritonclient.grpc.InferInput, tensors))
    want = dict(
        zip(
            catalogue.item_ids[candidates].tolist(),
            logits_of(load_hstu(tiny_hstu / "model"), asked, candidates)[:, 0].tolist(),
            strict=True,
        )
    )
    ids = result.as_numpy("item_ids")[0].tolist()
    assert sorted(ids) == sorted(want)
    np.testing.assert_allclose(result.as_numpy("scores")[0], [want[item] for item in ids], atol=1e-4)
