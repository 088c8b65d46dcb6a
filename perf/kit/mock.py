"""An artifact of any size with random weights: speed depends on shapes, not on what was learnt.

    python -m perf.kit.mock artifacts/mock

The default is a generator of 31 M parameters that reads 513 tokens (171 items of 3 codes), with a draft head.
Nothing about its answers means anything but their number.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from genrec.catalogue.items import Catalogue
from genrec.draft.options import DraftConfig
from genrec.manifest import is_good, record, stage_key
from genrec.models.config import ModelConfig

SHAPE = ModelConfig(
    (2048, 2048, 2048), 171, hidden_size=512, num_hidden_layers=8, num_attention_heads=8,
    num_key_value_heads=4, head_dim=64, intermediate_size=1536,
)  # fmt: skip
ITEMS = 100_000


def mock_artifact(
    artifact: Path, config: ModelConfig = SHAPE, items: int = ITEMS, draft: bool = True
) -> None:
    """Write `artifact`, unless it is there, with the default target's engines."""
    from build.engines import build_artifact
    from export.generator import export_artifact

    key = stage_key({"config": vars(config), "items": items, "draft": draft})
    if not is_good(artifact, "train", key):
        write_model(artifact, config, items, draft)
        model = artifact / "model"
        record(artifact, "train", key, [*model.iterdir(), artifact / "catalogue.parquet"], {})
    export_artifact(artifact)
    build_artifact(artifact)


def write_model(artifact: Path, config: ModelConfig, items: int, draft: bool = False) -> None:
    """The catalogue of `items` random semantic IDs and the random weights, nothing built from them."""
    import torch

    from genrec.nn.checkpoint import save_generator
    from genrec.nn.draft_checkpoint import save_draft
    from genrec.nn.draft_head import DraftHead
    from genrec.nn.model import Generator

    artifact.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    codes = np.stack([draw.integers(0, size, items) for size in config.codebook_sizes], axis=1)
    ids = np.arange(items)
    titles = [f"item {item}" for item in ids]
    popularity = draw.integers(0, 1000, items)
    Catalogue(ids, codes.astype(np.int32), titles, popularity, config.codebook_sizes).save(
        artifact / "catalogue.parquet"
    )
    torch.manual_seed(0)
    generator = Generator(config)
    with torch.no_grad():  # logits of a few units, so that beams spread as trained ones do
        generator.lm_head.weight.normal_(std=2 * config.hidden_size**-0.5)
    save_generator(generator, artifact / "model")
    if draft:
        head = DraftHead(config, DraftConfig())
        head.start_from(generator)
        save_draft(head, artifact / "model")


def main() -> None:
    """Make the default artifact."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("artifact", type=Path)
    mock_artifact(parser.parse_args().artifact)


if __name__ == "__main__":
    main()
