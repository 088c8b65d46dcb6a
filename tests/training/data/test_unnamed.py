"""What pandas and others write: numbers of rows in columns without a name, NaN where there is nothing, UUIDs."""

from __future__ import annotations

import math
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from genrec.errors import InputError
from tests.training.hstu.test_ratings import ROWS, USERS, made
from training.data.tables import ITEM, read_table, text
from training.data.users import read_features
from training.stages import prepare


def numbered(text: str, name: str) -> str:
    """With a first column, the number of the row."""
    head, *rows = text.splitlines()
    return f"{name},{head}\n" + "".join(f"{n},{row}\n" for n, row in enumerate(rows))


@pytest.mark.parametrize("name", ["", "Unnamed: 0", ",Unnamed: 12"])
def test_numbers_of_rows_are_no_feature(tmp_path: Path, name: str) -> None:
    users = numbered(USERS, name).replace("\n", "\n," if "," in name else "\n").rstrip(",")
    artifact, notes = made(tmp_path, users=users)
    assert pq.read_schema(artifact / "users.parquet").names == ["user_id", "city", "age"]
    assert "columns of users.csv without a name are not kept: they number rows" in notes
    assert not any("without a name" in note for note in made(tmp_path)[1])


def test_an_index_of_a_frame_is_none_either(tmp_path: Path) -> None:
    columns = {"user": ["u1", "u2"], "city": ["Ulm", None], "__index_level_0__": [5, 7]}
    pq.write_table(pa.table(columns), tmp_path / "u.parquet")
    assert list(read_features(tmp_path / "u.parquet", ())[1]) == ["city"]


def test_of_interactions_it_is_not_read_and_told(tmp_path: Path) -> None:
    rows = ROWS.replace("rating", "liked")
    (tmp_path / "i.csv").write_text(numbered(rows, ""))
    (tmp_path / "t.csv").write_text("item,title\na,A\nb,B\nc,C\n")
    notes = prepare(tmp_path / "artifact", interactions=tmp_path / "i.csv", items=tmp_path / "t.csv")
    assert "columns of i.csv that are not read: one without a name, liked" in notes
    pq.write_table(read_table(tmp_path / "i.csv"), tmp_path / "i.parquet")
    assert notes == [
        note.replace("i.parquet", "i.csv")
        for note in prepare(tmp_path / "again", interactions=tmp_path / "i.parquet", items=tmp_path / "t.csv")
    ]


def test_a_gap_of_pandas_is_no_key(tmp_path: Path) -> None:
    """A column of whole numbers with gaps is one of floats there, and a gap is NaN."""
    keys = pa.array([3.0, math.nan], from_pandas=False)
    pq.write_table(pa.table({"item": keys, "title": ["A", "B"]}), tmp_path / "t.parquet")
    (tmp_path / "i.csv").write_text("user,item,timestamp\na,3,1\na,3,2\n")
    with pytest.raises(InputError, match=r"t\.parquet, column item: row 2 is empty"):
        prepare(tmp_path / "artifact", interactions=tmp_path / "i.csv", items=tmp_path / "t.parquet")


@pytest.mark.parametrize("key", ["{}.0", " {}", "0{}"])
def test_items_that_are_spelled_in_another_way_are_refused(tmp_path: Path, key: str) -> None:
    """As in CSV from a column with a gap, with spaces behind commas, or filled up: each item would be there twice."""
    rows = "".join(f"1,{key.format(item)},{item}\n" for item in (10, 11, 12))
    (tmp_path / "i.csv").write_text(f"user,item,timestamp\n{rows}")
    (tmp_path / "t.csv").write_text("item,title\n10,A\n11,B\n12,C\n")
    says = rf"t\.csv: names no item of the interactions: its first is '10', theirs '{key.format(10)}'"
    with pytest.raises(InputError, match=says):
        prepare(tmp_path / "artifact", interactions=tmp_path / "i.csv", items=tmp_path / "t.csv")
    assert not list((tmp_path / "artifact").iterdir())


def test_a_long_number_is_spelled_as_one_also_where_it_is_a_float() -> None:
    """As a barcode is in a column that had a gap: else an item of interactions is none of the file of items."""
    values = [
        4006381333931.0,
        -76561198000000000.0,
        2.0**53 - 1,
        12.0,
        -0.0,
        0.5,
        1e17,
        math.inf,
        math.nan,
        None,
    ]
    table = pa.table({"item": pa.array(values, pa.float64(), from_pandas=False)})
    whole = ["4006381333931", "-7.6561198e+16", "9007199254740991", "12", "0"]
    assert text(table, Path("x.parquet"), ITEM).to_pylist() == [*whole, "0.5", "1e+17", "inf", "", ""]
    for narrow in (pa.float32(), pa.float16()):
        table = pa.table({"item": pa.array([1024.0, 1.5, math.nan], narrow, from_pandas=False)})
        assert text(table, Path("x.parquet"), ITEM).to_pylist() == ["1024", "1.5", ""]


def test_a_uuid_is_spelled_as_people_write_it(tmp_path: Path) -> None:
    """DuckDB and others keep UUIDs in Parquet as 16 bytes of a type of their own."""
    spelled = ["00000000-0000-0000-0000-00000000002a", "c9bf9e57-1685-4c89-bafb-ff5af830be8a", ""]
    values = pa.array([uuid.UUID(each).bytes if each else None for each in spelled], pa.binary(16))
    uuids = pa.ExtensionArray.from_storage(pa.uuid(), values)
    pq.write_table(pa.table({"item": uuids}), tmp_path / "t.parquet")
    assert text(read_table(tmp_path / "t.parquet"), tmp_path / "t.parquet", ITEM).to_pylist() == spelled
