"""The prompt of a history: which of its items are read, their codes, and the text that a language model was trained to
find around them.
"""  # fmt: skip

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from genrec.models.config import ModelConfig

Number = TypeVar("Number", bound="np.integer[Any]")

Start = Callable[[int, int], int]  # see `newest_start`

WINDOW_STEPS = 4  # a long history's window moves by this part of its length


def prompt_of(config: ModelConfig, items: NDArray[Number]) -> NDArray[Number]:
    """Tokens of a history's items [n, L], oldest first -> its prompt [S], S being `config.prompt_length(n)`."""
    if not len(items) or not config.has_text:
        return items.reshape(-1)
    before, between, after = (
        np.array(tokens, items.dtype)
        for tokens in (config.prompt_before, config.prompt_between, config.prompt_after)
    )
    spaced = np.hstack((items, np.broadcast_to(between, (len(items), len(between))))).reshape(-1)
    return np.concatenate((before, spaced[: len(spaced) - len(between)], after))


def newest_start(items: int, most: int) -> int:
    """The first of `items` that is read, of at most `most`, where nobody comes again: the newest are."""
    return max(items - most, 0)


def window_start(items: int, most: int, steps: int = WINDOW_STEPS) -> int:
    """The same where KV is to be found again. A window that moved with every event would begin anew each time, and no
    prefix would ever be found: it moves by a part of `most`.
    """
    step = max(most // steps, 1)
    return max(-(-(items - most) // step) * step, 0)
