"""Rankings by engines in bf16: near the torch module in fp32, and the same whatever was reused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from build.openvino.engines import build_engines
from build.openvino.operations import can_be_compiled
from ensembles.local import LocalRecommender
from tests.ensembles.rankings import Scores

pytestmark = pytest.mark.skipif(not can_be_compiled("bf16"), reason="no g++, or a CPU without AVX-512")
WITHIN = 0.1  # of the range of the scores


@pytest.fixture(scope="module")
def artifact(tiny_ranker: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = shutil.copytree(tiny_ranker, tmp_path_factory.mktemp("bf16") / "artifact")
    build_engines(folder, "bf16")
    return folder


@pytest.mark.parametrize("order", ["split", "user", "item"])
def test_scores_are_near_the_module_s_and_do_not_depend_on_reuse(
    artifact: Path, by_torch: Scores, items: list[int], order: str
) -> None:
    history, candidates = items[:9], items[20:60]
    want = by_torch(history, candidates, order)
    with LocalRecommender(
        artifact, 16, decoder="rank", prefix_choice=order, pool_user_mb=1, pool_item_mb=1
    ) as local:
        found = []
        for _ in range(2):
            (answer,) = local.rank([(history, candidates)], len(candidates), user_id=1)
            assert isinstance(answer, dict)
            found.append(dict(zip(answer["item_ids"][0].tolist(), answer["scores"][0].tolist(), strict=True)))
    spread = max(want.values()) - min(want.values())
    assert found[0] == pytest.approx(want, abs=WITHIN * spread)
    assert found[1] == pytest.approx(found[0], abs=1e-6)
    assert any(abs(found[0][item] - want[item]) > 1e-5 for item in want), "this is fp32"
