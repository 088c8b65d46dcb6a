"""Which part of a history a ranking reads: one function for the ranking and for what is computed ahead of it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from genrec.catalogue.items import Catalogue
from genrec.models.config import ModelConfig
from genrec.steps import Tensors, check_tensor

WINDOW_STEPS = 4  # a long history's window moves by this part of its length


class UserPrefix(NamedTuple):
    """`rows` int32[n] of the catalogue, oldest first; items that it does not know; oldest items cut off."""

    rows: NDArray[np.int32]
    dropped: int
    cut: int


def read_prefix(
    request: Tensors, catalogue: Catalogue, config: ModelConfig, newest: bool = False
) -> UserPrefix:
    """The window of a request's `history`; `newest`: as a retrieval cuts it. Raises InputError."""
    history = catalogue.rows_of(check_tensor(request, "history", np.int64))
    known, most = history[history >= 0], config.max_history
    kept = known[-most:] if newest else known[window_start(len(known), most) :]
    return UserPrefix(kept, len(history) - len(known), len(known) - len(kept))


def tokens_of(catalogue: Catalogue, config: ModelConfig) -> NDArray[np.int32]:
    """int32[n, L], the tokens of each item of the catalogue where it stands in a history."""
    return np.ascontiguousarray(catalogue.codes + np.array(config.code_offsets, np.int32))


def flat(rows: NDArray[np.int32]) -> NDArray[np.int32]:
    """[n, m] as [1, n * m]; a single 0 for none, as no tensor of Triton's should be empty."""
    return rows.reshape(1, -1) if len(rows) else np.zeros((1, 1), np.int32)


def window_start(items: int, most: int) -> int:
    """Which of `items` is the first that is read, of at most `most`.

    A window that moved with every event would begin anew each time, and no prefix would ever be found: it moves in
    steps.
    """
    step = max(most // WINDOW_STEPS, 1)
    return max(-(-(items - most) // step) * step, 0)
