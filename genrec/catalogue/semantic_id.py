"""A semantic ID as one integer.

NEZHA section 3.3, equation 4: the codes of a semantic ID are the digits of a mixed-radix number, so that a
set of semantic IDs is a set of integers. The paper makes the first code the least significant digit; here
it is the MOST significant, so that the order of the integers is the lexicographic order of the codes. Sorted
semantic IDs are then a tree laid out level by level, and the ID of a path is the quotient of its leaves'.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import numpy.typing as npt

from genrec.errors import InputError

MAX_SIZE = 2**31  # codes travel as int32
# Of a level whose codes are learnt: each has a vector in memory, and a distance to every item
MOST_LEARNT = 2**16


def check_sizes(sizes: Sequence[int], most: int = MAX_SIZE) -> tuple[int, ...]:
    """Return (T_1, ..., T_L) as Python integers; InputError unless each is 1 to `most` and every semantic ID fits an
    int64.
    """
    checked = tuple(int(t) for t in sizes)
    if not checked or min(checked) < 1 or max(checked) > most:
        raise InputError("codebook_sizes", f"is {list(checked)}", f"at least one level, sizes 1 to {most}")
    if prod(checked) >= 2**63:
        raise InputError(
            "codebook_sizes", f"{list(checked)} multiply to {prod(checked)}", "a product below 2**63"
        )
    return checked


def pack(codes: npt.ArrayLike, sizes: Sequence[int]) -> npt.NDArray[np.int64]:
    """Semantic IDs of codes: int[..., L] -> int64[...]. InputError names the first level out of range.

    `sizes` is (T_1, ..., T_L); fewer levels pack a path.
    """
    radix = check_sizes(sizes)
    digits = np.asarray(codes)
    if digits.ndim < 1 or digits.shape[-1] != len(radix):
        raise InputError("codes", f"has shape {list(digits.shape)}", f"a last axis of {len(radix)} levels")
    if digits.dtype.kind not in "iu":
        raise InputError("codes", f"is of type {digits.dtype}", "integers")
    ids = np.zeros(digits.shape[:-1], np.int64)
    for level, size in enumerate(radix):
        digit = digits[..., level]
        # Checked before the multiplication: a code out of range would be another item's ID.
        if digit.size and (int(digit.min()) < 0 or int(digit.max()) >= size):
            raise InputError(
                "codes", f"level {level + 1} spans {digit.min()} to {digit.max()}", f"0 to {size - 1}"
            )
        ids = ids * size + digit.astype(np.int64)
    return ids
