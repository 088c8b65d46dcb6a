"""HSTU rankers on disk: `hstu.json` and `hstu.safetensors`. No pickle."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from genrec.errors import ArtifactError
from genrec.files import check_regular, read_json
from genrec.nn.hstu import HstuConfig, HstuRanker

CONFIG, WEIGHTS = "hstu.json", "hstu.safetensors"


def save_hstu(model: HstuRanker, folder: Path) -> None:
    """Write `folder`/hstu.json and `folder`/hstu.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(json.dumps(asdict(model.config), indent=2) + "\n")
    tensors = {name: each.detach().contiguous() for name, each in model.state_dict().items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / WEIGHTS).chmod(0o644)  # as `genrec.nn.checkpoint` does


def load_hstu(folder: Path) -> HstuRanker:
    """Read one, in evaluation mode. Raises ArtifactError."""
    said = read_json(folder / CONFIG)
    try:
        config = HstuConfig(**{**said, "codebook_sizes": tuple(said["codebook_sizes"])})
        empty = torch.zeros(config.items, len(config.codebook_sizes), dtype=torch.int64)
        model = HstuRanker(config, empty)
        model.load_state_dict(load_file(check_regular(folder / WEIGHTS)))
    except (TypeError, KeyError, ValueError, OSError, SafetensorError, RuntimeError) as error:
        raise ArtifactError(folder / CONFIG, f"and {WEIGHTS} are no HSTU ranker: {error}") from error
    return model.eval()
