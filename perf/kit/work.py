"""The work of one request by arithmetic: operations, bytes of KV, and the least time it takes a machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from genrec.catalogue.validity import ValidityIndex
from genrec.models.config import ModelConfig
from perf.kit.machine import Roofline


@dataclass(frozen=True)
class Work:
    """Of one request of S prompt tokens and W beams; a multiply-add is two operations."""

    prefill_operations: float
    decode_operations: float  # of all L - 1 passes
    prefill_attention: float  # of these, what attention takes
    decode_attention: float
    weight_bytes: float  # of the layers, read once per pass
    kv_shared_bytes: int  # the prompt's, one copy whatever W is
    kv_unshared_bytes: int  # of W beams, of the levels 2 to L - 1 (the last pass keeps none)
    logits_bytes: int  # float32, of the first level and of W beams of the largest later one
    levels: int

    @property
    def kv_bytes(self) -> int:
        """What a request leaves in the arena, so that it need not cross Triton: KV and logits."""
        return self.kv_shared_bytes + self.kv_unshared_bytes + self.logits_bytes

    def least_ms(self, roofline: Roofline, bf16: bool) -> dict[str, float]:
        """Milliseconds of prefill and of all decode passes at the machine's measured rates."""
        passes = self.levels - 1
        prefill = roofline.seconds(self.prefill_operations, self.weight_bytes, bf16)
        decode = roofline.seconds(
            self.decode_operations, passes * (self.weight_bytes + self.kv_shared_bytes), bf16
        )
        return {"prefill": 1000 * prefill, "decode": 1000 * decode}


def leaf_count(index: ValidityIndex, level: int) -> NDArray[np.int32]:
    """Number of leaves below every node of a level: int32[P_l]."""
    first = np.arange(index.node_count(level) + 1, dtype=np.int32)
    for pointers in index.first_child[level - 1 : -1]:
        first = pointers[first]
    return np.diff(first)


def beams_of_passes(index: ValidityIndex, width: int) -> list[float]:
    """How many beams the passes of the levels 2 to L have to score, were the beams of a level like its nodes."""
    shares = [float((leaf_count(index, level) > 1).mean()) for level in range(1, index.levels)]
    return [share * min(width, index.node_count(level)) for level, share in enumerate(shares, 1)]


def work(
    config: ModelConfig, prompt: int, width: int, kv_type: str, beams: Sequence[float] | None = None
) -> Work:
    """What S = `prompt` tokens and W = `width` beams cost; `kv_type` is f32 or bf16, also of the weights.

    `beams` is how many each of the L - 1 decode passes scores (`beams_of_passes`); all W where it is None.
    """
    c, size = config, 2 if kv_type == "bf16" else 4
    heads, groups = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    # q and o, k and v, gate and up and down
    layer = c.hidden_size * (2 * heads + 2 * groups + 3 * c.intermediate_size)
    weights = c.num_hidden_layers * layer
    first, later = c.codebook_sizes[0], c.codebook_sizes[1:]
    passes = len(later)
    scored = [float(width)] * passes if beams is None else beams
    # Causal attention reads half of the S x S scores; q k and p v are each 2 H D per score. The last layer works for
    # one position, but for k and v.
    whole, kv_only = c.num_hidden_layers - 1, 2 * c.hidden_size * groups
    prefill_attention = whole * 4 * heads * prompt**2 / 2 + 4 * heads * prompt
    prefill = 2 * (whole * layer + kv_only) * prompt + 2 * (layer - kv_only) + 2 * c.hidden_size * first
    # A beam attends to the prompt and to its own tokens: 1 in the first pass, 2 in the second, ...
    scores = sum(count * (prompt + own) for own, count in enumerate(scored, 1))
    decode_attention = c.num_hidden_layers * 4 * heads * scores
    decode = sum(
        2 * count * (weights + c.hidden_size * size) for count, size in zip(scored, later, strict=True)
    )
    return Work(
        prefill_operations=prefill + prefill_attention,
        decode_operations=decode + decode_attention,
        prefill_attention=prefill_attention,
        decode_attention=decode_attention,
        weight_bytes=weights * size,
        kv_shared_bytes=2 * c.num_hidden_layers * groups * prompt * size,
        kv_unshared_bytes=2 * c.num_hidden_layers * groups * width * max(passes - 1, 0) * size,
        logits_bytes=4 * (first + (width * max(later) if later else 0)),
        levels=c.levels,
    )
