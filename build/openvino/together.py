"""Rankings of several users as one pass, in order `split`: the graph of one, with tensors for each user's KV.

The weights are read once for all of them. Users' entries lie wherever the pool has them, so they are inputs of their
own: side by side in one tensor they would have to be copied. The function's own batch is the slow, obvious twin.
"""

from __future__ import annotations

from onnx import ModelProto

from genrec.engine.openvino_graphs import RANKINGS

USER = "shared_"  # begins the names of a user's tensors


def together(model: ModelProto) -> ModelProto:
    """`rank_split` for up to RANKINGS users, its attention being operations already: prompt_length [B], rows [B, C].

    Users from the second on have inputs behind those of the first, in the same order.
    """
    out = ModelProto()
    out.CopyFrom(model)
    of_one = [each for each in model.graph.input if each.name.startswith(USER)]
    for user in range(1, RANKINGS):
        for port in of_one:
            out.graph.input.add().CopyFrom(port)
            out.graph.input[-1].name = _of(port.name, user)
    for node in out.graph.node:
        if node.op_type == "XDiscriminant":
            _, k, v, *_ = node.input
            node.input.extend(_of(name, user) for user in range(1, RANKINGS) for name in (k, v))
    return out


def _of(name: str, user: int) -> str:
    return f"{name}_of_{user}"
