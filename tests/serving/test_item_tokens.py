"""Items with tokens of their own, such as titles', in histories and as candidates: served, they score as torch's."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from build.catalogue import add_items, remove_items
from build.openvino.engines import build_engines
from clients.ranker import Ranker
from deploy.switch import switch
from ensembles.local import LocalRecommender
from genrec.catalogue.items import Catalogue
from genrec.catalogue.versions import folder_of
from genrec.errors import ArtifactError
from genrec.nn.ranker_checkpoint import load_ranker
from genrec.rank.item_tokens import item_tokens, save_item_tokens
from genrec.rank.options import RankerConfig
from tests.serving.servers import brief_server
from tests.tiny import add_ranker, export_ranker

TOKENS = 5  # of an item; its semantic ID has 3


@pytest.fixture(scope="module")
def titled(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    artifact = shutil.copytree(tiny, tmp_path_factory.mktemp("titled") / "artifact")
    save_item_tokens(artifact, np.random.default_rng(0).integers(0, 36, (300, TOKENS)).astype(np.int32))
    add_ranker(artifact, RankerConfig(False, "all", TOKENS, history="tokens"))
    export_ranker(artifact)
    build_engines(artifact, "f32")
    return artifact


@torch.no_grad()
def by_torch(
    artifact: Path, history: list[int], candidates: list[int], order: str, version: int = 1
) -> dict[int, float]:
    ranker, folder = load_ranker(artifact / "model"), folder_of(artifact, version)
    catalogue = Catalogue.load(folder / "catalogue.parquet")
    tokens = torch.from_numpy(item_tokens(folder, catalogue, ranker.config)).long()
    codes = torch.from_numpy(catalogue.codes + np.array(ranker.config.code_offsets)).long()
    user, rows = tokens[catalogue.rows_of(history)].reshape(1, -1), catalogue.rows_of(candidates)
    found = ranker(user, torch.tensor([user.shape[1]]), tokens[rows][None], codes[rows][None], order)[0]
    return dict(zip(candidates, found.tolist(), strict=True))


@pytest.mark.parametrize("order", ["split", "user", "item"])
def test_the_longest_history_scores_as_torch_s_and_is_reused_by_items(
    titled: Path, items: list[int], order: str
) -> None:
    """16 items of 5 tokens: more than the generator's longest prompt, 16 of 3."""
    history, candidates = items[:16], items[30:60]
    with LocalRecommender(
        titled, 16, decoder="rank", pool_user_mb=1, pool_item_mb=1, prefix_choice=order
    ) as local:
        for start, reused in ((15, 0), (16, 15 * TOKENS), (16, 16 * TOKENS)):
            (answer,) = local.rank([(history[:start], candidates)], 30, user_id=7)
            assert isinstance(answer, dict), answer
            want = by_torch(titled, history[:start], candidates, order)
            found = dict(zip(answer["item_ids"][0].tolist(), answer["scores"][0].tolist(), strict=True))
            assert found == pytest.approx(want, abs=1e-4)
            assert answer["report"][0][4] == (0 if order == "item" else reused), "tokens of the user"


@pytest.mark.serving
def test_a_real_server_answers_the_same(titled: Path, items: list[int]) -> None:
    history, candidates = items[40:56], items[60:90]
    want = by_torch(titled, history, candidates, "split")
    ensembles = ("rank", "recommend_and_rank")
    with (
        brief_server(titled, beam_width=16, ensembles=ensembles) as server,
        Ranker(server.grpc_url) as ranker,
    ):
        for reused in (0, 16 * TOKENS):
            answer = ranker.rank(history, candidates, 30, user_id=3)
            assert answer.user_reused == reused
            found = dict(zip(answer.item_ids.tolist(), answer.scores.tolist(), strict=True))
            assert found == pytest.approx(want, abs=1e-4)
        both = ranker.recommend_and_rank(history, retrieve=12, top_k=5, user_id=4)
        assert len(set(both.item_ids.tolist())) == 5 and both.user_reused == 0, "read in other tokens"


@pytest.mark.serving
@pytest.mark.long
def test_a_swap_takes_the_tokens_along(titled: Path, items: list[int], tmp_path: Path) -> None:
    """Rows move, and a new item has tokens of its own; a real server ranks over the new versions."""
    artifact = shutil.copytree(titled, tmp_path / "artifact")
    new = tmp_path / "new.csv"
    new.write_text("item,title,code_1,code_2,code_3,token_1,token_2,token_3,token_4,token_5\n"
                   "999999,new,1,2,3,35,7,0,21,14\n")  # fmt: skip
    assert (remove_items(artifact, np.array(items[10:70:3])), add_items(artifact, new)) == (2, 3)
    history, candidates = items[41:56:3], [*items[71:99], 999_999]
    with (
        brief_server(artifact, beam_width=16, ensembles=("rank",)) as server,
        Ranker(server.grpc_url) as ranker,
    ):
        for version in (1, 2, 3):
            switch(artifact, version)
            answer = ranker.rank(history, candidates, 30, user_id=5)
            known = candidates if version == 3 else candidates[:-1]
            want = by_torch(artifact, history, known, "split", version)
            found = dict(zip(answer.item_ids.tolist(), answer.scores.tolist(), strict=True))
            assert answer.catalogue_version == version
            assert found == pytest.approx(want, abs=1e-4)


def test_a_table_of_another_width_than_the_ranker_s_is_refused(titled: Path, tmp_path: Path) -> None:
    artifact = shutil.copytree(titled, tmp_path / "artifact")
    save_item_tokens(artifact, np.zeros((300, TOKENS + 1), np.int32))
    with pytest.raises(ArtifactError, match=f"has {TOKENS + 1} tokens an item; .* trained on {TOKENS}"):
        LocalRecommender(artifact, 16, decoder="rank")
