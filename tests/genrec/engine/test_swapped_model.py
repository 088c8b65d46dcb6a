"""A pool that another model's entries are in: none of them is found, and scores are the own model's."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from build.openvino.engines import build_engines
from genrec.artifact import load_config
from genrec.engine.load_ranker import kv_model, load_entry_layout, load_rank_executors
from genrec.engine.ranking import RankPlan, RankRequest
from genrec.manifest import OF, digest_file, outdated, record
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
    assert kv_model(Settings(tiny_ranker, tmp_path)) != kv_model(Settings(trained_again, tmp_path))
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


def exported(artifact: Path) -> None:
    """As `genrec export` leaves it, of the weights that are there; graphs need not be theirs here."""
    sha = digest_file(artifact / "model" / "model.safetensors")
    (artifact / "onnx" / "of").write_text(sha)
    record(artifact, "export", sha, (artifact / "onnx").iterdir(), {OF: {"model/model.safetensors": sha}})


def test_entries_are_named_by_what_the_engines_are_of(tiny_ranker: Path, tmp_path: Path) -> None:
    """Weights that were trained after the engines were built make no KV yet: a later build's must not find any."""
    artifact = shutil.copytree(tiny_ranker, tmp_path / "artifact")
    settings, weights = Settings(artifact, tmp_path), artifact / "model" / "model.safetensors"
    exported(artifact)
    build_engines(artifact, "f32")
    names, said = [kv_model(settings)], [outdated(artifact)]
    assert names == [digest_file(weights)]
    save_file({name: 2 * each for name, each in load_file(weights).items()}, weights)
    record(artifact, "train", "again", [weights], {})
    for make in (lambda: None, lambda: exported(artifact), lambda: build_engines(artifact, "f32")):
        make()
        names.append(kv_model(settings))
        said.append(outdated(artifact).rpartition(": ")[2])
    assert names == [names[0]] * 3 + [digest_file(weights)] and names[0] != names[-1]
    built = f"`genrec build {artifact}`"
    both = f"`genrec export {artifact}` and {built} make it anew"
    assert said == ["", both, f"{built} makes it anew", ""]
    cuda = replace(settings, target="cuda")  # which reads the weights themselves
    assert kv_model(cuda) == digest_file(weights)
