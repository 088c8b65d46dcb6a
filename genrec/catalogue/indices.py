"""The indices of a catalogue version, loaded and held against the model and each other."""

from __future__ import annotations

from pathlib import Path

from genrec.catalogue.blocked import rehearse
from genrec.catalogue.files import VALID_IDS, VALIDITY
from genrec.catalogue.groups import Groups
from genrec.catalogue.hashset import SemanticIdSet
from genrec.catalogue.validity import ValidityIndex
from genrec.errors import ArtifactError
from genrec.models.config import ModelConfig


def load_validity(folder: Path, config: ModelConfig) -> ValidityIndex:
    """`validity.safetensors`, of the model's codebook sizes, with the groups of the version's items."""
    index = ValidityIndex.load(folder / VALIDITY, config.codebook_sizes)
    index.groups = Groups.load(folder, index.items)
    rehearse(index.first_child)
    return index


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
