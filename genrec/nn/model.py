"""The generator: a Qwen3-shaped decoder whose head computes one level's block of codes at a time.

Covers Qwen2 (no QK-norm, biases on q, k, v), Qwen3 (QK-norm) and Llama (neither). See `genrec` for the legend.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from genrec.models.config import ModelConfig
from genrec.nn.functions import (
    add_linear,
    attend,
    causal_attention,
    linear,
    rms_norm,
    rotary,
    rotated_heads,
    rows,
    swiglu,
)


class RMSNorm(nn.Module):
    """Root mean square norm over the last axis."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] -> [..., size]."""
        return rms_norm(x, self.weight, self.eps)


class Attention(nn.Module):
    """Projections, QK-norm and RoPE; the attention itself is passed in, because every phase has its own."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = (
            config.num_attention_heads, config.num_key_value_heads, config.head_dim,
        )  # fmt: skip
        bias = config.model_type == "qwen2"
        self.q_proj = nn.Linear(config.hidden_size, self.heads * self.size, bias=bias)
        self.k_proj = nn.Linear(config.hidden_size, self.kv_heads * self.size, bias=bias)
        self.v_proj = nn.Linear(config.hidden_size, self.kv_heads * self.size, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.size, config.hidden_size, bias=False)
        normed = config.model_type == "qwen3"
        self.q_norm = RMSNorm(self.size, config.rms_norm_eps) if normed else nn.Identity()
        self.k_norm = RMSNorm(self.size, config.rms_norm_eps) if normed else nn.Identity()

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [..., hidden] -> q [..., H, D], k [..., G, D], v [..., G, D], q and k rotated."""
        q, k, v = (linear(x, part.weight, part.bias) for part in (self.q_proj, self.k_proj, self.v_proj))
        q, k = self._turned(q, self.q_norm, cos, sin), self._turned(k, self.k_norm, cos, sin)
        return q, k, v.unflatten(-1, (self.kv_heads, self.size))

    def queries(self, x: Tensor, *angles: tuple[Tensor, Tensor]) -> list[Tensor]:
        """x [..., hidden] -> its queries [..., H, D], once for every pair of cosines and sines."""
        q = linear(x, self.q_proj.weight, self.q_proj.bias)
        return [self._turned(q, self.q_norm, cos, sin) for cos, sin in angles]

    def _turned(self, x: Tensor, norm: nn.Module, cos: Tensor, sin: Tensor) -> Tensor:
        if isinstance(norm, RMSNorm):
            return rotated_heads(x, self.size, cos, sin, norm.weight, norm.eps)
        return rotated_heads(x, self.size, cos, sin)


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def add_to(self, x: Tensor, normed: Tensor, drop: nn.Module) -> Tensor:
        """What the MLP makes of normed [..., hidden], some of it dropped, added to x [..., hidden]."""
        inner = swiglu(normed, self.gate_proj.weight, self.up_proj.weight)
        return add_linear(x, inner, self.down_proj.weight, drop)


class Block(nn.Module):
    """One decoder layer."""

    def __init__(self, config: ModelConfig, dropout: float) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(config), MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.drop = nn.Dropout(dropout)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Residual, output projection and MLP: x [..., hidden], attended [..., H, D] -> [..., hidden]."""
        x = add_linear(x, attended.flatten(-2), self.self_attn.o_proj.weight, self.drop)
        return self.mlp.add_to(x, self.post_attention_layernorm(x), self.drop)


class Generator(nn.Module):
    """Decoder over semantic IDs; parameter names follow Hugging Face, so checkpoints load by name."""

    def __init__(self, config: ModelConfig, dropout: float = 0.0) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, dropout) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.drop = nn.Dropout(dropout)
        nn.init.normal_(self.embed_tokens.weight, std=0.02)
        nn.init.normal_(self.lm_head.weight, std=0.02)

    def blocks(self) -> list[Block]:
        """The layers, under their own type."""
        return cast("list[Block]", list(self.layers))

    def embed(self, tokens: Tensor) -> Tensor:
        """Tokens [...] -> [..., hidden]."""
        return rows(self.embed_tokens.weight, tokens)

    def head(self, hidden: Tensor, level: int) -> Tensor:
        """Logits of one level's block only: hidden [..., hidden] -> [..., T_level]; `level` counts from 1."""
        start = self.config.code_offsets[level - 1]
        return linear(hidden, self.lm_head.weight[start : start + self.config.codebook_sizes[level - 1]])

    def prefill(self, tokens: Tensor) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Causal pass over a prompt: tokens [B, S] -> hidden [B, S, hidden] and per layer k, v [B, S, G, D].

        Prompts are padded on the right; causality keeps the padding from reaching real positions.
        """
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        cos, sin = rotary(positions, self.config.head_dim, self.config.rope_theta)
        x, kv = self.drop(self.embed(tokens)), []
        for layer in self.blocks():
            q, k, v = layer.self_attn.project(layer.input_layernorm(x), cos, sin)
            x = layer.finish(x, causal_attention(q, k, v))
            kv.append((k, v))
        return self.norm(x), kv

    def prefill_at(self, x: Tensor, wanted: Tensor) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """As `prefill`, of embedded tokens x [B, S, hidden], read at `wanted` [B, n] only: hidden [B, n, hidden], KV.

        Nobody reads what the last block makes of other positions, so it works on the wanted ones alone, and gives
        the KV of all.
        """
        size, theta = self.config.head_dim, self.config.rope_theta
        positions = torch.arange(x.shape[1], device=x.device)
        cos, sin = rotary(positions, size, theta)
        kv = []
        for layer in self.blocks()[:-1]:
            q, k, v = layer.self_attn.project(layer.input_layernorm(x), cos, sin)
            x = layer.finish(x, causal_attention(q, k, v))
            kv.append((k, v))
        last = self.blocks()[-1]
        _, k, v = last.self_attn.project(last.input_layernorm(x), cos, sin)
        x = x.gather(1, wanted.unsqueeze(2).expand(-1, -1, x.shape[2]))
        q, _, _ = last.self_attn.project(last.input_layernorm(x), *rotary(wanted, size, theta))
        visible = positions <= wanted.unsqueeze(2)
        x = last.finish(x, attend(q, k, v, visible.unsqueeze(1)))
        return self.norm(x), [*kv, (k, v)]
