"""An HSTU ranker whose weights are others, as after a training that went on."""

from __future__ import annotations

from pathlib import Path

import torch

from genrec.manifest import record
from genrec.nn.hstu import HstuRanker
from genrec.nn.hstu_checkpoint import load_hstu, save_hstu
from genrec.rank.hstu import CONFIG, WEIGHTS


def changed_further(artifact: Path, seed: int, rows: int = 20, dense: bool = True) -> HstuRanker:
    """Change `rows` rows of the item table of `artifact`/model, but for their first numbers, and where `dense` all that
    is no table; returns it.
    """
    model, folder = load_hstu(artifact / "model"), artifact / "model"
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        table = model.of_item.weight
        some = 1 + torch.randperm(len(table) - 1, generator=draw)[:rows]
        table[some, 1:] += torch.randn(rows, table.shape[1] - 1, generator=draw)
        for name, each in model.named_parameters():
            if dense and not name.startswith("of_"):
                each += 0.1 * torch.randn(each.shape, generator=draw)
    save_hstu(model, folder)
    record(artifact, "hstu", f"further {seed}", (folder / CONFIG, folder / WEIGHTS), {})
    return model
