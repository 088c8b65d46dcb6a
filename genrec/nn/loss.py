"""Teacher forcing over semantic IDs: all positions in one pass, each through its level's head.

The loss is the negative log-likelihood under the constrained model, the one that is served: at every position
the softmax runs over the codes that continue the true path to some item of the catalogue, and over no
others. Nothing is spent on learning which tuples exist; the validity tree knows that.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from genrec.nn.beam import Tree
from genrec.nn.model import Generator


def targets_of(asked: Tensor, levels: int) -> Tensor:
    """How many codes of each level are predicted in windows of `asked` bool[B, n] items: int64[L]."""
    counts = [int(asked[:, 1:].sum()), *[int(asked.sum())] * (levels - 1)]
    return torch.tensor(counts, device=asked.device).clamp(min=1)


def level_sums(model: Generator, tree: Tree, rows: Tensor, asked: Tensor) -> Tensor:
    """Summed cross entropy per level: catalogue rows int64[B, n] -> float32[L].

    `asked` bool[B, n] are the items that are predicted; padding, which comes last, is not. The position that holds the
    code of level l predicts level l + 1 of the same item; the one that holds an item's last code predicts level 1 of
    the next item, so the first item's level 1 is never a target.
    """
    levels = model.config.levels
    codes = tree.codes[rows]
    tokens = (codes + torch.tensor(model.config.code_offsets, device=codes.device)).flatten(1)
    hidden = model.prefill(tokens)[0].unflatten(1, (-1, levels))
    losses = []
    for level in range(1, levels + 1):
        if level == 1:
            at, target, keep = hidden[:, :-1, -1], rows[:, 1:], asked[:, 1:]
            parent = torch.zeros_like(target)
        else:
            at, target, keep = hidden[:, :, level - 2], rows, asked
            parent = tree.node_of[level - 2][rows]
        invalid = tree.invalid[level - 1][parent[keep]]
        logits = model.head(at[keep], level).float().masked_fill(invalid, -torch.inf)
        losses.append(F.cross_entropy(logits, tree.codes[target[keep], level - 1], reduction="sum"))
    return torch.stack(losses)
