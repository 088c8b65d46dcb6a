"""Lines of tokens of any lengths as one batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch


def padded(lines: Sequence[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    """Lines int[n] as int64[B, S], zeros on the right and one column at least, and their lengths int64[B]."""
    lengths = np.array([len(line) for line in lines])
    tokens = np.zeros((len(lines), max(int(lengths.max()), 1)), np.int64)
    for row, line in zip(tokens, lines, strict=True):
        row[: len(line)] = line
    return torch.from_numpy(tokens), torch.from_numpy(lengths)
