"""Attention as an operation of OpenVINO in the graphs of an artifact, and where it cannot be had."""

import os
import shutil

import numpy as np
import openvino as ov
import pytest

from build.openvino.engines import build_engines
from build.openvino.operations import can_be_compiled, libraries
from ensembles.local import LocalRecommender
from genrec import manifest
from genrec.engine.instructions import chosen, engine_of
from genrec.engine.openvino_graphs import OpenVinoGraphs
from genrec.errors import ArtifactError
from tests.tiny import tiny_catalogue

pytestmark = pytest.mark.skipif(
    not can_be_compiled("f32"), reason="attention stays in OpenVINO's nodes: no g++ or no AVX2"
)


def test_every_layer_of_every_graph_has_it(tiny):
    """But a prefill's last, which works for one position."""
    folder = engine_of(tiny, "openvino")
    core = ov.Core()
    core.add_extension(str(folder / chosen(folder, "f32").library))
    for name, count in (("prefill", 1), ("prefill_draft", 1), ("decode_2", 2), ("decode_3", 2)):
        kinds = [node.get_type_name() for node in core.read_model(folder / f"{name}.xml").get_ops()]
        assert (kinds.count("XAttention"), kinds.count("Softmax")) == (
            count,
            1 if "prefill" in name else 0,
        ), name


@pytest.mark.parametrize("decoder", ["beam", "staged", "draft"])
def test_without_a_compiler_the_answers_are_the_same(tiny, tiny_of_nodes, decoder):
    assert chosen(engine_of(tiny_of_nodes, "openvino"), "f32") is None
    items = [int(i) for i in tiny_catalogue().item_ids]
    histories = [items[:3], items[5:9], items[20:36], items[40:43]]
    answers = []
    for artifact in (tiny, tiny_of_nodes):
        with LocalRecommender(artifact, 32, decoder=decoder) as local:
            answers.append(local.recommend(histories, 10))
    for mine, theirs in zip(*answers, strict=True):
        np.testing.assert_array_equal(mine["item_ids"], theirs["item_ids"])
        np.testing.assert_allclose(mine["scores"], theirs["scores"], atol=1e-5)


def test_a_compiler_that_fails_is_told_of_and_done_without(tiny, tmp_path, monkeypatch, capfd):
    artifact = shutil.copytree(tiny, tmp_path / "artifact")
    shutil.rmtree(artifact / "engines")
    broken = tmp_path / "bin" / "g++"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\necho no headers here >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{broken.parent}:{os.environ['PATH']}")
    libraries.cache_clear()
    assert build_engines(artifact, "f32")
    assert "attention stays in OpenVINO's own nodes" in (said := capfd.readouterr().err)
    assert "no headers here" in said
    assert (engine_of(artifact, "openvino") / "prefill.xml").is_file()
    assert chosen(engine_of(artifact, "openvino"), "f32") is None
    assert manifest.read(artifact)["openvino"]["facts"]["types"] == {"f32": "nodes"}
    assert not build_engines(artifact, "f32")


def test_a_build_that_fails_in_the_middle_leaves_the_engines_that_were(tiny, tmp_path):
    artifact = shutil.copytree(tiny, tmp_path / "artifact")
    (artifact / "engines" / "openvino.partial").mkdir()  # of one that was killed
    last = sorted((artifact / "onnx").glob("*.onnx"))[-1]
    whole = last.read_bytes()
    last.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(Exception, match="parsing"):
        build_engines(artifact, "f32")
    last.write_bytes(whole)
    manifest.verify(artifact)
    assert [path.name for path in (artifact / "engines").iterdir()] == ["openvino"]
    assert not build_engines(artifact, "f32")


def test_an_operation_that_cannot_run_here_is_an_error_that_says_so(tiny, tmp_path, monkeypatch):
    folder = tmp_path / "engines"
    shutil.copytree(engine_of(tiny, "openvino"), folder)
    (folder / chosen(folder, "f32").library).write_bytes(b"no library")
    with pytest.raises(ArtifactError, match=r"operations_.*f32\.so.*cannot load it"):
        OpenVinoGraphs(folder, "f32", 1)
    monkeypatch.setattr("genrec.engine.instructions.features", frozenset)
    with pytest.raises(ArtifactError, match="for CPUs with avx512_f32, avx2_f32"):
        OpenVinoGraphs(folder, "f32", 1)
