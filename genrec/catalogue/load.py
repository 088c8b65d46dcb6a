"""The files of a catalogue version, loaded and held against each other and the model."""

from __future__ import annotations

from pathlib import Path

from genrec.catalogue.hashset import FILE_NAME as VALID_IDS
from genrec.catalogue.hashset import SemanticIdSet
from genrec.catalogue.items import Catalogue
from genrec.catalogue.validity import FILE_NAME, ValidityIndex
from genrec.errors import ArtifactError
from genrec.models.config import ModelConfig


def load_catalogue(folder: Path, config: ModelConfig) -> Catalogue:
    """`catalogue.parquet` without titles, refused when its semantic IDs are not those of the model.

    `folder`, here and below, is the artifact, or a later version of its catalogue (`genrec.catalogue.versions`).
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
