"""What a batch takes: so much for being a batch, and so much for each of its tokens, learnt from those before it.

A fetch of several items is such a batch too, and so is computing them.

Tokens alone mislead beyond the capacity: whoever refuses much runs small batches, in which a token costs three times
as much, so it refuses yet more of what full batches would have answered in time.
"""

from __future__ import annotations

MEMORY = 0.97  # weight of the past: some thirty batches, a second of a busy server
# Batches of one size do not tell the two apart: then all is the tokens' as far as sizes differ by less than this share.
SPREAD = 0.05
MOST = 1 << 40  # tokens: more than any batch has


class BatchCost:
    """seconds = fixed + tokens * slope, both at least 0, by least squares. For one thread at a time.

    Of a queue's batches, and of fetching or computing items: there a token costs the same whatever stands before it.
    For a pass over a user's long history see `genrec.schedule.cost.PassCost`.
    """

    def __init__(self) -> None:
        self._weight = self._tokens = self._seconds = self._squares = self._products = 0.0  # sums

    @property
    def known(self) -> bool:
        """Whether any batch ran."""
        return self._weight > 0

    def learn(self, tokens: int, seconds: float) -> None:
        """A batch of `tokens` (at least 1) took so long."""
        self._weight = MEMORY * self._weight + 1
        self._tokens = MEMORY * self._tokens + tokens
        self._seconds = MEMORY * self._seconds + seconds
        self._squares = MEMORY * self._squares + tokens * tokens
        self._products = MEMORY * self._products + tokens * seconds

    def forgive(self) -> None:
        """Halve the learnt seconds, so that a caller who skipped this work as too slow tries it again."""
        self._seconds, self._products = self._seconds / 2, self._products / 2

    def seconds(self, batches: int, tokens: int) -> float:
        """What so many batches of `tokens` in all take, one after the other; 0 as long as nothing ran."""
        if not self.known:
            return 0.0
        fixed, slope = self._line()
        return batches * fixed + tokens * slope

    def tokens(self, seconds: float) -> int:
        """The largest batch that takes no longer, at most `MOST`; 0 as long as nothing ran.

        Where larger ones took no longer, it is `MOST`: a batch that may not grow would never learn what tokens cost.
        """
        if not self.known:
            return 0
        fixed, slope = self._line()
        if seconds <= fixed:
            return 0
        return int(min((seconds - fixed) / slope, MOST)) if slope > 0 else MOST

    def _line(self) -> tuple[float, float]:
        """Seconds of a batch, and of each of its tokens."""
        size, mean = self._tokens / self._weight, self._seconds / self._weight
        through_zero, doubt = mean / size, (SPREAD * size) ** 2
        variance = self._squares / self._weight - size * size
        covariance = self._products / self._weight - size * mean
        slope = (covariance + doubt * through_zero) / (variance + doubt)
        slope = min(max(slope, 0.0), through_zero)
        return mean - size * slope, slope
