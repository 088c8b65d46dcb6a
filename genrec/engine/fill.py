"""Items' KV computed before anyone asks for it (BAT, section 5.1)."""

from __future__ import annotations

import numpy as np

from genrec.artifact import load_config
from genrec.catalogue.versions import folder_of, read_current
from genrec.engine.load_ranker import load_rank_executors
from genrec.nodes.held import Held
from genrec.nodes.placement import items_on
from genrec.progress import counting
from genrec.rank.item_tokens import DistinctItems
from genrec.settings import Settings

BATCH = 256


def fill(settings: Settings) -> int:
    """Items of the current catalogue into `settings.pool`, the most popular first, until none is missing or no row is
    free. Of several nodes, those that the pool's is to hold. Returns how many were computed.
    """  # fmt: skip
    config = load_config(settings.artifact)
    items = DistinctItems.load(folder_of(settings.artifact, read_current(settings.artifact).version), config)
    executor = load_rank_executors(settings, config)[0]
    held = Held.load(settings.pool) if settings.pool else Held()
    order = np.argsort(-items.popularity, kind="stable")
    placed = held.place(items.popularity, executor.item_words(items.tokens))
    order, done = order[np.isin(order, items_on(placed, held.node))][: executor.item_places], 0
    with counting("items", len(order), "item") as bar:
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            done += int(executor.keep_items(items.tokens[rows], np.zeros(len(rows))).sum())
            bar.update(len(rows))
    return done
