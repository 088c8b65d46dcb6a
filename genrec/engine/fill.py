"""Items' KV computed before anyone asks for it (BAT, section 5.1)."""

from __future__ import annotations

import numpy as np
from tqdm import tqdm

from genrec.artifact import load_config
from genrec.catalogue.load import load_catalogue
from genrec.catalogue.versions import folder_of, read_current
from genrec.engine.load_ranker import load_rank_executors
from genrec.rank.item_tokens import item_tokens
from genrec.settings import Settings

BATCH = 256


def fill(settings: Settings) -> int:
    """Items of the current catalogue into `settings.pool`, the most popular first, until none is missing or no row is
    free. Returns how many were computed.
    """  # fmt: skip
    config = load_config(settings.artifact)
    folder = folder_of(settings.artifact, read_current(settings.artifact).version)
    catalogue = load_catalogue(folder, config)
    tokens = item_tokens(folder, catalogue, config)
    executor = load_rank_executors(settings, config)[0]
    order, done = np.argsort(-catalogue.popularity, kind="stable")[: executor.item_places], 0
    with tqdm(total=len(order), desc="items", unit="item", disable=None) as bar:
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            done += executor.keep_items(tokens[rows])
            bar.update(len(rows))
    return done
