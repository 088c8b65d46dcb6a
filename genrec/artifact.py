"""Where the files of an artifact folder lie (docs/contracts.md). Its rooms load them."""

from __future__ import annotations

from pathlib import Path

from genrec.models.config import ModelConfig


def load_config(artifact: Path) -> ModelConfig:
    """`model/config.json`."""
    return ModelConfig.load(artifact / "model" / "config.json")


def engines_folder(artifact: Path, target: str) -> Path:
    """`engines/<target>`."""
    return artifact / "engines" / target
