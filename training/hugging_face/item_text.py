"""Tokens that a language model is to read for an item, such as its title's, in the checkpoint's own numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from genrec.errors import InputError
from training.data.tokenise import lists_of, rows_of_items
from training.hugging_face.code_tokens import TOKENIZER

ACCEPTED = (
    "JSON {item: [73, 84, ...]} or CSV item,token_1,..,token_t,"
    f" every item once, one length for all, numbers of {TOKENIZER}"
)


def read_item_text(path: Path, keys: Sequence[str], tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of n items by their keys, int64[n, t], and all that any item of the file has, int64[m] ascending.

    Raises InputError naming file, item or line, and limit.
    """
    known = set(tokenizer.get_vocab(with_added_tokens=True).values())
    given: dict[str, list[int]] = {}
    length = 0
    for place, key, parts in rows_of_items(path, "token", ACCEPTED):
        if not isinstance(parts, list) or not parts:
            raise InputError(str(path), f"{place} has no list of tokens", ACCEPTED)
        length = length or len(parts)
        if len(parts) != length:
            raise InputError(str(path), f"{place} has {len(parts)} tokens, not {length}", ACCEPTED)
        given[key] = [_number(path, place, part, known) for part in parts]
    return lists_of(given, keys, path, ACCEPTED), np.unique(list(given.values()))


def _number(path: Path, place: str, part: object, known: set[int]) -> int:
    """A token of the vocabulary. Raises InputError."""
    spelled = str(part)
    if not (spelled.isascii() and spelled.isdigit() and len(spelled) < 10 and int(spelled) in known):
        raise InputError(str(path), f"{place} has {part!r}, which is no token", ACCEPTED)
    return int(spelled)
