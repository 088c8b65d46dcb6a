"""For whom KV is kept, and how long."""

from __future__ import annotations

from typing import NamedTuple

TTL_S = 600.0  # KV says what somebody did: it is not kept for longer than a visit


class Owner(NamedTuple):
    """Of a request: whether it names a user, which, and when it came, on the monotonic clock.

    Nothing is kept of a request that came before anybody was forgotten: it was perhaps he.
    """

    named: bool
    user: int
    came_ns: int

    @property
    def whose(self) -> int | None:
        """The user; None where nobody is named."""
        return self.user if self.named else None
