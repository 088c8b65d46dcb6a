"""Whatever lies in the place of an artifact's JSON or files, people get the file's name and what is wrong; no hang."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from genrec import manifest
from genrec.artifact import load_config
from genrec.catalogue.indices import load_indices
from genrec.catalogue.items import Catalogue
from genrec.catalogue.versions import FOLDER, POINTER, read_current
from genrec.draft.options import DraftConfig
from genrec.errors import ArtifactError
from tests.tiny import tiny_catalogue
from training.data.histories import Histories
from training.generator.recipes import Recipe
from training.generator.train import train_generator
from training.sharded.world import World
from training.shards.checkpoint import CURRENT
from training.stages import CODEBOOKS, load_codebooks, load_items

Damage = Callable[[Path], object]

NOT_A_FILE: dict[str, Damage] = {
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
    "a device without end": lambda path: path.symlink_to("/dev/zero"),
    "a link to nowhere": lambda path: path.symlink_to("nowhere"),
    "a link to itself": lambda path: path.symlink_to(path.name),
}
NOT_JSON: dict[str, Damage] = {
    "nested 100,000 deep": lambda path: path.write_text("[" * 100_000 + "]" * 100_000),
    "no JSON": lambda path: path.write_text("{"),
    "not UTF-8": lambda path: path.write_bytes(b"\xff\xfe\xfd"),
    "a list": lambda path: path.write_text("[]"),
    "a number": lambda path: path.write_text("7"),
}
READERS: dict[str, Callable[[Path], object]] = {
    "manifest.json": lambda folder: manifest.read(folder),
    "model/config.json": load_config,
    "model/draft.json": lambda folder: DraftConfig.load(folder / "model" / "draft.json"),
    f"{FOLDER}/{POINTER}": read_current,
}
FILES: dict[str, Callable[[Path], object]] = {
    "catalogue.parquet": lambda folder: Catalogue.load(folder / "catalogue.parquet"),
    "histories.parquet": lambda folder: Histories.load(folder / "histories.parquet"),
    "validity.safetensors": lambda folder: load_indices(folder, load_config(folder)),
    "valid_ids.safetensors": lambda folder: load_indices(folder, load_config(folder)),
    "model/model.safetensors": lambda folder: manifest.verify(folder),
}


@pytest.fixture
def artifact(tiny: Path, tmp_path: Path) -> Path:
    """A copy of `tiny` of its own, without what these tests do not read."""
    return Path(
        shutil.copytree(tiny, tmp_path / "artifact", ignore=shutil.ignore_patterns("engines", "onnx"))
    )


def replace(path: Path, damage: Damage) -> None:
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    damage(path)


@pytest.mark.parametrize("damage", [*NOT_A_FILE, *NOT_JSON])
@pytest.mark.parametrize("name", READERS)
def test_json_is_refused_by_name(artifact: Path, name: str, damage: str) -> None:
    replace(artifact / name, {**NOT_A_FILE, **NOT_JSON}[damage])
    with pytest.raises(ArtifactError, match=name.rpartition("/")[2]):
        READERS[name](artifact)


@pytest.mark.parametrize("damage", NOT_A_FILE)
@pytest.mark.parametrize("name", FILES)
def test_what_is_no_file_is_refused_by_name(artifact: Path, name: str, damage: str) -> None:
    replace(artifact / name, NOT_A_FILE[damage])
    with pytest.raises(ArtifactError, match=name.rpartition("/")[2]):
        FILES[name](artifact)


GOOD = {"key": "", "outputs": {}, "facts": {}}


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"outputs": {}, "facts": {}}, "has no `key`"),
        ({"key": "", "facts": {}}, "has no `outputs`"),
        ({"key": "", "outputs": {}}, "has no `facts`"),
        ({**GOOD, "key": 7}, "has no `key` of type str"),
        ({**GOOD, "facts": []}, "has no `facts` of type dict"),
        ([], "has no `key`"),
        ({**GOOD, "outputs": {"a\0b": "0" * 64}}, r"names the file 'a\\x00b'"),
        ({**GOOD, "outputs": {"/dev/zero": "0" * 64}}, "names the file '/dev/zero'"),
        ({**GOOD, "outputs": {"model/../../x": "0" * 64}}, "names the file"),
        ({**GOOD, "outputs": {"": "0" * 64}}, "names the file ''"),
        ({**GOOD, "outputs": {"a": None}}, "has no sha256 of 'a'"),
    ],
)
def test_a_manifest_of_another_shape_is_refused(tmp_path: Path, entry: object, problem: str) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"train": entry}))
    with pytest.raises(ArtifactError, match=rf"manifest\.json: is not a manifest: stage 'train' {problem}"):
        manifest.verify(tmp_path)


@pytest.mark.parametrize("name", ["hidden_size", "num_key_value_heads", "head_dim", "max_history"])
def test_a_configuration_without_a_size_is_refused(artifact: Path, name: str) -> None:
    path = artifact / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: 0}))
    with pytest.raises(ArtifactError, match=rf"config\.json: .*{name}: is 0"):
        load_config(artifact)


@pytest.mark.parametrize("damage", NOT_JSON)
def test_a_damaged_checkpoint_is_named_before_training(tmp_path: Path, damage: str) -> None:
    replace(tmp_path / CURRENT, NOT_JSON[damage])
    catalogue = tiny_catalogue(20)
    histories = Histories(np.arange(1), catalogue.item_ids[:9], np.array([0, 9]))
    with pytest.raises(ArtifactError, match=CURRENT):
        train_generator(World(), histories, catalogue, Recipe(), tmp_path)


@pytest.mark.parametrize("content", [b"", b"\xff" * 64])
def test_damaged_codebooks_and_items_are_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / CODEBOOKS).write_bytes(content)
    with pytest.raises(ArtifactError, match=CODEBOOKS):
        load_codebooks(tmp_path)
    (tmp_path / "items.parquet").write_bytes(content)
    with pytest.raises(ArtifactError, match=r"items\.parquet"):
        load_items(tmp_path)
