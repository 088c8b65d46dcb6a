"""JSON whose fields are missing or of other types: the error names the file and the field, and is no traceback."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from genrec import manifest
from genrec.draft.options import DraftConfig
from genrec.errors import ArtifactError
from genrec.models.config import ModelConfig
from genrec.nodes.node_share import NodeShare
from genrec.rank.hstu import HstuConfig, NextConfig
from genrec.rank.options import RankerConfig
from training import loop
from training.sharded.embeddings import ShardedEmbeddings
from training.sharded.features import FeatureConfig
from training.sharded.world import World
from training.shards import checkpoint
from training.stages import recipe

NO_OBJECTS = (None, "x", 2.5, True, [], ["x"])
SAVE = "000000003"


def saved(folder: Path) -> None:
    checkpoint.save(folder, World(), embeddings(), 3, {"shard": 5}, {"a": torch.ones(1)})


def embeddings() -> ShardedEmbeddings:
    return ShardedEmbeddings([FeatureConfig("item", "item", 4)], World())


def load(folder: Path) -> object:
    return checkpoint.load(folder, World(), embeddings())


# A file, what it holds where nothing here writes it, and who reads it.
FILES: dict[str, tuple[dict[str, Any], Callable[[Path], object]]] = {
    "hstu.json": (asdict(HstuConfig(5, (4, 4), 2)), lambda at: HstuConfig.load(at / "hstu.json")),
    "hstu_next.json": (asdict(NextConfig(5, (4, 4))), lambda at: NextConfig.load(at / "hstu_next.json")),
    "draft.json": (asdict(DraftConfig()), lambda at: DraftConfig.load(at / "draft.json")),
    "ranker.json": (asdict(RankerConfig()), lambda at: RankerConfig.load(at / "ranker.json")),
    "config.json": (asdict(ModelConfig((4, 4), 8)), lambda at: ModelConfig.load(at / "config.json")),
    "placement.json": (asdict(NodeShare()), NodeShare.load),
    "source.json": ({"name": "own"}, recipe),
    f"{SAVE}/checkpoint.json": ({}, load),
    f"{SAVE}/0.json": ({}, load),
}
NEEDED = {
    "hstu.json": ("items", "codebook_sizes", "features"), "hstu_next.json": ("items", "codebook_sizes"),
    "source.json": ("name",), "config.json": ("codebook_sizes", "max_history"),
    f"{SAVE}/checkpoint.json": ("step", "ranks", "features", "optimizer", "stamp"),
    f"{SAVE}/0.json": ("files", "position"),
}  # fmt: skip


def written(name: str, folder: Path) -> tuple[dict[str, Any], Callable[[Path], object]]:
    """What the file holds, and who reads it."""
    good, read = FILES[name]
    if name.startswith(SAVE):
        saved(folder)
        good = json.loads((folder / name).read_text())
    return good, read


@pytest.mark.parametrize("name", FILES)
def test_what_is_no_object_or_lacks_a_field_is_named(name: str, tmp_path: Path) -> None:
    good, read = written(name, tmp_path)
    cases: list[tuple[object, str]] = [(other, "") for other in NO_OBJECTS]
    for field in NEEDED.get(name, ()):
        cases.append(({key: value for key, value in good.items() if key != field}, field))
    for said, field in cases:
        (tmp_path / name).write_text(json.dumps(said))
        with pytest.raises(ArtifactError, match=rf"{name}: .*{field}"):
            read(tmp_path)


@pytest.mark.parametrize(
    ("name", "field"),
    [
        *(("hstu.json", each) for each in ("max_history", "items", "codebook_sizes", "tasks", "layers")),
        ("hstu_next.json", "temperature"),
        ("draft.json", "placeholders"),
        ("config.json", "codebook_sizes"),
        ("placement.json", "node"),
        ("source.json", "name"),
        *((f"{SAVE}/checkpoint.json", each) for each in ("step", "ranks", "features", "optimizer", "stamp")),
        *((f"{SAVE}/0.json", each) for each in ("files", "position")),
    ],
)
def test_a_field_of_another_type_is_named(name: str, field: str, tmp_path: Path) -> None:
    good, read = written(name, tmp_path)
    for other in (None, 7 if field == "name" else "7", {"a": None}, ["a"]):
        (tmp_path / name).write_text(json.dumps({**good, field: other}))
        with pytest.raises(ArtifactError, match=rf"{name}: .*{field}"):
            read(tmp_path)


@pytest.mark.parametrize("field", ["epoch", "batch", "step", "seconds", "loss", "best", "stale", "log"])
def test_progress_of_another_type_is_named(field: str, tmp_path: Path) -> None:
    said = json.dumps({**asdict(loop.Progress()), field: "x"})
    tensors = {loop.PROGRESS: torch.frombuffer(bytearray(said.encode()), dtype=torch.uint8)}
    with pytest.raises(ArtifactError, match=f"{field}: is 'x'"):
        loop._progress(tmp_path, tensors)


def test_a_fact_that_every_reader_takes_for_an_object_is_one(tmp_path: Path) -> None:
    entry = {"key": "", "outputs": {}, "facts": {manifest.OF: ["histories.parquet"]}}
    (tmp_path / "manifest.json").write_text(json.dumps({"export": entry}))
    with pytest.raises(ArtifactError, match=r"manifest\.json: is not a manifest: stage 'export' has `of`"):
        manifest.outdated(tmp_path)
