"""A catalogue version's items, loaded and held against the model. Its indices, which need numba: `indices`."""

from __future__ import annotations

from pathlib import Path

from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.items import Catalogue
from genrec.errors import ArtifactError
from genrec.models.config import ModelConfig


def load_catalogue(folder: Path, config: ModelConfig) -> Catalogue:
    """`catalogue.parquet` without titles, refused when its semantic IDs are not those of the model.

    `folder` is the artifact, or a later version of its catalogue (`genrec.catalogue.versions`).
    """
    path = folder / CATALOGUE
    catalogue = Catalogue.load(path, titles=False)
    if catalogue.codebook_sizes != config.codebook_sizes:
        raise ArtifactError(
            path, f"has codebook sizes {catalogue.codebook_sizes}, the model {config.codebook_sizes}"
        )
    return catalogue
