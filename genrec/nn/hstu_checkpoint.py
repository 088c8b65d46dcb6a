"""HSTU rankers on disk: `hstu.json` and `hstu.safetensors`. No pickle."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from genrec.errors import ArtifactError
from genrec.files import check_regular
from genrec.nn.hstu import HstuRanker
from genrec.rank.hstu import CONFIG, WEIGHTS, HstuConfig


def save_hstu(model: HstuRanker, folder: Path) -> None:
    """Write `folder`/hstu.json and `folder`/hstu.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    model.config.save(folder / CONFIG)
    tensors = {name: each.detach().contiguous() for name, each in model.state_dict().items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / WEIGHTS).chmod(0o644)  # as `genrec.nn.checkpoint` does


def load_hstu(folder: Path) -> HstuRanker:
    """Read one, in evaluation mode. Raises ArtifactError."""
    config = HstuConfig.load(folder / CONFIG)
    try:
        empty = torch.zeros(config.items, len(config.codebook_sizes), dtype=torch.int64)
        model = HstuRanker(config, empty)
        model.load_state_dict(load_file(check_regular(folder / WEIGHTS)))
    except (TypeError, KeyError, ValueError, OSError, SafetensorError, RuntimeError) as error:
        raise ArtifactError(folder / CONFIG, f"and {WEIGHTS} are no HSTU ranker: {error}") from error
    return model.eval()
