"""Files as other programs leave them: read as what they are, or refused with a reason."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from genrec.errors import InputError
from training.data.tables import read_table
from training.stages import prepare

ROWS = "user,item,rating,timestamp\nu,a,5,1\nu,b,4,2\nu,c,3,3\n"


def prepared(path: Path) -> list[dict[str, object]]:
    items = path.parent / "titles.csv"
    items.write_text("item,title\na,A\nb,B\nc,C\n")
    prepare(path.parent / "artifact", interactions=path, items=items)
    found: list[dict[str, object]] = pq.read_table(path.parent / "artifact" / "histories.parquet").to_pylist()
    return found


@pytest.mark.parametrize(
    "text",
    [
        ROWS.encode("utf-8-sig"),
        ROWS.replace("\n", "\r\n").encode("utf-8-sig"),
        b'"' + ROWS.replace(",", '","').replace("\n", '"\r\n"').encode()[:-1],
        ROWS.replace("\n", ",\n").encode(),
    ],
)
@pytest.mark.parametrize("name", ["i.csv", "I.CSV"])
def test_marks_of_editors_and_names_in_capitals_change_nothing(
    tmp_path: Path, text: bytes, name: str
) -> None:
    (tmp_path / name).write_bytes(text)
    assert prepared(tmp_path / name) == [
        {"user_id": 1, "items": [1, 2, 3], "user": "u", "times": [1, 2, 3], "ratings": [5, 4, 3]}
    ]


def test_a_name_in_capitals_says_what_parquet_is(tmp_path: Path) -> None:
    (tmp_path / "i.csv").write_text(ROWS)
    pq.write_table(read_table(tmp_path / "i.csv"), tmp_path / "I.Parquet")
    assert prepared(tmp_path / "I.Parquet")[0]["ratings"] == [5, 4, 3]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b"user,item,timestamp", "is empty"),
        (b"user,item,timestamp\n\n", "is empty"),
        (gzip.compress(ROWS.encode(), mtime=0), "is compressed .gzip., as its first bytes say"),
        (b"PK\x03\x04\x14\0", "is a ZIP archive, or a workbook, as its first bytes say"),
        (ROWS.encode("utf-16"), "is text in UTF-16, not UTF-8, as its first bytes say"),
        (ROWS.encode() + b"   \n", "line 5 has 1 field .accepted: 4 fields: user, item"),
    ],
)
def test_what_is_no_table_says_why(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "i.csv").write_bytes(content)
    with pytest.raises(InputError, match=rf"i\.csv: {problem}"):
        read_table(tmp_path / "i.csv")
