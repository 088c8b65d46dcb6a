"""The prompt of a history: its items' codes, and the text that a language model was trained to find around them."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from genrec.models.config import ModelConfig

Number = TypeVar("Number", bound="np.integer[Any]")


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
