"""The generator's forward passes for a GPU: fused projections, KV written where the attention kernel reads it.

The same arithmetic as `genrec.nn.model` (its slow twin in the tests); nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from genrec.engine.cuda.operations import Operations, TorchOperations
from genrec.engine.cuda.prompt_room import PromptRoom
from genrec.engine.cuda.stack import Stack
from genrec.nn.model import Generator

Attend = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def _attend_at(q: Tensor, k: Tensor, v: Tensor, wanted: Tensor) -> Tensor:
    """Attention from positions `wanted` [B, n], q [B, n, H, D], to those up to each: k, v [B, G, S, D] -> [B, n, H, D].

    The heads of a group go beside each other as queries, so that no k or v is repeated for them.
    """
    grouped = q.unflatten(2, (k.shape[1], -1)).permute(0, 2, 3, 1, 4)  # [B, G, R, n, D]
    positions = torch.arange(k.shape[2], device=k.device)
    visible = (positions <= wanted.unsqueeze(2)).repeat(1, grouped.shape[2], 1)  # [B, R * n, S]
    attended = F.scaled_dot_product_attention(grouped.flatten(2, 3), k, v, visible.unsqueeze(1))
    return attended.view(grouped.shape).permute(0, 3, 1, 2, 4).flatten(2, 3)


class Forward:
    """Prefill and decode of one generator on one device, in the generator's own type."""

    def __init__(self, generator: Generator, attend: Attend, operations: Operations | None = None) -> None:
        """`attend` computes the attention of a decode step: the kernel, or `genrec.nn.xattention.xattention`.

        `operations` do what is between products: the fused kernels, or torch where none are given.
        """
        self.config, self.attend = generator.config, attend
        self.operations = operations or TorchOperations()
        self.stack = Stack(generator.blocks(), generator.norm, generator.config, self.operations)
        self.embedding = generator.embed_tokens.weight.detach()
        self.head = generator.lm_head.weight.detach()
        self.device, self.dtype = self.embedding.device, self.embedding.dtype
        self.prompts = PromptRoom(self.config, self.device, self.dtype)

    @torch.no_grad()
    def prefill(
        self, tokens: Tensor, lengths: Tensor, room: Tensor | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """tokens [B, S] padded right, lengths [B] -> logits float32 [B, 1, T_1], per layer k, v [B, G, S, D].

        These lie in `room` [2N, B, G, S, D], where one is given.
        """
        x, kv = self.prefill_at(F.embedding(tokens, self.embedding), lengths[:, None] - 1, room)
        return self._logits(x, 1), kv

    @torch.no_grad()
    def prefill_at(
        self, x: Tensor, wanted: Tensor, room: Tensor | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """Embedded x [B, S, hidden] -> normed hidden [B, n, hidden] at `wanted` [B, n], per layer k, v [B, G, S, D].

        As `Generator.prefill_at`: the last layer makes KV of all positions, all else of the wanted ones. What x holds
        may be lost.
        """
        c, stack, hidden = self.config, self.stack, x.shape[2]
        x, normed, kv = self._through(x, room)
        last, (k, v) = stack.layers[-1], kv[-2:]
        places = wanted.unsqueeze(2).expand(-1, -1, hidden)
        x, normed = x.gather(1, places), normed.gather(1, places)
        none = k.new_empty(*wanted.shape, 0, c.head_dim)
        q = stack.heads(last, last.product(normed, stack.queries), stack.tables(wanted), none, none)
        _, normed = stack.finish(len(stack.layers) - 1, x, _attend_at(q, k, v, wanted))
        return normed, kv

    @torch.no_grad()
    def prefix(self, tokens: Tensor) -> list[Tensor]:
        """tokens [B, S], none padded -> per layer k, v [B, G, S, D], and nothing else."""
        return self._through(F.embedding(tokens, self.embedding))[2]

    def _through(self, x: Tensor, room: Tensor | None = None) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Embedded x [B, S, hidden] through all layers but the last, what that reads, and per layer k, v [B, G, S, D].

        The last layer's too, which is all that it does here.
        """
        c, stack, (batch, span, _) = self.config, self.stack, x.shape
        tables = stack.tables(torch.arange(span, device=self.device)[None, :])
        shape = 2 * len(stack.layers), batch, c.num_key_value_heads, span, c.head_dim
        kv = list(x.new_empty(shape) if room is None else room)
        x, normed = stack.first(x)
        for n, layer in enumerate(stack.layers[:-1]):
            k, v = kv[2 * n : 2 * n + 2]
            q = stack.heads(layer, layer.product(normed), tables, k.transpose(1, 2), v.transpose(1, 2))
            attended = F.scaled_dot_product_attention(
                q.transpose(1, 2), k, v, is_causal=True, enable_gqa=True
            )
            x, normed = stack.finish(n, x, attended.transpose(1, 2))
        last, (k, v) = stack.layers[-1], kv[-2:]
        product = last.product(normed, slice(stack.queries.stop, None))
        stack.heads(last, product, tables, k.transpose(1, 2), v.transpose(1, 2))
        return x, normed, kv

    @torch.no_grad()
    def decode(self, level: int, codes: Tensor, lengths: Tensor, shared: list[Tensor], own: Tensor) -> Tensor:
        """codes [B, W] of level `level - 1` -> logits float32 [B, W, T_level].

        `shared` as prefill gives it; `own` [2N, B, W, U, G, D] holds the U - 1 earlier tokens' k and v per
        layer; this token's are written behind them.
        """
        stack = self.stack
        x, normed = stack.first(F.embedding(codes + self.config.code_offsets[level - 2], self.embedding))
        tables = stack.tables((lengths + level - 2)[:, None])
        for n, layer in enumerate(stack.layers):
            k, v = own[2 * n], own[2 * n + 1]
            q = stack.heads(layer, layer.product(normed), tables, k[:, :, -1], v[:, :, -1])
            attended = self.attend(q, shared[2 * n], shared[2 * n + 1], k, v, lengths)
            x, normed = stack.finish(n, x, attended)
        return self._logits(normed, level)

    def _logits(self, x: Tensor, level: int) -> Tensor:
        """Normed hidden [..., hidden] -> float32 [..., T_level]: one level's block of the head only."""
        start = self.config.code_offsets[level - 1]
        block = self.head[start : start + self.config.codebook_sizes[level - 1]]
        return F.linear(x, block).float()
