"""Files as other programs leave them: read as what they are, or refused with a reason."""

from __future__ import annotations

import bz2
import gzip
import lzma
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from genrec.errors import ArtifactError, InputError
from training.data import tables, utf8
from training.data.events import COLUMNS
from training.data.histories import Histories
from training.data.interactions import read_interactions
from training.data.sources import read_folder, read_tables
from training.data.tables import USER, read_rows, read_table, required
from training.data.tokenise import read_semantic_ids
from training.data.users import read_features
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


def written(write: Callable[[pa.Table, pa.BufferOutputStream], object]) -> bytes:
    """A table in a form of columns."""
    into = pa.BufferOutputStream()
    write(pa.table({"user": ["u", "v"], "item": ["a", "b"], "timestamp": [1, 2]}), into)
    return bytes(into.getvalue())


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b"user,item,timestamp", "is empty"),
        (b"user,item,timestamp\n\n", "is empty"),
        (gzip.compress(ROWS.encode(), mtime=0), "is compressed .gzip., as its first bytes say"),
        (b"PK\x03\x04\x14\0", "is a ZIP archive, or a workbook, as its first bytes say"),
        (bz2.compress(ROWS.encode()), "is compressed .bzip2., as its first bytes say"),
        (lzma.compress(ROWS.encode()), "is compressed .xz., as its first bytes say"),
        (b"\x93NUMPY\x01\0v\0", "is an array of NumPy's, as its first bytes say"),
        (pickle.dumps(ROWS), "is a pickle, as its first bytes say"),
        (written(pyarrow.feather.write_feather), "is Arrow, or Feather, as its first bytes say"),
        (written(pq.write_table), "is Parquet, as its first bytes say"),
        (ROWS.encode("utf-16"), "is text in UTF-16, not UTF-8, as its first bytes say"),
        (ROWS.encode() + b"   \n", "line 5 has 1 field .accepted: 4 fields: user, item"),
    ],
)
def test_what_is_no_table_says_why(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "i.csv").write_bytes(content)
    with pytest.raises(InputError, match=rf"i\.csv: {problem}"):
        read_table(tmp_path / "i.csv")


@pytest.mark.parametrize(
    ("name", "content"),
    [("i.txt", "anna a b\nben b a\n"), ("i.json", '{"anna": ["a", "b"], "ben": ["b", "a"]}')],
)
def test_a_mark_before_sequences_is_no_part_of_the_first_user(
    tmp_path: Path, name: str, content: str
) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8-sig")
    (block,) = read_interactions(tmp_path / name)
    assert block["user"].to_pylist() == ["anna", "anna", "ben", "ben"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (
            '[{"user": 1, "item": 2, "timestamp": 3}]',
            "cannot be read: it is no object with a user under every name",
        ),
        ('{"user": [', "is not readable JSON: Expecting value"),
        ('{"user": 1, "item": 2}\n{"user": 1, "item": 3}\n', "is JSON Lines, as its first line says"),
    ],
)
def test_json_that_is_no_sequences_is_told_with_what_is_taken(
    tmp_path: Path, content: str, problem: str
) -> None:
    (tmp_path / "i.json").write_text(content)
    with pytest.raises(InputError, match=rf"^{tmp_path}/i\.json: {problem}.*events as CSV, TSV or Parquet\)"):
        list(read_interactions(tmp_path / "i.json"))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ('{"u": ["a", ""]}', "the items of user 'u' are no list of names or whole numbers"),
        ('{"u": ["a", true]}', "the items of user 'u' are no list"),
        ('{"u": []}', "the items of user 'u' are no list"),
        ('{" ": ["a"]}', "a user has no name"),
    ],
)
def test_sequences_name_every_user_and_item(tmp_path: Path, content: str, problem: str) -> None:
    (tmp_path / "i.json").write_text(content)
    with pytest.raises(InputError, match=rf"i\.json: cannot be read: {problem}"):
        list(read_interactions(tmp_path / "i.json"))


@pytest.mark.parametrize(
    ("name", "content", "read", "at"),
    [
        ("i.csv", b"user,item,timestamp\nu,a,1\nu,caf\xe9,2\n", read_table, "byte 6 of line 3"),
        ("i.csv", b"us\xe9r,item,timestamp\nu,a,1\n", read_table, "byte 3 of line 1"),
        ("i.tsv", b"user\titem\ttimestamp\nu\tcaf\xe9\t2\n", read_table, "byte 6 of line 2"),
        ("i.txt", b"u a b\nv caf\xe9 c\n", lambda path: list(read_interactions(path)), "byte 6 of line 2"),
        ("i.json", b'{"u":\n["caf\xe9"]}', lambda path: list(read_interactions(path)), "byte 6 of line 2"),
        ("i.json", b'{"caf\xe9": {"title": ""}}', read_table, "byte 6 of line 1"),
        ("i.json", b'{"caf\xe9": ["<a_1>"]}', read_semantic_ids, "byte 6 of line 1"),
    ],
)  # fmt: skip
def test_text_that_is_not_utf_8_says_where(
    tmp_path: Path, name: str, content: bytes, read: Callable[[Path], Any], at: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=rf"{name}: is text .* not UTF-8: {at} is 0xe9 .*, text in UTF-8\)"):
        read(tmp_path / name)


@pytest.mark.parametrize("column", ["user", "item", "timestamp", "title"])
def test_parquet_whose_text_is_not_utf_8_says_where(
    tmp_path: Path, column: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other programs write what they have, and call it text."""
    monkeypatch.setattr(tables, "BLOCK_ROWS", 2)
    plain = pa.array(["1", "2", "3"])
    _, offsets, _ = plain.buffers()
    broken = pa.Array.from_buffers(pa.string(), 3, [None, offsets, pa.py_buffer(b"12\xe9")])
    names = ["item", "title"] if column == "title" else ["user", "item", "timestamp"]
    pq.write_table(
        pa.table({name: broken if name == column else plain for name in names}), tmp_path / "i.parquet"
    )
    says = rf"i\.parquet, column {column}: row 3 is not UTF-8 \(accepted: text in UTF-8\)"
    with pytest.raises(InputError, match=says):
        if column == "title":
            read_tables(tmp_path / "i.parquet", tmp_path / "i.parquet")
        else:
            list(read_interactions(tmp_path / "i.parquet"))


@pytest.mark.parametrize("part", [1, 2, 5, 64])
def test_where_is_the_same_however_little_is_read_at_a_time(
    tmp_path: Path, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(utf8, "PART", part)
    draw, path = random.Random(part), tmp_path / "i.csv"
    for _ in range(200):
        broken = [b"\xe9", b"\xe2\x82"] if draw.random() < 0.3 else []
        some = [b"a", b"\n", *(each.encode() for each in "é€𝄞"), *broken]
        path.write_bytes(b"".join(draw.choices(some, k=draw.randrange(20))))
        assert str(utf8.unreadable(path, "is text", "t")) == str(line_by_line(path))


def line_by_line(path: Path) -> InputError:
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        try:
            line.decode()
        except UnicodeDecodeError as error:
            at = f"byte {error.start + 1} of line {number} is 0x{line[error.start]:02x}"
            return InputError(str(path), f"is text that is not UTF-8: {at}", "t, text in UTF-8")
    return InputError(str(path), "is text", "t")


EVENTS = "accepted: a CSV, TSV or Parquet file with columns user, item, timestamp"


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("e.json", '{"u": ["a"]}', "is JSON, as its name says"),
        ("e.txt", "u a b\nv a c\n", "has no header: lines `user item item ...` are read by `genrec data --interac"),
        ("e.txt", "u\ta\tb\nv\ta\n", "has no header: lines"),
        ("e.csv.gz", "", "is compressed, as its name says"),
        ("none.csv", None, "does not exist"),
    ],
)  # fmt: skip
def test_events_say_which_files_they_take(
    tmp_path: Path, name: str, content: str | None, problem: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=rf"{name}: {problem}.*{EVENTS}"):
        read_rows(tmp_path / name, COLUMNS)


def test_a_table_may_be_called_text(tmp_path: Path) -> None:
    path = tmp_path / "e.txt"
    path.write_text("user\titem\ttimestamp\nu\ta\t1\n")
    assert read_rows(path, COLUMNS).column_names == ["user", "item", "timestamp"]
    path.write_text("user,item,timestamp\nu,a,1\n")
    with pytest.raises(
        InputError, match=r"its fields are separated by commas .accepted: .* separated by tabs"
    ):
        required(read_rows(path, COLUMNS), path, USER)


def test_users_say_which_files_they_take(tmp_path: Path) -> None:
    (tmp_path / "u.json").write_text('{"u": ["a"]}')
    with pytest.raises(InputError, match=r"u.json: is JSON.* with columns user and features\)"):
        read_features(tmp_path / "u.json", ())


def test_histories_of_which_one_is_no_list_are_refused(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"user_id": [1, 2, 3], "items": [[1, 2, 3], None, [4, 5, 6]]}), tmp_path / "h.parquet"
    )
    with pytest.raises(ArtifactError, match="every history needs 3 items or more"):
        Histories.load(tmp_path / "h.parquet")


@pytest.mark.parametrize(
    ("shown", "described", "users"),
    [
        ("shop.inter", "shop.item", "shop.user"),
        ("interactions.csv", "items.csv", "users.csv"),
        ("interactions.parquet", "items.parquet", "users.parquet"),
        ("sequences.txt", "items.tsv", None),
    ],
)
def test_of_a_folder_the_files_of_one_layout_are_read(
    tmp_path: Path, shown: str, described: str, users: str | None
) -> None:
    """What else lies there is of no layout."""
    items = pa.table({"item": ["a", "b"], "title": ["A", "B"]})
    for name in filter(None, (shown, described, users, "more.csv", "titles.parquet")):
        (tmp_path / name).write_text(
            "\n".join("\t".join(row) for row in (items.column_names, ("a", "A"), ("b", "B")))
        )
    if described.endswith(".csv"):
        (tmp_path / described).write_text("item,title\na,A\nb,B\n")
    if described.endswith(".parquet"):
        pq.write_table(items, tmp_path / described)
    found = read_folder(tmp_path)
    assert (found.interactions, found.described) == (tmp_path / shown, tmp_path / described)
    assert found.users == (tmp_path / users if users else None) and found.titles.to_pylist() == ["A", "B"]
    (tmp_path / shown).unlink()
    with pytest.raises(InputError, match="holds no known pair of files"):
        read_folder(tmp_path)


@pytest.mark.parametrize("second", ["x.part2.inter", "x2.item", "x2.user"])
def test_of_two_files_of_a_kind_none_is_left_out(tmp_path: Path, second: str) -> None:
    for name in ("x.part1.inter", "x.item", "x.user", second):
        (tmp_path / name).write_text("item\ttitle\na\tA\n")
    says = rf"has 2 of a kind: x\S*, {second} \(accepted: one file of each"
    with pytest.raises(InputError, match=says):
        read_folder(tmp_path)


def test_of_two_pairs_in_a_folder_none_is_left_out(tmp_path: Path) -> None:
    """The older of them might be read, and nothing would say so."""
    for name in ("x.inter", "x.item", "interactions.csv", "items.csv"):
        (tmp_path / name).write_text("item,title\na,A\n")
    says = r"has 2 pairs: x\.inter with x\.item; interactions\.csv with items\.csv \(accepted: one pair"
    with pytest.raises(InputError, match=says):
        read_folder(tmp_path)
