"""The ids of a user's data stay what they are: one odd row stops with its place, and numbers never wrap."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from build.catalogue import add_items
from genrec.catalogue.items import Catalogue
from genrec.errors import ArtifactError, InputError
from training.data.sources import read_tables
from training.data.writing import write_data
from training.stages import prepare, tokenise

NUMBERED = [str(i) for i in range(101, 141)]


def tables(folder: Path, items: list[str], seen: list[str] | None = None) -> tuple[Path, Path]:
    """Files of a shop where one user saw every item of `seen`."""
    shown, described = folder / "interactions.csv", folder / "items.csv"
    described.write_text("item,title\n" + "".join(f"{item},title\n" for item in items))
    rows = (f"7,{item},{at}\n" for at, item in enumerate(seen or items))
    shown.write_text("user,item,timestamp\n" + "".join(rows))
    return shown, described


@pytest.mark.parametrize("odd", ["0107", "+5", "x", "1.5", "107.0", "9" * 20, "-0", "５", str(-(2**63))])
def test_one_odd_key_among_numbers_stops_with_its_line(tmp_path: Path, odd: str) -> None:
    source = read_tables(*tables(tmp_path, [*NUMBERED, odd], NUMBERED))
    with pytest.raises(InputError) as caught:
        write_data(source, tmp_path / "out")
    assert "items.csv: line 42 has the item" in str(caught.value) and repr(odd) in str(caught.value)
    assert not (tmp_path / "out" / "items.parquet").exists()


def test_an_odd_key_of_the_interactions_stops_with_its_line(tmp_path: Path) -> None:
    source = read_tables(*tables(tmp_path, NUMBERED, [*NUMBERED, "0107"]))
    with pytest.raises(InputError, match=r"interactions\.csv: line 42 has the item '0107', where 40 of 41"):
        write_data(source, tmp_path / "out")


def test_an_odd_user_stops_with_its_line(tmp_path: Path) -> None:
    shown, described = tables(tmp_path, NUMBERED)
    shown.write_text(shown.read_text() + "8,101,1\n9,101,1\n+5,101,1\n")
    with pytest.raises(InputError, match=r"interactions\.csv: line 44 has the user '\+5'"):
        write_data(read_tables(shown, described), tmp_path / "out")


def test_an_odd_key_of_a_sequence_is_placed_by_its_user(tmp_path: Path) -> None:
    _, described = tables(tmp_path, NUMBERED)
    (tmp_path / "sequences.txt").write_text("7 101 102 103\n8 101 0107 103\n")
    with pytest.raises(InputError, match=r"sequences\.txt: the sequence of user '8' has the item '0107'"):
        write_data(read_tables(tmp_path / "sequences.txt", described), tmp_path / "out")


@pytest.mark.parametrize("empty", ["", "  "])
def test_an_empty_item_is_refused_with_its_line(tmp_path: Path, empty: str) -> None:
    shown, described = tables(tmp_path, [*NUMBERED, empty], NUMBERED)
    with pytest.raises(InputError, match=r"items\.csv, column item: line 42 is empty"):
        read_tables(shown, described)


def test_names_that_look_like_numbers_are_told_of_and_mapped(tmp_path: Path) -> None:
    names = [f"B{i:03}" for i in range(9)] + ["1593272073"]
    notes = write_data(read_tables(*tables(tmp_path, names)), tmp_path)
    assert any(
        "items are named by text (1 look like numbers" in note and "items.parquet" in note for note in notes
    )
    stored = pq.read_table(tmp_path / "items.parquet").to_pydict()
    assert dict(zip(stored["key"], stored["item_id"], strict=True)) == {k: n for n, k in enumerate(names, 1)}


def test_a_new_item_is_not_known_under_two_spellings(tiny: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.csv"
    new.write_text("item,title,code_1,code_2,code_3\n0007,seven,1,1,1\n")
    with pytest.raises(InputError, match=r"column item: line 2 is 0007 \(accepted: a whole number"):
        add_items(tiny, new)


@pytest.mark.parametrize("code", [2**31, 2**40, 10**30])
@pytest.mark.parametrize("suffix", ["csv", "json"])
def test_a_semantic_id_beyond_its_type_is_refused(tmp_path: Path, suffix: str, code: int) -> None:
    shown, described = tables(tmp_path, NUMBERED)
    prepare(tmp_path, None, shown, described)
    ids = tmp_path / f"ids.{suffix}"
    codes = {item: [n, 0] for n, item in enumerate(NUMBERED)} | {"105": [code, 0]}
    if suffix == "json":
        ids.write_text(json.dumps(codes))
    else:
        ids.write_text("item,code_1,code_2\n" + "".join(f"{i},{a},{b}\n" for i, (a, b) in codes.items()))
    with pytest.raises(InputError, match=rf"ids\.{suffix}: .*{code} is beyond 2147483647") as caught:
        tokenise(tmp_path, semantic_ids=ids)
    assert {"csv": "line 6", "json": "item '105'"}[suffix] in str(caught.value)
    assert not (tmp_path / "catalogue.parquet").exists()


@pytest.mark.parametrize(
    ("column", "value"), [("code_1", 2**40), ("item_id", 2**64 - 5), ("popularity", 2**63)]
)
def test_a_catalogue_file_does_not_wrap(tmp_path: Path, column: str, value: int) -> None:
    rows = {"item_id": [1, 2], "code_1": [0, 1], "title": ["a", "b"], "popularity": [1, 1]}
    arrays = {name: pa.array(values) for name, values in rows.items()}
    arrays[column] = pa.array(np.array([1, value], np.uint64))
    pq.write_table(pa.table(arrays), tmp_path / "catalogue.parquet")
    with pytest.raises(ArtifactError, match=rf"hold {value}, outside"):
        Catalogue.load(tmp_path / "catalogue.parquet")


@pytest.mark.parametrize(
    ("sizes", "limit"), [((0,), "sizes 1 to"), ((2**16 + 1,), "sizes 1 to 65536"), ((2**16,) * 4, "below 2")]
)
def test_codebook_sizes_are_checked(tmp_path: Path, sizes: tuple[int, ...], limit: str) -> None:
    prepare(tmp_path, None, *tables(tmp_path, NUMBERED))
    with pytest.raises(InputError, match=f"codebook_sizes: .*{limit}"):
        tokenise(tmp_path, sizes)


def test_pandas_times_with_nanoseconds_are_read(tmp_path: Path) -> None:
    stamps = np.array([3, 1, 2], "datetime64[ns]") + np.timedelta64(1_700_000_000_000_000_000, "ns")
    stamps += np.array([3000, 1000, 2000], "timedelta64[ns]")
    _, described = tables(tmp_path, NUMBERED)
    pq.write_table(
        pa.table({"user": [7] * 3, "item": [101, 102, 103], "time": stamps}), tmp_path / "i.parquet"
    )
    write_data(read_tables(tmp_path / "i.parquet", described), tmp_path)
    assert pq.read_table(tmp_path / "histories.parquet")["items"].to_pylist() == [[102, 103, 101]]


@pytest.mark.parametrize("kind", ["list", "duration", "binary"])
def test_a_column_of_a_type_without_text_is_refused(tmp_path: Path, kind: str) -> None:
    value = {"list": [[1]], "duration": np.array([1], "timedelta64[ns]"), "binary": [b"\xff"]}[kind]
    _, described = tables(tmp_path, NUMBERED)
    column = "timestamp" if kind == "duration" else "item"
    rows = {
        "user": pa.array([7]),
        "item": pa.array([101]),
        "timestamp": pa.array([1]),
        column: pa.array(value),
    }
    pq.write_table(pa.table(rows), tmp_path / "i.parquet")
    with pytest.raises(InputError, match=rf"i\.parquet, column {column}: is of type"):
        write_data(read_tables(tmp_path / "i.parquet", described), tmp_path / "out")


def test_a_column_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    shown, described = tables(tmp_path, NUMBERED)
    described.write_text("item,title,item\n101,a,102\n")
    with pytest.raises(InputError, match=r"items\.csv, column item: is there 2 times"):
        read_tables(shown, described)


def test_a_pipe_in_the_place_of_a_table_is_refused(tmp_path: Path) -> None:
    shown, described = tables(tmp_path, NUMBERED)
    shown.unlink()
    os.mkfifo(shown)
    with pytest.raises(InputError, match=r"interactions\.csv: is not a regular file"):
        write_data(read_tables(shown, described), tmp_path / "out")


def test_a_user_on_two_lines_of_sequences_is_named(tmp_path: Path) -> None:
    """Which of what is on both came first, nobody knows."""
    (tmp_path / "sequences.txt").write_text("5 101 102 103\n6 103 102 101\n5 104 105 106\n")
    described = tables(tmp_path, NUMBERED)[1]
    with pytest.raises(InputError, match=r"line 3 has the user '5' again \(accepted: a line per user\)"):
        write_data(read_tables(tmp_path / "sequences.txt", described), tmp_path / "out")


def test_a_compressed_file_is_named_and_capitals_are_a_table_too(tmp_path: Path) -> None:
    shown, described = tables(tmp_path, NUMBERED)
    packed, capitals = tmp_path / "interactions.csv.gz", tmp_path / "INTERACTIONS.CSV"
    packed.write_bytes(gzip.compress(shown.read_bytes()))
    with pytest.raises(InputError, match=r"csv\.gz: is compressed, .*\.gz\) \(accepted: .*, unpacked\)"):
        write_data(read_tables(packed, described), tmp_path / "packed")
    shown.rename(capitals)
    write_data(read_tables(capitals, described), tmp_path / "out")
