"""A pool that another model's entries are in: none of them is found, and scores are the own model's."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from genrec.artifact import load_config
from genrec.engine.load_ranker import kv_model, load_entry_layout, load_rank_executors
from genrec.engine.ranking import RankPlan, RankRequest
from genrec.manifest import record
from genrec.pool.pool import Pool
from genrec.settings import Settings
from tests.tiny import other_generator

KEEP, WHOLE = RankPlan("split", True, True), RankPlan("whole", False, False)


@pytest.fixture(scope="module")
def trained_again(tiny_ranker: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same shapes, other weights."""
    artifact = shutil.copytree(tiny_ranker, tmp_path_factory.mktemp("swapped") / "artifact")
    weights = artifact / "model" / "model.safetensors"
    save_file({name: 2 * each for name, each in load_file(weights).items()}, weights)
    record(artifact, "train", "again", [weights], {})
    return other_generator(artifact, 1)


def test_entries_of_other_weights_are_not_found(
    tiny_ranker: Path, trained_again: Path, tmp_path: Path
) -> None:
    config = load_config(tiny_ranker)
    layout = load_entry_layout(Settings(tiny_ranker, tmp_path), config)
    Pool.create(tmp_path / "pool", 1 << 20, 100, layout.item_bytes)
    assert kv_model(tiny_ranker) != kv_model(trained_again)
    draw = np.random.default_rng(0)
    tokens, items = (draw.integers(0, config.vocab_size, shape).astype(np.int32) for shape in (12, (5, 3)))
    asked = RankRequest(1, tokens, items, items)
    scores = []
    for artifact in (tiny_ranker, trained_again, tiny_ranker):
        (executor,) = load_rank_executors(Settings(artifact, tmp_path, pool=tmp_path / "pool"), config)
        found, reuse = executor.scores(asked, KEEP)
        want, _ = executor.scores(asked, WHOLE)
        np.testing.assert_allclose(found, want, atol=1e-5)
        scores.append((found, reuse.user, reuse.items))
    assert [(user, of_items) for _, user, of_items in scores] == [(0, 0), (0, 0), (12, 15)]
    assert np.abs(scores[0][0] - scores[1][0]).max() > 1e-3, "the same model twice"
