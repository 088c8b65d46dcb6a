"""NEZHA's draft head: the whole semantic ID from one pass of the generator (section 3.2, equations 1 to 3).

L placeholders follow the prompt; one prefill gives h_0 (the last real token) and h_1 .. h_L (the placeholders).

    s_1 = h_0                          (1)
    p_l = logit_head_l(h_l, s_l)       (2)  linear over both, so the part of h_l is one row per request
    s_{l+1} = Transition_l(s_l, e_l)   (3)  a GRU; e_l is the generator's embedding of the code chosen

The generator's own parameters and their names are left as they are.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from genrec.config import ModelConfig
from genrec.draft import DraftConfig
from genrec.nn.beam import Tree
from genrec.nn.model import Generator, attend, rotary


class DraftHead(nn.Module):
    """Placeholders, logit heads and transitions of one generator; `options` may leave parts out (Table 4)."""

    def __init__(self, config: ModelConfig, options: DraftConfig, dropout: float = 0.0) -> None:
        super().__init__()
        self.config, self.options, self.drop = config, options, nn.Dropout(dropout)
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
        return torch.stack([head(self.drop(x)) for head, x in parts if head is not None]).sum(0)

    def advance(self, level: int, state: Tensor, embedded: Tensor) -> Tensor:
        """Equation 3: the state after level `level`'s code: state, embedded [..., hidden] -> [..., hidden]."""
        if self.options.transition == "gru":
            moved: Tensor = self.cell(level)(embedded.flatten(0, -2), state.flatten(0, -2))
            return moved.view(embedded.shape)
        return state + embedded if self.options.transition == "add" else state


def prompt_states(generator: Generator, head: DraftHead, tokens: Tensor, prompt_length: Tensor) -> Tensor:
    """One pass over prompts whose placeholders are in `tokens` already: [B, S], [B] -> [B, 1 + L, hidden].

    Placeholder l is token V + l - 1 and stands right after the row's last real token.
    """
    config = generator.config
    table = generator.embed_tokens.weight
    if head.options.placeholders:
        table = torch.cat((table, head.placeholders))
    reach = config.levels + 1 if head.options.placeholders else 1
    wanted = (prompt_length.to(torch.int64) - 1).unsqueeze(1) + torch.arange(reach)
    hidden, _ = generator.prefill_at(F.embedding(tokens, table), wanted)
    return hidden


def read_blocks(generator: Generator, kv: list[tuple[Tensor, Tensor]], embedded: Tensor) -> Tensor:
    """What a block of m tokens after EVERY item of a history turns into, all at once: n prompts for one.

    kv per layer k, v [B, n * L, G, D] of the history, embedded [B, n, m, hidden] -> [B, n, m, hidden]. Blocks
    never reach real tokens, so the history is read once; each block attends to what comes before it and to
    itself.
    """
    config, (_, items, size, _) = generator.config, embedded.shape
    block = torch.arange(items * size, device=embedded.device) // size
    place = torch.arange(items * size, device=embedded.device) % size
    cos, sin = rotary((block + 1) * config.levels + place, config.head_dim, config.rope_theta)
    history = (
        torch.arange(items * config.levels, device=embedded.device) < ((block + 1) * config.levels)[:, None]
    )
    own = (block[:, None] == block) & (place[:, None] >= place)
    visible = torch.cat((history, own), 1)  # [n * m, n * L + n * m]
    x = embedded.flatten(1, 2)
    for layer, (k, v) in zip(generator.blocks(), kv, strict=True):
        q, own_k, own_v = layer.self_attn.project(layer.input_layernorm(x), cos, sin)
        keys, values = torch.cat((k, own_k), 1), torch.cat((v, own_v), 1)
        x = layer.finish(x, attend(q, keys, values, attn_mask=visible))
    return generator.norm(x).unflatten(1, (items, size))


def draft_losses(
    generator: Generator, head: DraftHead, tree: Tree, rows: Tensor, real: Tensor, frozen: bool, validity: float
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Per level float32[L] each, of catalogue rows int64[B, n], real bool[B, n] (False: padding):

    equation 6, every item but the first drafted from the history before it, its own codes forced (Algorithm 3); and,
    of a frozen generator, the cross entropy to what it expects itself along an item it finds likely (zeros when it
    learns too). Beams go where histories do not, and there only the generator can say what is right.

    A softmax over all codes says which codes are valid, and which of the valid ones: -log p = -log p(valid) - log
    p(code given valid). `validity` weighs the first part; at 1 this is the paper's loss. Only mode `last` reads it.
    """
    config, follows = generator.config, real[:, 1:]
    tokens = (tree.codes[rows] + torch.tensor(config.code_offsets)).flatten(1)
    with torch.set_grad_enabled(torch.is_grad_enabled() and not frozen):
        read, kv = generator.prefill(tokens)
    states = read[:, config.levels - 1 :: config.levels].unsqueeze(2)
    if head.options.placeholders:
        block = head.placeholders.expand(*rows.shape, -1, -1)
        states = torch.cat((states, read_blocks(generator, kv, block)), 2)
    hidden = states[:, :-1][follows]  # [M, 1 + L, hidden]
    came = rows[:, 1:][follows]
    losses = _forced(generator, head, tree, came, hidden, list(tree.codes[came].T), validity)
    if not frozen:
        return losses, torch.zeros_like(losses)
    with torch.no_grad():
        likely = _likely(generator, tree, states[:, :, 0])
        codes = tree.codes[likely] + torch.tensor(config.code_offsets)
        own = read_blocks(generator, kv, generator.embed_tokens(codes[..., :-1]))
        seen = torch.cat((states[:, :, :1], own), 2)[:, :-1][
            follows
        ]  # the states that read levels 1 .. L - 1
        likely = likely[:, :-1][follows]
        expected = []
        for level in range(1, config.levels + 1):
            logits = generator.head(seen[:, level - 1], level)
            expected.append(logits.masked_fill(_invalid(tree, level, likely), -torch.inf).softmax(-1))
    return losses, _forced(generator, head, tree, likely, hidden, expected, validity)


def _forced(
    generator: Generator, head: DraftHead, tree: Tree, items: Tensor, hidden: Tensor, targets: list[Tensor],
    validity: float,
) -> Tensor:  # fmt: skip
    """Cross entropy per level along the codes of items [M], to targets, codes [M] or shares [M, T_l]; hidden
    [M, 1 + L, hidden] -> float32[L].
    """  # fmt: skip
    state, losses = hidden[:, 0], []
    for level, target in enumerate(targets, 1):
        logits = head.logits(level, hidden, state).float()
        valid = logits.masked_fill(_invalid(tree, level, items), -torch.inf).logsumexp(-1)
        wanted = logits.gather(1, target[:, None])[:, 0] if target.dim() == 1 else (logits * target).sum(-1)
        losses.append((valid - wanted + validity * (logits.logsumexp(-1) - valid)).mean())
        if level < len(targets):
            token = tree.codes[items, level - 1] + generator.config.code_offsets[level - 1]
            state = head.advance(level, state, generator.embed_tokens(token))
    return torch.stack(losses)


def _invalid(tree: Tree, level: int, items: Tensor) -> Tensor:
    """What cannot follow the prefixes that items [M] have before `level`: bool[M, T_l], or [1, T_1]."""
    return tree.invalid[level - 1][tree.node_of[level - 2][items]] if level > 1 else tree.invalid[0]


def _likely(generator: Generator, tree: Tree, context: Tensor) -> Tensor:
    """An item for each h_0 [..., hidden]: its first code drawn as the generator expects it, then any such item."""
    logits = generator.head(context, 1).masked_fill(tree.invalid[0], -torch.inf)
    nodes = tree.children[0][0][torch.distributions.Categorical(logits=logits).sample()]
    order, counts = tree.node_of[0].argsort(stable=True), torch.bincount(tree.node_of[0])
    pick = (torch.rand(nodes.shape) * counts[nodes]).long().clamp(max=counts.max() - 1)
    return order[(counts.cumsum(0) - counts)[nodes] + pick]


class PrefillDraftGraph(nn.Module):
    """Prompt and placeholders to the states a draft needs: what `prefill_draft.onnx` holds. No KV leaves it."""

    def __init__(self, generator: Generator, head: DraftHead) -> None:
        super().__init__()
        self.generator, self.head = generator, head

    def forward(self, tokens: Tensor, prompt_length: Tensor) -> Tensor:
        """tokens [B, S], prompt_length [B] -> states [B, 1 + L, hidden]."""
        return prompt_states(self.generator, self.head, tokens, prompt_length)
