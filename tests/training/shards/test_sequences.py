"""Reading sequences from Parquet shards, and taking them up again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from genrec.errors import ArtifactError, InputError
from training.shards import sequences
from training.shards.sequences import Sequences, read_shards

COLUMNS = ("user", "items")


def write_shards(folder: Path, sizes: list[int]) -> list[Path]:
    """Users are numbered through; user u has items [u, u, ...], u % 7 of them."""
    paths, first = [], 0
    for number, size in enumerate(sizes):
        users = list(range(first, first + size))
        table = pa.table(
            {"user": users, "items": pa.array([[u] * (u % 7) for u in users], pa.list_(pa.int64()))}
        )
        paths.append(folder / f"{number}.parquet")
        pq.write_table(table, paths[-1], row_group_size=8)
        first += size
    return paths


def users_of(chunks) -> list[int]:
    return [int(user) for chunk in chunks for user in chunk.sequences.columns["user"].values]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_rank_reads_its_shards_in_order(
    tmp_path: Path, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequences, "CHUNK_ROWS", 3)
    paths = write_shards(tmp_path, [20, 5, 0, 13])
    chunks = [list(read_shards(paths, COLUMNS, rank, ranks)) for rank in range(ranks)]
    assert sorted(user for each in chunks for user in users_of(each)) == list(range(38))
    for each in (chunk for of in chunks for chunk in of):
        items, users = each.sequences.columns["items"], each.sequences.columns["user"].values
        for i, user in enumerate(users.tolist()):
            assert items.values[items.offsets[i] : items.offsets[i + 1]].tolist() == [user] * (user % 7)


def test_reading_goes_on_where_it_ended_at_another_number_of_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, position = write_shards(tmp_path, [20, 9]), {"0.parquet": 11, "1.parquet": 9}
    rest = [users_of(read_shards(paths, COLUMNS, rank, 3, position)) for rank in range(3)]
    assert rest == [list(range(11, 20)), [], []]
    monkeypatch.setattr(sequences, "CHUNK_ROWS", 3)  # of the group in which row 14 is, the first two are done
    chunks = list(read_shards(paths, COLUMNS, 0, 1, {"0.parquet": 14, "1.parquet": 9}))
    assert [(each.first, each.sequences.count) for each in chunks] == [(14, 2), (16, 3), (19, 1)]


def test_taking_and_joining() -> None:
    first = Sequences({"a": sequences.Ragged(np.array([1, 2, 3]), np.array([0, 0, 2, 3]))})
    picked = first.take(np.array([2, 1, 0, 1]))
    assert picked.columns["a"].values.tolist() == [3, 1, 2, 1, 2] and picked.lengths("a").tolist() == [
        1,
        2,
        0,
        2,
    ]
    both = Sequences.join([picked, Sequences.none(["a"]), first])
    assert both.count == 7 and both.columns["a"].values.tolist() == [3, 1, 2, 1, 2, 1, 2, 3]


def test_a_shard_that_is_damaged_is_named(tmp_path: Path) -> None:
    (path,) = write_shards(tmp_path, [50])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ArtifactError, match=r"0\.parquet: is no whole Parquet file"):
        list(read_shards([path], COLUMNS))
    path.unlink()
    with pytest.raises(ArtifactError, match=r"0\.parquet: cannot be read"):
        list(read_shards([path], COLUMNS))


@pytest.mark.parametrize(
    ("column", "says"),
    [
        (pa.array([1.5, 2.5]), "column 'items' is of type double"),
        (pa.array([[1], [None]]), "column 'items' has nulls"),
        (pa.array([[1], None]), "column 'items' has nulls"),
        (pa.array([["a"], ["b"]]), "column 'items' is of type list"),
        (
            pa.array([[1], [2**63]], pa.list_(pa.uint64())),
            "x.parquet: column 'items': Integer value 92.* not in range",
        ),
    ],
)
def test_a_column_of_another_kind_is_refused(tmp_path: Path, column: pa.Array, says: str) -> None:
    pq.write_table(pa.table({"user": [1, 2], "items": column}), tmp_path / "x.parquet")
    with pytest.raises(ArtifactError, match=says):
        list(read_shards([tmp_path / "x.parquet"], COLUMNS))
    with pytest.raises(ArtifactError, match="has no column 'rating', only user, items"):
        list(read_shards([tmp_path / "x.parquet"], ["rating"]))


def test_shards_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has a twice"):
        list(read_shards([tmp_path / "c", tmp_path / "a", tmp_path / "b" / "a"], COLUMNS))
