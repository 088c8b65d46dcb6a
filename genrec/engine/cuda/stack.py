"""A model's decoder layers on a GPU: projections that share an input fused, and what lies between the products.

The same arithmetic as `genrec.nn.model` (its slow twin in the tests); nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from genrec.engine.cuda.operations import Norms, Operations, Tables
from genrec.models.config import ModelConfig
from genrec.nn.functions import rotary
from genrec.nn.model import Block, RMSNorm


class Layer:
    """Weights of one decoder layer, projections that share an input fused into one matrix."""

    def __init__(self, block: Block, config: ModelConfig) -> None:
        attention, mlp = block.self_attn, block.mlp
        parts = (attention.q_proj, attention.k_proj, attention.v_proj)
        self.qkv = torch.cat([part.weight for part in parts])
        biased = config.model_type == "qwen2"
        self.qkv_bias = torch.cat([part.bias for part in parts]) if biased else None
        self.out = attention.o_proj.weight
        self.gate_up = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])
        self.down = mlp.down_proj.weight
        self.norms = (block.input_layernorm.weight, block.post_attention_layernorm.weight)
        self.qk_norms: Norms = None
        if isinstance(attention.q_norm, RMSNorm) and isinstance(attention.k_norm, RMSNorm):
            self.qk_norms = (attention.q_norm.weight, attention.k_norm.weight)

    def product(self, normed: Tensor, which: slice = slice(None)) -> Tensor:
        """normed [B, X, hidden] -> q, k and v of all heads [B, X, (H + 2G) D], or of some of the fused rows."""
        bias = None if self.qkv_bias is None else self.qkv_bias[which]
        return F.linear(normed, self.qkv[which], bias)


class Stack:
    """Decoder layers and the norm behind the last, in the weights' own type."""

    def __init__(
        self, blocks: Sequence[Block], norm: RMSNorm, config: ModelConfig, operations: Operations
    ) -> None:
        """`operations` do what is between products: the fused kernels, or torch."""
        with torch.no_grad():
            self.layers = [Layer(block, config) for block in blocks]
        self.config, self.operations, self.norm = config, operations, norm.weight.detach()
        self.device, self.dtype = self.norm.device, self.norm.dtype

    @property
    def queries(self) -> slice:
        """The rows of a fused projection that make q."""
        return slice(self.config.num_attention_heads * self.config.head_dim)

    def first(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Embedded x [..., hidden], and what the first layer reads of it. What x holds may be lost."""
        return self.operations.add_norm(x, None, self.layers[0].norms[0], self.config.rms_norm_eps)

    def heads(self, layer: Layer, product: Tensor, tables: Tables, k: Tensor, v: Tensor) -> Tensor:
        """See `Operations.heads`."""
        return self.operations.heads(product, layer.qk_norms, self.config.rms_norm_eps, tables, k, v)

    def finish(self, n: int, x: Tensor, attended: Tensor) -> tuple[Tensor, Tensor]:
        """The rest of layer `n`: output projection and SwiGLU, each added to x [B, X, hidden]; attended [B, X, H, D].

        Beside x what the next layer, or the head, reads of it: the norm goes with the residual before it.
        """
        do, layer, eps = self.operations, self.layers[n], self.config.rms_norm_eps
        following = self.layers[n + 1].norms[0] if n + 1 < len(self.layers) else self.norm
        x, normed = do.add_norm(x, F.linear(attended.flatten(-2), layer.out), layer.norms[1], eps)
        inner = do.swiglu(F.linear(normed, layer.gate_up))
        return do.add_norm(x, F.linear(inner, layer.down), following, eps)

    def tables(self, positions: Tensor) -> Tables:
        """positions [B, X] -> cosine and sine [B, X, 1, D/2] in the model's type."""
        cos, sin = rotary(positions, self.config.head_dim, self.config.rope_theta)
        return cos.unsqueeze(-2).to(self.dtype), sin.unsqueeze(-2).to(self.dtype)
