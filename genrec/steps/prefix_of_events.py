"""Which KV a ranking of an HSTU ranker begins with: the user's. Its candidates are a token each, and have none."""

from __future__ import annotations

import numpy as np

from genrec.rank.options import ORDERS
from genrec.settings import Settings
from genrec.steps import Answer, Tensors

PLAN = np.array([[ORDERS.index("user"), 1, 0]])


class PrefixOfEvents:
    """In the place of `PrefixChoice`: there is nothing to choose."""

    def __init__(self, settings: Settings) -> None:
        pass

    def run(self, requests: list[Tensors]) -> list[Answer]:
        """See `Step.run`."""
        return [{"plan": PLAN} for _ in requests]
