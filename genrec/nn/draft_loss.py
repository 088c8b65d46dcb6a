"""What a draft head learns from: equation 6 of NEZHA, and what a frozen generator expects itself."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from genrec.nn.beam import Tree
from genrec.nn.draft_head import DraftHead
from genrec.nn.functions import attend, rotary
from genrec.nn.model import Generator


def draft_sums(
    generator: Generator, head: DraftHead, tree: Tree, rows: Tensor, real: Tensor, chance: Tensor | None,
    validity: float,
) -> Tensor:  # fmt: skip
    """Summed loss per level float32[L], of catalogue rows int64[B, n], real bool[B, n] (False: padding): equation 6,
    every item but the first drafted from the history before it, its own codes forced (Algorithm 3).

    With `chance` float32[B, n, 2], numbers in [0, 1), the head learns what the generator itself expects along an item
    that it finds likely, which these draw: beams go where histories do not, and there only the generator can say what
    is right. Nothing of this moves the generator. `validity` as in `CodeLoss`. Levels that the head does not learn
    count nothing.
    """  # fmt: skip
    config, follows = generator.config, real[:, 1:]
    tokens = (tree.codes[rows] + torch.tensor(config.code_offsets, device=tree.codes.device)).flatten(1)
    read, kv = generator.prefill(tokens)
    context = read[:, config.levels - 1 :: config.levels]
    states = context.unsqueeze(2)
    if head.options.placeholders:
        block = head.placeholders.expand(*rows.shape, -1, -1)
        states = torch.cat((states, read_blocks(generator, kv, block)), 2)
    items, expected = rows[:, 1:][follows], None
    if chance is not None:
        items, expected = _expected(generator, tree, context, kv, follows, chance)
    return _forced(generator, head, tree, items, states[:, :-1][follows], expected, validity)


@torch.no_grad()
def _expected(
    generator: Generator, tree: Tree, context: Tensor, kv: list[tuple[Tensor, Tensor]], follows: Tensor,
    chance: Tensor,
) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
    """What the generator expects after h_0 [B, n, hidden]: items it finds likely [M] and, before each of their codes,
    its own state [M, hidden]. `follows` bool[B, n - 1] where an item follows: M in all.
    """
    items = _likely(generator, tree, context, chance)
    tokens = tree.codes[items] + torch.tensor(generator.config.code_offsets, device=tree.codes.device)
    seen = torch.cat(
        (context.unsqueeze(2), read_blocks(generator, kv, generator.embed_tokens(tokens[..., :-1]))), 2
    )
    return items[:, :-1][follows], list(seen[:, :-1][follows].unbind(1))


def _forced(
    generator: Generator, head: DraftHead, tree: Tree, items: Tensor, hidden: Tensor, expected: list[Tensor] | None,
    validity: float,
) -> Tensor:  # fmt: skip
    """Summed loss per level along the codes of items [M], which are the targets unless the generator's states
    [M, hidden] before each level are given; hidden [M, 1 + L, hidden] -> float32[L].
    """  # fmt: skip
    state, losses, levels = (
        hidden[:, 0],
        [hidden.new_zeros(())] * (head.learns_from - 1),
        generator.config.levels,
    )
    for level in range(1, levels + 1):
        codes = tree.codes[items, level - 1]
        if level >= head.learns_from:
            invalid, target = _invalid(tree, level, items), codes
            if expected is not None:
                target = _shares(generator, level, expected[level - 1], invalid)
            logits = head.logits(level, hidden, state).float()
            losses.append(CodeLoss.apply(logits, target, invalid, validity).sum())
        if level < levels:
            token = codes + generator.config.code_offsets[level - 1]
            state = head.advance(level, state, generator.embed_tokens(token))
    return torch.stack(losses)


@torch.no_grad()
def _shares(generator: Generator, level: int, seen: Tensor, invalid: Tensor) -> Tensor:
    """How the generator shares one among the valid codes of a level, from its states [M, hidden]: [M, T_level]."""
    return generator.head(seen, level).masked_fill_(invalid, -torch.inf).softmax(-1)


class CodeLoss(torch.autograd.Function):
    """-log p of a code, knowing what is valid: -log p = -log p(code given valid) - validity * log p(valid).

    At validity 1 this is the cross entropy over all codes, the paper's; less of it leaves the head free to tell the
    valid ones apart, which is all that mode `every` asks. Passes over [M, T] are what costs: the gradient is made
    in the ones that the loss takes.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, invalid: Tensor, validity: float) -> Tensor:
        """logits [M, T], target codes [M] or shares [M, T], invalid bool[M or 1, T] -> [M]."""
        top = logits.amax(-1, keepdim=True)
        share = (logits - top).exp_()
        whole = share.sum(-1, keepdim=True)
        slope = share.masked_fill(invalid, 0.0)
        valid = slope.sum(-1, keepdim=True).clamp_(min=torch.finfo(share.dtype).tiny)
        slope.mul_((1 - validity) / valid)
        if validity:
            slope.addcmul_(share, validity / whole)
        if target.dim() == 1:
            wanted = logits.gather(1, target[:, None])
            slope.scatter_add_(1, target[:, None], torch.full_like(wanted, -1.0))
        else:
            wanted = (logits * target).sum(-1, keepdim=True)
            slope.sub_(target)
        ctx.save_for_backward(slope)
        return ((1 - validity) * valid.log() + validity * whole.log() + top - wanted)[:, 0]

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None, None, None]:
        """The slope of every row's loss, times what comes from above [M]."""
        (slope,) = ctx.saved_tensors
        return slope * slopes[0][:, None], None, None, None


def _invalid(tree: Tree, level: int, items: Tensor) -> Tensor:
    """What cannot follow the paths that items [M] have before `level`: bool[M, T_l], or [1, T_1]."""
    return tree.invalid[level - 1][tree.node_of[level - 2][items]] if level > 1 else tree.invalid[0]


def _likely(generator: Generator, tree: Tree, context: Tensor, chance: Tensor) -> Tensor:
    """An item for each h_0 [..., hidden]: its first code drawn as the generator expects it, then any such item.

    `chance` [..., 2] in [0, 1) draws them.
    """
    logits = generator.head(context, 1).masked_fill(tree.invalid[0], -torch.inf)
    reached = logits.softmax(-1).cumsum(-1)  # the way round a uniform draw: one number each, not one per code
    drawn = torch.searchsorted(reached, chance[..., :1] * reached[..., -1:], right=True)
    nodes = tree.children[0][0][drawn.squeeze(-1)]
    order, counts = tree.node_of[0].argsort(stable=True), torch.bincount(tree.node_of[0])
    pick = (chance[..., 1] * counts[nodes]).long().clamp(max=counts.max() - 1)
    return order[(counts.cumsum(0) - counts)[nodes] + pick]


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
        x = layer.finish(x, attend(q, keys, values, visible))
    return generator.norm(x).unflatten(1, (items, size))
