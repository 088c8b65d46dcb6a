"""Functions replaced by name: what runs as what is written down, and a graph that lacks one is refused."""

import json
import shutil
import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import inliner
from torch.export import Dim

from build.functions import calls, inlined, load
from build.openvino.graphs import build_openvino
from build.openvino.operations import can_be_compiled
from export.graph import Traced, write
from genrec.engine.openvino_graphs import OpenVinoGraphs
from genrec.errors import ArtifactError
from genrec.models.registry import DOMAIN
from genrec.nn import functions

# Of the tiny generator. No product of ours takes its KV heads, of 16 columns, or its codebooks, of 12.
LAYERS = 2
WAYS = [("f32", False), ("f32", True), ("bf16", False), ("bf16", True)]
NORMS, PRODUCTS = {"XLinear": 2, "nodes": 3}, {"XLinear": 2, "nodes": 5}


def of_decode(ours):
    """What runs each function of the tiny generator's decodes."""
    return {
        "AddLinear": {"XLinear" if ours else "nodes": 2 * LAYERS},
        "Angles": {"table": 1},
        "Linear": PRODUCTS if ours else {"nodes": 3 * LAYERS + 1},
        "NormRotate": {"XRotate" if ours else "nodes": 2 * LAYERS},
        "RMSNorm": NORMS if ours else {"nodes": 2 * LAYERS + 1},
        "Rows": {"XRows" if ours else "nodes": 1},
        "SwiGLU": {"XLinear" if ours else "nodes": LAYERS},
        "XAttention": {"XAttention" if ours else "nodes": LAYERS},
    }


@pytest.mark.parametrize(("kv_type", "operation"), WAYS)
def test_engine_json_says_what_runs_as_what(tiny, tmp_path, kv_type, operation):
    if operation and not can_be_compiled(kv_type):
        pytest.skip(f"no g++, or a CPU without instructions for {kv_type}")
    build_openvino(tiny / "onnx", tmp_path / "engines", kv_type, 48, operation)
    runs = json.loads((tmp_path / "engines" / "engine.json").read_text())["runs"]
    passes = {"prefill", "resume", "prefill_draft", "resume_draft", "decode_2", "decode_3"}
    assert set(runs) == passes | ({"decode_all"} if operation else set())
    assert runs["decode_2"] == runs["decode_3"] == of_decode(operation)
    assert runs["prefill"]["CausalAttention"] == {"XAttention" if operation else "nodes": LAYERS - 1}
    for name in ("resume", "resume_draft"):
        assert runs[name]["PastAttention"] == {"XPast" if operation else "nodes": LAYERS}
    for name, found in runs.items():
        assert {function: sum(by.values()) for function, by in found.items()} == calls(
            load(tiny / "onnx" / f"{name}.onnx")
        )


def without(path, function):
    """Write the graph again, with one function inlined where it is called."""
    model = inliner.inline_selected_functions(onnx.load(path), [(DOMAIN, function)])
    onnx.save(model, path)


@pytest.mark.parametrize(
    ("name", "function", "count"), [("decode_2", "RMSNorm", 5), ("prefill", "CausalAttention", 1)]
)
def test_a_graph_without_a_function_is_refused_by_name(tiny, tmp_path, name, function, count):
    folder = shutil.copytree(tiny / "onnx", tmp_path / "onnx")
    without(folder / f"{name}.onnx", function)
    says = rf"{name}\.onnx.*calls the function {function} 0 times, its model implies {count}"
    with pytest.raises(ArtifactError, match=says):
        build_openvino(folder, tmp_path / "engines", "f32", 48, operation=False)


def test_a_graph_that_does_not_say_what_it_calls_is_refused(tiny, tmp_path):
    model = onnx.load(tiny / "onnx" / "decode_2.onnx")
    del model.metadata_props[:]
    onnx.save(model, tmp_path / "decode_2.onnx")
    with pytest.raises(ArtifactError, match=r"decode_2\.onnx.*does not say which functions it calls"):
        load(tmp_path / "decode_2.onnx")


def test_inlining_keeps_what_it_is_told_to_and_the_answers(tiny):
    model = load(tiny / "onnx" / "prefill.onnx")
    whole, part = inlined(model), inlined(model, ["SwiGLU"])
    assert not calls(whole) and calls(part) == {"SwiGLU": LAYERS}
    assert "Constant" not in {node.op_type for node in whole.graph.node}
    feeds = {"tokens": np.array([[1, 13, 25]]), "prompt_length": np.array([3])}
    want, *others = (
        onnxruntime.InferenceSession(each.SerializeToString()).run(None, feeds)[0]
        for each in (model, whole, part)
    )
    for each in others:
        np.testing.assert_allclose(each, want, atol=1e-6)


class Stranger(torch.nn.Module):
    """A model that `build` has never seen, made of the same functions: one layer, norms after what they follow."""

    def __init__(self, size=64, heads=4):
        super().__init__()
        torch.manual_seed(5)
        self.heads = heads
        self.table = torch.nn.Parameter(torch.randn(50, size))
        self.squares = torch.nn.ParameterList(torch.randn(size, size) / size**0.5 for _ in range(7))
        self.norm = torch.nn.Parameter(torch.rand(size) + 0.5)

    def forward(self, tokens):
        """[B, S] -> [B, S, size]."""
        q, k, v, out, gate, up, down = self.squares
        keep, x = torch.nn.Identity(), functions.rows(self.table, tokens)
        tables = functions.rotary(torch.arange(tokens.shape[1]), 16, 100.0)
        queries, keys = (functions.rotated_heads(functions.linear(x, each), 16, *tables) for each in (q, k))
        values = functions.linear(x, v).unflatten(-1, (self.heads, 16))
        x = functions.add_linear(x, functions.causal_attention(queries, keys, values).flatten(-2), out, keep)
        x = functions.rms_norm(x, self.norm, 1e-5)
        return functions.rms_norm(
            functions.add_linear(x, functions.swiglu(x, gate, up), down, keep), self.norm, 1e-5
        )


COUNTS = {
    "Rows": 1, "Angles": 1, "Linear": 3, "Rotate": 2, "CausalAttention": 1, "AddLinear": 2, "RMSNorm": 2, "SwiGLU": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stranger")
    tokens = torch.zeros(2, 5, dtype=torch.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own, about names of axes
        axes = ({0: Dim("B", max=9), 1: Dim("S", max=40)},)
        write(Traced(Stranger(), (tokens,), axes, ["tokens"], ["states"]), COUNTS, folder / "stranger.onnx")
    return folder


@pytest.mark.parametrize(("kv_type", "operation"), WAYS)
def test_a_model_of_another_shape_needs_nothing_here(stranger, tmp_path, kv_type, operation):
    if operation and not can_be_compiled(kv_type):
        pytest.skip(f"no g++, or a CPU without instructions for {kv_type}")
    build_openvino(stranger, tmp_path / "engines", kv_type, 40, operation)
    tokens = np.random.default_rng(0).integers(0, 50, (3, 17))
    graphs = OpenVinoGraphs(tmp_path / "engines", kv_type, 1, cache=False)  # holds the weights
    (got,) = graphs.new_request("stranger").infer("stranger", [tokens], [None])
    with torch.no_grad():
        want = Stranger()(torch.from_numpy(tokens)).numpy()
    np.testing.assert_allclose(got, want, atol=2e-5 if kv_type == "f32" else 0.1)
    runs = json.loads((tmp_path / "engines" / "engine.json").read_text())["runs"]["stranger"]
    if operation:
        others = {name: by for name, by in runs.items() if by.keys() & {"nodes"}}
        assert others == {"RMSNorm": {"nodes": 2}}  # of sums that a residual reads too
