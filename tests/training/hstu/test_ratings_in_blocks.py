"""Ratings read in blocks of users, and mapped from files, are those of a slow twin that holds all in Python."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genrec.catalogue.items import Catalogue
from genrec.errors import ArtifactError
from training.data import histories
from training.data.histories import history_table
from training.hstu import ratings as of_ratings
from training.hstu.ratings import Ratings, load_ratings

ITEMS = 6
Row = tuple[int, int, int, int]  # user, item, rating, second
rows = st.tuples(st.integers(0, 7), st.integers(0, ITEMS - 1), st.integers(1, 5), st.integers(0, 4))


def write(folder: Path, stored: list[Row], files: list[list[Row]]) -> list[Path]:
    """An artifact's histories and items, of users u0, u1, ... under ids from 500 on; and files beside it."""
    users = sorted({user for user, *_ in stored})
    mine = [sorted((row for row in stored if row[0] == user), key=lambda row: row[3]) for user in users]
    flat = np.array([row for each in mine for row in each])
    table = history_table(
        np.array(users) + 500, flat[:, 1] + 100, np.array([len(each) for each in mine]),
        pa.array([f"u{user}" for user in users]), flat[:, 3], flat[:, 2],
    )  # fmt: skip
    pq.write_table(table, folder / "histories.parquet", row_group_size=2)
    keys = [f"i{item}" for item in range(ITEMS)]
    pq.write_table(pa.table({"item_id": np.arange(ITEMS) + 100, "key": keys}), folder / "items.parquet")
    paths = [folder / f"{number}.csv" for number in range(len(files))]
    for path, events in zip(paths, files, strict=True):
        lines = [f"u{user},i{item},{rating},{second}\n" for user, item, rating, second in events]
        path.write_text("user,item,rating,timestamp\n" + "".join(lines))
    return paths


def twin(stored: list[Row], files: list[list[Row]]) -> list[list[tuple[int, int, int, int]]]:
    """Of every user his events: item, rating, second, and where it was read."""
    highest, found = max(rating for _, _, rating, _ in stored), {user: [] for user, *_ in sorted(stored)}
    for number, events in enumerate([stored, *files]):
        for user, item, rating, second in events:
            of_user = found.setdefault(user, [])
            if (item, second) not in [(each[0], each[2]) for each in of_user]:
                of_user.append((item, rating, second, number))
            assert rating <= highest
    return [sorted(events, key=lambda event: event[2:]) for events in found.values()]


def events_of(ratings: Ratings) -> list[list[tuple[int, int, int, int]]]:
    file = ratings.file if len(ratings.file) else np.zeros(len(ratings.items), np.int64)
    columns = np.stack((ratings.items, ratings.ratings, ratings.times, file), 1)
    return [list(map(tuple, each.tolist())) for each in np.split(columns, ratings.offsets[1:-1])]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(rows, min_size=1, max_size=30),
    st.lists(st.lists(rows, min_size=1, max_size=12), max_size=2),
    st.data(),
)
def test_in_blocks_as_all_at_once(stored: list[Row], files: list[list[Row]], data: st.DataObject) -> None:
    highest = max(rating for _, _, rating, _ in stored)
    files = [[(user, item, min(rating, highest), at) for user, item, rating, at in each] for each in files]
    catalogue = Catalogue(
        np.arange(ITEMS) + 100, np.arange(ITEMS, dtype=np.int32)[:, None], [""] * ITEMS, np.ones(ITEMS, np.int64), (8,)
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        patch.setattr(of_ratings, "BATCH_USERS", data.draw(st.integers(1, 4)))
        patch.setattr(histories, "IN_MEMORY", in_memory := data.draw(st.sampled_from((0, 1000))))
        paths = write(Path(folder), stored, files)
        found = load_ratings(Path(folder), catalogue, paths)
        assert events_of(found) == twin(stored, files)
        mapped = [isinstance(each, np.memmap) for each in (found.items, found.ratings, found.times)]
        assert mapped == [in_memory == 0] * 3
        assert found.levels == highest and len(found.features) == len(found)
        known = {user for user, *_ in stored}
        new = {user for each in files for user, *_ in each} - known
        assert (found.came.new, found.came.known) == (
            len(new),
            len({u for f in files for u, *_ in f} & known),
        )


def test_what_is_no_histories_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "histories.parquet"
    write(tmp_path, [(0, 1, 2, 3), (0, 2, 3, 4)], [])
    table = pq.read_table(path)
    short = pa.array([[3]], pa.list_(pa.int8()))
    pq.write_table(table.set_column(table.column_names.index("ratings"), "ratings", short), path)
    catalogue = Catalogue(
        np.arange(ITEMS) + 100, np.zeros((ITEMS, 1), np.int32), [""] * ITEMS, np.ones(ITEMS), (8,)
    )
    with pytest.raises(
        ArtifactError, match=r"histories\.parquet: not a readable histories file: not every item has"
    ):
        load_ratings(tmp_path, catalogue)
