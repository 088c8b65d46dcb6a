"""An artifact with a ranker of random weights, in all three orders: speed depends on shapes, not on what was learnt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from genrec.manifest import is_good, record, stage_key
from genrec.models.config import ModelConfig
from genrec.rank.options import RankerConfig
from perf.kit.mock import SHAPE as GENERATOR
from perf.kit.mock import write_model

SHAPE = replace(GENERATOR, max_history=2304)  # 31 M parameters, prompts of up to 6,912 tokens
ITEMS = 2000
PAPER_WIDTH, PAPER_LAYERS = 1536, 28  # of Qwen2-1.5B, which BAT ranks with


def narrow(width: int, layers: int) -> ModelConfig:
    """Layers in the proportions of Qwen2-1.5B (12 heads, 2 of KV, 8,960 inside), `width` a multiple of 384.

    Where prompts shrink as the width does, attention takes the same part of the work.
    """
    return replace(
        SHAPE, hidden_size=width, num_hidden_layers=layers, num_attention_heads=width // 64,
        num_key_value_heads=width // 384, head_dim=64, intermediate_size=width * 8960 // PAPER_WIDTH,
    )  # fmt: skip


def mock_ranker(
    artifact: Path,
    item_tokens: int,
    shape: ModelConfig = SHAPE,
    trained_for: str = "all",
    shared: bool = True,
    reach: int = 0,
    layers: int = 0,
    items: int = ITEMS,
) -> None:
    """Write `artifact`, unless it is there, with the default target's engines; an item has `item_tokens` tokens.

    `trained_for`: the ranker's orders; `shared`: its users' KV is the generator's; `reach` and `layers` as in
    `RankerConfig`.
    """
    from build.engines import build_artifact
    from export.generator import export_artifact

    options = RankerConfig(shared, trained_for, item_tokens, reach=reach, layers=layers)
    key = stage_key({"config": vars(shape), "items": items, "ranker": vars(options)})
    if not is_good(artifact, "train", key):
        write_ranker(artifact, shape, options, items)
        record(artifact, "train", key, [*(artifact / "model").iterdir(), artifact / "catalogue.parquet"], {})
    export_artifact(artifact)
    build_artifact(artifact)


def write_ranker(artifact: Path, shape: ModelConfig, options: RankerConfig, items: int) -> None:
    """The catalogue, the generator and a ranker of random weights, and the items' tokens; nothing built from them."""
    from genrec.nn.checkpoint import load_generator
    from genrec.nn.ranker import Ranker
    from genrec.nn.ranker_checkpoint import save_ranker
    from genrec.rank.item_tokens import save_item_tokens

    write_model(artifact, shape, items)
    ranker = Ranker(load_generator(artifact / "model"), options.shared, layers=options.layers)
    ranker.options = options
    save_ranker(ranker, artifact / "model")
    tokens = np.random.default_rng(0).integers(0, shape.vocab_size, (items, options.item_tokens))
    save_item_tokens(artifact, tokens.astype(np.int32))
