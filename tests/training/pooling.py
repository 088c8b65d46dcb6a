"""A vector per sequence, of the vectors of its ids."""

from __future__ import annotations

import torch

from training.shards.sequences import Ragged


def sums(vectors: torch.Tensor, ids: Ragged) -> torch.Tensor:
    """[total, dim] -> [n, dim]; zeros of an empty sequence."""
    lengths = torch.from_numpy(ids.offsets).diff()
    owner = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    return vectors.new_zeros(len(lengths), vectors.shape[1]).index_add(0, owner, vectors)


def means(vectors: torch.Tensor, ids: Ragged) -> torch.Tensor:
    """As `sums`, shared by the ids of each sequence."""
    return sums(vectors, ids) / torch.from_numpy(ids.offsets).diff().clamp(min=1)[:, None]
