"""Angles of rotary positions in bf16: looked up, they are right at every position."""

import numpy as np
import openvino as ov
import pytest
from onnx import TensorProto, helper, numpy_helper
from openvino import opset13 as op
from openvino.utils.node_factory import NodeFactory

from build.openvino.causal import InBlocks
from build.openvino.graph import Graph
from build.openvino.graphs import build_openvino
from build.openvino.operations import can_be_compiled
from build.openvino.read import read_inlined
from build.openvino.rotary import BEHIND, tabulate_angles
from export.functions import bodies
from genrec.engine.instructions import chosen
from genrec.models.registry import DOMAIN
from tests.build.sets import NUMPY_TYPES, PARAMS, library_of

LONGEST = 3000
FREQUENCY = 10_000.0 ** -(np.arange(0, 16, 2, dtype=np.float32) / 16)


def exported(frequency):
    """As in the exported graphs: angles of whole positions."""
    ports = [helper.make_tensor_value_info("positions", TensorProto.INT64, ["N"])]
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("cosine", "sine")]
    node = helper.make_node("Angles", ["positions", "frequency"], ["cosine", "sine"], domain=DOMAIN)
    graph = helper.make_graph(
        [node], "angles", ports, made, [numpy_helper.from_array(frequency, "frequency")]
    )
    versions = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, functions=bodies({"Angles"}), opset_imports=versions, ir_version=10)


def worst(model):
    """Of cosines and sines of all positions, computed in bf16."""
    positions = np.arange(LONGEST + BEHIND)
    run = ov.compile_model(
        read_inlined(model, InBlocks(LONGEST)), "CPU", {"INFERENCE_PRECISION_HINT": "bf16"}
    )
    angle = positions[:, None] * FREQUENCY.astype(np.float64)
    found = run(positions)
    return max(np.abs(found[place] - truth(angle)).max() for place, truth in enumerate((np.cos, np.sin)))


def test_every_position_has_its_angle():
    graph = Graph(exported(FREQUENCY))
    tabulate_angles(graph, LONGEST)
    assert graph.runs() == {"Angles": {"table": 1}}
    assert worst(graph.replaced()) < 0.005  # 8 bits of a number up to 1


@pytest.mark.parametrize("operation", [False, True])
def test_no_graph_of_bf16_computes_angles(tiny, tmp_path, operation):
    if operation and not can_be_compiled("bf16"):
        pytest.skip("no g++, or a CPU without AVX-512")
    build_openvino(tiny / "onnx", tmp_path / "engines", "bf16", 48, operation)
    core = ov.Core()
    if operation:
        core.add_extension(str(tmp_path / "engines" / chosen(tmp_path / "engines", "bf16").library))
    for path in (tmp_path / "engines").glob("*.xml"):
        kinds = {node.get_type_name() for node in core.read_model(path).get_ops()}
        assert not kinds & {"Cos", "Sin"}, path.name


@pytest.mark.parametrize("instructions", PARAMS)
@pytest.mark.parametrize("shape", [(1, 1, 1, 2), (2, 7, 3, 6), (3, 5, 4, 64), (1, 300, 2, 32), (2, 2, 2, 72)])
@pytest.mark.parametrize("angles", ["of positions", "of requests", "of both"])
@pytest.mark.parametrize(("eps", "heads_first"), [(0.0, False), (1e-3, True)])
def test_heads_are_normed_and_turned(tmp_path, instructions, shape, angles, eps, heads_first):
    """Against float64; two requests of two positions are no riddle."""
    library, dtype = library_of(instructions, tmp_path), NUMPY_TYPES[instructions.kv_type]
    core, nodes = ov.Core(), NodeFactory()
    core.add_extension(str(library))
    nodes.add_extension(str(library))
    batch, places, heads, size = shape
    kind = getattr(ov.Type, instructions.kv_type)
    draw = np.random.default_rng(0)
    x = draw.standard_normal((batch, places, heads * size), np.float32).astype(dtype)
    weights = draw.uniform(0.5, 2, size).astype(np.float32)
    table = {"of positions": (places,), "of requests": (batch, 1), "of both": (batch, places)}[angles]
    angle = draw.uniform(0, 7, (*table, size // 2)).astype(np.float32)
    inputs = [op.parameter([-1, -1, heads * size], kind), op.parameter([size], np.float32)]
    inputs += [op.parameter([-1] * angle.ndim, np.float32) for _ in range(2)]
    node = nodes.create(
        "XRotate", [each.output(0) for each in inputs], {"eps": eps, "heads_first": heads_first}
    )
    request = core.compile_model(ov.Model([node], inputs), "CPU").create_infer_request()
    request.set_input_tensor(0, ov.Tensor(x if kind == ov.Type.f32 else x.view(np.uint16), x.shape, kind))
    for place, array in enumerate((weights, np.cos(angle), np.sin(angle)), 1):
        request.set_input_tensor(place, ov.Tensor(array))
    request.infer()
    found = request.get_output_tensor(0).data.copy().view(dtype).astype(np.float64)
    each = x.astype(np.float64).reshape(shape)
    if eps:
        each = each / np.sqrt((each**2).mean(-1, keepdims=True) + eps)
    a, b = np.split(each * weights, 2, axis=-1)
    turn = angle.astype(np.float64)[..., None, :]
    truth = np.concatenate(
        [a * np.cos(turn) - b * np.sin(turn), b * np.cos(turn) + a * np.sin(turn)], axis=-1
    )
    if heads_first:
        truth = truth.transpose(0, 2, 1, 3)
    assert found.shape == truth.shape
    close = 0.01 if instructions.kv_type == "bf16" else 1e-5
    np.testing.assert_allclose(found, truth, rtol=close / 2, atol=close)
