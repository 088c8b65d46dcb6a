"""The codes of semantic IDs, by numpy's own mixed-radix numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def codes_of(ids: npt.NDArray[np.int64], sizes: Sequence[int]) -> npt.NDArray[np.int64]:
    """int64[..., L] of ids int64[...], `sizes` (T_1, ..., T_L): the inverse of `pack`."""
    return np.stack(np.unravel_index(ids, tuple(sizes)), -1)
