"""Reading in blocks equals reading all at once; what is bad is named and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genrec.errors import ArtifactError, InputError
from genrec.progress import ticking
from tests.training.shops import Row, many, shop
from training.data import interactions, ordering, tables
from training.data.cutting import even_blocks, first_of_duplicates, whole_users
from training.data.sources import read_tables
from training.data.writing import write_data
from training.stages import prepare

KEYS = {"names": "ab{}", "numbers": "{}", "numbers of 64 bits": "{}00000000000000000"}


def in_small_blocks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tables, "BLOCK_ROWS", 7)
    patch.setattr(tables, "BLOCK_BYTES", 40)
    patch.setattr(interactions, "BLOCK_ROWS", 5)
    patch.setattr(interactions, "SEQUENCE_LINES", 2)
    patch.setattr(ordering, "BATCH_ROWS", 3)
    patch.setattr(ordering, "BLOCK_ROWS", 4)


def slow_histories(rows: list[Row], items: list[str]) -> dict[int, tuple[str, list[int], list[int]]]:
    """All in Python: id -> (key, item ids, times)."""
    known = list(dict.fromkeys(items)) + sorted({item for _, item, _ in rows} - set(items))
    users = list(dict.fromkeys(user for user, _, _ in rows))
    ids = [
        {key: int(key) if keys[0].isdigit() else n for n, key in enumerate(keys, 1)}
        for keys in (users, known)
    ]
    found = {}
    for user in users:
        mine = sorted(dict.fromkeys(row for row in rows if row[0] == user), key=lambda row: row[2])
        if len(mine) >= 3:
            found[ids[0][user]] = (user, [ids[1][item] for _, item, _ in mine], [time for *_, time in mine])
    return dict(sorted(found.items()))


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 9), st.integers(0, 5)), min_size=1, max_size=60),
    st.sampled_from(sorted(KEYS)), st.sampled_from(sorted(KEYS)), st.sampled_from(["csv", "parquet"]),
)  # fmt: skip
def test_in_blocks_as_all_at_once(
    numbers: list[tuple[int, int, int]], user: str, item: str, suffix: str
) -> None:
    with TemporaryDirectory() as made:
        check_blocks(Path(made), numbers, user, item, suffix)


def check_blocks(
    folder: Path, numbers: list[tuple[int, int, int]], user: str, item: str, suffix: str
) -> None:
    rows = [(KEYS[user].format(u), KEYS[item].format(i), t) for u, i, t in numbers]
    items = [KEYS[item].format(i) for i in (5, 3, 1)]
    wanted = slow_histories(rows, items)
    with pytest.MonkeyPatch.context() as patch:
        in_small_blocks(patch)
        source = read_tables(*shop(folder, rows, items, suffix))
        described = any(item in items for _, item, _ in rows)
        if not wanted or not described:
            with pytest.raises(
                InputError, match="no user has 3 rows" if described else "names no item of the"
            ):
                write_data(source, folder / "out")
            assert not list((folder / "out").iterdir())
            return
        write_data(source, folder / "out")
    stored = pq.read_table(folder / "out" / "histories.parquet").to_pylist()
    found = [(row["user_id"], (row["user"], row["items"], row["times"])) for row in stored]
    assert found == list(wanted.items())
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["histories.parquet", "items.parquet"]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=30),
    st.integers(1, 9),
)
def test_whole_users_and_their_first_duplicates(rows: list[tuple[int, int, int]], size: int) -> None:
    rows.sort(key=lambda row: (row[0], row[2]))
    users, items, times = (np.array(column) for column in zip(*rows, strict=True))
    parts = [slice(start, start + size) for start in range(0, len(rows), size)]
    ratings = np.arange(len(rows)).astype(np.int8)
    columns = (users, items, times, ratings)
    blocks = list(whole_users(tuple(column[p] for column in columns) for p in parts))
    for column, whole in enumerate(columns):
        np.testing.assert_array_equal(np.concatenate([block[column] for block in blocks]), whole)
    assert sum(len(set(block[0])) for block in blocks) == len(set(users))
    longest = np.unique(users, return_counts=True)[1].max()
    assert max(len(block[0]) for block in blocks) < size + longest, "what is in memory at once"
    firsts = [row not in rows[:place] for place, row in enumerate(rows)]
    assert first_of_duplicates(users, items, times).tolist() == firsts


@pytest.mark.parametrize(
    ("column", "place", "value"),
    [(2, (0, 0), 3), (2, (0, 2), 2), (2, (1, 0), 0), (0, (1, 0), 1), (0, (0, 1), 0)],
)
def test_rows_that_are_not_sorted_are_refused(column: int, place: tuple[int, int], value: int) -> None:
    """As DuckDB gave them now and then, when it need not keep an order."""
    users, times = np.array([[1, 1, 2], [2, 3, 3]]), np.array([[1.0, 2, 1], [1, 5, 6]])
    blocks = [(users[n], users[n], times[n], users[n]) for n in (0, 1)]
    assert sum(len(block[0]) for block in whole_users(iter(blocks))) == 6
    (users, users, times)[column][place] = value
    with pytest.raises(ArtifactError, match="did not come sorted"):
        list(whole_users(iter(blocks)))


@given(st.lists(st.integers(0, 9), max_size=9), st.integers(1, 12))
def test_blocks_are_even_whatever_the_batches(sizes: list[int], rows: int) -> None:
    numbers = iter(range(99))
    batches = []
    for size in sizes:
        column = [next(numbers) for _ in range(size)]
        batches.append(pa.record_batch([pa.array(column, pa.int64())] * 4, names=["a", "b", "c", "d"]))
    with ticking("rows", sum(sizes)) as bar:
        blocks = list(even_blocks(batches, rows, bar))
    assert [len(block[0]) for block in blocks[:-1]] == [rows] * len(blocks[:-1])
    found = [each for block in blocks for each in block[1].tolist()]
    assert found == list(range(sum(sizes))) and all(len(block[0]) for block in blocks)


@pytest.mark.parametrize("left", [0, 3, 100, 0.5, 0.99])
def test_truncated_parquet_is_named_and_leaves_nothing(tmp_path: Path, left: float) -> None:
    shown, described = many(200, "parquet", tmp_path)
    content = shown.read_bytes()
    shown.write_bytes(content[: int(left if left >= 3 else left * len(content))])
    with pytest.raises(InputError, match=r"interactions\.parquet: cannot be read.*accepted: a CSV"):
        prepare(tmp_path / "out", interactions=shown, items=described)
    assert not list((tmp_path / "out").iterdir())


def test_parquet_damaged_in_the_middle_is_named(tmp_path: Path) -> None:
    shown, described = many(2000, "parquet", tmp_path)
    content = bytearray(shown.read_bytes())
    content[100 : len(content) // 2] = bytes(len(content) // 2 - 100)
    shown.write_bytes(content)
    with pytest.raises(InputError, match=r"interactions\.parquet: cannot be read"):
        prepare(tmp_path / "out", interactions=shown, items=described)
    assert not list((tmp_path / "out").iterdir())


def test_mixed_types_are_named_by_their_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_small_blocks(monkeypatch)
    shown, described = many(50, "csv", tmp_path)
    lines = shown.read_text().splitlines()
    for place, bad, problem in (
        (300, "7,9,yesterday", r"column time: line 301 is 'yesterday' \(accepted: epoch numbers"),
        (200, "x7,9,12", r"line 201 has the user 'x7', where 49 of 50 users are whole numbers"),
        (100, "7,nine,12", r"line 101 has the item 'nine', where 40 of 41 items are whole"),
        (90, "7,,12", r"column item: line 91 is empty \(accepted: a value"),
        (80, "7,9", r"line 81 has 2 fields \(accepted: 3 fields"),
    ):
        shown.write_text("\n".join([*lines[:place], bad, *lines[place + 1 :]]) + "\n")
        with pytest.raises(InputError, match=rf"interactions\.csv.*{problem}"):
            prepare(tmp_path / "out", interactions=shown, items=described)
        assert not list((tmp_path / "out").iterdir())


def test_a_tenth_of_rows_twice_is_told_and_changes_nothing(tmp_path: Path) -> None:
    shown, described = many(300, "csv", tmp_path)
    prepare(tmp_path / "once", interactions=shown, items=described)
    head, *rows = shown.read_text().splitlines()
    distinct = list(dict.fromkeys(rows))
    again = [*rows, *rows[::10]]
    shown.write_text("\n".join([head, *again]) + "\n")
    notes = prepare(tmp_path / "twice", interactions=shown, items=described)
    assert f"{len(again) - len(distinct)} duplicated rows (same user, item and timestamp) dropped" in notes
    once, twice = (pq.read_table(tmp_path / name / "histories.parquet") for name in ("once", "twice"))
    assert once.equals(twice)


def test_a_folder_may_be_called_as_a_pattern(tmp_path: Path) -> None:
    """What was read lies in the artifact's folder, and DuckDB would take its name for a pattern."""
    shown, described = many(9, "csv", tmp_path)
    (tmp_path / "a1b").mkdir()
    for name in ("a[1]*'b", "plain"):
        prepare(tmp_path / name, interactions=shown, items=described)
    histories = [(tmp_path / name / "histories.parquet").read_bytes() for name in ("a[1]*'b", "plain")]
    assert histories[0] == histories[1]


def test_two_sources_are_one_too_many(tmp_path: Path) -> None:
    shown, described = many(9, "csv", tmp_path)
    with pytest.raises(InputError, match="interactions: is given beside --source ml-100k"):
        prepare(tmp_path / "out", "ml-100k", shown, described)
    assert not (tmp_path / "out").exists()
