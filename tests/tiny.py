"""A tiny artifact with random weights: everything but training is real."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from genrec.catalogue import Catalogue
from genrec.config import ModelConfig


def tiny_catalogue(items: int = 300, sizes: tuple[int, ...] = (12, 12, 12), seed: int = 0) -> Catalogue:
    """Random semantic IDs, some of them shared; item ids are not rows, so that mix-ups show."""
    draw = np.random.default_rng(seed)
    codes = np.stack([draw.integers(0, t, items) for t in sizes], axis=1).astype(np.int32)
    codes[1] = codes[0]
    ids = draw.permutation(np.arange(items) * 7 + 1000)
    return Catalogue(ids, codes, [f"item {i}" for i in ids], draw.integers(0, 50, items), sizes)


def tiny_artifact(
    folder: Path, items: int = 300, sizes: tuple[int, ...] = (12, 12, 12), seed: int = 0
) -> Path:
    """Write an artifact whose generator has random weights."""
    import torch

    from build.pipeline import build_artifact
    from export.pipeline import export_artifact
    from genrec.manifest import record
    from genrec.nn.checkpoint import save_generator
    from genrec.nn.model import Generator

    folder.mkdir(parents=True, exist_ok=True)
    tiny_catalogue(items, sizes, seed).save(folder / "catalogue.parquet")
    torch.manual_seed(seed)
    config = ModelConfig(
        sizes, max_history=16, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, intermediate_size=64,
    )  # fmt: skip
    generator = Generator(config)
    with torch.no_grad():  # random logits must differ enough for an order of their own
        generator.lm_head.weight.normal_(std=0.5)
    save_generator(generator, folder / "model")
    record(folder, "train", "tiny", (folder / "model").iterdir(), {})
    export_artifact(folder)
    build_artifact(folder)
    return folder
