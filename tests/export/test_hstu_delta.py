"""`genrec export --delta`: the export and all deltas together are the model's weights, bit for bit."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from cli.main import main
from export import hstu_delta
from export.hstu import export_hstu_graph
from export.hstu_delta import export_delta
from genrec import manifest, metrics
from genrec.errors import ArtifactError, InputError
from genrec.nn.hstu_checkpoint import load_hstu, save_hstu
from genrec.rank import deltas
from genrec.rank.hstu import CONFIG, EXPORTED, FEATURES, RANK_GRAPH, WEIGHTS, HstuConfig
from genrec.rank.hstu_weights import load_weights
from genrec.settings import Settings
from genrec.steps.followed_deltas import FollowedDeltas
from genrec.tensor_file import read_plain_metadata
from tests.oracles.hstu_further import changed_further
from tests.serving.processes import until

ITEMS = "of_item.weight"


@pytest.fixture
def artifact(tiny_hstu: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_hstu, tmp_path / "artifact"))


def assert_is_the_model(artifact: Path, number: int) -> None:
    served, model = load_weights(artifact, number), load_file(artifact / "model" / WEIGHTS)
    assert served.delta == number and set(served.arrays) == set(model)
    for name, values in model.items():
        assert np.array_equal(served.arrays[name], values), name


def test_the_export_with_its_deltas_is_the_model(artifact: Path) -> None:
    assert_is_the_model(artifact, 0)
    exported, size = (
        (artifact / "onnx" / EXPORTED).read_bytes(),
        (artifact / "model" / WEIGHTS).stat().st_size,
    )
    names = {load_weights(artifact).name}
    for number, dense in ((1, True), (2, False), (3, True)):
        changed_further(artifact, number, rows=7, dense=dense)
        written = export_delta(artifact)
        assert written is not None
        assert (written.number, written.rows) == (number, {ITEMS: (7, 300)})
        assert (written.whole > 0) == dense and written.bytes < size and written.model_bytes == size
        assert_is_the_model(artifact, number)
        names.add(load_weights(artifact, number).name)
    assert len(names) == 4, "KV of one is found under no other's name"
    assert (artifact / "onnx" / EXPORTED).read_bytes() == exported
    manifest.verify(artifact)


def test_rows_alone_are_few_bytes_and_nothing_is_nothing(
    artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(artifact), "--delta"]) == 0
    assert "export: nothing has changed" in capsys.readouterr().out
    assert not (artifact / deltas.FOLDER).exists()
    changed_further(artifact, 1, rows=5, dense=False)
    assert main(["export", str(artifact), "--delta"]) == 0
    size = (deltas.folder_of(artifact, 1) / deltas.FILE).stat().st_size
    assert f"delta 1: 5 of 300 rows of of_item; {size} bytes, the model has" in capsys.readouterr().out
    assert size < 5 * (16 * 4 + 8) + 400


def test_what_was_ended_while_it_was_written_is_not_there(
    artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed_further(artifact, 1)
    with monkeypatch.context() as patch:
        patch.setattr(hstu_delta, "record", lambda *_: exec("raise KeyboardInterrupt"))
        with pytest.raises(KeyboardInterrupt):
            export_delta(artifact)
    assert list((artifact / deltas.FOLDER).iterdir()) == []
    export_delta(artifact)
    assert_is_the_model(artifact, 1)


def test_of_two_at_once_one_says_that_it_came_too_late(
    artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed_further(artifact, 1)

    def record_after_another(*given: Any) -> None:
        monkeypatch.undo()
        assert export_delta(artifact)
        manifest.record(*given)

    monkeypatch.setattr(hstu_delta, "record", record_after_another)
    with pytest.raises(ArtifactError, match=r"deltas/1: cannot be put in place: Directory not empty"):
        export_delta(artifact)
    assert [path.name for path in (artifact / deltas.FOLDER).iterdir()] == ["1"]
    assert_is_the_model(artifact, 1)


def test_of_an_export_that_another_has_replaced_meanwhile_it_is_none(
    artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That one removes deltas; what came behind it would be in the way of all that are to its own weights."""
    changed_further(artifact, 1)

    def record_behind_an_export(*given: Any) -> None:
        manifest.record(*given)
        path = artifact / "onnx" / EXPORTED
        save_file(load_file(artifact / "model" / WEIGHTS), path, read_plain_metadata(path))
        manifest.record(artifact, "export", "anew", (artifact / "onnx").iterdir(), {})

    monkeypatch.setattr(hstu_delta, "record", record_behind_an_export)
    with pytest.raises(ArtifactError, match=f"{EXPORTED}: was made anew by another process meanwhile"):
        export_delta(artifact)
    monkeypatch.undo()
    changed_further(artifact, 2)
    assert export_delta(artifact)
    assert_is_the_model(artifact, 1)


def without_export(artifact: Path) -> None:
    (artifact / "onnx" / EXPORTED).unlink()


def other_heads(artifact: Path) -> None:
    path = artifact / "model" / CONFIG
    replace(HstuConfig.load(path), heads=4).save(path)


def changed(name: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def apply(artifact: Path) -> None:
        tensors = load_file(artifact / "model" / WEIGHTS)
        save_file({**tensors, name: change(tensors[name])}, artifact / "model" / WEIGHTS)

    return apply


def other_numbers(artifact: Path) -> None:
    for folder, values in (("onnx", ("F", "M")), ("model", ("M", "F"))):
        numbers = {"sex": {value: number for number, value in enumerate(values, 1)}}
        (artifact / folder / FEATURES).write_text(json.dumps(numbers))


def damaged_before(artifact: Path) -> None:
    changed_further(artifact, 1)
    export_delta(artifact)
    path = deltas.folder_of(artifact, 1) / deltas.FILE
    path.write_bytes(path.read_bytes()[:-1] + b"!")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (without_export, "delta: has nothing to change: onnx/hstu_weights.safetensors is not there"),
        (other_heads, "hstu.json: has heads 4, the model that was exported has 2; `genrec export /.*`"),
        (changed(ITEMS, lambda rows: rows[:-1]), r"of_item.weight is \[300, 16\], it was exported as \[301"),
        (changed(ITEMS, lambda rows: rows * np.float32("nan")), "of_item.weight has NaN or infinite values"),
        (changed(ITEMS, lambda rows: np.where(rows > 0, np.inf, rows).astype(np.float32)), "NaN or infinite"),
        (changed(ITEMS, lambda rows: rows + 1), "of_item.weight has numbers in row 0, which stands for none"),
        (changed("codes", lambda codes: codes[::-1].copy()), "is of another catalogue: items have other"),
        (
            other_numbers,
            r"model/hstu_features.json: numbers values .* otherwise .*; `genrec export /.*` exports it",
        ),
        (damaged_before, "deltas/1/delta.safetensors: is not the file that stage `delta` made"),
    ],
)
def test_what_does_not_fit_is_told(artifact: Path, change: Callable[[Path], None], problem: str) -> None:
    change(artifact)
    with pytest.raises((InputError, ArtifactError), match=problem):
        export_delta(artifact)


def test_a_model_of_the_next_item_has_none(tiny_hstu_next: Path) -> None:
    with pytest.raises(InputError, match=r"delta: has nothing to change: .*; hstu-next has no deltas"):
        export_delta(tiny_hstu_next)


def hand_made(artifact: Path, tensors: dict[str, Any], base: str = "") -> None:
    """Delta 1, its hashes as they should be."""
    folder = deltas.folder_of(artifact, 1)
    folder.mkdir(parents=True)
    save_file(tensors, folder / deltas.FILE, {"format": deltas.FORMAT, "version": deltas.VERSION})
    manifest.record(folder, deltas.STAGE, base or load_weights(artifact).name, [folder / deltas.FILE], {})


def rows(*ids: int, width: int = 16, fill: float = 1.0) -> dict[str, Any]:
    values = np.full((len(ids), width), fill, np.float32)
    return {f"{ITEMS}/rows": np.array(ids, np.int64), f"{ITEMS}/values": values}


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        (rows(0), "names rows 0 to 0 of of_item.weight; there are 1 to 300"),
        (rows(301), "names rows 301 to 301 of of_item.weight; there are 1 to 300"),
        (rows(3, 2), r"of_item.weight/rows is int64\[2\], not ascending int64\[n\]"),
        (rows(2, 2), r"of_item.weight/rows is int64\[2\], not ascending int64\[n\]"),
        (rows(2, width=15), r"of_item.weight/values is float32\[1, 15\], the model has float32\[1, 16\]"),
        (rows(2, fill=np.inf), "of_item.weight/values has NaN or infinite values"),
        ({f"{ITEMS}/rows": np.array([1])}, "lacks 'of_item.weight/values'"),
        ({"codes": np.zeros((301, 3), np.int64)}, r"codes is int64\[301, 3\]"),
        (
            {"head.0.bias": np.zeros(15, np.float32)},
            r"head.0.bias is float32\[15\], the model has float32\[1",
        ),
        ({ITEMS: np.zeros((301, 16), np.float32)}, "has of_item.weight, which is no weight of the model"),
        ({"head.9/rows": np.array([1])}, "has head.9/rows, which is no weight of the model"),
    ],
)
def test_a_delta_is_not_believed(artifact: Path, tensors: dict[str, Any], problem: str) -> None:
    hand_made(artifact, tensors)
    with pytest.raises(ArtifactError, match=problem):
        load_weights(artifact, 1)


def test_one_of_other_weights_is_refused(artifact: Path) -> None:
    hand_made(artifact, rows(1), base="f" * 64)
    with pytest.raises(ArtifactError, match="deltas/1: is a delta to weights ffffffffffff, not to"):
        load_weights(artifact, 1)


def test_a_start_takes_in_what_is_sound_and_goes_on_when_the_rest_is_mended(
    artifact: Path, tmp_path: Path
) -> None:
    for number in (1, 2):
        changed_further(artifact, number)
        export_delta(artifact)
    path = deltas.folder_of(artifact, 2) / deltas.FILE
    good = path.read_bytes()
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    settings = Settings(artifact, tmp_path / "arena")
    assert FollowedDeltas(settings, lambda weights: weights.delta).current == (1, 1)
    path.write_bytes(good)
    assert FollowedDeltas(settings, lambda weights: weights.delta).current == (2, 2)


@pytest.mark.long
def test_a_server_that_runs_follows_no_deltas_of_a_later_export(artifact: Path, tmp_path: Path) -> None:
    (tmp_path / "swap").mkdir()
    followed = FollowedDeltas(
        Settings(artifact, tmp_path / "arena", swap=tmp_path / "swap"), lambda weights: weights.delta
    )
    refused = metrics.DELTA_REFUSALS.value()
    changed_further(artifact, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own, about names of axes
        export_hstu_graph(load_hstu(artifact / "model"), RANK_GRAPH, artifact / "onnx")
    manifest.record(artifact, "export", "anew", (artifact / "onnx").iterdir(), {})
    changed_further(artifact, 2)
    export_delta(artifact)
    until(lambda: metrics.DELTA_REFUSALS.value() == refused + 1)
    assert followed.current == (0, 0)
    followed.close()


def test_of_a_model_as_it_was_read_nothing_has_changed(artifact: Path) -> None:
    save_hstu(load_hstu(artifact / "model"), artifact / "model")
    assert export_delta(artifact) is None
