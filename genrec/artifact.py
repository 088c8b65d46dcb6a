"""The files of an artifact folder, loaded and held against each other."""

from __future__ import annotations

import json
from pathlib import Path

from genrec.catalogue import Catalogue
from genrec.config import ModelConfig
from genrec.draft import FILE_NAME as DRAFT_HEAD
from genrec.draft import Drafter
from genrec.engine.base import Engine, Generator, load_passes
from genrec.engine.host import HostGenerator
from genrec.errors import ArtifactError, InputError
from genrec.hashset import FILE_NAME as VALID_IDS
from genrec.hashset import SemanticIdSet
from genrec.kv import KV_TYPES, Layout
from genrec.steps import Settings
from genrec.validity import FILE_NAME, ValidityIndex


def load_config(artifact: Path) -> ModelConfig:
    """`model/config.json`."""
    return ModelConfig.load(artifact / "model" / "config.json")


def load_catalogue(folder: Path, config: ModelConfig) -> Catalogue:
    """`catalogue.parquet` without titles, refused when its semantic IDs are not those of the model.

    `folder`, here and below, is the artifact, or a later version of its catalogue (`genrec.versions`).
    """
    path = folder / "catalogue.parquet"
    catalogue = Catalogue.load(path, titles=False)
    if catalogue.codebook_sizes != config.codebook_sizes:
        raise ArtifactError(
            path, f"has codebook sizes {catalogue.codebook_sizes}, the model {config.codebook_sizes}"
        )
    return catalogue


def load_validity(folder: Path, config: ModelConfig) -> ValidityIndex:
    """`validity.safetensors`, of the model's codebook sizes."""
    return ValidityIndex.load(folder / FILE_NAME, config.codebook_sizes)


def load_valid_ids(folder: Path, index: ValidityIndex) -> SemanticIdSet:
    """`valid_ids.safetensors`, mapped: one copy for every process. Refused when it is not of `index`."""
    path = folder / VALID_IDS
    valid = SemanticIdSet.map(path)
    if len(valid) != index.node_count(index.levels):
        raise ArtifactError(
            path, f"holds {len(valid)} semantic IDs, the validity index {index.node_count(index.levels)}"
        )
    return valid


def load_indices(folder: Path, config: ModelConfig) -> tuple[ValidityIndex, SemanticIdSet]:
    """Both indices of a catalogue."""
    index = load_validity(folder, config)
    return index, load_valid_ids(folder, index)


def has_draft(artifact: Path) -> bool:
    """Whether the artifact can serve drafts (NEZHA)."""
    return (artifact / "onnx" / DRAFT_HEAD).is_file()


def check_decoder(artifact: Path, decoder: str) -> None:
    """`beam`, `staged` or `draft`. Raises InputError; ArtifactError when the artifact has no draft head."""
    if decoder not in ("beam", "staged", "draft"):
        raise InputError("decoder", f"is {decoder!r}", "beam, staged, draft")
    if decoder == "draft" and not has_draft(artifact):
        raise ArtifactError(artifact / "onnx" / DRAFT_HEAD, "is missing: train a draft head, then export")


def load_drafter(artifact: Path, config: ModelConfig) -> Drafter:
    """The draft head's arrays."""
    return Drafter.load(artifact / "onnx" / DRAFT_HEAD, config)


def load_layout(settings: Settings, config: ModelConfig) -> Layout:
    """Where the target's engines put things in an arena slot."""
    path = _engines(settings) / "engine.json"
    try:
        kv_type = json.loads(path.read_text())["kv_type"]
    except (OSError, ValueError, KeyError) as error:
        raise ArtifactError(path, f"not readable: {error}") from error
    if kv_type not in KV_TYPES:
        raise ArtifactError(path, f"kv_type is {kv_type!r} (accepted: {', '.join(KV_TYPES)})")
    return Layout(config, settings.beam_width, kv_type)


def load_engine_of(settings: Settings, config: ModelConfig) -> Engine:
    """The target's engine."""
    layout = load_layout(settings, config)
    (passes,) = load_passes(settings.target, _engines(settings), layout.kv_type, settings.threads)
    return Engine(layout, passes)


def load_generators(settings: Settings, config: ModelConfig) -> list[Generator]:
    """Whole-request generators of the target, as many as may run at once."""
    folder, width = _engines(settings), settings.beam_width
    if settings.target == "cuda":
        from genrec.engine.cuda import load_forward  # imports torch, which no other target needs
        from genrec.engine.cuda.generate import CudaGenerator

        return [CudaGenerator(load_forward(folder), width)]
    kv_type = load_layout(settings, config).kv_type
    streams = load_passes(settings.target, folder, kv_type, settings.threads, settings.streams)
    return [HostGenerator(passes, config, width, kv_type) for passes in streams]


def _engines(settings: Settings) -> Path:
    return settings.artifact / "engines" / settings.target
