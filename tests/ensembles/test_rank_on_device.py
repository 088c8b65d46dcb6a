"""What target `cuda` keeps of users on its device, on CPU tensors."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from build.cuda.engines import build_engines as build_cuda
from ensembles.local import LocalRecommender
from genrec.engine.cuda.kept import KeptUsers
from genrec.steps.encode_candidates import EncodeCandidates
from tests.ensembles.rankings import Scores, check
from tests.ensembles.test_forgotten import USER, forget_behind


def test_of_a_user_who_is_forgotten_nothing_stays(
    tiny_ranker: Path, tmp_path: Path, by_torch: Scores, items: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither of what was there nor of the request on its way."""
    artifact, made = shutil.copytree(tiny_ranker, tmp_path / "artifact"), list[KeptUsers]()
    build_cuda(artifact, "f32", "cpu")
    real = KeptUsers.__init__

    def init(self: KeptUsers, *given: Any) -> None:
        made.append(self)
        real(self, *given)

    monkeypatch.setattr(KeptUsers, "__init__", init)
    sizes: dict[str, Any] = {"pool_user_mb": 1, "pool_item_mb": 1, "decoder": "rank"}
    with LocalRecommender(artifact, 16, target="cuda", **sizes) as local:
        (kept,) = made

        def rank(user: int) -> None:
            (answer,) = local.rank([(items[:5], items[20:40])], 5, user_id=user)
            check(answer, by_torch(items[:5], items[20:40]), 5)

        for user, there in ((USER, 1), (USER + 1, 2), (USER, 2)):
            rank(user)
            assert len(kept._kept) == there
        with monkeypatch.context() as patch:
            forget_behind(EncodeCandidates, local, patch)
            rank(USER)
        assert not kept._kept
        rank(USER + 1)
        assert len(kept._kept) == 1
