"""The tokens of items that a ranker reads: their semantic IDs, or a table of the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from genrec.catalogue.files import ITEM_TOKENS
from genrec.catalogue.items import Catalogue
from genrec.catalogue.load import load_catalogue
from genrec.errors import ArtifactError
from genrec.files import check_regular
from genrec.models.config import ModelConfig

TENSOR = "item_tokens"


def item_tokens(folder: Path, catalogue: Catalogue, config: ModelConfig) -> NDArray[np.int32]:
    """Tokens of the vocabulary by catalogue row, int32[n, t]: of the table in `folder`, else of the semantic IDs.

    `folder` is the artifact, or a later version of its catalogue. Raises ArtifactError naming what does not fit.
    """
    if not (folder / ITEM_TOKENS).exists():
        return catalogue.codes + np.array(config.code_offsets, np.int32)
    return read_item_tokens(folder, len(catalogue), config)


def read_item_tokens(folder: Path, items: int, config: ModelConfig) -> NDArray[np.int32]:
    """The table in `folder`, int32[items, t]. Raises ArtifactError, of one that is not there too."""
    path = folder / ITEM_TOKENS
    try:
        table = load_file(check_regular(path))[TENSOR]
    except (OSError, SafetensorError, KeyError) as error:
        raise ArtifactError(path, f"holds no readable tensor {TENSOR}: {error}") from error
    if table.dtype != np.int32 or table.ndim != 2 or len(table) != items or not table.size:
        found = f"{table.dtype}{list(table.shape)}"
        raise ArtifactError(path, f"{TENSOR} is {found}, not int32[{items}, t]: a row for every item")
    if table.min() < 0 or table.max() >= config.vocab_size:
        wrong = int(np.flatnonzero(((table < 0) | (table >= config.vocab_size)).any(axis=1))[0])
        limit = f"0..{config.vocab_size - 1}"
        raise ArtifactError(path, f"row {wrong} is {table[wrong].tolist()}, outside the vocabulary {limit}")
    return table


class DistinctItems(NamedTuple):
    """What a catalogue's items are to a pool: their `tokens` int32[m, t], each once, and `popularity` int64[m]."""

    tokens: NDArray[np.int32]
    popularity: NDArray[np.int64]

    @classmethod
    def load(cls, folder: Path, config: ModelConfig) -> DistinctItems:
        """Of the catalogue version in `folder`. Raises ArtifactError."""
        catalogue = load_catalogue(folder, config)
        tokens, of = np.unique(item_tokens(folder, catalogue, config), axis=0, return_inverse=True)
        counts = np.bincount(of.reshape(-1), catalogue.popularity, len(tokens))
        return cls(np.ascontiguousarray(tokens, np.int32), counts.astype(np.int64))


def save_item_tokens(folder: Path, table: NDArray[np.int32]) -> None:
    """Write the table of an artifact or of a catalogue version, int32[n, t] by catalogue row."""
    save_file({TENSOR: np.ascontiguousarray(table, np.int32)}, folder / ITEM_TOKENS)
    (folder / ITEM_TOKENS).chmod(0o644)  # as `genrec.nn.checkpoint` does
