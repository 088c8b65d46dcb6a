"""Rankers whose discriminant tokens see a user's newest tokens alone, or have fewer layers: exported and built, each is
the module still.
"""  # fmt: skip

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from build.openvino.engines import build_engines
from ensembles.local import LocalRecommender
from genrec.catalogue.items import Catalogue
from genrec.nn.ranker_checkpoint import load_ranker
from genrec.rank.options import RankerConfig
from tests.tiny import add_ranker, export_ranker

REACH = 8


BOTH, LONG = {"reach": REACH, "layers": 1}, pytest.mark.long


@pytest.fixture(
    scope="module",
    params=[BOTH, *(pytest.param({name: each}, marks=LONG) for name, each in BOTH.items())],
    ids=str,
)
def artifact(request: pytest.FixtureRequest, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of these rankers, for all orders."""
    folder = shutil.copytree(tiny, tmp_path_factory.mktemp("reach") / "artifact")
    add_ranker(folder, RankerConfig(True, "all", 3, **request.param))
    export_ranker(folder)
    build_engines(folder, "f32")
    return folder


@pytest.mark.parametrize("order", ["split", "user", "item"])
@torch.no_grad()
def test_answers_are_the_module_s(artifact: Path, items: list[int], order: str) -> None:
    """Of histories shorter and longer than the reach, computed and from the pool."""
    ranker, catalogue = load_ranker(artifact / "model"), Catalogue.load(artifact / "catalogue.parquet")
    codes = torch.from_numpy(catalogue.codes).long() + torch.tensor(ranker.config.code_offsets)
    candidates = items[100:140]
    of_items = codes[catalogue.rows_of(candidates)][None]
    sizes = {"pool_user_mb": 1, "pool_item_mb": 1}
    with LocalRecommender(artifact, 16, decoder="rank", prefix_choice=order, **sizes) as local:
        for count in (2, 3, 9):
            user = codes[catalogue.rows_of(items[:count])].reshape(1, -1)
            found = ranker(user, torch.tensor([user.shape[1]]), of_items, of_items, order)[0]
            want = dict(zip(candidates, found.tolist(), strict=True))
            for _ in range(2):
                (answer,) = local.rank([(items[:count], candidates)], len(candidates), user_id=1)
                got = dict(zip(answer["item_ids"][0].tolist(), answer["scores"][0].tolist(), strict=True))
                assert got == pytest.approx(want, abs=1e-4)
