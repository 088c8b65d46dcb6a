"""An artifact with a ranker of random weights, in all three orders: speed depends on shapes, not on what was learnt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from genrec.manifest import is_good, record, stage_key
from perf.kit.mock import SHAPE as GENERATOR
from perf.kit.mock import write_model

SHAPE = replace(GENERATOR, max_history=2304)  # 31 M parameters, prompts of up to 6,912 tokens
ITEMS = 2000


def mock_ranker(artifact: Path, item_tokens: int) -> None:
    """Write `artifact`, unless it is there, with the default target's engines; an item has `item_tokens` tokens."""
    from build.engines import build_artifact
    from export.generator import export_artifact

    key = stage_key({"config": vars(SHAPE), "items": ITEMS, "item_tokens": item_tokens})
    if not is_good(artifact, "train", key):
        _write(artifact, item_tokens)
        record(artifact, "train", key, [*(artifact / "model").iterdir(), artifact / "catalogue.parquet"], {})
    export_artifact(artifact)
    build_artifact(artifact)


def _write(artifact: Path, item_tokens: int) -> None:
    from genrec.nn.checkpoint import load_generator
    from genrec.nn.ranker import Ranker
    from genrec.nn.ranker_checkpoint import save_ranker
    from genrec.rank.item_tokens import save_item_tokens
    from genrec.rank.options import RankerConfig

    write_model(artifact, SHAPE, ITEMS)
    ranker = Ranker(load_generator(artifact / "model"), shared=True)
    ranker.options = RankerConfig(True, "all", item_tokens)
    save_ranker(ranker, artifact / "model")
    tokens = np.random.default_rng(0).integers(0, SHAPE.vocab_size, (ITEMS, item_tokens))
    save_item_tokens(artifact, tokens.astype(np.int32))
