"""ONNX on its way to TensorRT: typed, with the ensemble's inputs, through TensorRT for RTX where installed."""

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import openvino as ov
import pytest
from onnx import TensorProto, inliner
from openvino.preprocess import PrePostProcessor

from build.openvino.causal import InBlocks
from build.openvino.read import read_inlined
from build.tensorrt.profiles import axes, profile
from build.tensorrt.ranker import RANK
from build.tensorrt.rtx import build_ahead_of_time, rtx_libraries
from build.tensorrt.served_onnx import served
from build.tensorrt.typed_onnx import TYPES, typed
from genrec.models.config import ModelConfig
from genrec.nn.xattention import shared_names, unshared_names

TOLERANCE = {"f32": 1e-4, "f16": 0.02, "bf16": 0.15}  # of logits of a few units
GRAPHS = ("prefill", "decode_2", "decode_3", "prefill_draft")


@pytest.fixture(scope="module")
def config(tiny):
    return ModelConfig.load(tiny / "model" / "config.json")


def load(tiny, name):
    return onnx.load(tiny / "onnx" / f"{name}.onnx")


def feeds(name, config):
    """Inputs of an exported graph: 2 requests, 7 prompt tokens, 5 beams."""
    draw, lengths = np.random.default_rng(5), np.array([7, 4])
    if name.startswith("prefill"):
        tokens = draw.integers(0, 36, (2, 7))
        if name == "prefill_draft":
            tokens = with_placeholders(tokens, lengths)
        return {"tokens": tokens, "prompt_length": lengths}
    out = {"codes": draw.integers(0, 12, (2, 5)), "prompt_length": lengths}
    for shared in shared_names(config):
        out[shared] = draw.standard_normal((2, 2, 7, 8)).astype(np.float32)
    for port in unshared_names(config, int(name[-1])):
        out[port] = draw.standard_normal((2, 5, 2, 8)).astype(np.float32)
    return out


def with_placeholders(tokens, lengths):
    """As `genrec.steps.prefill_draft` puts them: 36, 37, 38 after each prompt of a vocabulary of 36."""
    padded = np.pad(tokens, ((0, 0), (0, 3)))
    for row, length in zip(padded, lengths, strict=True):
        row[length : length + 3] = [36, 37, 38]
    return padded


def run(model, inputs):
    """Outputs by name through ONNX Runtime."""
    kinds = {p.name: p.type.tensor_type.elem_type for p in model.graph.input}
    session = onnxruntime.InferenceSession(model.SerializeToString())
    typed_inputs = {n: x.astype(onnx.helper.tensor_dtype_to_np_dtype(kinds[n])) for n, x in inputs.items()}
    return dict(zip([p.name for p in model.graph.output], session.run(None, typed_inputs), strict=True))


def run_bf16(model, inputs):
    """The same through OpenVINO: ONNX Runtime computes no bf16 on CPUs. Tensors from and to us are float32."""
    graph = read_inlined(model, InBlocks(1))
    process = PrePostProcessor(graph)
    for ports, side in ((graph.inputs, process.input), (graph.outputs, process.output)):
        for port in ports:
            if port.element_type == ov.Type.bf16:
                side(port.any_name).tensor().set_element_type(ov.Type.f32)
    compiled = ov.Core().compile_model(process.build(), "CPU", {"INFERENCE_NUM_THREADS": 1})
    answer = compiled(inputs)
    return {port.any_name: answer[port] for port in compiled.outputs}


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("name", GRAPHS)
def test_a_typed_graph_computes_the_same(tiny, config, name, kind):
    model, inputs = load(tiny, name), feeds(name, config)
    want, narrow = run(model, inputs), typed(model, kind)
    got = run_bf16(narrow, inputs) if kind == "bf16" else run(narrow, inputs)
    for output, values in want.items():
        assert np.abs(got[output].astype(np.float32) - values).max() < TOLERANCE[kind], output
    assert got["states" if name == "prefill_draft" else "logits"].dtype == np.float32


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("name", GRAPHS)
def test_types_are_strong(tiny, name, kind):
    """No node mixes types, KV is narrow, and what needs float32 has it."""
    model = typed(load(tiny, name), kind)
    onnx.checker.check_model(model, full_check=False)
    inlined = onnx.shape_inference.infer_shapes(inliner.inline_local_functions(model), strict_mode=True)
    known = {
        v.name: v.type.tensor_type.elem_type
        for v in (*inlined.graph.value_info, *inlined.graph.output, *inlined.graph.input)
    }
    kv = {k for n, k in known.items() if n.startswith(("shared_", "new_unshared_", "unshared_"))}
    assert kv == (set() if name == "prefill_draft" else {TYPES[kind]})
    for node in model.graph.node:
        if node.op_type in ("Cos", "Sin", "ReduceMean", "Sqrt"):
            assert known[node.output[0]] == TensorProto.FLOAT
        if node.op_type == "MatMul":
            assert known[node.output[0]] == TYPES[kind]


@pytest.mark.parametrize("name", GRAPHS)
def test_served_inputs_are_what_the_ensemble_has(tiny, config, name):
    model, plain = load(tiny, name), feeds(name, config)
    want = run(model, plain)
    inputs = {k: v for k, v in plain.items() if k.startswith("shared_")}
    inputs["ticket"] = np.array([[10, n, 0, 0, 0, 0] for n in plain["prompt_length"]])
    if name.startswith("prefill"):
        # What placeholders stood on is padding
        inputs["prompt"] = plain["tokens"][:, :7].astype(np.int32) % 36
    else:
        inputs["paths"] = 12 * 3 + plain["codes"]
    if name == "decode_3":  # six beams before, in an order whose parents give back the five of `plain`
        parents = np.array([[0, 2, 2, 4, 5], [1, 1, 3, 4, 0]])
        inputs["parents"] = parents.astype(np.int32)
        for port in unshared_names(config, 3):
            before = np.full((2, 6, 2, 8), np.nan, np.float32)
            chosen = before[np.arange(2)[:, None], parents]
            rows = np.random.default_rng(1).standard_normal((2, 6, 2, 8)).astype(np.float32)
            inputs[f"before_{port}"] = rows
            plain[port] = rows[np.arange(2)[:, None], parents]
            assert chosen.shape == plain[port].shape
        want = run(model, plain)
    got = run(served(model, name, config), inputs)
    for output, values in want.items():
        wanted = values.reshape(2, -1) if output == "states" else values
        assert got[output].shape == wanted.shape and np.allclose(got[output], wanted, atol=1e-5), output


def test_numbers_from_outside_are_brought_into_range(tiny, config):
    """A plan has no errors to answer with: a stranger's numbers must not read outside a table."""
    for name, output in (("prefill", "logits"), ("prefill_draft", "states")):
        model = served(load(tiny, name), name, config)
        answers = []
        for length in (0, 1, 3, 99, -7):
            ticket = np.array([[1, length, 0, 0, 0, 0]])
            answers.append(
                run(model, {"prompt": np.array([[-5, 99999, 3]], np.int32), "ticket": ticket})[output]
            )
            assert np.isfinite(answers[-1]).all()
        for of, as_of in ((0, 1), (3, 2), (4, 1)):  # a length out of range is the nearest one
            assert np.array_equal(answers[of], answers[as_of])
        assert not np.allclose(answers[1], answers[2])
    model = served(load(tiny, "decode_3"), "decode_3", config)
    inputs = {k: v[:1] for k, v in feeds("decode_3", config).items() if k.startswith("shared_")}
    inputs |= {f"before_{p}": np.ones((1, 4, 2, 8), np.float32) for p in unshared_names(config, 3)}
    inputs |= {
        "ticket": np.array([[1, 7, 0, 0, 0, 0]]),
        "paths": np.array([[-3, 2**62]]),
        "parents": np.array([[-1, 4]], np.int32),
    }
    assert np.isfinite(run(model, inputs)["logits"]).all()


def test_a_level_before_the_last_gives_its_past_on(tiny, config):
    """With a fourth level, level 3 must hand over the token of level 2 in its own beams' order."""
    four = replace(config, codebook_sizes=(12,) * 4, vocab_size=48, code_offsets=())
    model = served(load(tiny, "decode_3"), "decode_3", four)
    rows, parents = (
        np.random.default_rng(0).standard_normal((1, 4, 2, 8)).astype(np.float32),
        np.array([[3, 3, 0]], np.int32),
    )
    inputs = {n: np.ones((1, 2, 6, 8), np.float32) for n in shared_names(four)}
    inputs |= {f"before_{n}": rows for n in unshared_names(four, 3)}
    inputs |= {
        "ticket": np.array([[1, 6, 0, 0, 0, 0]]),
        "paths": np.array([[1, 2, 3]]),
        "parents": parents,
    }
    got = run(model, inputs)
    assert {f"kept_{n}" for n in unshared_names(four, 3)} <= set(got)
    assert np.array_equal(got["kept_unshared_k_0_0"], rows[:, [3, 3, 0]])


def test_profiles_cover_what_the_ensemble_sends(tiny, config):
    table = axes(config)
    assert all(low <= usual <= high for low, usual, high in table.values())
    for name in GRAPHS:
        model = served(load(tiny, name), name, config)
        shapes = profile(model, config)
        assert set(shapes) == {p.name for p in model.graph.input}
        assert shapes["ticket"] == [[1, 6], [1, 6], [8, 6]]


@pytest.mark.skipif(rtx_libraries() is None, reason="the extra `rtx` (tensorrt-rtx-cu13) is not installed")
@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("name", [*GRAPHS, RANK])
def test_tensorrt_rtx_ahead_of_time_build(tiny_ranker, config, tmp_path, name, kind):
    """Not Hopper, not executed: a TensorRT front end takes the graph, the plugin and the profile."""
    facts = build_ahead_of_time(tiny_ranker, name, config, kind, tmp_path / "plan")
    assert facts["plugin_layers"] == (0 if name.startswith("prefill") else config.num_hidden_layers)
    assert facts["bytes"] == (tmp_path / "plan").stat().st_size > 0
    kinds = {"f32": "DataType.FLOAT", "f16": "DataType.HALF", "bf16": "DataType.BF16"}
    wide = {"prefill_draft": "states", RANK: "scores"}.get(name, "logits")
    narrow = {v for k, v in facts["outputs"].items() if k != wide}
    assert narrow <= {kinds[kind]} and facts["outputs"][wide] == "DataType.FLOAT"
