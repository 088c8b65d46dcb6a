"""One plan of a ranking in order `split`: candidates and the prompt's KV in, scores out (BAT, section 4, and ours).

The user's KV is what the plan `prefill` left on the GPU: generator and ranker have one backbone. The items' KV is
computed here. A plan keeps nothing from request to request, so there is no pool.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import (
    FunctionProto,
    ModelProto,
    NodeProto,
    TensorProto,
    compose,
    helper,
    numpy_helper,
)

from build.functions import copied
from build.tensorrt.prologue import Prologue
from genrec.models.config import ModelConfig
from genrec.models.registry import DOMAIN
from genrec.rank.options import RankerConfig

NODE = "CandidateAttention"  # what the plugin computes
OF_ITEMS = "of_items_"  # what names of the items' graph begin with


def score_candidates(
    items: ModelProto,
    split: ModelProto,
    table: NDArray[np.float32],
    config: ModelConfig,
    options: RankerConfig,
) -> ModelProto:
    """candidates int32 [B, C * t], codes int32 [B, C * L], ticket, the prompt's KV [B, G, S, D] -> scores [B, C].

    Of the typed graphs `rank_prefill` (items) and `rank_split`, and the head's `table` [V, hidden]. Numbers from
    outside are brought into range, as in `served_onnx`.
    """
    out, items = copied(split), compose.add_prefix(items, OF_ITEMS, rename_functions=False)
    graph = out.graph
    del graph.value_info[:]
    graph.initializer.extend(items.graph.initializer)
    attend = [node for node in graph.node if node.op_type == "DiscriminantAttention"]
    kv = [name for node in attend for name in node.input[1:3]]
    prologue = Prologue(graph)
    ticket = prologue.ticket("prompt_length")
    _values(prologue, "candidates", f"{OF_ITEMS}tokens", config.vocab_size - 1, [-1, options.item_tokens])
    _values(prologue, "codes", "served_codes", config.vocab_size - 1, [0, -1, config.levels])
    _rows(prologue)
    prologue.nodes += items.graph.node
    for name in kv:  # [M, G, t, D] as the kernel reads items: [M, t, G, D]
        prologue.node("Transpose", [f"{OF_ITEMS}{name}"], f"own_{name}", perm=[0, 2, 1, 3])
    seen = _newest(prologue, kv, options.reach) if options.reach else "prompt_length"
    for node in attend:
        _over_items(node, seen)
    graph.node.extend(_scores(prologue, table))
    gone = [port.name for port in graph.input if port.name not in kv]
    asked = [
        helper.make_tensor_value_info("candidates", TensorProto.INT32, ["B", "I"]),
        helper.make_tensor_value_info("codes", TensorProto.INT32, ["B", "K"]),
    ]
    prologue.replace_inputs(gone, [*asked, ticket])
    for port in graph.input[len(asked) + 1 :]:
        dims = port.type.tensor_type.shape.dim
        dims[0].dim_param, dims[2].dim_param = "B", "S"
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["B", "C"]))
    known = {each.name for each in out.functions}
    out.functions.extend([each for each in items.functions if each.name not in known])
    out.functions.append(_body(out))
    onnx.checker.check_model(out, full_check=False)
    return out


def _values(prologue: Prologue, name: str, into: str, high: int, shape: list[int]) -> None:
    """int32 [B, n] as int64 of `shape`, brought into 0 to `high`."""
    wide = prologue.node("Cast", [name], f"{name}_wide", to=TensorProto.INT64)
    within = prologue.within(wide, prologue.constant(high), f"{name}_within")
    prologue.node("Reshape", [within, prologue.constant(shape)], into)


def _rows(prologue: Prologue) -> None:
    """Which item is whose: int64 [B, C], 0 to B * C - 1."""
    shape = prologue.node("Shape", ["served_codes"], "served_many", end=2)
    count = prologue.node("ReduceProd", [shape], "served_items", keepdims=0)
    places = prologue.node("Range", [prologue.constant(0), count, prologue.constant(1)], "served_range")
    prologue.node("Reshape", [places, shape], "rows")


def _newest(prologue: Prologue, kv: Sequence[str], reach: int) -> str:
    """`newest_<name>` [B, G, min(reach, S), D] of the prompt's KV: the newest tokens; how many of them count [B]."""
    seen = prologue.node("Min", ["prompt_length", prologue.constant(reach)], "newest_length")
    start = prologue.node("Sub", ["prompt_length", seen], "newest_start")
    first = prologue.node("Unsqueeze", [start, prologue.constant([1])], "newest_first")
    span = prologue.node(
        "Squeeze", [prologue.node("Shape", [kv[0]], "newest_shape", start=2, end=3)], "newest_span"
    )
    many = prologue.node("Min", [span, prologue.constant(reach)], "newest_many")
    steps = prologue.node("Range", [prologue.constant(0), many, prologue.constant(1)], "newest_steps")
    last = prologue.node("Sub", [span, prologue.constant(1)], "newest_last")
    places = prologue.within(prologue.node("Add", [first, steps], "newest_beyond"), last, "newest_places")
    rows = prologue.node("Unsqueeze", [places, prologue.constant([-1])], "newest_rows")
    for name in kv:  # a token is a row, whatever its heads
        prologue.node("Transpose", [name], f"turned_{name}", perm=[0, 2, 1, 3])
        prologue.node("GatherND", [f"turned_{name}", rows], f"cut_{name}", batch_dims=1)
        prologue.node("Transpose", [f"cut_{name}"], f"newest_{name}", perm=[0, 2, 1, 3])
    return seen


def _over_items(node: NodeProto, seen: str) -> None:
    """Attention over a table of whole items becomes that over the layer's own keys and values."""
    q, k, v, _, _, length, q_item = node.input
    of_user = [k, v] if seen == length else [f"newest_{k}", f"newest_{v}"]
    del node.attribute[:], node.input[:]
    node.op_type = NODE
    node.input.extend([q, *of_user, f"own_{k}", f"own_{v}", seen, q_item, "rows"])


def _scores(prologue: Prologue, table: NDArray[np.float32]) -> Iterator[NodeProto]:
    """`states` [B, C, hidden] float32 -> `scores`: see `genrec.rank.head.RankerHead`."""
    prologue.graph.initializer.append(numpy_helper.from_array(table, "identifiers"))
    codes, last = prologue.constant([2]), prologue.constant([-1])
    yield helper.make_node("Gather", ["identifiers", "served_codes"], ["code_rows"], axis=0)
    yield helper.make_node("ReduceSum", ["code_rows", codes], ["identifier"], keepdims=0)
    yield helper.make_node("Mul", ["states", "identifier"], ["products"])
    yield helper.make_node("ReduceSum", ["products", last], ["scores"], keepdims=0)


def _body(model: ModelProto) -> FunctionProto:
    """CandidateAttention by DiscriminantAttention, over a table of one layer; ONNX Runtime runs it."""
    inputs = ["q", "shared_k", "shared_v", "own_k", "own_v", "prompt_length", "own_q", "rows"]
    one = numpy_helper.from_array(np.array([1]), "one")
    nodes = [helper.make_node("Constant", [], ["one"], value=one)]
    for name in ("own_k", "own_v"):
        nodes.append(helper.make_node("Transpose", [name], [f"{name}_turned"], perm=[0, 2, 1, 3]))
        nodes.append(helper.make_node("Unsqueeze", [f"{name}_turned", "one"], [f"{name}_alone"]))
    nodes.append(helper.make_node("Concat", ["own_k_alone", "own_v_alone"], ["items"], axis=1))
    nodes.append(
        helper.make_node(
            "DiscriminantAttention",
            ["q", "shared_k", "shared_v", "items", "rows", "prompt_length", "own_q"],
            ["out"], domain=DOMAIN, layer=0, reach=0,
        )
    )  # fmt: skip
    return helper.make_function(DOMAIN, NODE, inputs, ["out"], nodes, model.opset_import)
