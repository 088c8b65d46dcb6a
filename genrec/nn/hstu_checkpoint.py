"""HSTU models on disk: the configuration as JSON, and weights as safetensors. No pickle."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from genrec.errors import ArtifactError
from genrec.files import check_regular
from genrec.nn.checkpoint import write_weights
from genrec.nn.hstu import HstuRanker
from genrec.nn.hstu_next import HstuNext
from genrec.rank.hstu import HstuConfig, NextConfig

Model = TypeVar("Model", HstuRanker, HstuNext)


def save_hstu(model: HstuRanker | HstuNext, folder: Path) -> None:
    """Write the model's two `files` to `folder`."""
    config, weights = (folder / name for name in model.files)
    folder.mkdir(parents=True, exist_ok=True)
    model.config.save(config)
    write_weights(weights, model.state_dict())


def load_hstu(folder: Path) -> HstuRanker:
    """The ranker of ratings in `folder`, in evaluation mode. Raises ArtifactError."""
    return _load(HstuRanker, HstuConfig, folder)


def load_hstu_next(folder: Path) -> HstuNext:
    """The model of the next item in `folder`, in evaluation mode. Raises ArtifactError."""
    return _load(HstuNext, NextConfig, folder)


def _load(kind: type[Model], of_config: type[HstuConfig], folder: Path) -> Model:
    path, weights = (folder / name for name in kind.files)
    config = of_config.load(path)
    try:
        empty = torch.zeros(config.items, len(config.codebook_sizes), dtype=torch.int64)
        model = kind(config, empty)  # type: ignore[arg-type]  # `of_config` is its own
        model.load_state_dict(load_file(check_regular(weights)))
    except (
        TypeError,
        KeyError,
        ValueError,
        ArithmeticError,
        OSError,
        SafetensorError,
        RuntimeError,
    ) as error:
        raise ArtifactError(path, f"and {weights.name} are no HSTU ranker: {error}") from error
    return model.eval()
