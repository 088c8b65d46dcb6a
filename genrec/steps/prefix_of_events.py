"""Which KV a ranking of an HSTU ranker begins with: the user's. A candidate is one token; no item KV is reused."""

from __future__ import annotations

import numpy as np

from genrec.pool.counts import count_pool
from genrec.pool.pool import Pool
from genrec.rank.options import ORDERS
from genrec.settings import Settings
from genrec.steps import Answer, Tensors

PLAN = np.array([[ORDERS.index("user"), 1, 0]])


class PrefixOfEvents:
    """Used instead of `PrefixChoice`: there is nothing to choose."""

    def __init__(self, settings: Settings) -> None:
        self._pool = Pool(settings.pool) if settings.pool else None

    def look(self) -> None:
        """Count what the pool holds."""
        if self._pool:
            count_pool(self._pool)

    def run(self, requests: list[Tensors]) -> list[Answer]:
        """See `Step.run`."""
        return [{"plan": PLAN} for _ in requests]
