"""NEZHA's draft head: the whole semantic ID from one pass of the generator (section 3.2, equations 1 to 3).

L placeholders follow the prompt; one prefill gives h_0 (the last real token) and h_1 .. h_L (the placeholders).

    s_1 = h_0                          (1)
    p_l = logit_head_l(h_l, s_l)       (2)  linear over both, so the part of h_l is one row per request
    s_{l+1} = Transition_l(s_l, e_l)   (3)  a GRU; e_l is the generator's embedding of the code chosen

The generator's own parameters and their names are left as they are.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from genrec.config import ModelConfig
from genrec.draft import DraftConfig
from genrec.nn.beam import Tree
from genrec.nn.model import Generator, rotary


class DraftHead(nn.Module):
    """Placeholders, logit heads and transitions of one generator; `options` may leave parts out (Table 4)."""

    def __init__(self, config: ModelConfig, options: DraftConfig) -> None:
        super().__init__()
        self.config, self.options = config, options
        size, levels = config.hidden_size, config.levels
        if options.placeholders:
            self.placeholders = nn.Parameter(torch.randn(levels, size) * 0.02)
        # Without a state the heads read h_l alone; without placeholders too, all read h_0 (the MTP row).
        if options.placeholders or options.transition == "none":
            self.hidden_heads = nn.ModuleList(nn.Linear(size, t) for t in config.codebook_sizes)
        if options.transition != "none":
            self.state_heads = nn.ModuleList(nn.Linear(size, t, bias=False) for t in config.codebook_sizes)
        if options.transition == "gru":
            self.transitions = nn.ModuleList(nn.GRUCell(size, size) for _ in range(levels - 1))

    def hidden_head(self, level: int) -> nn.Linear | None:
        """The part of a level's logit head that reads h_l, if any."""
        return cast("nn.Linear", self.hidden_heads[level - 1]) if hasattr(self, "hidden_heads") else None

    def state_head(self, level: int) -> nn.Linear | None:
        """The part that reads s_l, if any."""
        return cast("nn.Linear", self.state_heads[level - 1]) if hasattr(self, "state_heads") else None

    def cell(self, level: int) -> nn.GRUCell:
        """The transition after a level's code."""
        return cast("nn.GRUCell", self.transitions[level - 1])

    @torch.no_grad()
    def start_from(self, generator: Generator) -> None:
        """Begin where the generator is: its own head reads the state, and at level 1 that is all there is."""
        for level, (start, size) in enumerate(
            zip(self.config.code_offsets, self.config.codebook_sizes, strict=True), 1
        ):
            rows = generator.lm_head.weight[start : start + size]
            state_head, hidden_head = self.state_head(level), self.hidden_head(level)
            if state_head is not None:
                state_head.weight.copy_(rows)
            if hidden_head is not None:
                hidden_head.bias.zero_()
                hidden_head.weight.copy_(rows)
                if level == 1 and state_head is not None:
                    hidden_head.weight.zero_()

    def logits(self, level: int, hidden: Tensor, state: Tensor) -> Tensor:
        """Equation 2: hidden [..., 1 + L, hidden] (h_0 first; h_0 alone without placeholders), state [..., hidden]
        -> [..., T_level].
        """
        read = hidden[..., level if self.options.placeholders else 0, :]
        parts = ((self.hidden_head(level), read), (self.state_head(level), state))
        return torch.stack([head(x) for head, x in parts if head is not None]).sum(0)

    def advance(self, level: int, state: Tensor, embedded: Tensor) -> Tensor:
        """Equation 3: the state after level `level`'s code: state, embedded [..., hidden] -> [..., hidden]."""
        if self.options.transition == "gru":
            moved: Tensor = self.cell(level)(embedded.flatten(0, -2), state.flatten(0, -2))
            return moved.view(embedded.shape)
        return state + embedded if self.options.transition == "add" else state


def prompt_states(generator: Generator, head: DraftHead, tokens: Tensor, prompt_length: Tensor) -> Tensor:
    """One pass over prompts whose placeholders are in `tokens` already: [B, S], [B] -> [B, 1 + L, hidden].

    Placeholder l is token V + l - 1 and stands right after the row's last real token. Only the wanted
    positions go through the last block: nobody reads what it makes of the others.
    """
    config = generator.config
    table = generator.embed_tokens.weight
    if head.options.placeholders:
        table = torch.cat((table, head.placeholders))
    reach = config.levels + 1 if head.options.placeholders else 1
    wanted = (prompt_length.to(torch.int64) - 1).unsqueeze(1) + torch.arange(reach)
    x = F.embedding(tokens, table)
    cos, sin = rotary(torch.arange(tokens.shape[1]), config.head_dim, config.rope_theta)
    for layer in generator.blocks()[:-1]:
        q, k, v = layer.self_attn.project(layer.input_layernorm(x), cos, sin)
        x = layer.finish(x, _attend(q, k, v, is_causal=True))
    last = generator.blocks()[-1]
    _, k, v = last.self_attn.project(last.input_layernorm(x), cos, sin)
    x = x.gather(1, wanted.unsqueeze(2).expand(-1, -1, x.shape[2]))
    q, _, _ = last.self_attn.project(
        last.input_layernorm(x), *rotary(wanted, config.head_dim, config.rope_theta)
    )
    visible = torch.arange(tokens.shape[1]) <= wanted.unsqueeze(2)
    return generator.norm(last.finish(x, _attend(q, k, v, attn_mask=visible.unsqueeze(1))))


def teacher_states(generator: Generator, head: DraftHead, tokens: Tensor, frozen: bool) -> Tensor:
    """The states after EVERY item of a history at once, for training: [B, n * L] -> [B, n, 1 + L, hidden].

    Placeholders never reach real tokens, so a history is read once and each item's block of placeholders
    attends to what comes before it and to itself: n prompts for the price of two. `frozen` keeps gradients
    out of the history's own pass.
    """
    config, levels = generator.config, generator.config.levels
    items = tokens.shape[1] // levels
    positions = torch.arange(tokens.shape[1], device=tokens.device)
    cos, sin = rotary(positions, config.head_dim, config.rope_theta)
    if not head.options.placeholders:
        with torch.set_grad_enabled(not frozen):
            return generator.prefill(tokens)[0][:, levels - 1 :: levels].unsqueeze(2)
    block = positions // levels
    drafted = rotary(positions + levels, config.head_dim, config.rope_theta)
    history = positions < (block.unsqueeze(1) + 1) * levels
    own = (block.unsqueeze(1) == block) & (positions.unsqueeze(1) >= positions)
    visible = torch.cat((history, own), 1)  # [n * L placeholders, n * L tokens + n * L placeholders]
    x = generator.drop(generator.embed_tokens(tokens))
    p = head.placeholders.repeat(items, 1).expand(len(tokens), -1, -1)
    for layer in generator.blocks():
        with torch.set_grad_enabled(not frozen):
            q, k, v = layer.self_attn.project(layer.input_layernorm(x), cos, sin)
            x = layer.finish(x, _attend(q, k, v, is_causal=True))
        pq, pk, pv = layer.self_attn.project(layer.input_layernorm(p), *drafted)
        keys, values = torch.cat((k, pk), 1), torch.cat((v, pv), 1)
        p = layer.finish(p, _attend(pq, keys, values, attn_mask=visible))
    context = generator.norm(x[:, levels - 1 :: levels]).unsqueeze(2)
    return torch.cat((context, generator.norm(p).unflatten(1, (items, levels))), 2)


def draft_losses(
    generator: Generator, head: DraftHead, tree: Tree, rows: Tensor, real: Tensor, frozen: bool
) -> Tensor:
    """Equation 6 per level: catalogue rows int64[B, n], real bool[B, n] (False: padding) -> float32[L].

    Every item but the first is drafted from the history before it, its own codes forced (Algorithm 3). The
    softmax runs over all codes, as in the paper, so that mode `last` may do without the catalogue.
    """
    codes = tree.codes[rows]
    tokens = codes + torch.tensor(generator.config.code_offsets)
    follows = real[:, 1:]
    hidden = teacher_states(generator, head, tokens.flatten(1), frozen)[:, :-1][follows]  # [M, 1 + L, hidden]
    target, chosen = codes[:, 1:][follows], tokens[:, 1:][follows]
    state, losses = hidden[:, 0], []
    for level in range(1, codes.shape[2] + 1):
        losses.append(F.cross_entropy(head.logits(level, hidden, state).float(), target[:, level - 1]))
        if level < codes.shape[2]:
            state = head.advance(level, state, generator.embed_tokens(chosen[:, level - 1]))
    return torch.stack(losses)


class PrefillDraftGraph(nn.Module):
    """Prompt and placeholders to the states a draft needs: what `prefill_draft.onnx` holds. No KV leaves it."""

    def __init__(self, generator: Generator, head: DraftHead) -> None:
        super().__init__()
        self.generator, self.head = generator, head

    def forward(self, tokens: Tensor, prompt_length: Tensor) -> Tensor:
        """tokens [B, S], prompt_length [B] -> states [B, 1 + L, hidden]."""
        return prompt_states(self.generator, self.head, tokens, prompt_length)


def _attend(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
    """Attention with heads in Hugging Face's order: q [B, Q, H, D], k, v [B, S, G, D] -> [B, Q, H, D]."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True, **how).transpose(1, 2)
