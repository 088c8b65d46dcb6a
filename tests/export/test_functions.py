"""Functions by name: each body in ONNX equals the function in torch, and graphs have as many as their models imply."""

import json
import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper
from torch.export import Dim

from export.functions import BODIES, CALLS, bodies
from export.graph import Traced, write
from export.names import OPSET
from genrec.errors import ArtifactError
from genrec.models.registry import DOMAIN, FAMILIES, FUNCTIONS, config_of, family_of, named
from genrec.nn import attention, functions
from genrec.nn.xattention import xattention

TYPES = {torch.float32: TensorProto.FLOAT, torch.int64: TensorProto.INT64}


def by_body(name, inputs, outputs=1, **attributes):
    """What ONNX Runtime makes of one node and its body."""
    ports = [helper.make_tensor_value_info(f"x{n}", TYPES[x.dtype], x.shape) for n, x in enumerate(inputs)]
    made = [helper.make_tensor_value_info(f"y{n}", TensorProto.FLOAT, None) for n in range(outputs)]
    node = helper.make_node(
        name, [p.name for p in ports], [p.name for p in made], domain=DOMAIN, **attributes
    )
    versions = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(
        helper.make_graph([node], name, ports, made), functions=bodies({name}), opset_imports=versions, ir_version=10
    )  # fmt: skip
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(None, {f"x{n}": x.contiguous().numpy() for n, x in enumerate(inputs)})


def draw(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


X, WEIGHT, NORM, NORM8, ANGLE = draw(2, 5, 8), draw(6, 8), draw(4), draw(8), draw(5, 2)
Q, K, V = draw(2, 5, 4, 6), draw(2, 5, 2, 6), draw(2, 5, 2, 6).flip(0)
OWN, LENGTHS = draw(2, 5, 3, 2, 6), torch.tensor([4, 2])
KEYS = [each.transpose(1, 2).contiguous() for each in (K, V)]
PAST = [draw(2, 2, 3, 6), draw(2, 2, 3, 6).flip(0)]
Q5, OWN5 = draw(2, 5, 3, 4, 6), draw(2, 5, 3, 2, 6)  # five candidates of three tokens
# Seven items, two layers
ITEMS, PLACES = (draw(7, 4, 2, 3, 6), torch.tensor([[6, 0, 3, 3, 1], [5, 4, 2, 0, 6]]))
IDS, HEADS = torch.tensor([[5, 0], [2, 2]]), [0, 0, 2, 4]
KEEP = torch.nn.Identity()
LEFT = draw(2, 5, 6)
FREQUENCY = 100.0 ** -(torch.arange(0, 8, 2) / 8)
CASES = {  # name -> inputs of the node, its attributes, and the same in torch
    "Rows": ([WEIGHT, IDS], {}, lambda: functions.rows(WEIGHT, IDS)),
    "RMSNorm": ([X, 1 + NORM8], {"eps": 0.1}, lambda: functions.rms_norm(X, 1 + NORM8, 0.1)),
    "Linear": ([X, WEIGHT.T], {}, lambda: functions.linear(X, WEIGHT)),
    "AddLinear": ([LEFT, X, WEIGHT.T], {}, lambda: functions.add_linear(LEFT, X, WEIGHT, KEEP)),
    "SwiGLU": ([X, WEIGHT.T, 1 - WEIGHT.T], {}, lambda: functions.swiglu(X, WEIGHT, 1 - WEIGHT)),
    "Angles": ([IDS, FREQUENCY], {}, lambda: functions.rotary(IDS, 8, 100.0)),
    "Rotate": (
        [X, ANGLE, 2 * ANGLE],
        {"heads": HEADS},
        lambda: functions.rotated_heads(X, 4, ANGLE, 2 * ANGLE),
    ),
    "NormRotate": (
        [X, NORM, ANGLE, 2 * ANGLE],
        {"heads": HEADS, "eps": 0.1},
        lambda: functions.rotated_heads(X, 4, ANGLE, 2 * ANGLE, NORM, 0.1),
    ),
    "CausalAttention": ([Q, *KEYS], {}, lambda: functions.causal_attention(Q, K, V)),
    "PastAttention": (
        [Q, *PAST, *KEYS, LENGTHS],
        {},
        lambda: attention.past_attention(Q, *PAST, K, V, LENGTHS),
    ),
    "BehindItemsAttention": (
        [Q, *KEYS, ITEMS, PLACES],
        {"layer": 1},
        lambda: attention.behind_items_attention(Q, ITEMS, PLACES, K, V, 1),
    ),
    "ItemAttention": (
        [Q5, *KEYS, OWN5, -OWN5, LENGTHS],
        {},
        lambda: attention.item_attention(Q5, *KEYS, OWN5, -OWN5, LENGTHS),
    ),
    "DiscriminantAttention": (
        [Q, *KEYS, ITEMS, PLACES, LENGTHS, Q.flip(1)],
        {"layer": 1, "reach": 2},
        lambda: attention.discriminant_attention(Q, Q.flip(1), *KEYS, LENGTHS, ITEMS, PLACES, 1, 2),
    ),
    "XAttention": ([Q, *KEYS, OWN, -OWN, LENGTHS], {}, lambda: xattention(Q, *KEYS, OWN, -OWN, LENGTHS)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_body_equals_the_function_in_torch(name):
    inputs, attributes, in_torch = CASES[name]
    want = in_torch()
    want = want if isinstance(want, tuple) else (want,)
    for got, each in zip(by_body(name, inputs, len(want), **attributes), want, strict=True):
        assert got.shape == each.shape
        np.testing.assert_allclose(got, each.numpy(), atol=1e-5)


def test_every_function_has_a_case():
    assert {*CASES, *(name for names in CALLS.values() for name in names)} == set(BODIES)


class Scaled(torch.nn.Module):
    """Two norms, one of a weight that is a part of another."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(12.0))

    def forward(self, x):
        first = functions.rms_norm(x, self.weight[4:], 1e-3)
        return functions.rms_norm(first, self.weight[:8], 1e-3)


def export_scaled(path, counts):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own, about names of axes
        return write(Traced(Scaled(), (X,), ({1: Dim("S", max=9)},), ["x"], ["y"]), counts, path)


def test_a_graph_has_its_functions_and_says_how_many(tmp_path):
    model = onnx.load(export_scaled(tmp_path / "scaled.onnx", {"RMSNorm": 2}))
    assert [node.op_type for node in model.graph.node] == ["RMSNorm"] * 2  # weights are whole, no slices
    assert json.loads({each.key: each.value for each in model.metadata_props}[FUNCTIONS]) == {"RMSNorm": 2}
    (got,) = onnxruntime.InferenceSession(tmp_path / "scaled.onnx").run(None, {"x": X[:, :3].numpy()})
    np.testing.assert_allclose(got, Scaled()(X[:, :3]).detach().numpy(), atol=1e-5)


def test_another_number_of_functions_than_the_model_implies_is_not_written(tmp_path):
    with pytest.raises(ArtifactError, match=r"scaled\.onnx.*'RMSNorm': 2.*implies .'RMSNorm': 3"):
        export_scaled(tmp_path / "scaled.onnx", {"RMSNorm": 3})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_model_type_says_where_its_parts_are(tmp_path, kind):
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": kind, "codebook_sizes": [4, 4], "max_history": 3})
    )
    family, config = family_of(tmp_path), config_of(tmp_path)
    assert type(config) is named(family.config) and config.graph_names == ["prefill", "decode_2"]
    assert callable(named(f"{family.writer}:export_from"))


def test_an_unknown_model_type_is_refused_by_name(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    with pytest.raises(ArtifactError, match=r"config\.json.*'mamba', not one of qwen3, qwen2, llama"):
        family_of(tmp_path)
