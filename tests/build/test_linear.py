"""Products with weights as an operation: against numpy, in graphs, and where their weights are."""

import json
from functools import cache
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op
from openvino.utils.node_factory import NodeFactory

from build.openvino.graphs import build_openvino
from build.openvino.linear import BLOCK, laid_out
from build.openvino.operations import can_be_compiled
from genrec.engine.instructions import chosen
from genrec.engine.interface import WEIGHTS
from genrec.engine.openvino_graphs import WEIGHTS_FILE, OpenVinoGraphs
from genrec.errors import ArtifactError
from tests.build.sets import NUMPY_TYPES, PARAMS, library_of

ROWS = [(1, 1), (1, 31), (2, 16), (3, 11), (1, 256), (2, 150), (1, 290)]
SHAPES = [(32, 32), (96, 64), (288, 32), (512, 160)]
BITS = {"f32": np.dtype(np.float32), "bf16": np.dtype(np.uint16)}  # of values, as tensors take them
of_this_cpu = pytest.mark.skipif(not can_be_compiled("bf16"), reason="no g++, or a CPU without AVX-512")


class Library(NamedTuple):
    """Of one instruction set; `close` is what a result may be off by, of the largest."""

    path: Path
    kv_type: str
    close: float

    def rounded(self, values):
        """To the type of values, as float32."""
        return values.astype(NUMPY_TYPES[self.kv_type]).astype(np.float32)

    def bits(self, values):
        """As a tensor takes it: on cache lines, as OpenVINO's own are."""
        kind = BITS[self.kv_type]
        room = np.empty(values.size + 64 // kind.itemsize, kind)
        start = -room.ctypes.data % 64 // kind.itemsize
        found = room[start : start + values.size].reshape(values.shape)
        found[...] = values.astype(NUMPY_TYPES[self.kv_type]).view(kind)
        return found

    @property
    def type(self):
        """OpenVINO's."""
        return getattr(ov.Type, self.kv_type)


@pytest.fixture(scope="module", params=PARAMS)
def library(request, tmp_path_factory) -> Library:
    path = library_of(request.param, tmp_path_factory.mktemp("operation"))
    return Library(path, request.param.kv_type, 0.004 if request.param.kv_type == "bf16" else 2e-6)


@pytest.fixture(scope="module", params=["f32", "bf16"])
def built(request, tiny, tmp_path_factory):
    """Engines of a type."""
    out = tmp_path_factory.mktemp("engines") / "openvino"
    build_openvino(tiny / "onnx", out, request.param, 48, operation=True)
    return out, request.param


@cache
def request_of(library, count, after, eps, wide):
    """The operation on tensors of any size."""
    core, nodes = ov.Core(), NodeFactory()
    core.add_extension(str(library.path))
    nodes.add_extension(str(library.path))
    inputs = [op.parameter(ov.PartialShape([-1] * 3), library.type) for _ in range(count)]
    how = {"after": after, "eps": eps, "wide": wide}
    model = ov.Model([nodes.create("XLinear", [each.output(0) for each in inputs], how)], inputs)
    hints = {"INFERENCE_PRECISION_HINT": library.kv_type}
    return core.compile_model(model, "CPU", hints).create_infer_request()


def run(library, after, x, weights, *added, eps=0.0):
    """The operation on float32 arrays; x [B, n, K], weights [N, K]."""
    given = [library.bits(x), laid_out(weights, library.kv_type), *map(library.bits, added)]
    request = request_of(library, len(given), after, eps, len(weights))
    for place, array in enumerate(given):
        request.set_input_tensor(place, ov.Tensor(array, array.shape, library.type))
    request.infer()
    found = request.get_output_tensor(0).data.copy()
    return found if found.dtype == np.float32 else found.view(NUMPY_TYPES["bf16"]).astype(np.float32)


def silu(x):
    return x / (1 + np.exp(-x))


@pytest.mark.parametrize("after", ["nothing", "add", "silu", "widen"])
@pytest.mark.parametrize("eps", [0.0, 0.25])
def test_it_is_the_product_and_what_surrounds_it(library, after, eps):
    for rows, (deep, wide) in product(ROWS, SHAPES):
        draw = np.random.default_rng(0)
        x, weights = (
            library.rounded(draw.standard_normal(size, np.float32)) for size in ((*rows, deep), (wide, deep))
        )
        added = [library.rounded(draw.standard_normal((*rows, wide), np.float32))] if after == "add" else []
        truth = x.astype(np.float64) @ weights.T
        if eps:
            truth /= np.sqrt((x**2).mean(-1, keepdims=True) + eps)
        if after == "add":
            truth += added[0]
        if after == "silu":
            halves = truth.reshape(*rows, -1, 2, BLOCK // 2)
            truth = (silu(halves[..., 0, :]) * halves[..., 1, :]).reshape(*rows, -1)
        found = run(library, after, x, weights, *added, eps=eps)
        close = (2e-6 if after == "widen" else library.close) * abs(truth).max()
        np.testing.assert_allclose(found, truth, rtol=0, atol=close, err_msg=f"{rows}, {deep} by {wide}")


def test_a_row_does_not_depend_on_those_beside_it(library):
    """So that an answer is the same in whatever batch it is computed."""
    draw = np.random.default_rng(1)
    x, weights = (draw.standard_normal(size, np.float32) for size in ((1, 300, 64), (96, 64)))
    whole = run(library, "silu", x, weights)
    for start, end in ((0, 1), (5, 38), (299, 300)):
        np.testing.assert_array_equal(run(library, "silu", x[:, start:end], weights), whole[:, start:end])


@pytest.mark.parametrize("after", ["nothing", "silu", "widen"])
def test_no_rows_are_none(library, after):
    found = run(library, after, np.zeros((2, 0, 64), np.float32), np.zeros((96, 64), np.float32), eps=1e-6)
    assert found.shape == (2, 0, 48 if after == "silu" else 96)


def test_silu_of_any_size_is_right_and_nan_is_not_hidden(library):
    gates = np.array([-200, -90, -20, -1, -0.0, 0, 1e-3, 1, 20, 90, 200, np.inf, np.nan, 2, 3, 4], np.float32)
    x = np.zeros((1, 16, 32), np.float32)
    x[0, :, 0], x[0, :, 1] = gates, 1
    weights = np.zeros((32, 32), np.float32)
    weights[:16, 0] = weights[16:, 1] = 1
    with np.errstate(over="ignore"):
        truth = silu(library.rounded(gates))
    truth[11] = np.nan  # inf x 0 in the same sum
    np.testing.assert_allclose(
        run(library, "silu", x, weights)[0, :, 0], truth, rtol=library.close, atol=1e-30
    )


def test_what_the_shapes_cannot_be_is_refused(library):
    nodes = NodeFactory()
    nodes.add_extension(str(library.path))

    def make(after="nothing", count=2, wide=32, kind=library.type):
        inputs = [op.parameter([1, 2, 64], kind).output(0) for _ in range(count)]
        nodes.create("XLinear", inputs, {"after": after, "eps": 0.0, "wide": wide})

    with pytest.raises(RuntimeError, match='after "add", has 2 inputs'):
        make("add")
    with pytest.raises(RuntimeError, match=f"input 0 is f16, not {library.kv_type}"):
        make(kind=ov.Type.f16)
    with pytest.raises(RuntimeError, match="wide is 48, not a multiple of 32"):
        make(wide=48)
    with pytest.raises(RuntimeError, match=r'after is "tanh", not .*"widen"'):
        make("tanh")
    count, values = (2, 1024) if library.kv_type == "bf16" else (4, 512)
    shapes = f"x is .1,2,64., weights are .1,{count // 2},{values}., not .1,{count},{values}."
    with pytest.raises(RuntimeError, match=shapes):
        run(library, "nothing", np.zeros((1, 2, 64), np.float32), np.zeros((32, 32), np.float32))


def test_rows_of_a_table(library):
    core, nodes = ov.Core(), NodeFactory()
    core.add_extension(str(library.path))
    nodes.add_extension(str(library.path))
    table, ids = library.bits(np.arange(50.0).reshape(10, 5)), np.array([[3, 0], [9, 3]], np.int32)
    inputs = [op.parameter([-1, -1], library.type), op.parameter([-1, -1], np.int32)]
    model = ov.Model([nodes.create("XRows", [each.output(0) for each in inputs], {"wide": 5})], inputs)
    request = core.compile_model(model, "CPU").create_infer_request()
    request.set_input_tensor(0, ov.Tensor(table, table.shape, library.type))
    request.set_input_tensor(1, ov.Tensor(ids))
    request.infer()
    np.testing.assert_array_equal(request.get_output_tensor(0).data.view(table.dtype), table[ids])
    for wrong in (-1, 10):
        request.set_input_tensor(1, ov.Tensor(np.array([[0, wrong]], np.int32)))
        with pytest.raises(RuntimeError, match=f"id {wrong}, the table has 10 rows"):
            request.infer()


@of_this_cpu
def test_weights_are_inputs_of_every_graph_and_once_in_the_file(tiny, built):
    """Of two layers: q, o, gate with up, down; k and v of the tiny generator have 16 columns, its heads 12."""
    core, (built, kv_type) = ov.Core(), built
    core.add_extension(str(built / chosen(built, kv_type).library))
    names = {}
    for path in built.glob("*.xml"):
        model = core.read_model(path)
        kinds = [node.get_type_name() for node in model.get_ops()]
        names[path.stem] = {port.any_name for port in model.inputs if port.any_name.startswith(WEIGHTS)}
        assert kinds.count("XLinear") == 8 and kinds.count("XRotate") == 4, path.stem
        assert kinds.count("XRows") == 1 and not {"Sigmoid", "Cos", "Sin"} & set(kinds), path.stem
        assert not any(
            node.get_byte_size() > 40_000 for node in model.get_ops() if node.get_type_name() == "Constant"
        )
    assert names["prefill"] == names["decode_2"] == names["decode_3"]
    places = json.loads((built / "engine.json").read_text())["weights"]
    assert set(places) == names["prefill"] | names["prefill_draft"]
    sizes = [BITS[kv_type].itemsize * int(np.prod(shape)) for _, shape in places.values()]
    assert sum(sizes) <= (built / WEIGHTS_FILE).stat().st_size < sum(sizes) + 64 * len(sizes)


@of_this_cpu
def test_a_file_of_other_weights_is_an_error_that_says_so(built, tmp_path):
    built, kv_type = built
    for path in built.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / WEIGHTS_FILE).write_bytes((built / WEIGHTS_FILE).read_bytes()[:-64])
    with pytest.raises(ArtifactError, match=r"weights\.bin.*other weights"):
        OpenVinoGraphs(tmp_path, kv_type, 1)
