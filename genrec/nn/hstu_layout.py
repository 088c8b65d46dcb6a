"""How the tokens of a ragged batch lie, and which of them see each other. T tokens in B sequences."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from genrec.errors import InputError
from genrec.rank.hstu import LIMIT


class Layout(NamedTuple):
    """B sequences one after the other: `offsets` int64[B + 1], and int32[T] each, of tokens:

    `reach`: a token sees the first `reach` tokens of its sequence, and itself. 0 is itself alone; the number of tokens
    before it is the causal mask. `position` and `time` (seconds): of two tokens, the differences choose the bias.
    """

    offsets: Tensor
    reach: Tensor
    position: Tensor
    time: Tensor

    @classmethod
    def of(cls, lengths: Tensor, reach: Tensor, position: Tensor, time: Tensor) -> Layout:
        """Of `lengths` int[B] and integers [T]. Raises InputError."""
        offsets = torch.cat((lengths.new_zeros(1, dtype=torch.int64), lengths.long().cumsum(0)))
        if len(lengths) and int(lengths.min()) < 0:
            raise InputError("lengths", f"has {int(lengths.min())}", "0 or more")
        total = int(offsets[-1])
        for name, each in (("reach", reach), ("position", position), ("time", time)):
            if each.shape != (total,) or each.is_floating_point():
                raise InputError(
                    name, f"is {each.dtype}{list(each.shape)}", f"an integer for each of {total} tokens"
                )
            if total and not 0 <= int(each.min()) <= int(each.max()) < LIMIT:
                raise InputError(name, f"is from {int(each.min())} to {int(each.max())}", f"0 to {LIMIT - 1}")
        if total and bool((reach > torch.repeat_interleave(lengths, lengths)).any()):
            raise InputError("reach", "is beyond the end of a sequence", "at most its length")
        # One after the other in memory, as the operation in C++ reads them.
        return cls(offsets, *(each.int().contiguous() for each in (reach, position, time)))

    def to(self, device: torch.device) -> Layout:
        """The same on a device."""
        return Layout(*(each.to(device) for each in self))

    @property
    def lengths(self) -> Tensor:
        """int64[B]."""
        return self.offsets.diff()


def time_bucket(difference: Tensor, times: int) -> Tensor:
    """Bucket of a difference in seconds: two per octave of its size as a float32, `times` in all. int64.

    HSTU's own buckets are logarithms too, of base 1.35; these need none: they are the exponent and the highest bit of
    the fraction.
    """
    fraction, exponent = torch.frexp(difference.float().abs().clamp(min=1))  # fraction in [0.5, 1)
    return (2 * (exponent - 1) + (fraction >= 0.75).int()).clamp(max=times - 1).long()
