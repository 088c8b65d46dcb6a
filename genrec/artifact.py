"""Where the files of an artifact folder lie (docs/contracts.md). Its rooms load them."""

from __future__ import annotations

from pathlib import Path

from genrec.models.config import ModelConfig
from genrec.models.registry import CONFIG
from genrec.target import target_of


def configuration(artifact: Path, target: str, name: str) -> Path:
    """Where the file `name` lies that says how the model is laid out which a target runs.

    Beside the graphs where engines are made of those: `model/` may have one that was trained anew since.
    """
    exported = artifact / "onnx" / name  # exports of before have none
    return exported if target_of(target).made_of and exported.exists() else artifact / "model" / name


def load_config(artifact: Path, target: str = "") -> ModelConfig:
    """`config.json` of the model that was trained, or that a `target` runs."""
    file = configuration(artifact, target, CONFIG) if target else artifact / "model" / CONFIG
    return ModelConfig.load(file)


def engines_folder(artifact: Path, target: str) -> Path:
    """`engines/<target>`."""
    return artifact / "engines" / target
