"""Rankings where there was no compiler: in OpenVINO's own nodes they are the same, each a pass of its own."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from build.openvino.engines import build_engines
from ensembles.local import LocalRecommender
from genrec.engine.instructions import chosen, engine_of
from tests.ensembles.rankings import Scores, check, report_of

ORDERS = {"auto": "split", "user": "user", "item": "item"}  # by choice of the prefix


@pytest.fixture(scope="module")
def of_nodes(tiny_ranker: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    artifact = shutil.copytree(tiny_ranker, tmp_path_factory.mktemp("nodes") / "artifact")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", "")
        build_engines(artifact, "f32")
    assert chosen(engine_of(artifact, "openvino"), "f32") is None
    return artifact


@pytest.mark.parametrize("prefix", ORDERS)
def test_answers_are_the_module_s_whatever_is_there(
    of_nodes: Path, by_torch: Scores, items: list[int], prefix: str
) -> None:
    """Of users who grow; alone, and several at once."""
    sizes: dict[str, Any] = {"pool_user_mb": 1, "pool_item_mb": 1, "prefix_choice": prefix}
    with LocalRecommender(of_nodes, 16, decoder="rank", **sizes) as local:
        assert not (engine_of(of_nodes, "openvino") / "rank_together.xml").exists()
        for length in (3, 3, 5, 8):
            history, candidates = items[:length], items[100 : 120 + length]
            (answer,) = local.rank([(history, candidates)], 5, user_id=7)
            report = check(answer, by_torch(history, candidates, ORDERS[prefix]), 5)
        assert (report.user_reused > 0) == (prefix != "item")
        assert (report.items_reused > 0) == (prefix != "user")
        asked = [(items[n : n + 4], items[90 + n : 110 + 2 * n]) for n in range(6)]
        for (history, candidates), answer in zip(asked, local.rank(asked, 5), strict=True):
            check(answer, by_torch(history, candidates, ORDERS[prefix]), 5)
            assert report_of(answer).answered_by == report.answered_by
