"""The exported graphs with the inputs that Triton's ensemble has at hand: what a TensorRT plan is built from.

A plan stands where a Python step does with other targets, so the step's small change of inputs moves into the
graph: the prompt's length out of the ticket, placeholders behind the prompt, codes out of paths, the beams' KV
behind their parents. Numbers from outside are brought into range, because a plan has no errors to answer with.
"""

from __future__ import annotations

import onnx
from onnx import GraphProto, ModelProto, TensorProto, helper

from build.functions import copied
from build.tensorrt.prologue import Prologue
from build.tensorrt.typed_onnx import rename
from export.names import DRAFT
from genrec.models.config import ModelConfig


def served(model: ModelProto, name: str, config: ModelConfig) -> ModelProto:
    """`prefill`: prompt int32 [B, S], ticket int64 [B, 6]. `decode_<l>`: ticket, paths int64 [B, W], and after
    level 2 parents int32 [B, W], unshared KV in the former beams' order; levels before the last give it on, reordered.
    `prefill_draft`: as `prefill`, no placeholders yet; gives states [B, (1 + L) * hidden], as `draft_beam` reads them.
    """  # fmt: skip
    out = copied(model)
    del out.graph.value_info[:]  # what the exporter knew: S is of the prompt alone from here on
    for port in out.graph.input:  # the exporter gives equal axes names of its own now and then
        dims = port.type.tensor_type.shape.dim
        if port.name.startswith("shared_"):  # [B, G, S, D]
            dims[0].dim_param, dims[2].dim_param = "B", "S"
        elif port.name.startswith("unshared_"):  # [B, W, G, D]
            dims[0].dim_param, dims[1].dim_param = "B", "W"
    prologue = Prologue(out.graph)
    if name.startswith("decode_"):
        ticket = prologue.ticket("prompt_length")
        _decode_inputs(prologue, config, int(name.removeprefix("decode_")), ticket)
    else:
        ticket = prologue.ticket(risen := "served_long_enough")
        span = prologue.node("Shape", ["prompt"], "served_span", start=1, end=2)
        prologue.node("Min", [risen, span], "prompt_length")
        states = _flatten_states(out.graph) if name == DRAFT else 1
        _prompt_inputs(prologue, config, ticket, placeholders=states - 1)
    onnx.checker.check_model(out, full_check=False)
    return out


def _prompt_inputs(
    prologue: Prologue, config: ModelConfig, ticket: onnx.ValueInfoProto, placeholders: int
) -> None:
    prompt = helper.make_tensor_value_info("prompt", TensorProto.INT32, ["B", "S"])
    high = prologue.constant(config.vocab_size - 1)
    prologue.node("Cast", ["prompt"], "served_tokens", to=TensorProto.INT64)
    prologue.within("served_tokens", high, "served_prompt" if placeholders else "tokens")
    if placeholders:
        _place(prologue, config, placeholders)
    prologue.replace_inputs(["tokens", "prompt_length"], [prompt, ticket])


def _place(prologue: Prologue, config: ModelConfig, count: int) -> None:
    """served_prompt [B, S] -> tokens [B, S + count]: placeholder n is token V + n, right after the last real token."""
    pads = prologue.constant([0, 0, 0, count])
    padded = prologue.node("Pad", ["served_prompt", pads], "served_padded")
    zero, one, end = prologue.constant(0), prologue.constant(1), prologue.constant([-1])
    of_count = prologue.constant(count)
    width = prologue.node("Add", ["served_span", of_count], "served_width")
    last = prologue.node("Squeeze", [width], "served_wide")
    places = prologue.node("Range", [zero, last, one], "served_places")
    lengths = prologue.node("Unsqueeze", ["prompt_length", end], "served_lengths")
    number = prologue.node("Sub", [places, lengths], "served_number")  # which placeholder, if one
    reached = prologue.node("GreaterOrEqual", [number, zero], "served_reached")
    within = prologue.node("Less", [number, of_count], "served_within")
    inside = prologue.node("And", [reached, within], "served_inside")
    own = prologue.node("Add", [number, prologue.constant(config.vocab_size)], "served_placeholder")
    prologue.node("Where", [inside, own, padded], "tokens")


def _flatten_states(graph: GraphProto) -> int:
    """Output states [B, n, hidden] -> [B, n * hidden]; returns n, 1 + L with placeholders."""
    (port,) = graph.output
    _, count, size = (dim.dim_value for dim in port.type.tensor_type.shape.dim)
    rename(graph.node, port.name, "served_states")
    graph.node.append(helper.make_node("Flatten", ["served_states"], [port.name], axis=1))
    kind = port.type.tensor_type.elem_type
    port.CopyFrom(helper.make_tensor_value_info(port.name, kind, ["B", count * size]))
    return int(count)


def _decode_inputs(prologue: Prologue, config: ModelConfig, level: int, ticket: onnx.ValueInfoProto) -> None:
    graph = prologue.graph
    unshared = [port.name for port in graph.input if port.name.startswith("unshared_")]
    size = prologue.constant(config.codebook_sizes[level - 2])
    prologue.node("Mod", ["paths", size], "codes")  # of the divisor's sign, so never negative
    new = [ticket, helper.make_tensor_value_info("paths", TensorProto.INT64, ["B", "W"])]
    if unshared:
        new.append(helper.make_tensor_value_info("parents", TensorProto.INT32, ["B", "W"]))
        _inherit(prologue, graph, unshared, keep=level < config.levels)
    prologue.replace_inputs(["codes", "prompt_length"], new)


def _inherit(prologue: Prologue, graph: GraphProto, unshared: list[str], keep: bool) -> None:
    """unshared [B, W', G, D] -> its parents' rows [B, W, G, D], under the name the graph reads."""
    prologue.node("Cast", ["parents"], "served_parents", to=TensorProto.INT64)
    beams = prologue.node("Shape", [f"before_{unshared[0]}"], "served_beams", start=1, end=2)
    last = prologue.node("Sub", [beams, prologue.constant(1)], "served_last")
    fit = prologue.within("served_parents", last, "served_fit")
    rows = prologue.node("Unsqueeze", [fit, prologue.constant([-1])], "served_rows")
    for port in graph.input:
        if port.name in unshared:
            name = port.name
            port.name = f"before_{name}"
            port.type.tensor_type.shape.dim[1].dim_param = "P"  # beams before this level's selection
            prologue.node("GatherND", [port.name, rows], name, batch_dims=1)
            if keep:
                given = copied(port)
                given.name, given.type.tensor_type.shape.dim[1].dim_param = f"kept_{name}", "W"
                graph.output.append(given)
                graph.node.append(helper.make_node("Identity", [name], [given.name]))
