"""Causal attention in blocks of queries equals the whole graph, as ONNX Runtime runs it."""

import warnings

import numpy as np
import onnxruntime
import openvino as ov
import pytest
import torch

from build.functions import load
from build.openvino.causal import QUERIES, InBlocks
from build.openvino.graphs import build_openvino
from build.openvino.read import read_inlined
from export.decoder import export_graph
from genrec.engine.instructions import engine_of
from genrec.models.config import ModelConfig
from genrec.nn.model import Generator

LONGEST = 30


@pytest.fixture(scope="module")
def prefill(tmp_path_factory):
    """prefill.onnx of three layers: two of them work for every position."""
    torch.manual_seed(2)
    config = ModelConfig((9, 9, 9), 10, hidden_size=32, num_hidden_layers=3, head_dim=8, intermediate_size=48)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own, about names of axes
        return export_graph(Generator(config).eval(), "prefill", tmp_path_factory.mktemp("causal"))


def softmaxes(model: ov.Model) -> int:
    return sum(node.get_type_name() == "Softmax" for node in model.get_ops())


@pytest.mark.parametrize(("queries", "blocks"), [(4, 8), (7, 5), (29, 2), (30, 1), (64, 1)])
def test_blocks_equal_the_whole_whatever_the_prompt(prefill, queries, blocks):
    model = read_inlined(load(prefill), InBlocks(LONGEST, queries))
    assert softmaxes(model) == 2 * blocks + 1
    request = ov.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}).create_infer_request()
    truth = onnxruntime.InferenceSession(prefill)
    draw = np.random.default_rng(0)
    for rows, span in ((1, 1), (2, 30), (1, 4), (3, 8), (1, 7), (2, 29), (1, 3), (2, 30)):
        tokens, lengths = draw.integers(0, 27, (rows, span)), draw.integers(1, span + 1, rows)
        want = truth.run(None, {"tokens": tokens, "prompt_length": lengths})
        got = request.infer([tokens, lengths])
        for number, each in enumerate(want):
            np.testing.assert_allclose(got[number], each, atol=2e-5)


def test_what_is_built_for_long_prompts_is_in_blocks(tiny, tiny_of_nodes, tmp_path):
    build_openvino(tiny / "onnx", tmp_path / "engines", "f32", 2 * QUERIES + 1, operation=False)
    for name in ("prefill", "prefill_draft"):
        assert softmaxes(ov.Core().read_model(tmp_path / "engines" / f"{name}.xml")) == 4
    assert softmaxes(ov.Core().read_model(engine_of(tiny_of_nodes, "openvino") / "prefill.xml")) == 2
