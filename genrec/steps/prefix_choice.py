"""Which KV a ranking begins with: the user's, the items', or both (BAT, section 5.3)."""

from __future__ import annotations

import numpy as np

from genrec.artifact import load_config
from genrec.rank.options import OPTIONS, ORDERS, RankerConfig
from genrec.settings import Settings
from genrec.steps import Answer, Tensors, answer_each, check_tensor
from genrec.steps.ticket import read_ticket


class PrefixChoice:
    """tokens, ticket, owner, candidates -> plan: the order, and whether a user's and items' new entries are kept."""

    def __init__(self, settings: Settings) -> None:
        self._config = load_config(settings.artifact)
        self._order = RankerConfig.load(settings.artifact / "model" / OPTIONS).orders[0]

    def run(self, requests: list[Tensors]) -> list[Answer]:
        """See `Step.run`."""
        return answer_each(requests, self._choose)

    def _choose(self, request: Tensors) -> Tensors:
        read_ticket(request, self._config.max_prompt)
        check_tensor(request, "owner", np.int64, 2)
        return {"plan": np.array([[ORDERS.index(self._order), True, True]], np.int64)}
