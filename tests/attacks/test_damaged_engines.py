"""Whatever lies in the place of an engine's files, people get one line with the file's name; no hang, no traceback."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deploy.tensorrt import manifest as plans
from deploy.tensorrt.manifest import Place
from genrec.artifact import load_config
from genrec.catalogue.indices import load_validity
from genrec.engine.instructions import engine_of
from genrec.engine.load import load_executors, load_layout
from genrec.engine.openvino_graphs import _weights
from genrec.errors import ArtifactError
from genrec.models.registry import family_of
from genrec.settings import Settings
from tests.attacks.test_damaged_files import NOT_A_FILE, NOT_JSON, replace

HERE = Place("26.05", "10.15.1", "9.0", "a" * 64)
GRAPHS = ("prefill", "decode_2", "decode_3")


@pytest.fixture
def artifact(tiny: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny, tmp_path / "artifact", ignore=shutil.ignore_patterns("cache")))


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A folder of engines with weights in a file of their own, as a CPU with AMX has."""
    np.arange(192, dtype=np.uint16).tofile(tmp_path / "weights.bin")
    places = {"weights_a": [0, [2, 64]], "weights_b": [256, [64]]}
    (tmp_path / "engine.json").write_text(json.dumps({"kv_type": "bf16", "weights": places}))
    return tmp_path


def refused(name: str, work: Callable[[], object]) -> None:
    """`work` ends with one line that names the file."""
    with pytest.raises(ArtifactError, match=name.replace(".", r"\.")) as raised:
        work()
    assert len(str(raised.value).splitlines()) == 1


def run(artifact: Path) -> None:
    """Load the engines and run every pass once, as a server does that starts."""
    settings, config = Settings(artifact, artifact / "arena", beam_width=8), load_config(artifact)
    load_layout(settings, config)
    load_executors(settings, config)[0].rehearse(1, 16, load_validity(artifact, config))


@pytest.mark.parametrize("damage", [*NOT_A_FILE, *NOT_JSON])
@pytest.mark.parametrize("name", ["engine.json", "config.json", "engines.json"])
def test_json_of_engines_is_refused_by_name(artifact: Path, name: str, damage: str) -> None:
    folder = engine_of(artifact, "openvino")
    readers: dict[str, tuple[Path, Callable[[], object]]] = {
        "engine.json": (folder, lambda: run(artifact)),
        "config.json": (artifact / "model", lambda: family_of(artifact / "model")),
        "engines.json": (folder, lambda: plans.check(folder, HERE)),
    }
    place, read = readers[name]
    replace(place / name, {**NOT_A_FILE, **NOT_JSON}[damage])
    refused(name, read)


@pytest.mark.parametrize("kv_type", [None, [], {}, 7, "f64"])
def test_an_unknown_type_of_kv_is_refused(artifact: Path, kv_type: Any) -> None:
    (engine_of(artifact, "openvino") / "engine.json").write_text(json.dumps({"kv_type": kv_type}))
    refused("engine.json", lambda: run(artifact))


@pytest.mark.parametrize(
    "damage",
    [
        {"weights": [7]},
        {"weights": {"a": 7}},
        {"weights": {"a": ["0", [1]]}},
        {"weights": {"a": [0, [1 << 40]]}},
        {},
    ],
)
def test_places_of_weights_that_cannot_be_are_refused(weights: Path, damage: dict[str, Any]) -> None:
    (weights / "engine.json").write_text(json.dumps({"kv_type": "bf16"} | damage))
    refused("weights.bin", lambda: _weights(weights, "bf16"))


@pytest.mark.parametrize("damage", ["cut", *NOT_A_FILE])
def test_a_file_of_weights_that_is_none_is_refused(weights: Path, damage: str) -> None:
    path = weights / "weights.bin"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
        replace(path, NOT_A_FILE[damage])
    refused("weights.bin", lambda: _weights(weights, "bf16"))


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("kind", ["bin", "xml"])
def test_a_graph_that_was_cut_is_refused(artifact: Path, graph: str, kind: str) -> None:
    """Entered in the manifest as it is, or never entered: the hash does not tell."""
    path = engine_of(artifact, "openvino") / f"{graph}.{kind}"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    refused(path.name, lambda: run(artifact))


@pytest.mark.parametrize(
    "names",
    [{"a\0.plan": "0"}, {"/dev/zero": "0"}, {"../x.plan": "0"}, {"": "0"}, {"a.plan": None}, ["a"], 7],
)
def test_plans_with_names_that_no_file_has_are_refused(tmp_path: Path, names: Any) -> None:
    plans.write(tmp_path, HERE, "f16")
    said = json.loads((tmp_path / plans.NAME).read_text())
    (tmp_path / plans.NAME).write_text(json.dumps(said | {"plans": names}))
    refused("engines.json", lambda: plans.check(tmp_path, HERE))


def test_undamaged_engines_run(artifact: Path, weights: Path) -> None:
    run(artifact)
    assert {name: each.shape for name, each in _weights(weights, "bf16").items()} == {
        "weights_a": (2, 64),
        "weights_b": (64,),
    }
