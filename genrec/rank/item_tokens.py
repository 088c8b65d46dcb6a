"""The tokens of items that a ranker reads: their semantic IDs, or a table of the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from genrec.catalogue.files import ITEM_TOKENS
from genrec.catalogue.items import Catalogue
from genrec.catalogue.load import load_catalogue
from genrec.errors import ArtifactError
from genrec.files import check_regular
from genrec.models.config import ModelConfig
from genrec.tensor_file import write_tensors

TENSOR, NUMBERS = "item_tokens", "checkpoint_tokens"


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
    table = _tensors(path)[TENSOR]
    if table.dtype != np.int32 or table.ndim != 2 or len(table) != items or not table.size:
        found = f"{table.dtype}{list(table.shape)}"
        raise ArtifactError(path, f"{TENSOR} is {found}, not int32[{items}, t]: a row for every item")
    if table.min() < 0 or table.max() >= config.vocab_size:
        wrong = int(np.flatnonzero(((table < 0) | (table >= config.vocab_size)).any(axis=1))[0])
        limit = f"0..{config.vocab_size - 1}"
        raise ArtifactError(path, f"row {wrong} is {table[wrong].tolist()}, outside the vocabulary {limit}")
    return table


def token_numbers(artifact: Path, config: ModelConfig) -> NDArray[np.int64]:
    """By what number people know each token of the vocabulary, int64[V], -1 for none: of an imported artifact the
    checkpoint's, where the table of `artifact` says so; else its own. Raises ArtifactError.
    """
    path = artifact / ITEM_TOKENS
    numbers = _tensors(path).get(NUMBERS, np.arange(config.vocab_size))
    if numbers.dtype != np.int64 or numbers.shape != (config.vocab_size,):
        found = f"{numbers.dtype}{list(numbers.shape)}"
        raise ArtifactError(path, f"{NUMBERS} is {found}, not int64[{config.vocab_size}]")
    return numbers


def find_tokens(numbers: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where the vocabulary has each of the numbers `wanted` [any], as `token_numbers` gives them; -1 for nowhere."""
    order = np.argsort(numbers, kind="stable")
    at = order[np.searchsorted(numbers, wanted, sorter=order).clip(max=len(order) - 1)]
    return np.where((numbers[at] == wanted) & (wanted >= 0), at, -1)


def _tensors(path: Path) -> dict[str, NDArray[Any]]:
    """What the file holds, `item_tokens` at least. Raises ArtifactError."""
    try:
        found = load_file(check_regular(path))
    except (OSError, SafetensorError) as error:
        raise ArtifactError(path, f"holds no readable tensor {TENSOR}: {error}") from error
    if TENSOR not in found:
        raise ArtifactError(path, f"holds no tensor {TENSOR}")
    return found


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


def save_item_tokens(
    folder: Path, table: NDArray[np.int32], numbers: NDArray[np.int64] | None = None
) -> None:
    """Write the table of an artifact or of a catalogue version, int32[n, t] by catalogue row, and of an imported
    artifact the `numbers` int64[V] of `token_numbers`.
    """
    tensors: dict[str, NDArray[Any]] = {TENSOR: np.ascontiguousarray(table, np.int32)}
    if numbers is not None:
        tensors[NUMBERS] = np.ascontiguousarray(numbers, np.int64)
    write_tensors(folder / ITEM_TOKENS, tensors)
