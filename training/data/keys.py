"""Users and items as the data spell them (keys), and the int64 ids they are stored and served under."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from genrec.errors import InputError

INT64 = np.iinfo(np.int64)
LEAST = INT64.min + 1  # the number before it stands for no item: `training.generator.evaluate.PAD`
_PLAIN = re.compile(r"0|-?[1-9][0-9]{0,18}")
WHOLE_NUMBERS = (
    f"whole numbers {LEAST} to {INT64.max} without leading zeros or a plus sign, which are kept as ids;"
    " or names for most, which get the ids 1, 2, ..."
)


def number_keys(
    keys: pa.Array, kind: str, map_file: str, place: Callable[[str], tuple[str, str]]
) -> tuple[np.ndarray, list[str]]:
    """Ids of n distinct keys (strings): int64[n], and a note for people where they are not the keys themselves.

    Where most keys are plain whole numbers, those are the ids, and any other key is an error: ids that requests and
    logs already use must not move because of one row. Else keys are names, and the n-th gets the id n; `map_file`,
    which holds both, is named in the note. `kind` is what they name, `place` says where a key stands: (file, line).
    Raises InputError.
    """
    plain = are_plain(keys) & pc.not_equal(keys, str(LEAST - 1)).to_numpy(zero_copy_only=False)
    numbers = int(plain.sum())
    if numbers == len(keys):
        return keys.cast(pa.int64()).to_numpy(), []
    if numbers * 2 > len(keys):
        odd = keys[int(plain.argmin())].as_py()
        file, line = place(odd)
        problem = f"{line} has the {kind} {odd!r}, where {numbers} of {len(keys)} {kind}s are whole numbers"
        raise InputError(file, problem, WHOLE_NUMBERS)
    also = f" ({numbers} look like numbers, and are names too)" if numbers else ""
    note = f"{kind}s are named by text{also}: they got the ids 1 to {len(keys)}; {map_file} says which"
    return np.arange(1, len(keys) + 1, dtype=np.int64), [note]


def are_plain(keys: pa.Array) -> np.ndarray:
    """`is_plain` of n strings: bool[n]."""
    plain = pc.match_substring_regex(keys, f"^(?:{_PLAIN.pattern})$").to_numpy(zero_copy_only=False)
    for row in np.flatnonzero(plain & (pc.utf8_length(keys).to_numpy(zero_copy_only=False) > 18)):
        plain[row] = is_plain(keys[int(row)].as_py())  # may be beyond 64 bits
    return plain


def is_plain(key: str) -> bool:
    """Whether a key is a whole number of 64 bits, spelled in the one way that Python prints it."""
    return _PLAIN.fullmatch(key) is not None and INT64.min <= int(key) <= INT64.max
