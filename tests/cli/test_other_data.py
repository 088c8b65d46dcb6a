"""Data that a catalogue, or a model, was not made of: nothing is trained, measured or built with both."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cli.chain import make_data
from cli.main import main
from genrec.manifest import read, record
from training import stages
from training.data.tables import read_table

RECIPE = {"recipe": "generator", "epochs": 1, "hidden_size": 16, "num_hidden_layers": 1}


def shop(folder: Path, name: str, items: int, seed: int = 0) -> list[str]:
    """Files of a shop, as arguments of `genrec data`."""
    draw, rows = np.random.default_rng(seed), [f"{name}{i}" for i in range(items)]
    seen = [
        f"u{user},{rows[item]},{at}\n"
        for user in range(40)
        for at, item in enumerate(draw.permutation(items)[:6])
    ]
    (folder / f"{name}.csv").write_text("user,item,timestamp\n" + "".join(seen))
    (folder / f"{name}-items.csv").write_text(
        "item,title\n" + "".join(f"{row},title of {row}\n" for row in rows)
    )
    return ["--interactions", str(folder / f"{name}.csv"), "--items", str(folder / f"{name}-items.csv")]


def test_a_catalogue_of_earlier_data_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    artifact, ids = str(tmp_path / "a"), tmp_path / "ids.json"
    data = ["data", artifact, *shop(tmp_path, "x", 20)]
    assert main([*data, "--codebook-sizes", "8,8,8"]) == 0
    before = read(tmp_path / "a")
    assert main([*data, "--semantic-ids", str(tmp_path / "nowhere.json")]) == 2
    assert "nowhere.json: cannot be read" in capsys.readouterr().err and read(tmp_path / "a") == before
    ids.write_text(json.dumps({f"y{i}": ["<a_1>", f"<b_{i}>"] for i in range(20)}))
    other = ["data", artifact, *shop(tmp_path, "y", 25), "--semantic-ids", str(ids)]
    assert main(other) == 2
    assert "ids.json: lacks 5 of 25 items, the first is 'y20'" in capsys.readouterr().err
    assert read(tmp_path / "a") == before
    described = tmp_path / "y-items.csv"  # what interactions alone have is known when they are read
    described.write_text("".join(described.read_text().splitlines(keepends=True)[:21]))
    assert main(other) == 2
    (tmp_path / "recipe.json").write_text(json.dumps(RECIPE))
    capsys.readouterr()
    for command in (["train", artifact, "--recipe", str(tmp_path / "recipe.json")], ["build", artifact]):
        assert main(command) == 2
        said = "catalogue.parquet: is of an earlier histories.parquet, items.parquet"
        assert f"{said}; `genrec data {artifact}` makes it anew" in capsys.readouterr().err


def test_data_take_no_imported_model_s_items_away(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It can be trained with no others."""
    files = [tmp_path / "a" / name for name in ("items.parquet", "catalogue.parquet", "config.json")]
    files[0].parent.mkdir()
    for file in files:
        file.write_text("as imported")
    record(tmp_path / "a", "train", "key", files[2:], {"imported": "a checkpoint"})
    assert main(["data", str(tmp_path / "a"), *shop(tmp_path, "x", 20)]) == 2
    said = (
        "model: was imported from a checkpoint (accepted: another artifact; histories of this model come by"
    )
    assert said in capsys.readouterr().err
    assert {file.read_text() for file in files} == {"as imported"}


def test_a_model_of_another_catalogue_is_neither_exported_nor_evaluated_nor_trained_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact = str(tmp_path / "a")
    (tmp_path / "recipe.json").write_text(json.dumps(RECIPE))
    assert main(["data", artifact, *shop(tmp_path, "x", 20), "--codebook-sizes", "8,8,8"]) == 0
    assert main(["train", artifact, "--recipe", str(tmp_path / "recipe.json")]) == 0
    assert main(["data", artifact, *shop(tmp_path, "y", 20, seed=1), "--codebook-sizes", "8,8,8"]) == 0
    capsys.readouterr()
    for command in (
        ["train", artifact, "--draft", "alone"],
        ["train", artifact, "--ranker"],
        ["export", artifact],
        ["evaluate", artifact],
    ):
        assert main(command) == 2
        assert "other semantic IDs than those that stage 'train' was trained with" in capsys.readouterr().err


def test_what_another_training_goes_on_with_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    artifact, recipe = tmp_path / "a", tmp_path / "recipe.json"
    recipe.write_text(json.dumps(RECIPE))
    assert main(["data", str(artifact), *shop(tmp_path, "x", 20), "--codebook-sizes", "8,8,8"]) == 0
    other = artifact / ".training" / "train" / "other" / "checkpoint"
    other.mkdir(parents=True)
    for said in ("train: done", "train: still good"):
        assert main(["train", str(artifact), "--recipe", str(recipe)]) == 0
        assert said in capsys.readouterr().out and other.is_dir()
    assert list(other.parents[1].iterdir()) == [other.parent]


@pytest.mark.parametrize("ended", ["tokenise", "train"])
def test_data_made_anew_while_a_stage_ran(
    ended: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another process: what the stage has made is of the data before."""
    artifact, recipe = str(tmp_path / "a"), tmp_path / "recipe.json"
    recipe.write_text(json.dumps(RECIPE))
    data, other = (
        ["data", artifact, *shop(tmp_path, name, 20, seed), "--codebook-sizes", "8,8,8"]
        for seed, name in enumerate("xy")
    )
    runs: Callable[..., object] = getattr(stages, ended)

    def meanwhile(*given: object) -> object:
        made = runs(*given)
        monkeypatch.setattr(stages, ended, runs)
        assert make_other() == 0
        return made

    def make_other() -> int:
        if ended == "train":
            return main(other)
        make_data(tmp_path / "a", None, Path(other[3]), Path(other[5]))
        return 0

    if ended == "train":
        assert main(data) == 0
    monkeypatch.setattr(stages, ended, meanwhile)
    assert main(data if ended == "tokenise" else ["train", artifact, "--recipe", str(recipe)]) == 0
    capsys.readouterr()
    assert main(["build", artifact]) == 2
    said = {"tokenise": "is of an earlier histories.parquet", "train": "has other semantic IDs than those"}
    assert said[ended] in capsys.readouterr().err


def test_an_artifact_within_the_folder_of_its_data_is_none_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It changes with every run: data would never be good still, nor go on where it was ended."""
    folder = tmp_path / "shop"
    folder.mkdir()
    for name, file in zip(("interactions", "items"), shop(tmp_path, "x", 20)[1::2], strict=True):
        Path(file).rename(folder / f"{name}.csv")
    for said in ("data: done", "data: still good"):
        make_data(folder / "artifact", str(folder))
        assert said in capsys.readouterr().out
    for artifact in (folder / "artifact", folder):  # the second is the folder of its data
        make_data(artifact, str(folder))
        with (folder / "interactions.csv").open("a") as file:
            file.write("u1,x1,99\n")
        capsys.readouterr()
        make_data(artifact, str(folder))
        assert "data: done" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("items", "items.parquet"),
        ("users", "users.parquet"),
        ("items", "catalogue.parquet"),
        ("items", "source.json"),
        ("semantic-ids", "catalogue.parquet"),
        ("semantic-ids", "users.parquet"),
        ("semantic-ids", "source.json"),
    ],
)
def test_a_file_of_mine_is_not_written_over(
    name: str, file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The artifact has files of these names too, with other columns."""
    data, own = shop(tmp_path, "x", 20), tmp_path / file
    described = read_table(Path(data[3]))
    codes = pa.array(range(len(described)))
    given = {
        "items": described,
        "users": described.rename_columns(["user", "city"]),
        "semantic-ids": described.append_column("code_1", codes).append_column("code_2", codes),
    }[name]
    if own.suffix == ".json":
        own.write_text(
            json.dumps(
                {
                    row["item"]: {"title": "x"} if name == "items" else [row["code_1"]]
                    for row in given.to_pylist()
                }
            )
        )
    else:
        pq.write_table(given, own)
    before, files = own.read_bytes(), sorted(tmp_path.iterdir())
    named = {"items": data[3], name: str(own)}
    options = [each for option, path in named.items() for each in (f"--{option}", path)]
    assert main(["data", str(tmp_path), *data[:2], *options]) == 2
    said = (
        f"genrec data: {name}, {own}: has a name that {tmp_path} needs: it would be written over (accepted: "
    )
    assert capsys.readouterr().err.startswith(said)
    assert own.read_bytes() == before and sorted(tmp_path.iterdir()) == files


@pytest.mark.parametrize("name", ["hstu.json", "config.json"])
def test_nor_is_a_recipe(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "model" / name
    own.parent.mkdir()
    own.write_text(json.dumps({"recipe": "hstu-ranker"}))
    assert main(["train", str(tmp_path), "--recipe", str(own)]) == 2
    assert f"{own}: has a name that {own.parent} needs: it would be written over" in capsys.readouterr().err


def test_a_file_of_mine_is_not_taken_away(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Data without --users have no users.parquet."""
    data, own = shop(tmp_path, "x", 20), tmp_path / "users.parquet"
    own.write_text("of mine")
    assert main(["data", str(tmp_path), *data]) == 2
    assert f"{own}: is none of `genrec data`, which would remove it" in capsys.readouterr().err
    assert own.read_text() == "of mine"
    own.unlink()
    described = read_table(Path(data[3])).rename_columns(["user", "city"])
    pq.write_table(
        described.set_column(0, "user", [[f"u{n}" for n in range(20)]]), tmp_path / "about.parquet"
    )
    assert (
        main(["data", str(tmp_path), *data, "--users", str(tmp_path / "about.parquet")]) == 0 and own.exists()
    )
    assert main(["data", str(tmp_path), *data]) == 0 and not own.exists()
