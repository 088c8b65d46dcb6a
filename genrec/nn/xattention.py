"""Attention of a decode step: many beams over one shared prompt (xGR, section 5.2).

The shared part is one GEMM per KV head over all beams of a request, so the prompt's KV is read once whatever
the beam width; the unshared part is per beam; online softmax merges them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from genrec.models.config import ModelConfig
from genrec.nn.attention import past_attention
from genrec.nn.functions import exporting, node, rotary
from genrec.nn.model import Generator


def xattention(
    q: Tensor,
    shared_k: Tensor,
    shared_v: Tensor,
    unshared_k: Tensor,
    unshared_v: Tensor,
    prompt_length: Tensor,
) -> Tensor:
    """Attend from q [B, W, H, D] to shared k, v [B, G, S, D] and unshared k, v [B, W, U, G, D].

    Shared positions from `prompt_length` [B] on are padding. Returns [B, W, H, D].
    """
    if exporting():
        return node("XAttention", (q, shared_k, shared_v, unshared_k, unshared_v, prompt_length), q.shape)
    batch, beams, heads, size = q.shape
    kv_heads, span = shared_k.shape[1], shared_k.shape[2]
    q = (q * size**-0.5).view(batch, beams, kv_heads, heads // kv_heads, size)

    stacked = q.permute(0, 2, 1, 3, 4).reshape(batch, kv_heads, -1, size)
    padding = torch.arange(span, device=q.device) >= prompt_length.view(-1, 1, 1, 1)
    score = (stacked @ shared_k.transpose(2, 3)).masked_fill(padding, -torch.inf)
    top_s = score.amax(-1, keepdim=True)
    weight = (score - top_s).exp()

    def per_beam(x: Tensor) -> Tensor:  # [B, G, W*R, X] -> [B, W, G, R, X]
        return x.view(batch, kv_heads, beams, -1, x.shape[-1]).permute(0, 2, 1, 3, 4)

    top_s, total_s, out_s = (
        per_beam(top_s),
        per_beam(weight.sum(-1, keepdim=True)),
        per_beam(weight @ shared_v),
    )

    score_u = (q.unsqueeze(2) * unshared_k.unsqueeze(4)).sum(-1, keepdim=True)  # [B, W, U, G, R, 1]
    top = torch.maximum(top_s, score_u.amax(2))
    weight_u = (score_u - top.unsqueeze(2)).exp()
    shrink = (top_s - top).exp()
    out = out_s * shrink + (weight_u * unshared_v.unsqueeze(4)).sum(2)
    return (out / (total_s * shrink + weight_u.sum(2))).reshape(batch, beams, heads, size)


class PrefillGraph(nn.Module):
    """Prompt to first-level logits and KV: what `prefill.onnx` holds."""

    def __init__(self, generator: Generator) -> None:
        super().__init__()
        self.generator = generator

    def forward(self, tokens: Tensor, prompt_length: Tensor) -> tuple[Tensor, ...]:
        """tokens [B, S], prompt_length [B] -> logits [B, 1, T_1], then per layer k, v [B, G, S, D]."""
        model, last = self.generator, prompt_length.to(torch.int64).unsqueeze(1) - 1
        hidden, kv = model.prefill_at(model.embed(tokens), last)
        flat = [x.transpose(1, 2).contiguous() for pair in kv for x in pair]
        return (model.head(hidden, 1), *flat)


def behind_past(
    generator: Generator, x: Tensor, past_length: Tensor, past: list[Tensor], read: int
) -> tuple[Tensor, list[Tensor]]:
    """Tokens that go on behind the KV of those before: x [1, Q, hidden], embedded, past_length [1].

    past: per layer k, v [1, G, P, D], of which so many count. Returns the last `read` states [1, read, hidden], and per
    layer the new k, v [1, G, Q, D].
    """
    config, length = generator.config, past_length.to(torch.int64)
    positions = torch.arange(x.shape[1], device=x.device) + length
    cos, sin = rotary(positions, config.head_dim, config.rope_theta)
    new = []
    for n, layer in enumerate(generator.blocks()):
        q, k, v = layer.self_attn.project(layer.input_layernorm(x), cos, sin)
        new += [k.transpose(1, 2), v.transpose(1, 2)]
        attended = past_attention(q, past[2 * n], past[2 * n + 1], k, v, length)
        if n == config.num_hidden_layers - 1:  # of the last layer, nothing else is read
            x, attended = x[:, -read:], attended[:, -read:]
        x = layer.finish(x, attended)
    return generator.norm(x), new


class ResumeGraph(nn.Module):
    """What is new of a prompt, behind the KV of what was before: what `resume.onnx` holds. B = 1."""

    def __init__(self, generator: Generator) -> None:
        super().__init__()
        self.generator = generator

    def forward(self, tokens: Tensor, past_length: Tensor, past: list[Tensor]) -> tuple[Tensor, ...]:
        """tokens [1, Q], the rest as in `behind_past` -> logits [1, 1, T_1], then per layer new k, v [1, G, Q, D]."""
        model = self.generator
        hidden, new = behind_past(model, model.embed(tokens), past_length, past, 1)
        return (model.head(hidden, 1), *new)


class DecodeGraph(nn.Module):
    """One decode step: reads the codes of level `level - 1`, scores level `level`. What `decode_<level>.onnx` holds.

    The KV of the last step's token is used in that step only, so it is not given back.
    """

    def __init__(self, generator: Generator, level: int) -> None:
        super().__init__()
        self.generator, self.level = generator, level

    def forward(
        self, codes: Tensor, prompt_length: Tensor, shared: list[Tensor], unshared: list[Tensor]
    ) -> tuple[Tensor, ...]:
        """codes [B, W]; shared: per layer k, v [B, G, S, D]; unshared: per layer, per earlier level, k, v [B, W, G, D].

        Returns logits [B, W, T_level] and, but for the last level, per layer the new k, v [B, W, G, D].
        """
        model, config, earlier = self.generator, self.generator.config, self.level - 2
        x = model.embed(codes + config.code_offsets[self.level - 2])
        cos, sin = rotary((prompt_length + earlier).view(-1, 1), config.head_dim, config.rope_theta)
        newest = []
        for n, layer in enumerate(model.blocks()):
            q, k, v = layer.self_attn.project(layer.input_layernorm(x), cos, sin)
            mine = unshared[2 * n * earlier : 2 * (n + 1) * earlier]
            unshared_k = torch.stack((*mine[0::2], k), dim=2)
            unshared_v = torch.stack((*mine[1::2], v), dim=2)
            attended = xattention(q, shared[2 * n], shared[2 * n + 1], unshared_k, unshared_v, prompt_length)
            x = layer.finish(x, attended)
            newest += [k, v]
        logits = model.head(model.norm(x), self.level)
        return (logits,) if self.level == config.levels else (logits, *newest)


class DecodeAllGraph(nn.Module):
    """All decode steps in one, of beams that are known beforehand: what `decode_all.onnx` holds. B = 1.

    A beam is one code here, and sees the prompt, its parents, and itself.
    """

    def __init__(self, generator: Generator) -> None:
        super().__init__()
        self.generator = generator

    def forward(
        self, prompt_length: Tensor, codes: list[Tensor], parents: list[Tensor], shared: list[Tensor]
    ) -> tuple[Tensor, ...]:
        """codes: of the levels 1 to L - 1, [1, W_l]; parents: from level 2 on, [W_l], places in the level before;
        prompt_length [1], shared as of `DecodeGraph`. Returns the logits [1, W_l, T_(l+1)] of each level.
        """
        model, config, counts = self.generator, self.generator.config, [each.shape[1] for each in codes]
        tokens = [each + start for each, start in zip(codes, config.code_offsets, strict=False)]
        places = [prompt_length.view(1, 1) + n + torch.zeros_like(each) for n, each in enumerate(codes)]
        x = model.embed(torch.cat(tokens, 1))
        cos, sin = rotary(torch.cat(places, 1), config.head_dim, config.rope_theta)
        for n, layer in enumerate(model.blocks()):
            every = layer.self_attn.project(layer.input_layernorm(x), cos, sin)
            q, k, v = (each.split(counts, 1) for each in every)
            own_k, own_v = k[0].unsqueeze(2), v[0].unsqueeze(2)
            attended = [xattention(q[0], shared[2 * n], shared[2 * n + 1], own_k, own_v, prompt_length)]
            for level, places_before in enumerate(parents, 1):
                own_k = torch.cat((own_k.index_select(1, places_before), k[level].unsqueeze(2)), 2)
                own_v = torch.cat((own_v.index_select(1, places_before), v[level].unsqueeze(2)), 2)
                attended += [
                    xattention(q[level], shared[2 * n], shared[2 * n + 1], own_k, own_v, prompt_length)
                ]
            x = layer.finish(x, torch.cat(attended, 1))
        return tuple(model.head(model.norm(each), level) for level, each in enumerate(x.split(counts, 1), 2))


def shared_names(config: ModelConfig) -> list[str]:
    """Names of the prompt's KV tensors, in order."""
    return [f"shared_{kind}_{n}" for n in range(config.num_hidden_layers) for kind in "kv"]


def unshared_names(config: ModelConfig, level: int) -> list[str]:
    """Names of the earlier unshared KV tensors that `decode_<level>` reads, in order."""
    return [
        f"unshared_{kind}_{n}_{u}"
        for n in range(config.num_hidden_layers)
        for u in range(level - 2)
        for kind in "kv"
    ]


def new_unshared_names(config: ModelConfig) -> list[str]:
    """Names of the unshared KV tensors that a decode step gives, in order."""
    return [f"new_unshared_{kind}_{n}" for n in range(config.num_hidden_layers) for kind in "kv"]
