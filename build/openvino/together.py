"""Rankings in order `split` over whole entries of users, each an input of its own: of one user, or of several in one
pass, which reads the weights once for all of them.

Entries lie wherever the pool has them. Side by side in one tensor they would have to be copied, and tensor by tensor a
pass of eight users would have 2N inputs for each: setting them took longer than small rankings. The function's own
batch is the slow, obvious twin.
"""

from __future__ import annotations

from onnx import ModelProto, TensorProto, helper

from build.openvino.graph import attribute

TENSORS = "shared_"  # begins the names of a user's tensors, which the entry is put for


def over_entries(model: ModelProto, users: int) -> ModelProto:
    """`rank_split`, its attention being operations already, for up to so many users: rows [B, C], prompt_length [B],
    and behind all other inputs `shared_of_<user>` [1, 2N, G, S, D].
    """
    out = ModelProto()
    out.CopyFrom(model)
    names = [f"{TENSORS}of_{user}" for user in range(users)]
    first = next(each for each in model.graph.input if each.name.startswith(TENSORS))
    _, heads, _, size = (each.dim_value for each in first.type.tensor_type.shape.dim)
    kept = [each for each in model.graph.input if not each.name.startswith(TENSORS)]
    del out.graph.input[:]
    out.graph.input.extend(kept)
    tensors = len(model.graph.input) - len(kept)
    out.graph.input.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, tensors, heads, None, size])
        for name in names
    )
    for node in out.graph.node:
        if node.op_type == "XDiscriminant":
            q, k, v, *others = node.input
            layer = attribute(node, "layer")
            assert (k, v) == (f"{TENSORS}k_{layer}", f"{TENSORS}v_{layer}"), "not the user's own"
            del node.input[:]
            node.input.extend([q, *names, *others])
    return out
