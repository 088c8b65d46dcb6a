"""A model that another process trains while it is exported."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from export import generator as writer
from genrec.artifact import load_config
from genrec.errors import ArtifactError
from genrec.manifest import outdated, read, record
from genrec.nn.checkpoint import WEIGHTS, load_generator, save_generator
from genrec.rank.hstu import CONFIG, HstuConfig
from genrec.rank.options import OPTIONS, RankerConfig
from genrec.settings import Settings
from genrec.steps.rank_lookup import RankLookup
from tests.oracles.hstu_further import changed_further


@pytest.fixture
def artifact(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Whose model is another than the one that was exported; graphs are nothing to these tests."""
    copied = Path(shutil.copytree(tiny, tmp_path / "artifact"))
    monkeypatch.setattr(writer, "_export_all", lambda *_: None)
    train(copied)
    return copied


def train(artifact: Path) -> None:
    generator = load_generator(artifact / "model")
    with torch.no_grad():
        generator.norm.weight.add_(1)
    save_generator(generator, artifact / "model")
    record(artifact, "train", "anew", [artifact / "model" / WEIGHTS], {})


def test_graphs_of_two_models_are_none(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is traced by a process of its own, which reads the weights when its turn comes."""
    before, graphs = read(artifact)["export"], sorted((artifact / "onnx").iterdir())
    monkeypatch.setattr(writer, "_export_all", lambda *_: train(artifact))
    with pytest.raises(ArtifactError, match=rf"{WEIGHTS}: was made anew by another process meanwhile"):
        writer.export_artifact(artifact)
    assert read(artifact)["export"] == before and sorted((artifact / "onnx").iterdir()) == graphs


def test_a_model_of_after_the_export_is_told_of(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exports = writer.export_generator

    def trained_then(*given: Path) -> None:
        exports(*given)
        train(artifact)

    monkeypatch.setattr(writer, "export_generator", trained_then)
    assert writer.export_artifact(artifact)
    assert f"is of an earlier model/{WEIGHTS}: `genrec export {artifact}`" in outdated(artifact)


def test_an_hstu_ranker_that_no_delta_can_become_is_told_of(
    tiny_hstu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = Path(shutil.copytree(tiny_hstu, tmp_path / "artifact"))
    monkeypatch.setattr(writer, "_export_all", lambda *_: None)
    assert writer.export_artifact(copied)
    changed_further(copied, 1)
    assert not outdated(copied), "deltas follow what it learns"
    path = copied / "model" / CONFIG
    replace(HstuConfig.load(path), tasks=(3,)).save(path)
    record(copied, "hstu", "anew", [path], {})
    assert f"is of an earlier model/{CONFIG}: `genrec export {copied}`" in outdated(copied)


def test_models_are_served_as_they_were_exported(
    tiny_ranker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one that was trained anew, with other orders or another length, a server that came back took the options."""
    artifact = Path(shutil.copytree(tiny_ranker, tmp_path / "artifact"))
    monkeypatch.setattr(writer, "_export_all", lambda *_: None)
    writer.export_generator(artifact / "model", artifact / "onnx")
    was = RankerConfig.load(artifact / "model" / OPTIONS)
    (anew := replace(was, order="item", generator_weight=7.0)).save(artifact / "model" / OPTIONS)
    shape = load_config(artifact)
    replace(shape, max_history=shape.max_history + 1).save(artifact / "model" / "config.json")
    assert load_config(artifact, "openvino") == load_config(artifact, "tensorrt") == shape
    assert load_config(artifact, "cuda") == load_config(artifact) != shape
    assert RankerConfig.of(artifact, "openvino") == RankerConfig.of(artifact, "tensorrt") == was
    assert RankerConfig.of(artifact, "cuda") == anew, "whose weights are those of model/"
    lookup = RankLookup(Settings(artifact, tmp_path / "arena"))
    assert lookup._together(np.zeros(1, np.float32), np.ones(1, np.float32)) == was.generator_weight
