"""A file that is not what its option takes: the error names the option, the file, and what is taken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cli.main import main
from genrec import hashing

ITEMS = r'a CSV, TSV or Parquet file with columns item, title; or JSON {item: {"title": "..."}, ...}'
IDS = 'JSON {item: ["<a_12>", "<b_3>", ...]} or CSV item,code_1,..,code_L'
EVENTS = "user,item,timestamp\n1,1,1\n1,2,2\n1,1,3\n"
GOOD = {
    "seen.csv": EVENTS,
    "items.csv": "item,title\n1,one\n2,two\n",
    "ids.json": '{"1": [0, 1], "2": [1, 0]}',
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files that are good, and a folder with as much of a checkpoint as is read before them."""
    for name, content in (GOOD | {"config.json": '{"model_type": "qwen3"}', "model.safetensors": ""}).items():
        (tmp_path / name).write_text(content)
    return tmp_path


@pytest.mark.parametrize(
    ("option", "name", "content", "problem", "accepted"),
    [
        ("items", "nope.json", None, "does not exist", ITEMS),
        ("items", "nope.csv", None, "does not exist", ITEMS),
        (
            "items",
            "items.json",
            "[1]",
            "is no object with an item under every name",
            'JSON {item: {"title": "..."}',
        ),
        ("items", "few.csv", "item\n1\n", "has no column title", "a column named title"),
        ("semantic-ids", "nope.json", None, "cannot be read: No such file or directory", IDS),
        ("semantic-ids", "nope.csv", None, "does not exist", IDS),
        ("semantic-ids", "list.json", "[1]", "is no object with an item under every name", IDS),
        ("interactions", "nope.csv", None, "does not exist", "a CSV, TSV or Parquet file, or sequences"),
    ],
)
def test_import_names_the_option(
    folder: Path, capsys: pytest.CaptureFixture[str], option: str, name: str, content: str | None, problem: str,
    accepted: str,
) -> None:  # fmt: skip
    if content is not None:
        (folder / name).write_text(content)
    given = {"items": folder / "items.csv", "semantic-ids": folder / "ids.json", option: folder / name}
    options = [str(each) for option, path in given.items() for each in (f"--{option}", path)]
    assert main(["import", str(folder), str(folder / "new"), *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"genrec import: {option}, {folder / name}") and problem in line, line
    assert accepted in line.partition("(accepted: ")[2] and line.count(name) == 1, line


@pytest.mark.parametrize(
    ("option", "name", "said"),
    [
        ("items", "nope.json", f"does not exist (accepted: {ITEMS})"),
        ("interactions", "nope.csv", "does not exist (accepted: a CSV, TSV or Parquet file, or sequences)"),
        (
            "users",
            "nope.csv",
            "does not exist (accepted: a CSV, TSV or Parquet file with columns user and features)",
        ),
        ("semantic-ids", "nope.json", "cannot be read: No such file or directory"),
        ("semantic-ids", "few.json", "lacks 1 of 2 items, the first is '2'"),
        ("semantic-ids", "odd.json", "item '2': 'x' is not a code"),
    ],
)
def test_data_names_the_option(
    folder: Path, capsys: pytest.CaptureFixture[str], option: str, name: str, said: str
) -> None:
    (folder / "few.json").write_text('{"1": [0, 1]}')
    (folder / "odd.json").write_text('{"1": [0, 1], "2": [0, "x"]}')
    given = {"items": folder / "items.csv", "interactions": folder / "seen.csv", option: folder / name}
    options = [str(each) for option, path in given.items() for each in (f"--{option}", path)]
    assert main(["data", str(folder / "new"), *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"genrec data: {option}, {folder / name}: {said}"), line
    assert not (folder / "new").exists(), "nothing was read, or made"


def test_data_reads_each_file_for_its_hash_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed, digest = [], hashing.sha256_of

    def told(path: Path, moved: Callable[[int], object]) -> str:
        hashed.append(path.name)
        return digest(path, moved)

    monkeypatch.setattr(hashing, "sha256_of", told)
    given = ["--interactions", str(folder / "seen.csv"), "--items", str(folder / "items.csv")]
    assert main(["data", str(folder / "new"), *given]) == 0
    assert sorted(name for name in hashed if name.endswith(".csv")) == ["items.csv", "seen.csv"]
