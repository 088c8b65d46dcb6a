"""Teacher forcing over semantic IDs: all positions in one pass, each through its level's head."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from genrec.nn.model import Generator


def window_tokens(model: Generator, codes: Tensor) -> Tensor:
    """Codes [B, n, L] of items -> tokens [B, n * L]."""
    offsets = torch.tensor(model.config.code_offsets, device=codes.device)
    return (codes + offsets).flatten(1)


def level_losses(model: Generator, codes: Tensor, real: Tensor, soft: Tensor | None = None) -> Tensor:
    """Mean cross entropy per level: codes int64[B, n, L], real bool[B, n] (False: padding) -> float32[L].

    The position that holds the code of level l predicts level l + 1 of the same item; the one that holds an
    item's last code predicts level 1 of the next item, so the first item's level 1 is never a target.
    `soft` [B, n - 1, T_1] replaces the one-hot targets of level 1 when given (rows sum to 1).
    """
    levels = codes.shape[2]
    hidden = model.prefill(window_tokens(model, codes))[0].unflatten(1, (-1, levels))
    follows = real[:, 1:]
    first = model.head(hidden[:, :-1, -1][follows], 1).float()
    targets = codes[:, 1:, 0][follows] if soft is None else soft[follows]
    losses = [F.cross_entropy(first, targets)]
    for level in range(2, levels + 1):
        logits = model.head(hidden[:, :, level - 2][real], level).float()
        losses.append(F.cross_entropy(logits, codes[:, :, level - 1][real]))
    return torch.stack(losses)
