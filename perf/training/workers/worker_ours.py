"""A rank that trains sharded dynamic tables, for `perf.training.training`."""

import time
from typing import Any

import numpy as np
import torch
from lookups import FEATURES, batches

from training.embedding.optimizers import RowwiseAdagrad
from training.sharded.embeddings import ShardedEmbeddings
from training.sharded.features import FeatureConfig
from training.sharded.lookup import Dedup
from training.sharded.world import World, join


def load(options: dict[str, Any]) -> dict[str, Any]:
    """Operations `train`, `count` and `read`; options: rank, ranks, meeting, dim, vocabulary, sequences, steps."""
    torch.set_num_threads(1)
    rank, ranks = options["rank"], options["ranks"]
    world = join(rank, ranks, options["meeting"]) if ranks > 1 else World()
    # One process takes the batches of `shares` ranks as one: the same global batch.
    shares = options.get("shares", 1)
    seeds = range(rank * shares, rank * shares + shares)
    drawn = [batches(options["vocabulary"], options["sequences"], options["steps"], seed) for seed in seeds]
    data = [
        {name: np.concatenate([each[name][0] for each in step]) for name in FEATURES}
        for step in zip(*drawn, strict=True)
    ]
    embeddings = _embeddings(options["dim"], world, Dedup())

    def train(first: int, last: int) -> dict[str, Any]:
        """Steps [first, last); all ranks begin and end together."""
        world.gather(np.zeros(1, np.int64))
        begun = time.perf_counter()
        for batch in data[first:last]:
            _step(embeddings, batch)
        world.gather(np.zeros(1, np.int64))
        return {"seconds": time.perf_counter() - begun}

    def count(first: bool, second: bool) -> dict[str, int]:
        """What the steps cost in traffic with these stages of deduplication."""
        fresh = _embeddings(options["dim"], world, Dedup(first, second))
        for batch in data:
            _step(fresh, batch)
        return vars(fresh.traffic)

    def read(ids: list[int]) -> dict[str, list[float]]:
        """Vectors of those items that this rank holds."""
        table = embeddings.sharded[options["dim"]].table
        asked = embeddings.merged[0].pack(embeddings.features[0], np.array(ids, np.int64))
        rows = table.index.find(asked)
        held = np.flatnonzero(rows >= 0)
        return dict(zip([str(ids[i]) for i in held], table.vectors(rows[held]).tolist(), strict=True))

    return {"train": train, "count": count, "read": read}


def _embeddings(dim: int, world: World, dedup: Dedup) -> ShardedEmbeddings:
    features = [FeatureConfig(name, name, dim) for name in FEATURES]
    return ShardedEmbeddings(features, world, RowwiseAdagrad(1e-3), dedup=dedup)


def _step(embeddings: ShardedEmbeddings, batch: dict[str, np.ndarray]) -> None:
    """The loss that every peer has: half the sum of squares of what was looked up."""
    found = embeddings(batch)
    (sum((each * each).sum() for each in found.values()) * 0.5).backward()
    embeddings.collect()
    embeddings.step()
