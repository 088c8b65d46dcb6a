"""Histories as a model of the next item reads them: rows of the catalogue, with the time of every event."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from genrec.catalogue.items import Catalogue
from training.data.histories import Histories
from training.data.windows import training_rows


@dataclass(frozen=True, eq=False)
class Timed:
    """U users, one after the other, oldest first: `offsets` int64[U + 1]; of events `rows` int64 (of the catalogue) and
    `times` int64 (seconds), all 0 where they are not known.
    """

    offsets: np.ndarray
    rows: np.ndarray
    times: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """int64[U]."""
        return np.diff(self.offsets)

    @property
    def known(self) -> bool:
        """Whether the times are."""
        return bool(self.times.any())


def load_timed(artifact: Path, catalogue: Catalogue) -> Timed:
    """Histories of `artifact`, without items that the catalogue lacks. Raises ArtifactError."""
    histories = Histories.load(artifact / "histories.parquet", times=True)
    times = np.zeros(len(histories.items), np.int64) if histories.times is None else histories.times
    rows, offsets = training_rows(histories, catalogue.rows_of)
    if len(rows) < len(times):
        times = times[catalogue.rows_of(histories.items) >= 0]
    return Timed(offsets, rows, times)
