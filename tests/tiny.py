"""A tiny artifact with random weights: everything but training is real."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from genrec.catalogue.items import Catalogue
from genrec.draft.options import DraftConfig
from genrec.models.config import ModelConfig
from genrec.rank.options import RankerConfig

if TYPE_CHECKING:
    from genrec.nn.draft_head import DraftHead
    from genrec.nn.hstu import HstuRanker
    from genrec.nn.hstu_next import HstuNext
    from genrec.nn.model import Generator
    from genrec.nn.ranker import Ranker


def tiny_catalogue(items: int = 300, sizes: tuple[int, ...] = (12, 12, 12), seed: int = 0) -> Catalogue:
    """Random semantic IDs, some of them shared; item ids are not rows, so that mix-ups show."""
    draw = np.random.default_rng(seed)
    codes = np.stack([draw.integers(0, t, items) for t in sizes], axis=1).astype(np.int32)
    codes[1] = codes[0]
    ids = draw.permutation(np.arange(items) * 7 + 1000)
    return Catalogue(ids, codes, [f"item {i}" for i in ids], draw.integers(0, 50, items), sizes)


def tiny_artifact(
    folder: Path, items: int = 300, sizes: tuple[int, ...] = (12, 12, 12), seed: int = 0, draft: bool = True,
    **shape: int,
) -> Path:  # fmt: skip
    """Write an artifact whose generator, and draft head, have random weights; `shape`: fields of its config.

    Engines are f32 on every CPU, so that what is compared with f32 elsewhere is compared with f32.
    """
    import torch

    from build.openvino.engines import build_engines
    from build.validity import build_validity
    from export.generator import export_artifact
    from genrec.manifest import record
    from genrec.nn.checkpoint import save_generator
    from genrec.nn.draft_checkpoint import save_draft
    from genrec.nn.model import Generator

    folder.mkdir(parents=True, exist_ok=True)
    tiny_catalogue(items, sizes, seed).save(folder / "catalogue.parquet")
    torch.manual_seed(seed)
    tiny = {
        "max_history": 16, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 64,
    }  # fmt: skip
    config = ModelConfig(sizes, **{**tiny, **shape})
    generator = Generator(config)
    with torch.no_grad():  # random logits must differ enough for an order of their own
        generator.lm_head.weight.normal_(std=0.5)
    save_generator(generator, folder / "model")
    if draft:
        save_draft(random_head(config), folder / "model")
    record(folder, "train", "tiny", (folder / "model").iterdir(), {})
    export_artifact(folder)
    build_validity(folder)
    build_engines(folder, "f32")
    return folder


def random_head(config: ModelConfig, options: DraftConfig | None = None) -> DraftHead:
    """A draft head that says something different for every state."""
    import torch

    from genrec.nn.draft_head import DraftHead

    head = DraftHead(config, options or DraftConfig())
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_(std=0.4)
    return head.eval()


def random_ranker(generator: Generator, options: RankerConfig | None = None) -> Ranker:
    """A ranker whose scores differ for every user and item."""
    import torch

    from genrec.nn.ranker import Ranker

    ranker = Ranker(generator, options.shared if options else True, layers=options.layers if options else 0)
    ranker.options = options or ranker.options
    with torch.no_grad():
        for name, parameter in ranker.named_parameters():
            if not (ranker.shared and name.startswith("generator.")):
                parameter.add_(0.3 * torch.randn_like(parameter))
    return ranker.eval()


def add_ranker(artifact: Path, options: RankerConfig | None = None) -> Path:
    """Give the generator in `artifact`/model a random ranker beside it, entered in the manifest."""
    import torch

    from genrec.manifest import record
    from genrec.nn.checkpoint import load_generator
    from genrec.nn.ranker_checkpoint import save_ranker
    from genrec.rank.options import OPTIONS, WEIGHTS

    model = artifact / "model"
    torch.manual_seed(0)
    save_ranker(random_ranker(load_generator(model), options), model)
    record(artifact, "ranker", "tiny", (model / OPTIONS, model / WEIGHTS), {})
    return artifact


def export_ranker(artifact: Path) -> None:
    """Export the graphs of the ranker alone: the generator's lie in `artifact` already."""
    from export.names import rank_graphs
    from genrec.rank.options import OPTIONS

    _export(artifact, rank_graphs(RankerConfig.load(artifact / "model" / OPTIONS)))


def _export(artifact: Path, graphs: Sequence[str]) -> None:
    """These graphs beside those that are there, by the processes of `genrec export`."""
    from export import generator
    from genrec.manifest import record
    from genrec.models.registry import family_of

    model, onnx = artifact / "model", artifact / "onnx"
    generator._export_all(family_of(model).writer, model, graphs, onnx)
    record(artifact, "export", "tiny", onnx.iterdir(), {})


def random_hstu(catalogue: Catalogue, experts: int = 0) -> HstuRanker:
    """An HSTU ranker of 16 events and 7 values of features, whose scores differ for all that it reads."""
    import torch

    from genrec.nn.hstu import HstuRanker
    from genrec.rank.hstu import HstuConfig

    torch.manual_seed(0)  # first of all: making a model draws too
    shape = {"max_history": 16, "hidden_size": 16, "experts": experts}
    config = HstuConfig(len(catalogue), tuple(catalogue.codebook_sizes), 7, **shape)
    model = HstuRanker(config, torch.from_numpy(catalogue.codes).long())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        for table in (model.of_item, model.of_code, model.of_rating, model.of_feature):
            table.weight[0] = 0
    return model.eval()


def random_hstu_next(catalogue: Catalogue) -> HstuNext:
    """An HSTU model of the next item, of 16 events, whose scores differ for all that it reads."""
    import torch

    from genrec.nn.hstu_next import HstuNext
    from genrec.rank.hstu import NextConfig

    torch.manual_seed(0)  # first of all: making a model draws too
    config = NextConfig(len(catalogue), tuple(catalogue.codebook_sizes), max_history=16, hidden_size=16)
    model = HstuNext(config, torch.from_numpy(catalogue.codes).long())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def add_hstu(artifact: Path, make: Callable[[Catalogue], HstuRanker | HstuNext] = random_hstu) -> Path:
    """Give `artifact` an HSTU ranker of random weights and its graphs, entered in the manifest."""
    from genrec.manifest import record
    from genrec.nn.hstu_checkpoint import save_hstu

    model = artifact / "model"
    ranker = make(Catalogue.load(artifact / "catalogue.parquet"))
    kind = ranker.config.kind
    save_hstu(ranker, model)
    record(artifact, kind.name, "tiny", (model / name for name in ranker.files), {})
    _export(artifact, kind.graphs)
    return artifact


def other_generator(artifact: Path, seed: int) -> Path:
    """Give an artifact the answers of another generator and catalogue: other weights in the graphs that it has.

    Far less work than an export. `model/` stays as it was.
    """
    import onnx
    from onnx.numpy_helper import from_array, to_array

    from build.openvino.engines import build_engines
    from build.validity import build_validity
    from genrec.manifest import record

    draw = np.random.default_rng(seed)
    tiny_catalogue(seed=seed).save(artifact / "catalogue.parquet")
    for path in sorted((artifact / "onnx").glob("*.onnx")):
        graph = onnx.load(path)
        for weight in graph.graph.initializer:
            values = to_array(weight)
            if values.ndim == 2 and values.dtype == np.float32:
                noise = draw.normal(scale=values.std(), size=values.shape)
                weight.CopyFrom(from_array(values + noise.astype(np.float32), weight.name))
        onnx.save(graph, path, save_as_external_data=True, location=f"{path.name}.data", size_threshold=1024)
    record(artifact, "export", f"tiny {seed}", (artifact / "onnx").iterdir(), {})
    build_validity(artifact)
    build_engines(artifact, "f32")
    return artifact
