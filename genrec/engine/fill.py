"""Items' KV computed before anyone asks for it (BAT, section 5.2)."""

from __future__ import annotations

import numpy as np

from genrec.artifact import load_config
from genrec.catalogue import agreement
from genrec.catalogue.versions import folder_of, read_current
from genrec.engine.load_ranker import load_rank_executors
from genrec.errors import ArtifactError
from genrec.manifest import verify
from genrec.nodes.node_share import NodeShare
from genrec.nodes.placement import items_on
from genrec.pool.pool import Pool
from genrec.progress import counting
from genrec.rank.item_tokens import DistinctItems
from genrec.settings import Settings

BATCH = 256


def fill(settings: Settings) -> int:
    """Items of the current catalogue into `settings.pool`, the most popular first, until none is missing or no row is
    free. Of several nodes, those that the pool's is to hold. Current is what the server with this `settings.swap` gives
    to requests: it may have refused the version that is pointed to. Returns how many were computed.

    Raises ArtifactError where a file of the artifact is not as it was made: a server that runs would believe what other
    engines computed. So it does where the pool was made for engines of another size, or keeps no items.
    """
    pool = Pool(settings.pool) if settings.pool else None
    if pool and not pool.lost and not len(pool.items_memory):
        why = "nothing ranks, an HSTU ranker does, or --pool-item-mb is 0"
        raise ArtifactError(settings.pool, f"has no room for items, as its server keeps none: {why}")
    verify(settings.artifact)
    config = load_config(settings.artifact, settings.target)
    served = agreement.start_with(settings.swap)[0] if settings.swap else None
    version = served or read_current(settings.artifact).version
    items = DistinctItems.load(folder_of(settings.artifact, version), config)
    executor = load_rank_executors(settings, config)[0]
    row_bytes = pool.item_row_bytes if pool else 0
    if row_bytes not in (0, executor.items.bytes):
        problem = f"has rows of {row_bytes} bytes, and an item of these engines takes {executor.items.bytes}"
        raise ArtifactError(settings.pool, f"{problem}: start its server again")
    share = NodeShare.load(settings.pool) if settings.pool else NodeShare()
    order = np.argsort(-items.popularity, kind="stable")
    placed = share.place(items.popularity, executor.items.words(items.tokens))
    order, done = order[np.isin(order, items_on(placed, share.node))][: executor.items.places], 0
    with counting("items", len(order), "item") as bar:
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            done += int(executor.items.keep(items.tokens[rows], np.zeros(len(rows))).sum())
            bar.update(len(rows))
    return done
