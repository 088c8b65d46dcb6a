"""What turns a discriminant token's last state into its item's score."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from genrec.errors import ArtifactError
from genrec.files import check_regular
from genrec.models.config import ModelConfig

FILE_NAME = "ranker_head.safetensors"  # in `onnx/`
TABLE = "identifiers"


class RankerHead:
    """A row per token of the vocabulary: an item's score is its state times the sum of the rows of its codes."""

    def __init__(self, rows: NDArray[np.float32]) -> None:
        from genrec.rank.score import scores  # here, and compiled now: see there

        self._rows, self._scores = rows, scores
        self.scores(np.zeros((0, rows.shape[1]), np.float32), np.zeros((0, 1), np.int32))

    @classmethod
    def load(cls, path: Path, config: ModelConfig) -> RankerHead:
        """Read and check the file. Raises ArtifactError."""
        try:
            rows = load_file(check_regular(path))[TABLE]
        except (OSError, SafetensorError, KeyError) as error:
            raise ArtifactError(path, f"not the head of a ranker: {error}") from error
        if rows.dtype != np.float32 or rows.shape != (config.vocab_size, config.hidden_size):
            wanted = f"float32[{config.vocab_size}, {config.hidden_size}]"
            raise ArtifactError(path, f"holds {rows.dtype}{list(rows.shape)}, the model wants {wanted}")
        return cls(rows)

    def scores(self, states: NDArray[np.float32], codes: NDArray[np.int32]) -> NDArray[np.float32]:
        """float32[C]: states [C, hidden] of items whose semantic IDs are the tokens `codes` [C, L].

        Raises IndexError where a token has no row.
        """
        found: NDArray[np.float32] = self._scores(self._rows, states, codes)
        return found


def has_ranker(artifact: Path) -> bool:
    """Whether the artifact can rank."""
    return (artifact / "onnx" / FILE_NAME).is_file()
